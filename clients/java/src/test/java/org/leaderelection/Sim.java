package org.leaderelection;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.PriorityQueue;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import java.util.function.Function;

/**
 * A simulated clock, server and job. All runs on the thread of the test: while the elector waits,
 * the events that are planned for the time are run, and the clock jumps from one to the next.
 */
class Sim implements World {
  static final Object SILENCE = new Object();
  private static final double LATENCY = 0.01;

  private record Event(long time, int order, Runnable action) {}

  /** What the elector, its server and its job have done, and when, in seconds. */
  record Entry(double time, String what) {
    @Override
    public String toString() {
      return String.format(Locale.ROOT, "%.2f %s", time, what);
    }
  }

  /** A question that the elector has sent. */
  record Asked(String what, Bid bid, SimLink link) {}

  private final PriorityQueue<Event> events =
      new PriorityQueue<>(Comparator.comparingLong(Event::time).thenComparingInt(Event::order));
  private int order;
  private long now = seconds(1000);
  private long tokens = 100;
  private CompletableFuture<Void> running;
  private boolean awake;

  final List<Entry> log = new ArrayList<>();
  final List<SimLink> links = new ArrayList<>();
  final List<Exception> errors = new ArrayList<>();
  final List<Term> terms = new ArrayList<>();

  /**
   * What the server answers: an answer, an exception, or SILENCE; null: what a good server says.
   */
  Function<Asked, Object> server = asked -> null;

  /** What the job does when it is interrupted: returns. */
  Consumer<Sim> interruption = sim -> sim.endJob(null);

  double random = 0.5;
  int missedCancels;
  Elector elector;

  static long seconds(double time) {
    return Math.round(time * 1e9);
  }

  Elector.Builder builder() {
    return Elector.builder(new NoDataSource(), "billing", this::job)
        .identity("me")
        .onElected(term -> note("elected " + term.token()))
        .onOusted((term, reason) -> note("ousted " + reason))
        .onError(
            error -> {
              note("error");
              errors.add(error);
            });
  }

  private void job(Term term) {
    note("job " + term.election());
    terms.add(term);
  }

  /** Runs the elector until it is stopped, at this time. */
  Sim run(Elector.Builder builder, double until) {
    elector = builder.build(options -> this);
    at(until, () -> elector.stop());
    elector.run();
    note("returned");
    return this;
  }

  double time() {
    return (now - seconds(1000)) / 1e9;
  }

  void at(double time, Runnable action) {
    events.add(new Event(seconds(1000 + time), order++, action));
  }

  void in(double time, Runnable action) {
    events.add(new Event(now + seconds(time), order++, action));
  }

  void note(String what) {
    log.add(new Entry(time(), what));
  }

  Term term() {
    return terms.get(terms.size() - 1);
  }

  void endJob(Throwable failure) {
    CompletableFuture<Void> job = running;
    if (!job.isDone()) {
      note("job ends");
      if (failure == null) {
        job.complete(null);
      } else {
        job.completeExceptionally(failure);
      }
    }
  }

  /** Lets the job call heartbeat that often. */
  void beat(double every, double until) {
    at(
        time() + every,
        () -> {
          if (!terms.isEmpty()) {
            term().heartbeat();
          }
          if (time() < until) {
            beat(every, until);
          }
        });
  }

  List<Double> times(String what) {
    return log.stream().filter(e -> e.what().startsWith(what)).map(Entry::time).toList();
  }

  double time(String what) {
    List<Double> times = times(what);
    if (times.isEmpty()) {
      throw new AssertionError("no " + what + " in " + log);
    }
    return times.get(0);
  }

  int count(String what) {
    return times(what).size();
  }

  @Override
  public long now() {
    return now;
  }

  @Override
  public double random() {
    return random;
  }

  @Override
  public boolean await(long until) {
    if (awake) {
      awake = false;
      return true;
    }
    if (events.isEmpty() && until == Long.MAX_VALUE) {
      throw new AssertionError("waits forever: " + log);
    }
    if (log.size() > 10_000) {
      throw new AssertionError("too much: " + log.subList(0, 50));
    }
    if (!events.isEmpty() && events.peek().time() <= until) {
      Event next = events.poll();
      now = Math.max(now, next.time());
      next.action().run();
    } else {
      now = Math.max(now, until);
    }
    awake = false;
    return true;
  }

  @Override
  public void wake() {
    awake = true;
  }

  @Override
  public Link open() {
    SimLink link = new SimLink(links.size());
    links.add(link);
    return link;
  }

  @Override
  public Running start(Body job) {
    if (running != null && !running.isDone()) {
      throw new AssertionError("two jobs");
    }
    running = new CompletableFuture<>();
    try {
      job.run();
    } catch (Exception e) {
      running.completeExceptionally(e);
    }
    return new Running(
        running,
        () -> {
          note("interrupt");
          interruption.accept(this);
        });
  }

  @Override
  public CompletableFuture<Void> call(Runnable callback) {
    callback.run();
    return CompletableFuture.completedFuture(null);
  }

  @Override
  public boolean inside() {
    return false;
  }

  @Override
  public void close() {
    note("closed");
  }

  /** A link to the simulated server. */
  final class SimLink implements Link {
    final int number;
    boolean open = true;
    CompletableFuture<Void> watch;
    private CompletableFuture<?> asked;

    SimLink(int number) {
      this.number = number;
    }

    private <T> CompletableFuture<T> ask(String what, Bid bid, T good, Class<T> type) {
      if (watch != null && !watch.isDone()) {
        watch.complete(null);
      }
      note(what);
      CompletableFuture<T> future = new CompletableFuture<>();
      asked = future;
      Object planned = server.apply(new Asked(what, bid, this));
      Object answer = planned == null ? good : planned;
      if (answer != SILENCE) {
        in(
            LATENCY,
            () -> {
              if (answer instanceof Exception error) {
                future.completeExceptionally(error);
              } else {
                future.complete(answer == NULL ? null : type.cast(answer));
              }
            });
      }
      return future;
    }

    /** Ends the connection, as a server does. */
    void end() {
      if (watch != null) {
        watch.completeExceptionally(new java.sql.SQLException("the connection has ended", "57P01"));
      }
    }

    @Override
    public CompletableFuture<Integer> backend() {
      return ask("backend", null, 7000 + number, Integer.class);
    }

    @Override
    public CompletableFuture<Bid> bid(Bid last) {
      String what = "bid" + (last == null ? "" : " " + last.token());
      return ask(what, last, new Bid(++tokens, "billing"), Bid.class);
    }

    @Override
    public CompletableFuture<Confirmation> confirm(Bid bid, boolean heartbeat) {
      String what = heartbeat ? "heartbeat" : "confirm";
      int backend = elector.session() ? 7000 + number : 0;
      return ask(
          what + " " + bid.election(), bid, new Confirmation(true, backend), Confirmation.class);
    }

    @Override
    public CompletableFuture<Void> watch() {
      watch = new CompletableFuture<>();
      return watch;
    }

    @Override
    public CompletableFuture<Boolean> resign(Bid bid) {
      return ask("resign " + bid.election(), bid, true, Boolean.class);
    }

    @Override
    public CompletableFuture<Boolean> expel(Bid bid) {
      return ask("expel", bid, true, Boolean.class);
    }

    @Override
    public void cancel() {
      note("cancel");
      if (missedCancels-- > 0) {
        return;
      }
      asked.completeExceptionally(new java.sql.SQLException("canceled", "57014"));
    }

    @Override
    public void close() {
      note("close");
      open = false;
    }
  }

  /** The answer NULL. */
  static final Object NULL = new Object();
}
