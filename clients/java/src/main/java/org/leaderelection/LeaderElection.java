package org.leaderelection;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneId;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import javax.sql.DataSource;

/** An election, and the options for taking part in it. Set them first. */
public final class LeaderElection {
  private static final Duration SECOND = Duration.ofSeconds(1);
  private static final Duration DAY = Duration.ofDays(1);

  final DataSource dataSource;
  final String election;
  String identity;
  String schema;
  Integer seats;
  Duration ttl;
  Duration heartbeat;
  Duration stopTimeout = Duration.ofSeconds(10);
  System.Logger logger = System.getLogger("org.leaderelection");
  Consumer<? super Term> onElected = term -> {};
  BiConsumer<? super Term, ? super Elector.Reason> onOusted = (term, reason) -> {};
  Consumer<? super LeaderElectionException> onError;

  private LeaderElection(DataSource dataSource, String election) {
    this.dataSource = dataSource;
    this.election = election;
  }

  /**
   * Names an election.
   *
   * @param dataSource where the connections come from
   * @param election the name, of 1 to 255 bytes
   * @return the election
   */
  public static LeaderElection of(DataSource dataSource, String election) {
    return new LeaderElection(dataSource, election);
  }

  /**
   * Tells the candidates apart, in views, logs and warnings. By default the host name, the process
   * ID and four random digits.
   *
   * @param identity the identity, of 1 to 255 bytes
   * @return this
   */
  public LeaderElection identity(String identity) {
    this.identity = identity;
    return this;
  }

  /**
   * Sets the schema of the extension, if that is not in the {@code search_path}.
   *
   * @param schema the name of the schema
   * @return this
   */
  public LeaderElection schema(String schema) {
    this.schema = schema;
    return this;
  }

  /**
   * Campaigns for one of several seats, of which each has a leader.
   *
   * @param seats the number of seats, from 1 to 10,000
   * @return this
   */
  public LeaderElection seats(int seats) {
    this.seats = seats;
    return this;
  }

  /**
   * Leads by a lease, each statement with another connection, and not in session scope.
   *
   * @param ttl how long a lease lasts that is not renewed, from 1 s to one day
   * @return this
   */
  public LeaderElection ttl(Duration ttl) {
    this.ttl = ttl;
    return this;
  }

  /**
   * Lets a job that hangs lose its leadership: it must call {@link Term#heartbeat} each third of
   * this.
   *
   * @param heartbeat the length, from 1 s to one day
   * @return this
   */
  public LeaderElection heartbeat(Duration heartbeat) {
    this.heartbeat = heartbeat;
    return this;
  }

  /**
   * Sets how long the job may take to stop before that is reported.
   *
   * @param stopTimeout the length, at most one day; 10 s by default
   * @return this
   */
  public LeaderElection stopTimeout(Duration stopTimeout) {
    this.stopTimeout = stopTimeout;
    return this;
  }

  /**
   * Sets the logger, which gets elections and the ends of terms as information, and errors if there
   * is no {@link #onError}.
   *
   * @param logger the logger; {@code org.leaderelection} by default
   * @return this
   */
  public LeaderElection logger(System.Logger logger) {
    this.logger = logger;
    return this;
  }

  /**
   * Is called when the elector is elected. The job starts after this has returned.
   *
   * @param callback gets the term
   * @return this
   */
  public LeaderElection onElected(Consumer<? super Term> callback) {
    this.onElected = callback;
    return this;
  }

  /**
   * Is called after the job has stopped, and before leadership is resigned.
   *
   * @param callback gets the term and the reason of its end
   * @return this
   */
  public LeaderElection onOusted(BiConsumer<? super Term, ? super Elector.Reason> callback) {
    this.onOusted = callback;
    return this;
  }

  /**
   * Is called with each error, in order, beside the elector.
   *
   * @param callback gets the error
   * @return this
   */
  public LeaderElection onError(Consumer<? super LeaderElectionException> callback) {
    this.onError = callback;
    return this;
  }

