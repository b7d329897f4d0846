package org.leaderelection.spring;

import java.util.Collection;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.leaderelection.Elector;
import org.leaderelection.LeaderElection;
import org.leaderelection.Term;
import org.springframework.context.SmartLifecycle;

/**
 * The elections of this application's {@link LeaderOnly} methods, while it runs. {@link #term} and
 * {@link #electors} can be called from any thread.
 */
public final class LeaderElections implements SmartLifecycle {
  private final Map<String, Candidate> candidates = new ConcurrentHashMap<>();
  private final Function<String, LeaderElection> elections;
  private final Set<String> names;
  private boolean running;

  LeaderElections(Set<String> names, Function<String, LeaderElection> elections) {
    this.names = names;
    this.elections = elections;
  }

  /**
   * Returns the term in which this thread runs a {@link LeaderOnly} method, such as to guard its
   * transaction.
   *
   * @return the term
   * @throws IllegalStateException if this thread runs none
   */
  public Term term() {
    return Optional.ofNullable(Candidate.CURRENT.get())
        .orElseThrow(() -> new IllegalStateException("this thread runs no @LeaderOnly method"));
  }

  /**
   * Returns the electors by the names of their elections.
   *
   * @return the electors
   */
  public Map<String, Elector> electors() {
    names.forEach(this::candidate);
    return candidates.entrySet().stream()
        .collect(Collectors.toMap(Map.Entry::getKey, each -> each.getValue().elector));
  }

  synchronized Candidate candidate(String name) {
    Candidate candidate = candidates.get(name);
    if (candidate == null) {
      candidate = new Candidate(name, elections.apply(name));
      candidates.put(name, candidate);
      if (running) candidate.start();
    }
    return candidate;
  }

  @Override
  public synchronized void start() {
    if (running) return;
    names.forEach(this::candidate);
    running = true;
    candidates.values().forEach(Candidate::start);
  }

  /** Stops all elections at the same time, beside the caller, so that Spring can give up. */
  @Override
  public void stop(Runnable callback) {
    Executor threads = task -> new Thread(task, "leader-election stop").start();
    CompletableFuture<?>[] closed =
        end().stream()
            .map(candidate -> CompletableFuture.runAsync(candidate.elector::close, threads))
            .toArray(CompletableFuture[]::new);
    CompletableFuture.allOf(closed).whenComplete((done, error) -> callback.run());
  }

  @Override
  public void stop() {
    if (!isRunning()) return; // Spring destroys the bean after the end of its life
    end().forEach(candidate -> candidate.elector.stop());
    candidates.values().forEach(candidate -> candidate.elector.close());
  }

  /** Lets no more begin; returns those that have. */
  private synchronized Collection<Candidate> end() {
    running = false;
    return candidates.values();
  }

  @Override
  public synchronized boolean isRunning() {
    return running;
  }
}
