package org.leaderelection;

import static java.util.Objects.requireNonNull;

import java.lang.System.Logger.Level;
import java.time.Duration;
import org.jspecify.annotations.Nullable;

/**
 * Campaigns for leadership, and runs a job while it leads. All methods can be called from any
 * thread.
 *
 * <pre>{@code
 * try (Elector elector = LeaderElection.of(dataSource, "billing").newElector()) {
 *   elector.run(term -> ...);
 * }
 * }</pre>
 */
public final class Elector extends Run {
  /** What an elector does. */
  public enum State {
    /** It campaigns. */
    WAITING,
    /** Its job may go on. */
    LEADING,
    /** Its job was told to stop, or leadership is being resigned. */
    STOPPING,
    /** It waits until it campaigns again. */
    PAUSED,
    /** It does not run yet, or not any more. */
    STOPPED
  }

  /** Whether an elector is well. */
  public enum Health {
    /** It waits for its election. */
    WAITING,
    /** It leads. */
    LEADING,
    /** The last attempt has failed, or the job of a lost term has not stopped. */
    IN_DOUBT,
    /** It does not run. */
    STOPPED;

    /**
     * Returns whether this is no reason to worry.
     *
     * @return true for waiting and leading
     */
    public boolean isHealthy() {
      return this == WAITING || this == LEADING;
    }
  }

  /** Why a term has ended, in the words of logs and metrics. */
  public enum Reason {
    /** The elector was stopped. */
    RESIGNED,
    /** The job has returned. */
    JOB_RETURNED,
    /** The job has thrown an exception. */
    JOB_FAILED,
    /** The server has said that this elector does not lead, or the connection has ended. */
    LOST,
    /** The server has not confirmed leadership in time, or the job has not called heartbeat. */
    IN_DOUBT;

    @Override
    public String toString() {
      return Way.words(this);
    }
  }

  private final ElectorMachine elector;
  private @Nullable Job job;

  Elector(LeaderElection.Builder options) {
    super(Way.of(options));
    elector = new ElectorMachine(this, way);
    machine = elector;
  }

  /**
   * Campaigns, and runs the job in each term, until {@link #stop}, {@link #close() close} or an
   * interrupt of this thread, whose interrupted status is set again at the return. Then the job has
   * stopped, and leadership is resigned.
   *
   * @param job what the leader does
   * @throws PermanentException if something must be configured differently
   * @throws IllegalStateException if the elector has run before
   */
  public void run(Job job) {
    LeaderElectionException error = drive(job, elector::run);
    if (error != null) throw error;
  }

  /**
   * Runs the job once, if this elector is elected within a time, and then resigns. Waits for all of
   * this, unless {@link #stop}, {@link #close() close} or an interrupt of this thread ends it, as
   * they end {@link #run}. Can be called once, instead of {@code run}.
   *
   * @param wait for how long it campaigns; {@link Duration#ZERO} for one attempt
   * @param job what the leader does
   * @return whether the job has returned; false if another one leads, or after a stop before
   * @throws PermanentException if something must be configured differently
   * @throws LostException if leadership was lost or in doubt before the job had ended
   * @throws LeaderElectionException if the last attempt failed
   * @throws IllegalStateException if the elector has run before
   * @throws Exception what the job has thrown, also when a stop has interrupted it
   */
  public boolean tryRun(Duration wait, Job job) throws Exception {
    double seconds = Way.seconds(requireNonNull(wait, "wait"));
    LeaderElectionException error = drive(job, () -> elector.tryFor(seconds));
    if (error == null) return true;
    if (error.kind() == ErrorKind.OVER) return false;
    throw Elector.<Exception>unchecked(error.kind() == ErrorKind.JOB ? error.getCause() : error);
  }

  private @Nullable LeaderElectionException drive(Job job, Runnable begin) {
    requireNonNull(job, "job");
    return drive(
        () -> {
          this.job = job; // not by a second call, which is refused
          begin.run();
        });
  }

  @SuppressWarnings("unchecked")
  static <E extends Throwable> E unchecked(Throwable error) throws E {
    throw (E) error;
  }

  /**
   * Returns the name under which this elector campaigns.
   *
   * @return the identity
   */
  public String identity() {
    return way.identity;
  }

  /**
   * Returns what this elector does.
   *
   * @return the state
   */
  public State state() {
    return elector.state();
  }

  /**
   * Returns whether this elector is well.
   *
   * @return the health
   */
  public Health health() {
    return elector.health();
  }

  /**
   * Returns how many times this elector was elected.
   *
   * @return the number of terms
   */
  public int terms() {
    return elector.terms;
  }

  /**
   * Returns how many times leadership was confirmed.
   *
   * @return the number of confirmations
   */
  public int confirmations() {
    return elector.confirmations;
  }

  @Override
  void elected(Term term) {
    log(Level.INFO, "elected in " + term.election() + ", with token " + term.token(), null);
    call(ErrorKind.CALLBACK, way.options.onElected::accept, term);
  }

  @Override
  void job(Term term) {
    call(ErrorKind.JOB, job, term);
  }

  @Override
  void cancel() {
    if (working != null) working.interrupt(); // there can have been no memory for the thread
  }

  @Override
  void ousted(Term term, Reason reason) {
    log(Level.INFO, "the term in " + term.election() + " is over: " + reason, null);
    call(ErrorKind.CALLBACK, t -> way.options.onOusted.accept(t, reason), term);
  }

  /** Calls the user's code beside the state machine, which is told of its end. */
  private void call(ErrorKind kind, Job code, Term term) {
    Runnable body =
        () -> {
          LeaderElectionException error = null;
          try {
            code.run(term);
          } catch (Throwable e) {
            error = LeaderElectionException.of(kind, e);
          }
          returned(Thread.currentThread(), error);
        };
    working = Jdbc.daemon("job " + term.election(), body);
    try {
      working.start();
    } catch (OutOfMemoryError e) {
      // there can be no thread now: look finds that it is not alive
    }
  }

  private void returned(Thread from, @Nullable LeaderElectionException error) {
    post(
        () -> {
          if (from != working) return; // it was found dead before
          working = null;
          elector.returned(error);
        });
  }

  @Override
  void look() {
    Thread thread = working;
    if (thread == null || thread.isAlive() || !events.isEmpty()) return;
    returned(thread, LeaderElectionException.of(ErrorKind.JOB, new OutOfMemoryError("no thread")));
  }
}
