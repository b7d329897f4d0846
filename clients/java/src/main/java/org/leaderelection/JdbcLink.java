package org.leaderelection;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import javax.sql.DataSource;

/**
 * Asks on a thread of its own, which is abandoned, and its connection cut off, by {@link #close}.
 */
final class JdbcLink implements World.Link {
  /** How long a read from the connection lasts, at most, when there is a question to ask. */
  private static final int READ_MILLIS = 100;

  private static final Row<Boolean> YES = row -> row.getBoolean(1);

  private final Elector.Builder options; // null: it only observes
  private final boolean keep; // the connection, from one question to the next
  private final DataSource dataSource;
  private final Consumer<JdbcLink> atEnd;
  private final ThreadPoolExecutor thread;
  private Connection connection;
  private boolean closed;
  private volatile Statement statement;
  private volatile Thread closer;

  /** Questions a connection. */
  interface Question<T> {
    T ask(Connection connection) throws SQLException;
  }

  /** Reads the row that a statement returns. */
  interface Row<T> {
    T read(ResultSet row) throws SQLException;
  }

  /** What le_observe has said, and the leader. */
  record Observation(long version, Optional<Leader> leader) {}

  JdbcLink(Elector.Builder options, Consumer<JdbcLink> atEnd) {
    this(options, options.dataSource, options.ttl == null, options.election, atEnd);
  }

  JdbcLink(DataSource dataSource, boolean keep, String election) {
    this(null, dataSource, keep, election, link -> {});
  }

  private JdbcLink(
      Elector.Builder options,
      DataSource dataSource,
      boolean keep,
      String election,
      Consumer<JdbcLink> atEnd) {
    this.options = options;
    this.dataSource = Pgjdbc.bounded(dataSource);
    this.keep = keep;
    this.atEnd = atEnd;
    this.thread = JdbcWorld.oneThread("leader-election connection " + election);
  }

  @Override
  public CompletableFuture<Integer> backend() {
    return ask(row -> row.getInt(1), "SELECT pg_backend_pid()");
  }

  @Override
  public CompletableFuture<World.Bid> bid(World.Bid last) {
    String ttl = text(options.ttl);
    Long token = last == null ? null : last.token();
    if (ttl != null && options.seats == null) {
      String lease = "SELECT le_lease(?, identity => ?, ttl => ?::interval, token => ?::bigint)";
      return ask(this::bid, lease, options.election, options.identity, ttl, token);
    }
    String names = options.seats == null ? "?::text" : "le_seats(?, " + options.seats + ")";
    String limits = ttl == null ? "'300 s', heartbeat => ?" : "'0', ttl => ?";
    String campaign = "CALL le_campaign(%s, timeout => %s::interval, identity => ?)";
    String limit = ttl == null ? text(options.heartbeat) : ttl;
    String sql = String.format(campaign, names, limits);
    return ask(this::bid, sql, options.election, limit, options.identity);
  }

  private World.Bid bid(ResultSet row) throws SQLException {
    Long token = row.getObject(1, Long.class);
    String election = options.seats == null ? options.election : row.getString(2);
    return token == null ? null : new World.Bid(token, election);
  }

  @Override
  public CompletableFuture<World.Confirmation> confirm(World.Bid bid, boolean heartbeat) {
    Row<World.Confirmation> row = r -> new World.Confirmation(r.getBoolean(1), r.getInt(2));
    if (options.ttl != null) {
      return ask(row, "SELECT le_renew(?, ?), 0", bid.election(), bid.token());
    }
    if (heartbeat) {
      return ask(row, "SELECT le_heartbeat(?::text), pg_backend_pid()", bid.election());
    }
    String sql = "SELECT le_am_leader(?, identity => ?), pg_backend_pid()";
    return ask(row, sql, bid.election(), options.identity);
  }

  @Override
  public CompletableFuture<Void> watch() {
    return submit(
        c -> {
          while (thread.getQueue().isEmpty() && Pgjdbc.read(c, READ_MILLIS)) {
            // a notification, or nothing
          }
          return null;
        });
  }

  @Override
  public CompletableFuture<Boolean> resign(World.Bid bid) {
    return options.ttl == null
        ? ask(YES, "SELECT le_resign(?, identity => ?)", bid.election(), options.identity)
        : ask(YES, "SELECT le_resign(?, ?)", bid.election(), bid.token());
  }

  @Override
  public CompletableFuture<Boolean> expel(World.Bid bid) {
    String sql =
        """
        SELECT bool_or(CASE WHEN pid = pg_backend_pid() THEN le_resign(name)
                       ELSE pg_terminate_backend(pid) END)
        FROM le_leader(?::text) WHERE token = ?""";
    return ask(YES, sql, bid.election(), bid.token());
  }

