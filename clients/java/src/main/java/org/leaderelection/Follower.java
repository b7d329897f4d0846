package org.leaderelection;

import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.function.Supplier;

/** Follows an election, on a thread of its own, until it is closed. */
public final class Follower implements AutoCloseable {
  private static final long FIRST_ANSWER = 5; // seconds
  private static final long ROUND = 30 + FIRST_ANSWER;

  private final String election;
  private final Supplier<JdbcLink> open;
  private final Consumer<? super Optional<Leader>> listener;
  private final Consumer<? super Exception> onError;
  private final Thread thread;
  private volatile boolean closed;
  private Optional<Leader> told; // null: nothing yet

  Follower(
      String election,
      Supplier<JdbcLink> open,
      Consumer<? super Optional<Leader>> listener,
      Consumer<? super Exception> onError) {
    this.election = election;
    this.open = open;
    this.listener = listener;
    this.onError = onError;
    this.thread = JdbcWorld.daemon("leader-election follower " + election, this::run);
    thread.start();
  }

  private void run() {
    int errors = 0;
    while (!closed) {
      JdbcLink link = open.get();
      CompletableFuture<JdbcLink.Observation> answer = null;
      try {
        JdbcLink.Observation seen = null;
        while (!closed) {
          long patience = seen == null ? FIRST_ANSWER : ROUND;
          answer = link.observe(election, seen);
          seen = answer.get(patience, TimeUnit.SECONDS);
          errors = 0;
          tell(seen.leader());
        }
      } catch (InterruptedException e) {
        link.cancel();
        answer.exceptionally(error -> null).completeOnTimeout(null, 1, TimeUnit.SECONDS).join();
      } catch (ExecutionException | TimeoutException e) {
        report(Elector.failure(answer));
        errors++;
      }
      closeAndPause(link, errors);
    }
  }

  private void tell(Optional<Leader> leader) {
    if (!leader.equals(told)) {
      told = leader;
      try {
        listener.accept(leader);
      } catch (RuntimeException e) {
        report(e);
      }
    }
  }

  private void report(Exception error) {
    if (!closed) {
      try {
        onError.accept(error);
      } catch (RuntimeException e) {
        Elector.log(election, e);
      }
    }
  }

  private void closeAndPause(JdbcLink link, int errors) {
    try {
      link.close();
      if (!closed) {
        double factor = 0.5 + ThreadLocalRandom.current().nextDouble() / 2;
        TimeUnit.NANOSECONDS.sleep((long) (Elector.pauseAfter(errors) * factor));
      }
      link.join(TimeUnit.SECONDS.toNanos(FIRST_ANSWER));
    } catch (InterruptedException e) {
      // closed
    }
  }

  /** Ends following. No call of the listener begins after this has returned. */
  @Override
  public void close() {
    closed = true;
    thread.interrupt();
    if (Thread.currentThread() != thread) {
      try {
        thread.join();
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
      }
    }
  }
}
