package org.leaderelection;

import java.lang.System.Logger.Level;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.jspecify.annotations.Nullable;

/**
 * Drives a state machine: a queue of what has happened, a timer, and a connection. All else happens
 * beside it, on other threads, and puts its result into the queue.
 */
abstract class Run extends World implements AutoCloseable {
  private static final Runnable IDLE = () -> {};
  private static final String DIAGNOSE =
      """
      SELECT (SELECT nspname::text FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = pronamespace
              WHERE proname = 'le_version' ORDER BY p.oid LIMIT 1), current_database()""";
  private static final String EXPEL =
      "SELECT pg_terminate_backend(pid) FROM le_leaders WHERE identity = ?::text AND name = ";
  private static final String MISSING =
      "leader_election is not installed in database \"%s\": "
          + "run CREATE EXTENSION leader_election, or install the SQL edition";
  private static final String ELSEWHERE =
      "leader_election is in schema \"%s\": "
          + "set the option schema to it, or add it to search_path";

  final Way way;
  final BlockingQueue<Runnable> events = new LinkedBlockingQueue<>();
  private final ExecutorService callbacks;
  private final AtomicBoolean started = new AtomicBoolean();
  private final CountDownLatch returned = new CountDownLatch(1);
  private volatile boolean ended;
  private @Nullable LeaderElectionException result;
  private @Nullable Jdbc link;
  volatile @Nullable Thread working; // on the job, or a callback of a term
  Machine machine;

  Run(Way way) {
    this.way = way;
    callbacks = Jdbc.worker("callbacks " + way.options.election);
  }

  /** Drives the state machine to its end; returns the error that is its result, or null. */
  final @Nullable LeaderElectionException drive(Runnable begin) {
    if (!started.compareAndSet(false, true)) throw new IllegalStateException("it has run before");
    boolean interrupted = false;
    try {
      stepToEnd();
      if (!ended) machine.step(clock(), begin); // else it was stopped before
      while (!ended) {
        try {
          // timers stand still while the machine is suspended, and the clock does not
          double wait = Math.min(1, machine.wakeup() - clock());
          Runnable event = events.poll((long) (wait * 1e9), TimeUnit.NANOSECONDS);
          if (event == null) look();
          machine.step(clock(), event == null ? IDLE : event);
        } catch (InterruptedException e) {
          interrupted = true;
          stop();
        }
      }
      stepToEnd();
      if (result != null) result = explained(way, result);
      callbacks.invokeAll(List.of(Executors.callable(IDLE)), 1, TimeUnit.SECONDS);
    } catch (InterruptedException e) {
      interrupted = true;
    } finally {
      ended = true; // also by an error of this library, or of the JVM
      returned.countDown(); // first, as what follows can fail, too
      machine.abandon();
    }
    if (interrupted) Thread.currentThread().interrupt();
    return result;
  }

  /** Asks {@code run} to return. Does not wait, and may be called from any thread. */
  public void stop() {
    post(() -> machine.stop());
  }

  /**
   * Stops, and waits until {@code run} has returned, for the stop timeout and 5 s more at most, or
   * until this thread is interrupted. Does not wait if the job, or a callback of its election or of
   * the end of its term, calls this.
   */
  @Override
  public void close() {
    stop();
    try {
      // a shutdown hook can call this, while the job waits for that hook in System.exit
      if (started.get() && Thread.currentThread() != working) {
        returned.await((long) way.stopTimeout + 5, TimeUnit.SECONDS);
      }
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }

  /**
   * Returns how many errors were reported.
   *
   * @return the number of errors
   */
  public int errors() {
    return machine.errors;
  }

  @Override
  final void post(Runnable event) {
    events.add(event);
    if (ended) stepToEnd();
  }

  /** Looks each second whether something has ended without a word. */
  void look() {}

  private void stepToEnd() {
    for (Runnable event = events.poll(); event != null; event = events.poll()) {
      machine.step(clock(), event);
    }
  }

  @Override
  final void ask(Machine.Ask ask, @Nullable Object value) {
    if (link == null || !way.opens) {
      link = new Jdbc(way.options.dataSource, way.options.election, way.opens ? this : null);
    }
    link.ask(way.query(ask.kind(), value, machine.term), () -> post(() -> machine.begun(ask)))
        .whenComplete(
            (row, error) -> post(() -> machine.done(ask, (LeaderElectionException) error, row)));
  }

  /** The connection has ended while nothing was asked. */
  final void broken(Jdbc from, LeaderElectionException error) {
    post(
        () -> {
          if (from == link) machine.broken(error);
        });
  }

  @Override
  final void disconnect() {
    if (link != null) link.close();
    link = null;
  }

  @Override
  final void error(LeaderElectionException error) {
    if (way.options.onError == null) log(Level.ERROR, error.getMessage(), error);
    else tell("onError failed; its error: " + error, () -> way.options.onError.accept(error));
  }

  @Override
  final void end(@Nullable LeaderElectionException error) {
    if (ended) return;
    result = error;
    ended = true;
  }

  /** Calls a callback beside the state machine, in order. */
  final void tell(String failure, Runnable callback) {
    callbacks.execute(
        () -> {
          try {
            callback.run();
          } catch (Throwable e) {
            way.options.logger.log(Level.ERROR, failure, e);
          }
        });
  }

  final void log(Level level, String what, @Nullable Throwable error) {
    String message = "election " + way.options.election + ": " + what;
    tell("the logger has failed", () -> way.options.logger.log(level, message, error));
  }

  /** Says in words what is wrong, and leaves nothing behind. */
  static LeaderElectionException explained(Way way, LeaderElectionException error)
      throws InterruptedException {
    if (error.kind() == ErrorKind.POOLER) {
      String names = way.options.seats == null ? way.names : "ANY (" + way.names + ")";
      expel(way, way.query(EXPEL + names, way.identity, way.options.election), 9);
    }
    if (error.kind() != ErrorKind.EXTENSION) return error;
    try {
      @Nullable Object[] row = Jdbc.once(way, new Way.Query(DIAGNOSE));
      if (row[0] != null && row[0].equals(way.options.schema)) return error;
      String message = row[0] == null ? MISSING.formatted(row[1]) : ELSEWHERE.formatted(row[0]);
      return new PermanentException(ErrorKind.EXTENSION, message, error);
    } catch (LeaderElectionException e) {
      return error; // what is known without it remains
    }
  }

  private static void expel(Way way, Way.Query query, int more) throws InterruptedException {
    try {
      Jdbc.once(way, query);
    } catch (LeaderElectionException e) {
      // it can run in the session that it ends, or in one that another elector ends
      if (more > 0 && e.kind() != ErrorKind.TIMEOUT) expel(way, query, more - 1);
    }
  }
}
