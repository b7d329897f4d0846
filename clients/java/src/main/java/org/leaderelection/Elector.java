package org.leaderelection;

import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;

/**
 * Campaigns for leadership, and runs a job while it leads.
 *
 * <pre>{@code
 * try (Elector elector = LeaderElection.of(dataSource, "billing").elector()) {
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

  /** Why a term has ended. */
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
    IN_DOUBT
  }

  private final ElectorMachine elector;
  private Job job;
  private Consumer<? super LeaderElectionException> whenOver; // of what works

  Elector(LeaderElection options) {
    super(options, options.ttl == null);
    elector = new ElectorMachine(this, way);
    machine = elector;
  }

  /**
   * Campaigns, and runs the job in each term, until {@link #stop}, {@link #close} or an interrupt
   * of this thread. Then the job has stopped, and leadership is resigned.
   *
   * @param job what the leader does
   * @throws PermanentException if something must be configured differently
   * @throws IllegalStateException if the elector has run before
   */
  public void run(Job job) {
    this.job = job;
    LeaderElectionException error = drive(elector::run);
    if (error != null) throw error;
  }

  /**
   * Runs the job once, if this elector is elected within a time, and then resigns. Can be called
   * once, instead of {@link #run}.
   *
   * @param wait for how long it campaigns; {@link Duration#ZERO} for one attempt
   * @param job what the leader does
   * @return whether the job has run; false if another one leads, or after a stop before
   * @throws PermanentException if something must be configured differently
   * @throws LostException if leadership was lost or in doubt before the job had ended
   * @throws LeaderElectionException if the last attempt failed
   * @throws IllegalStateException if the elector has run before
   * @throws Exception what the job has thrown
   */
  public boolean tryRun(Duration wait, Job job) throws Exception {
    this.job = job;
    LeaderElectionException error = drive(() -> elector.tryFor(Way.seconds(wait)));
    if (error == null) return true;
    if (error == ElectorMachine.DENIED) return false;
    throw Elector.<Exception>unchecked(error.kind().equals("job") ? error.getCause() : error);
  }

  @SuppressWarnings("unchecked")
  static <E extends Throwable> E unchecked(Throwable error) throws E {
    throw (E) error;
  }

  /**
   * Calls the job once, if this elector is elected within a time, as {@link #tryRun} does.
   *
   * @param <T> the type of the result
   * @param wait for how long it campaigns; {@link Duration#ZERO} for one attempt
   * @param job what the leader does
   * @return what the job has returned; empty if it has not run, or has returned null
   * @throws Exception as tryRun
   */
  public <T> Optional<T> tryCall(Duration wait, Callable<T> job) throws Exception {
    AtomicReference<T> value = new AtomicReference<>();
    tryRun(wait, term -> value.set(job.call()));
    return Optional.ofNullable(value.get());
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
  Way.Query query(String kind, Object value) {
    return way.query(kind, value, elector.term);
  }

  @Override
  void elected(Term term) {
    log(Level.INFO, "elected in " + term.election() + ", with token " + term.token(), null);
    call("callback", t -> options.onElected.accept(t), term, elector::electedDone);
  }

  @Override
  void job(Term term) {
    call("job", job, term, elector::jobDone);
  }

  @Override
  void cancel() {
    working.interrupt();
  }

  @Override
  void ousted(Term term, Reason reason) {
    log(Level.INFO, "the term in " + term.election() + " is over: " + reason, null);
    call("callback", t -> options.onOusted.accept(t, reason), term, elector::oustedDone);
  }

  @Override
  void proclaimed(Proclamation call, LeaderElectionException error) {
    if (error == null) call.done().complete(null);
    else call.done().completeExceptionally(error);
  }

  /** Calls the user's code beside the state machine, which is told of its end. */
  private void call(
      String kind, Job code, Term term, Consumer<? super LeaderElectionException> done) {
    Runnable body =
        () -> {
          Throwable failure = null;
          try {
            code.run(term);
          } catch (Throwable e) {
            boolean told = kind.equals("job") && term.cancelled;
            failure = told && e instanceof InterruptedException ? null : e;
          }
          LeaderElectionException error = LeaderElectionException.of(kind, failure);
          Thread by = Thread.currentThread();
          post(() -> over(by, error));
        };
    whenOver = done;
    working = Jdbc.daemon("job " + term.election(), body);
    try {
      working.start();
    } catch (OutOfMemoryError e) {
      // there is no thread to be had, which look() finds
    }
  }

  private void over(Thread by, LeaderElectionException error) {
    if (working != by) return; // it was found dead before
    working = null;
    whenOver.accept(error);
  }

  @Override
  void look() {
    Thread by = working;
    if (by == null || by.isAlive() || !isIdle()) return;
    Throwable died = new IllegalStateException("its thread has died, or could not begin");
    post(() -> over(by, LeaderElectionException.of("job", died)));
  }
}
