package org.leaderelection;

import java.lang.System.Logger.Level;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.sql.SQLException;
import java.sql.SQLTimeoutException;
import java.time.Duration;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiConsumer;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.Function;
import javax.sql.DataSource;

/**
 * Runs a job while this process leads an election, and stops the job as soon as leadership is lost
 * or in doubt.
 *
 * <pre>{@code
 * try (Elector elector = Elector.builder(dataSource, "billing", job).build()) {
 *   elector.run();
 * }
 * }</pre>
 *
 * <p>An elector runs once, and at most one job at a time. It leads in session scope, for which it
 * takes a connection out of the {@code DataSource} for good, unless it has a {@link Builder#ttl
 * ttl}. Then it leads by a lease, and each statement takes a connection and gives it back.
 */
public final class Elector implements AutoCloseable {
  private static final System.Logger LOG = System.getLogger("org.leaderelection");
  private static final long SECOND = 1_000_000_000L;
  private static final long ROUND = 300 * SECOND;

  /** SQLSTATE: this session leads under another identity. */
  private static final String SHARED_SESSION = "LE005";

  final Builder options;
  final Timers timers;
  final World world;
  World.Link link;
  World.Bid unresigned;
  int backend; // the server's process ID, in session scope
  private int errors; // in a row
  private boolean interrupted;

  private final AtomicBoolean started = new AtomicBoolean();
  private final CountDownLatch returned = new CountDownLatch(1);
  private volatile boolean stopping;
  private volatile State state = State.STOPPED;

  Elector(Builder options, World world) {
    this.options = options;
    this.world = world;
    this.timers = Timers.of(options);
  }

  /**
   * Begins to describe an elector.
   *
   * @param dataSource where the connections come from
   * @param election the name of the election, of 1 to 255 bytes
   * @param job what the leader does
   * @return a builder, by whose defaults the elector leads in session scope
   */
  public static Builder builder(DataSource dataSource, String election, Job job) {
    return new Builder(dataSource, election, job);
  }

  /**
   * Campaigns and leads, until the elector is stopped or the calling thread is interrupted. Then
   * the job has stopped, leadership is resigned, and no thread or connection is left.
   *
   * @throws PoolerException if a pooler shares the connection of a session with other clients
   * @throws IllegalStateException if the elector runs already, or has run
   */
  public void run() {
    begin();
    runToEnd();
  }

  private void begin() {
    if (!started.compareAndSet(false, true)) {
      throw new IllegalStateException("an elector runs once");
    }
  }

