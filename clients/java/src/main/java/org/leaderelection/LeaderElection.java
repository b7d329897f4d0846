package org.leaderelection;

import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.Objects.requireNonNull;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneId;
import java.util.HexFormat;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.Function;
import javax.sql.DataSource;
import org.jspecify.annotations.Nullable;

/** An election, and the options for taking part in it. Does not change. */
public final class LeaderElection {
  private static final Duration SECOND = Duration.ofSeconds(1);
  private static final Duration DAY = Duration.ofDays(1);
  private static final AtomicInteger IDENTITIES = new AtomicInteger(new Random().nextInt());

  private final Builder options;

  private LeaderElection(Builder options) {
    this.options = options;
  }

  /**
   * Names an election, with the default of each option.
   *
   * @param dataSource where the connections come from
   * @param election the name, of 1 to 255 bytes
   * @return the election
   * @throws IllegalArgumentException if the name is wrong
   */
  public static LeaderElection of(DataSource dataSource, String election) {
    return builder(dataSource, election).build();
  }

  /**
   * Names an election.
   *
   * @param dataSource where the connections come from
   * @param election the name, of 1 to 255 bytes
   * @return the options, to be set
   */
  public static Builder builder(DataSource dataSource, String election) {
    return new Builder(dataSource, election);
  }

  /**
   * Makes an elector.
   *
   * @return the elector, which is to be run
   */
  public Elector newElector() {
    return new Elector(options);
  }

  /**
   * Asks for the present leader.
   *
   * @return the leader, or none
   * @throws PermanentException if something must be configured differently
   * @throws LeaderElectionException if there is no answer, at the latest after 5 s
   * @throws InterruptedException if this thread is interrupted while it waits
   */
  public Optional<Leader> leader() throws InterruptedException {
    Way way = Way.of(options);
    try {
      return Leader.of(Jdbc.once(way, way.query("CALL le_observe(?::text)", options.election)));
    } catch (LeaderElectionException e) {
      throw Run.explained(
          way, Optional.<LeaderElectionException>ofNullable(PermanentException.of(e)).orElse(e));
    }
  }

  /**
   * Makes a follower.
   *
   * @param listener is told the present leader, or none, and then each change, on a thread of the
   *     follower. What it throws is logged
   * @return the follower, which is to be run
   */
  public Follower follow(Consumer<? super Optional<Leader>> listener) {
    return new Follower(options, requireNonNull(listener, "listener"));
  }

  /**
   * Makes a job of a task that is to be done once for each multiple of an interval since 2000-01-01
   * 00:00 UTC. Of several that were missed, only the last one is done.
   *
   * @param interval the interval, from 1 s
   * @param task what is to be done
   * @return the job for {@link Elector#run}
   * @throws IllegalArgumentException if the interval is shorter than 1 s
   */
  public Job every(Duration interval, Task task) {
    check(interval.compareTo(SECOND) >= 0, "interval must be at least 1 s");
    requireNonNull(task, "task");
    return new Every(options.dataSource, Every.multiples(interval), interval, task);
  }