  /**
   * Makes an elector.
   *
   * @return the elector
   * @throws IllegalArgumentException if an option is wrong
   */
  public Elector elector() {
    return new Elector(this);
  }

  /**
   * Asks for the present leader.
   *
   * @return the leader, or none
   * @throws LeaderElectionException if there is no answer, at the latest after 5 s
   * @throws InterruptedException if this thread is interrupted while it waits
   */
  public Optional<Leader> leader() throws InterruptedException {
    check();
    Way.Query query = Way.of(this).query("CALL le_observe(?::text)", election);
    return Optional.ofNullable(Leader.of(Jdbc.once(dataSource, query)));
  }

  /**
   * Makes a follower.
   *
   * @param listener is told the present leader, or none, and then each change
   * @return the follower, which is to be run
   * @throws IllegalArgumentException if an option is wrong
   */
  public Follower follow(Consumer<? super Optional<Leader>> listener) {
    return new Follower(this, listener);
  }

  /**
   * Makes a job of a task that is to be done once for each multiple of an interval since 2000-01-01
   * 00:00 UTC. Of several that were missed, only the last one is done.
   *
   * @param interval the interval, from 1 s
   * @param task what is to be done
   * @return the job for {@link Elector#run}
   */
  public Job every(Duration interval, Task task) {
    check(interval.compareTo(SECOND) >= 0, "interval must be at least 1 s");
    return new Every(dataSource, Every.multiples(interval), interval, task);
  }

  /**
   * Makes a job of a task that is to be done once for each time of a schedule. Of several that were
   * missed, only the last one is done.
   *
   * @param schedule returns the next due time after one; null if there is none
   * @param task what is to be done
   * @return the job for {@link Elector#run}
   */
  public Job every(UnaryOperator<Instant> schedule, Task task) {
    return new Every(dataSource, schedule, null, task);
  }

  /**
   * Makes a job of a task that is to be done once for each time of day of a schedule, as the clocks
   * of a zone show it. A time that they leave out is due when they are put forward, and one that
   * they show twice, the first time.
   *
   * @param schedule returns what the clocks show next, after one time; null if there is none
   * @param zone the zone
   * @param task what is to be done
   * @return the job for {@link Elector#run}
   */
  public Job every(UnaryOperator<LocalDateTime> schedule, ZoneId zone, Task task) {
    return every(Every.inZone(schedule, zone), task);
  }

  static String newIdentity() {
    String host = "localhost";
    try {
      host = InetAddress.getLocalHost().getHostName();
    } catch (UnknownHostException e) {
      // it has no name
    }
    int random = ThreadLocalRandom.current().nextInt(0x10000);
    return String.format("%s:%d:%04x", host, ProcessHandle.current().pid(), random);
  }

  /** Checks the options as the server would. */
  void check() {
    check(seats == null || seats >= 1 && seats <= 10_000, "seats must be from 1 to 10000");
    checkBytes("election", election + (seats == null ? "" : "/" + seats), 255);
    boolean array = election.startsWith("{") && election.endsWith("}");
    check(!election.isEmpty() && !array, "election must be a name, and not in braces");
    checkBytes("identity", identity, 255);
    checkBytes("schema", schema, 63);
    checkLength("heartbeat", heartbeat, SECOND);
    checkLength("ttl", ttl, SECOND);
    checkLength("stopTimeout", stopTimeout, Duration.ofNanos(1));
  }

  private static void checkBytes(String what, String text, int most) {
    int length = text == null ? 1 : text.getBytes(UTF_8).length;
    boolean good = text == null || text.indexOf('\0') < 0 && length >= 1 && length <= most;
    check(good, what + " must have 1 to " + most + " bytes, none of them zero");
  }

  private static void checkLength(String what, Duration length, Duration least) {
    boolean good = length == null || length.compareTo(least) >= 0 && length.compareTo(DAY) <= 0;
    check(good, what + " must be from " + least + " to one day");
  }

  private static void check(boolean good, String message) {
    if (!good) throw new IllegalArgumentException(message);
  }
}