  private void runToEnd() {
    try {
      loop();
    } catch (PoolerException e) {
      report(e);
      throw e;
    } finally {
      closeLink();
      world.close();
      state = State.STOPPED;
      returned.countDown();
      if (interrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  /**
   * Runs the elector on a thread of its own.
   *
   * @throws IllegalStateException if the elector runs already, or has run
   */
  public void start() {
    begin();
    Runnable quietly =
        () -> {
          try {
            runToEnd();
          } catch (PoolerException e) {
            // it has been reported
          }
        };
    new Thread(quietly, "leader-election " + options.election).start();
  }

  /** Asks the elector to stop, and returns at once. A job can call it. */
  public void stop() {
    stopping = true;
    world.wake();
  }

  /**
   * Stops the elector, and waits until it has stopped. If the calling thread is interrupted, or is
   * that of the job or a callback, this only asks the elector to stop.
   */
  @Override
  public void close() {
    stop();
    if (started.get() && !world.inside()) {
      try {
        returned.await();
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
      }
    }
  }

  /**
   * Returns the present state. Can be called from any thread.
   *
   * @return the state
   */
  public State state() {
    return state;
  }

  /**
   * Returns the identity under which this elector campaigns.
   *
   * @return the identity
   */
  public String identity() {
    return options.identity;
  }

  private void loop() {
    boolean checked = !session();
    while (!stopping) {
      enter(State.WAITING);
      Reason reason = null;
      try {
        if (!checked) {
          checkForPooler();
          checked = true;
        }
        World.Bid bid = campaign();
        if (bid != null) {
          reason = new Reign(this, bid, asked).run();
        }
      } catch (PoolerException e) {
        throw e;
      } catch (Exception e) {
        report(e);
      }
      closeLink();
      if (!stopping) {
        enter(State.PAUSED);
        errors = reason == Reason.JOB_RETURNED ? 0 : errors + 1;
        long pause = errors == 0 ? SECOND : pauseAfter(errors);
        await(() -> stopping, world.now() + (long) (pause * (0.5 + world.random() / 2)));
      }
    }
  }

  /** Returns the pause after so many errors in a row, before chance shortens it. */
  static long pauseAfter(int errors) {
    return Math.min(15 * SECOND, (SECOND / 2) << Math.min(errors - 1, 5));
  }

  private void checkForPooler() throws Exception {
    link = world.open();
    World.Link other = world.open();
    try {
      CompletableFuture<Integer> first = track(link.backend());
      if (!arrives(first, timers.deadline())) {
        return;
      }
      // not before: a pooler gives two connections that ask at a time two server connections
      CompletableFuture<Integer> second = track(other.backend());
      if (arrives(second, timers.deadline()) && answer(first).equals(answer(second))) {
        throw new PoolerException("two connections share a server connection", null);
      }
    } finally {
      other.close();
      closeLink();
    }
  }

  private long asked; // when the bid, or its confirmation, was sent

  /** Waits to be elected and confirmed; returns null if asked to stop. */
  private World.Bid campaign() throws Exception {
    link = world.open();
    if (session()) {
      CompletableFuture<Integer> opened = track(link.backend());
      if (!arrives(opened, timers.deadline())) {
        return null;
      }
      backend = answer(opened);
    }
    while (!stopping) {
      asked = world.now();
      CompletableFuture<World.Bid> answer = track(link.bid(unresigned));
      if (!arrives(answer, (session() ? ROUND : 0) + timers.deadline())) {
        long patience = world.now() + timers.deadline();
        while (session() && !answer.isDone() && world.now() < patience) {
          link.cancel(); // without effect before the server has begun with the bid
          await(answer::isDone, Math.min(patience, world.now() + SECOND / 4));
        }
        await(answer::isDone, patience);
        if (!answer.isDone() || answer.isCompletedExceptionally()) {
          return null;
        }
      }
      World.Bid bid = granted(answer);
      errors = 0;
      unresigned = null;
      if (bid != null) {
        return session() ? confirmed(bid) : bid;
      }
      if (!session()) {
        await(() -> stopping, asked + timers.question());
      }
    }
    return null;
  }

  private World.Bid granted(CompletableFuture<World.Bid> answer) throws Exception {
    try {
      return answer(answer);
    } catch (SQLException e) {
      if (session() && SHARED_SESSION.equals(e.getSQLState())) {
        throw new PoolerException("another client has this server connection", e);
      }
      throw e;
    }
  }

  private World.Bid confirmed(World.Bid bid) throws Exception {
    asked = world.now();
    World.Confirmation confirmation = answer(link.confirm(bid, heartbeat()));
    if (confirmation.backend() != backend) {
      try {
        answer(link.expel(bid));
      } catch (Exception e) {
        report(e);
      }
      throw new PoolerException("the connection has changed its server connection", null);
    }
    if (!confirmation.leads()) {
      throw new LeaderElectionException("it was lost before it was confirmed", null);
    }
    return bid;
  }

  boolean session() {
    return options.ttl == null;
  }

  boolean heartbeat() {
    return options.heartbeat != null;
  }

  boolean stopping() {
    return stopping;
  }

  void enter(State next) {
    state = next;
  }

  void reopen() {
    closeLink();
    link = world.open();
  }

  private void closeLink() {
    if (link != null) {
      link.close();
      link = null;
    }
  }

  CompletableFuture<Void> call(Runnable callback) {
    Runnable safely = () -> attempt(callback, e -> report(failed("a callback", e)));
    return track(world.call(safely));
  }

  void report(Exception error) {
    Runnable callback = () -> options.onError.accept(error);
    world.call(() -> attempt(callback, e -> log(options.election, e)));
  }

  private static LeaderElectionException failed(String what, Throwable cause) {
    return new LeaderElectionException(what + " has failed", cause);
  }

  private static void attempt(Runnable callback, Consumer<Throwable> otherwise) {
    try {
      callback.run();
    } catch (RuntimeException | Error e) {
      otherwise.accept(e);
    }
  }

  <T> CompletableFuture<T> track(CompletableFuture<T> future) {
    future.whenComplete((result, error) -> world.wake());
    return future;
  }

  /** Waits until that time, or less. */
  void pass(long until) {
    if (!world.await(until)) {
      interrupted = true;
      stop();
    }
  }

  private void await(BooleanSupplier done, long until) {
    while (!done.getAsBoolean() && world.now() < until) {
      pass(until);
    }
  }

  /** Waits for an answer; returns false if asked to stop before. */
  private boolean arrives(CompletableFuture<?> answer, long patience) throws Exception {
    await(() -> answer.isDone() || stopping, world.now() + patience);
    if (!answer.isDone() && !stopping) {
      throw failure(answer);
    }
    return answer.isDone();
  }

  /** Waits for an answer even if asked to stop, and returns it. */
  <T> T answer(CompletableFuture<T> answer) throws Exception {
    await(track(answer)::isDone, world.now() + timers.deadline());
    Exception failure = failure(answer);
    if (failure == null) {
      return answer.join();
    }
    throw failure;
  }

  /** Returns why there is no answer, or null if there is one. */
  static Exception failure(CompletableFuture<?> answer) {
    if (!answer.isDone()) {
      return new SQLTimeoutException("the server has not answered in time");
    }
    Throwable error = answer.handle((result, e) -> e).join();
    return error == null || error instanceof Exception
        ? (Exception) error
        : new LeaderElectionException("an error that is no exception", error);
  }

  static void log(String election, Throwable error) {
    LOG.log(Level.WARNING, "election " + election, error);
  }

  /** The timers of the specification, in nanoseconds. */
  record Timers(
      long question, long deadline, long retry, long validity, long heartbeatValidity, long stop) {
    static Timers of(Builder options) {
      Duration limit = options.ttl != null ? options.ttl : options.heartbeat;
      long span = limit == null ? 15 * SECOND : limit.toNanos();
      boolean lease = options.ttl != null;
      return new Timers(
          lease ? span / 3 : Math.min(SECOND, span / 3),
          Math.min(5 * SECOND, span / 3),
          Math.min(SECOND, span / 10),
          lease ? span / 3 * 2 : 6 * SECOND,
          span / 3 * 2,
          options.stopTimeout.toNanos());
    }
  }

  /** Describes an elector. Each option has a default. */
  public static final class Builder {
    private static final AtomicInteger COUNT =
        new AtomicInteger(ThreadLocalRandom.current().nextInt());

    final DataSource dataSource;
    final String election;
    final Job job;
    String identity;
    Integer seats;
    Duration heartbeat;
    Duration ttl;
    boolean renewOnHeartbeat;
    Duration stopTimeout = Duration.ofSeconds(10);
    Consumer<? super Term> onElected = term -> {};
    BiConsumer<? super Term, ? super Reason> onOusted = (term, reason) -> {};
    Consumer<? super Exception> onError;

    private Builder(DataSource dataSource, String election, Job job) {
      this.dataSource = Objects.requireNonNull(dataSource, "dataSource");
      this.election = checkElection(election);
      this.job = Objects.requireNonNull(job, "job");
      this.onError = error -> log(election, error);
    }

    /**
     * Sets the identity, which must differ from copy to copy. Default: host name, process ID and
     * four hexadecimal digits.
     *
     * @param identity the identity, of 1 to 255 bytes
     * @return this builder
     */
    public Builder identity(String identity) {
      this.identity = checkText("identity", identity);
      return this;
    }

    /**
     * Campaigns for one of so many seats, each of which is an election of its own.
     *
     * @param seats the number of seats, from 1 to 10000
     * @return this builder
     */
    public Builder seats(int seats) {
      check(seats >= 1 && seats <= 10_000, "seats: not from 1 to 10000");
      checkText("name of a seat", election + "/" + seats);
      this.seats = seats;
      return this;
    }

    /**
     * Leads in session scope with a heartbeat: a job that has not called {@link Term#heartbeat} for
     * two thirds of it is cancelled, and is replaced when the heartbeat has passed.
     *
     * @param heartbeat the heartbeat, from one second to one day
     * @return this builder
     */
    public Builder heartbeat(Duration heartbeat) {
      this.heartbeat = checkDuration("heartbeat", heartbeat);
      return this;
    }

    /**
     * Leads by a lease.
     *
     * @param ttl how long the lease runs after each renewal, from one second to one day, and no
     *     longer than the server's {@code leader_election.max_ttl}
     * @return this builder
     */
    public Builder ttl(Duration ttl) {
      this.ttl = checkDuration("ttl", ttl);
      return this;
    }

    /**
     * Renews the lease only if the job has called {@link Term#heartbeat} since the last renewal.
     *
     * @return this builder
     */
    public Builder renewOnHeartbeat() {
      this.renewOnHeartbeat = true;
      return this;
    }

    /**
     * Sets how long the job may take to stop before that is reported. Default: 10 seconds.
     *
     * @param stopTimeout the time
     * @return this builder
     */
    public Builder stopTimeout(Duration stopTimeout) {
      check(!stopTimeout.isNegative(), "stopTimeout: negative");
      check(stopTimeout.compareTo(Duration.ofDays(365)) <= 0, "stopTimeout: more than a year");
      this.stopTimeout = stopTimeout;
      return this;
    }

    /**
     * Sets what is called before the job starts. Callbacks are called one after the other, on a
     * thread of the elector.
     *
     * @param onElected gets the term
     * @return this builder
     */
    public Builder onElected(Consumer<? super Term> onElected) {
      this.onElected = Objects.requireNonNull(onElected, "onElected");
      return this;
    }

    /**
     * Sets what is called after the job has stopped, before leadership is resigned.
     *
     * @param onOusted gets the term, and why it has ended
     * @return this builder
     */
    public Builder onOusted(BiConsumer<? super Term, ? super Reason> onOusted) {
      this.onOusted = Objects.requireNonNull(onOusted, "onOusted");
      return this;
    }

    /**
     * Sets what is called for each error. Default: a warning to the {@link System.Logger} {@code
     * org.leaderelection}.
     *
     * @param onError gets the error: an {@link SQLException}, or a {@link LeaderElectionException}
     * @return this builder
     */
    public Builder onError(Consumer<? super Exception> onError) {
      this.onError = Objects.requireNonNull(onError, "onError");
      return this;
    }

    /**
     * Makes the elector.
     *
     * @return an elector that has not been started
     * @throws IllegalArgumentException if the options contradict each other
     */
    public Elector build() {
      return build(JdbcWorld::new);
    }

    Elector build(Function<Builder, World> world) {
      check(heartbeat == null || ttl == null, "both heartbeat, of a session, and ttl, of a lease");
      check(!renewOnHeartbeat || ttl != null, "renewOnHeartbeat without a ttl");
      Builder options = new Builder(dataSource, election, job);
      options.identity = identity == null ? defaultIdentity() : identity;
      options.seats = seats;
      options.heartbeat = heartbeat;
      options.ttl = ttl;
      options.renewOnHeartbeat = renewOnHeartbeat;
      options.stopTimeout = stopTimeout;
      options.onElected = onElected;
      options.onOusted = onOusted;
      options.onError = onError;
      return new Elector(options, world.apply(options));
    }

    private static String defaultIdentity() {
      String host;
      try {
        host = InetAddress.getLocalHost().getHostName();
      } catch (UnknownHostException e) {
        host = "localhost";
      }
      int number = COUNT.getAndIncrement() & 0xffff; // no two in a process are the same
      return String.format("%s:%d:%04x", host, ProcessHandle.current().pid(), number);
    }

    static String checkElection(String election) {
      checkText("election", election);
      check(!election.matches("[+-]?[0-9]+|\\{.*}"), "election: a number, or in braces");
      return election;
    }

    private static String checkText(String what, String text) {
      int bytes = text == null ? 0 : text.getBytes(StandardCharsets.UTF_8).length;
      check(bytes >= 1 && bytes <= 255, what + ": not of 1 to 255 bytes");
      check(text.indexOf('\0') < 0, what + ": has a null character");
      return text;
    }

    private static Duration checkDuration(String what, Duration duration) {
      check(
          duration.compareTo(Duration.ofSeconds(1)) >= 0
              && duration.compareTo(Duration.ofDays(1)) <= 0,
          what + ": not from one second to one day");
      return duration;
    }

    private static void check(boolean good, String complaint) {
      if (!good) {
        throw new IllegalArgumentException(complaint);
      }
    }
  }
}