  /**
   * Makes a job of a task that is to be done once for each time of a schedule. Of several that were
   * missed, only the last one is done.
   *
   * @param schedule returns the next due time after one; null if there is none
   * @param task what is to be done
   * @return the job for {@link Elector#run}
   */
  public Job every(Function<? super Instant, ? extends @Nullable Instant> schedule, Task task) {
    requireNonNull(task, "task");
    return new Every(options.dataSource, requireNonNull(schedule, "schedule"), null, task);
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
  public Job every(
      Function<? super LocalDateTime, ? extends @Nullable LocalDateTime> schedule,
      ZoneId zone,
      Task task) {
    requireNonNull(schedule, "schedule");
    return every(Every.inZone(schedule, requireNonNull(zone, "zone")), task);
  }

  /** The options for taking part in an election. */
  public static final class Builder {
    final DataSource dataSource;
    final String election;
    @Nullable String identity;
    @Nullable String schema;
    @Nullable Integer seats;
    @Nullable Duration ttl;
    @Nullable Duration heartbeat;
    Duration stopTimeout = Duration.ofSeconds(10);
    System.Logger logger = System.getLogger("org.leaderelection");
    Consumer<? super Term> onElected = term -> {};
    BiConsumer<? super Term, ? super Elector.Reason> onOusted = (term, reason) -> {};
    @Nullable Consumer<? super LeaderElectionException> onError;

    private Builder(DataSource dataSource, String election) {
      this.dataSource = requireNonNull(dataSource, "dataSource");
      this.election = requireNonNull(election, "election");
    }

    private Builder(Builder from) {
      this(from.dataSource, from.election);
      identity = from.identity;
      schema = from.schema;
      seats = from.seats;
      ttl = from.ttl;
      heartbeat = from.heartbeat;
      stopTimeout = from.stopTimeout;
      logger = from.logger;
      onElected = from.onElected;
      onOusted = from.onOusted;
      onError = from.onError;
    }

    /**
     * Tells the candidates apart, in views, logs and warnings. By default the host name, the
     * process ID and four digits.
     *
     * @param identity the identity, of 1 to 255 bytes
     * @return this
     */
    public Builder identity(String identity) {
      this.identity = requireNonNull(identity, "identity");
      return this;
    }

    /**
     * Sets the schema of the extension, if that is not in the {@code search_path}.
     *
     * @param schema the name of the schema
     * @return this
     */
    public Builder schema(String schema) {
      this.schema = requireNonNull(schema, "schema");
      return this;
    }

    /**
     * Campaigns for one of several seats, of which each has a leader.
     *
     * @param seats the number of seats, from 1 to 10,000
     * @return this
     */
    public Builder seats(int seats) {
      this.seats = seats;
      return this;
    }

    /**
     * Leads by a lease, each statement with another connection, and not in session scope.
     *
     * @param ttl how long a lease lasts that is not renewed, from 1 s to one day
     * @return this
     */
    public Builder ttl(Duration ttl) {
      this.ttl = requireNonNull(ttl, "ttl");
      return this;
    }

    /**
     * Lets a job that hangs lose its leadership: it must call {@link Term#heartbeat} each third of
     * this.
     *
     * @param heartbeat the length, from 1 s to one day
     * @return this
     */
    public Builder heartbeat(Duration heartbeat) {
      this.heartbeat = requireNonNull(heartbeat, "heartbeat");
      return this;
    }

    /**
     * Sets how long the job may take to stop, and a callback to return, before that is reported.
     *
     * @param stopTimeout the length, at most one day; 10 s by default
     * @return this
     */
    public Builder stopTimeout(Duration stopTimeout) {
      this.stopTimeout = requireNonNull(stopTimeout, "stopTimeout");
      return this;
    }

    /**
     * Sets the logger, which gets elections and the ends of terms as information, and errors if
     * there is no {@link #onError}.
     *
     * @param logger the logger; {@code org.leaderelection} by default
     * @return this
     */
    public Builder logger(System.Logger logger) {
      this.logger = requireNonNull(logger, "logger");
      return this;
    }

    /**
     * Sets what is called when the elector is elected. The job starts after this has returned.
     *
     * @param callback gets the term, on a thread of its own. What it throws is reported, with the
     *     kind {@link ErrorKind#CALLBACK}
     * @return this
     */
    public Builder onElected(Consumer<? super Term> callback) {
      this.onElected = requireNonNull(callback, "onElected");
      return this;
    }

    /**
     * Sets what is called after the job has stopped, and before leadership is resigned.
     *
     * @param callback gets the term and the reason of its end, on a thread of its own. What it
     *     throws is reported, with the kind {@link ErrorKind#CALLBACK}
     * @return this
     */
    public Builder onOusted(BiConsumer<? super Term, ? super Elector.Reason> callback) {
      this.onOusted = requireNonNull(callback, "onOusted");
      return this;
    }

    /**
     * Sets what is called with each error, in order, beside the elector.
     *
     * @param callback gets the error, on a thread of its own. What it throws is logged
     * @return this
     */
    public Builder onError(Consumer<? super LeaderElectionException> callback) {
      this.onError = requireNonNull(callback, "onError");
      return this;
    }

    /**
     * Returns the election with these options. Later changes of this have no effect on it.
     *
     * @return the election
     * @throws IllegalArgumentException if an option is wrong
     */
    public LeaderElection build() {
      check(seats == null || seats >= 1 && seats <= 10_000, "seats must be from 1 to 10000");
      checkBytes("election", election + (seats == null ? "" : "/" + seats), 255);
      boolean array = election.startsWith("{") && election.endsWith("}");
      check(!election.isEmpty() && !array, "election must be a name, and not in braces");
      checkBytes("identity", identity, 255);
      checkBytes("schema", schema, 63);
      checkLength("heartbeat", heartbeat, SECOND);
      checkLength("ttl", ttl, SECOND);
      checkLength("stopTimeout", stopTimeout, Duration.ofNanos(1));
      return new LeaderElection(new Builder(this));
    }
  }

  static String newIdentity() {
    String number = HexFormat.of().toHexDigits((short) IDENTITIES.incrementAndGet());
    return host() + ":" + ProcessHandle.current().pid() + ":" + number;
  }

  private static String host() {
    try {
      return InetAddress.getLocalHost().getHostName();
    } catch (UnknownHostException e) {
      return "localhost"; // it has no name
    }
  }

  private static void checkBytes(String what, @Nullable String text, int most) {
    if (text == null) return;
    int length = text.getBytes(UTF_8).length;
    boolean good = length >= 1 && length <= most && text.indexOf('\0') < 0;
    check(good, what + " must have 1 to " + most + " bytes in UTF-8, none of them zero");
  }

  private static void checkLength(String what, @Nullable Duration length, Duration least) {
    boolean good = length == null || length.compareTo(least) >= 0 && length.compareTo(DAY) <= 0;
    check(good, what + " must be from " + least + " to one day");
  }

  private static void check(boolean good, String message) {
    if (!good) throw new IllegalArgumentException(message);
  }
}