  /** Waits for a state of the election that differs from the last one, for 30 seconds at most. */
  CompletableFuture<Observation> observe(String election, Observation last) {
    String sql = "CALL le_observe(?, ?::bigint, timeout => '30 s')";
    Long known = last == null ? null : last.version();
    return submit(
        c -> {
          long version = query(c, row -> row.getLong("version"), sql, election, known);
          return new Observation(version, leader(c, election));
        });
  }

  /** Asks for the leader. */
  CompletableFuture<Optional<Leader>> leader(String election) {
    return submit(c -> leader(c, election));
  }

  private Optional<Leader> leader(Connection c, String election) throws SQLException {
    String sql = "SELECT l.* FROM (SELECT) AS one LEFT JOIN le_leader(?::text) AS l ON true";
    return query(c, row -> Optional.ofNullable(leader(row)), sql, election);
  }

  private static Leader leader(ResultSet row) throws SQLException {
    OffsetDateTime since = row.getObject("since", OffsetDateTime.class);
    return since == null
        ? null
        : new Leader(
            row.getString("name"),
            row.getString("identity"),
            row.getLong("token"),
            since.toInstant(),
            row.getString("scope"),
            row.getString("value"));
  }

  private <T> CompletableFuture<T> ask(Row<T> row, String sql, Object... arguments) {
    return submit(c -> query(c, row, sql, arguments));
  }

  private <T> CompletableFuture<T> submit(Question<T> question) {
    CompletableFuture<T> answer = new CompletableFuture<>();
    Runnable task =
        () -> {
          try {
            answer.complete(connected(question));
          } catch (Throwable e) {
            answer.completeExceptionally(e);
          }
        };
    try {
      thread.execute(task);
    } catch (RejectedExecutionException e) {
      answer.completeExceptionally(new SQLException("the connection is closed", "08003", e));
    }
    return answer;
  }

  private <T> T connected(Question<T> question) throws SQLException {
    if (keep && connection() != null) {
      return question.ask(connection());
    }
    Connection fresh = dataSource.getConnection();
    if (!use(fresh)) {
      fresh.close();
      throw new SQLException("the connection was opened too late", "08003");
    }
    if (keep) {
      fresh.setNetworkTimeout(Runnable::run, 0); // the elector has its own deadlines
      fresh.setAutoCommit(true);
      return question.ask(fresh);
    }
    try (fresh) {
      boolean autoCommit = fresh.getAutoCommit();
      if (!autoCommit) {
        fresh.setAutoCommit(true);
      }
      T answer = question.ask(fresh);
      if (!autoCommit) {
        fresh.setAutoCommit(false);
      }
      return answer;
    } finally {
      use(null);
    }
  }

  private synchronized Connection connection() {
    return connection;
  }

  private synchronized boolean use(Connection next) {
    connection = closed ? connection : next;
    return !closed;
  }

  private <T> T query(Connection c, Row<T> row, String sql, Object... arguments)
      throws SQLException {
    try (PreparedStatement asking = prepare(c, sql, arguments)) {
      statement = asking;
      try (ResultSet rows = asking.executeQuery()) {
        rows.next();
        return row.read(rows);
      } finally {
        statement = null;
      }
    }
  }

  /** Prepares a statement in the driver only, not in the server. */
  static PreparedStatement prepare(Connection c, String sql, Object... arguments)
      throws SQLException {
    PreparedStatement asking = c.prepareStatement(sql);
    Pgjdbc.unprepared(asking);
    for (int i = 0; i < arguments.length; i++) {
      asking.setObject(i + 1, arguments[i]);
    }
    return asking;
  }

  /** Returns an interval as PostgreSQL reads it: ISO 8601. */
  static String text(Duration duration) {
    return duration == null ? null : duration.toString();
  }

  @Override
  public void cancel() {
    Statement asking = statement;
    if (asking != null) {
      JdbcWorld.daemon("leader-election cancel", () -> attempt(asking::cancel)).start();
    }
  }

  @Override
  public void close() {
    Connection cut;
    synchronized (this) {
      closed = true;
      cut = connection;
    }
    thread.shutdownNow(); // ends a wait for a pool's connection, too
    closer = JdbcWorld.daemon("leader-election close", () -> close(cut));
    closer.start();
  }

  private void close(Connection cut) {
    if (cut != null) {
      // a pool's close() would give the connection back, still leading
      attempt(() -> cut.abort(Runnable::run));
    }
    try {
      thread.awaitTermination(1, TimeUnit.MINUTES);
    } catch (InterruptedException e) {
      // no thread has this one
    }
    if (cut != null) {
      attempt(cut::close); // gives back its place in the pool
    }
    atEnd.accept(this);
  }

  /** Waits until the connection is closed. */
  void join(long nanoseconds) throws InterruptedException {
    if (closer != null && nanoseconds > 0) {
      closer.join(TimeUnit.NANOSECONDS.toMillis(nanoseconds) + 1);
    }
  }

  /** What may fail. */
  interface Action {
    void run() throws SQLException;
  }

  static void attempt(Action action) {
    try {
      action.run();
    } catch (SQLException e) {
      // the connection is broken already
    }
  }
}
