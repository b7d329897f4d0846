package org.leaderelection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;
import static org.leaderelection.UnitTest.until;

import com.zaxxer.hikari.HikariDataSource;
import java.io.IOException;
import java.lang.reflect.Proxy;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;
import java.util.regex.Matcher;
import javax.sql.DataSource;
import org.hibernate.Session;
import org.hibernate.SessionFactory;
import org.hibernate.cfg.Configuration;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.leaderelection.Elector.Reason;
import org.postgresql.ds.PGSimpleDataSource;
import org.springframework.jdbc.core.ConnectionCallback;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.core.namedparam.NamedParameterJdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.jdbc.datasource.DataSourceUtils;
import org.springframework.scheduling.support.CronExpression;
import org.springframework.transaction.support.TransactionTemplate;

/** The tests S01 to S14 of clients/README.md, against a real server. */
@Timeout(300)
class ServerIT {
  private static final AtomicInteger COUNT = new AtomicInteger();
  private static final UnaryOperator<LeaderElection.Builder> SESSION = options -> options;
  private static final UnaryOperator<LeaderElection.Builder> LEASE = ttl(30);
  private static final Way.Query WRONG = new Way.Query("SELECT 1 / 0");

  private final String name = "java-" + System.nanoTime() + "-" + COUNT.addAndGet(1);
  private final List<Copy> copies = new ArrayList<>();

  private static UnaryOperator<LeaderElection.Builder> ttl(int seconds) {
    return options -> options.ttl(Duration.ofSeconds(seconds));
  }

  static String url(String variable) {
    String url = System.getenv(variable);
    assumeTrue(url != null, variable + " is not set");
    URI uri = URI.create(url);
    String address = uri.getHost() + ":" + uri.getPort() + uri.getPath();
    return "jdbc:postgresql://" + address + "?user=" + uri.getUserInfo();
  }

  static DataSource source(String url) {
    PGSimpleDataSource source = new PGSimpleDataSource();
    source.setURL(url);
    return source;
  }

  static DataSource direct() {
    return source(url("DATABASE_URL"));
  }

  private static HikariDataSource pool(String url, int size) {
    HikariDataSource pool = new HikariDataSource();
    pool.setJdbcUrl(url);
    pool.setMaximumPoolSize(size);
    return pool;
  }

  static String ask(String sql, Object... arguments) throws SQLException {
    try (Connection connection = direct().getConnection()) {
      return String.valueOf(Jdbc.ask(connection, new Way.Query(sql, arguments))[0]);
    }
  }

  private static void execute(DataSource source, String sql) throws SQLException {
    try (Connection connection = source.getConnection();
        Statement statement = connection.createStatement()) {
      statement.execute(sql);
    }
  }

  /** Creates the extension in a schema, or the SQL edition, if that is tested. */
  private static void install(DataSource source, String schema) throws Exception {
    String script = System.getenv("LE_SQL_EDITION");
    if (script == null || script.isEmpty()) {
      String where = schema == null ? "" : " SCHEMA " + schema;
      if (schema != null) execute(source, "CREATE SCHEMA " + schema);
      execute(source, "CREATE EXTENSION leader_election" + where);
      return;
    }
    String sql = Files.readString(Path.of(script));
    if (schema != null) sql = sql.replaceAll("\\ble\\b", Matcher.quoteReplacement(schema));
    execute(source, sql);
  }

  private String leader() throws SQLException {
    return ask("SELECT (SELECT identity FROM le_leaders WHERE name = ?)", name);
  }

  private int candidates() throws SQLException {
    return Integer.parseInt(ask("SELECT count(*) FROM le_candidates WHERE name = ?", name));
  }

  /** An elector that runs, and what it has done. */
  private final class Copy {
    final List<Term> terms = new CopyOnWriteArrayList<>();
    final List<Reason> ousted = new CopyOnWriteArrayList<>();
    final List<Exception> errors = new CopyOnWriteArrayList<>();
    final Elector elector;
    final CompletableFuture<Void> run;

    Copy(DataSource source, UnaryOperator<LeaderElection.Builder> options, Job job) {
      LeaderElection.Builder election =
          options
              .apply(LeaderElection.builder(source, name).identity("copy-" + copies.size()))
              .onElected(terms::add)
              .onOusted((term, reason) -> ousted.add(reason))
              .onError(errors::add);
      elector = election.build().newElector();
      elector.way.interval = Math.min(1, elector.way.interval); // a long lease is for busy machines
      run = CompletableFuture.runAsync(() -> elector.run(job), task -> new Thread(task).start());
      copies.add(this);
    }

    Copy(DataSource source, UnaryOperator<LeaderElection.Builder> options) {
      this(source, options, ServerIT::untilCancelled);
    }

    Copy elected() throws Exception {
      until(() -> leads() || run.isDone());
      assertTrue(leads(), errors::toString);
      return this;
    }

    private boolean leads() {
      return elector.state() == Elector.State.LEADING && terms.size() == elector.terms();
    }

    void close() {
      elector.close();
      assertEquals(Elector.Health.STOPPED, elector.health());
    }

    PermanentException failure(ErrorKind kind) {
      Throwable cause = assertThrows(ExecutionException.class, run::get).getCause();
      assertEquals(kind, ((PermanentException) cause).kind(), cause::getMessage);
      return (PermanentException) cause;
    }
  }

  private static void untilCancelled(Term term) throws InterruptedException {
    while (term.isLeading()) {
      term.heartbeat();
      Thread.sleep(50);
    }
  }

  @AfterEach
  void closeAll() throws Exception {
    copies.forEach(copy -> copy.elector.stop());
    copies.forEach(copy -> copy.elector.close());
    until(
        () ->
            Thread.getAllStackTraces().keySet().stream()
                .noneMatch(thread -> thread.getName().startsWith("leader-election")));
  }

  private void leadsAndResigns(DataSource source, UnaryOperator<LeaderElection.Builder> options)
      throws Exception {
    Copy one = new Copy(source, options).elected();
    assertEquals("copy-0", leader());
    Copy two = new Copy(source, options);
    until(() -> one.elector.confirmations() >= 7); // pgjdbc prepares what has run five times
    assertEquals(Elector.Health.WAITING, two.elector.health());
    assertEquals(1, one.terms.size());
    one.close();
    assertEquals(List.of(Reason.RESIGNED), one.ousted);
    two.elected();
    assertTrue(two.terms.get(0).token() > one.terms.get(0).token());
    two.close();
    assertEquals("null", leader());
    assertEquals(List.of(), one.errors);
    assertEquals(List.of(), two.errors);
  }

  @Test
  void s01Session() throws Exception {
    leadsAndResigns(direct(), SESSION);
  }

  @Test
  void s02Lease() throws Exception {
    leadsAndResigns(direct(), LEASE);
  }

  @Test
  void s03Heartbeat() throws Exception {
    UnaryOperator<LeaderElection.Builder> heartbeat = o -> o.heartbeat(Duration.ofSeconds(12));
    Copy one = new Copy(direct(), heartbeat, term -> Thread.sleep(60_000)).elected();
    Copy two = new Copy(direct(), heartbeat);
    until(() -> !two.terms.isEmpty());
    assertEquals(List.of(Reason.IN_DOUBT), one.ousted);
    Thread.sleep(12_000);
    assertTrue(two.terms.get(0).isLeading());
  }

  @ParameterizedTest
  @ValueSource(
      strings = {"SELECT le_depose(?)", "SELECT pg_terminate_backend(pid) FROM le_leader(?)"})
  void s04EndOfSession(String sql) throws Exception {
    Copy one = new Copy(direct(), SESSION).elected();
    one.elector.way.interval = 500; // no question tells the end of the session
    one.elector.way.validity = 1000;
    int confirmed = one.elector.confirmations();
    until(() -> one.elector.confirmations() > confirmed);
    ask(sql, name);
    until(() -> !one.ousted.isEmpty());
    assertEquals(Reason.LOST, one.ousted.get(0));
  }

  @ParameterizedTest
  @ValueSource(booleans = {false, true})
  void s05Pooler(boolean seats) throws Exception {
    UnaryOperator<LeaderElection.Builder> session = seats ? options -> options.seats(2) : SESSION;
    try (HikariDataSource pool = pool(url("POOLER_URL"), 4)) {
      DataSource pooler = source(url("POOLER_URL"));
      new Copy(pooler, session, term -> Thread.sleep(60_000));
      new Copy(pooler, session, term -> Thread.sleep(60_000));
      while (!copies.stream().allMatch(copy -> copy.run.isDone())) {
        try {
          execute(pooler, "SELECT pg_sleep(0.7)"); // takes the server connection of a leader,
        } catch (SQLException e) {
          assertEquals("57P01", e.getSQLState()); // or one whose leader was expelled
        }
        Thread.sleep(400); // and gives that leader another one
      }
      for (Copy copy : copies) {
        assertTrue(copy.failure(ErrorKind.POOLER).getMessage().contains("set a ttl"));
      }
      String leaders = "SELECT count(*) FROM le_leaders WHERE name LIKE ? || '%'";
      until(() -> ask(leaders, name).equals("0"));
      copies.clear();
      leadsAndResigns(pool, LEASE);
    }
  }

  @Test
  void s05LeaseWithoutAPool() throws Exception {
    leadsAndResigns(source(url("POOLER_URL")), LEASE);
  }

  @Test
  void s05SettingsStayOutOfThePooler() throws Exception {
    String database = "java_" + System.nanoTime();
    execute(direct(), "CREATE DATABASE " + database);
    execute(direct(), "ALTER DATABASE " + database + " SET statement_timeout = '50s'");
    UnaryOperator<String> url = text -> text.replaceFirst("/[^/]*\\?", "/" + database + "?");
    install(source(url.apply(url("DATABASE_URL"))), null);
    DataSource pooler = source(url.apply(url("POOLER_URL")));
    CompletableFuture<Void> done = new CompletableFuture<>();
    Task task = (transaction, due, term) -> done.complete(null);
    Job every = LeaderElection.of(pooler, name).every(Duration.ofSeconds(1), task);
    Copy one = new Copy(pooler, LEASE, every).elected();
    done.get();
    Thread.sleep(300); // PgBouncer closes a connection whose client ends in a transaction
    one.close();
    List<Connection> connections = new ArrayList<>();
    for (int i = 0; i < 5; i++) { // each with another connection of the server
      Connection connection = pooler.getConnection();
      connections.add(connection);
      connection.setAutoCommit(false);
      assertEquals("50s", Jdbc.ask(connection, new Way.Query("SHOW statement_timeout"))[0]);
    }
    for (Connection connection : connections) connection.close();
    execute(direct(), "DROP DATABASE " + database + " WITH (FORCE)");
  }

  @Test
  void s06LeaderAndFollow() throws Exception {
    LeaderElection election = LeaderElection.of(direct(), name);
    List<String> seen = new CopyOnWriteArrayList<>();
    Follower follower =
        election.follow(
            l ->
                seen.add(l.map(Leader::identity).orElse("none") + l.map(Leader::value).orElse("")));
    Thread thread = new Thread(follower::run);
    thread.start();
    until(() -> seen.size() == 1);
    assertEquals(Optional.empty(), election.leader());
    Job job =
        term -> {
          try (Connection connection = direct().getConnection()) {
            term.proclaim(connection, "host-1");
            String tooLong = "x".repeat(8193);
            assertThrows(SQLException.class, () -> term.proclaim(connection, tooLong));
          }
          untilCancelled(term);
        };
    Copy one = new Copy(direct(), SESSION, job);
    until(() -> seen.contains("copy-0host-1"));
    Term term = one.terms.get(0);
    assertEquals(Optional.of(new Leader("copy-0", term.token(), "host-1")), election.leader());
    one.close();
    try (Connection connection = direct().getConnection()) {
      assertThrows(LostException.class, () -> term.proclaim(connection, "late"));
    }
    until(() -> seen.get(seen.size() - 1).equals("none"));
    new Copy(direct(), LEASE, job);
    until(() -> seen.contains("copy-1host-1"));
    follower.close();
    assertTrue(!thread.isAlive() || follower.errors() == 0);
  }

  private void everyIsDoneOnce(UnaryOperator<LeaderElection.Builder> options, boolean cron)
      throws Exception {
    String table = '"' + name + '"';
    execute(direct(), "CREATE TABLE " + table + " (due text, token bigint)");
    AtomicInteger failures = new AtomicInteger(1);
    Task task =
        (transaction, due, term) -> {
          String sql = "INSERT INTO " + table + " VALUES (?, ?) RETURNING 0";
          Jdbc.ask(transaction, new Way.Query(sql, due.toString(), term.token()));
          if (failures.getAndDecrement() > 0) throw new IOException("the task's");
        };
    CronExpression expression = CronExpression.parse("*/2 * * * * *");
    ZoneId zone = ZoneId.of("Europe/Berlin");
    LeaderElection election = LeaderElection.of(direct(), name);
    Job every =
        cron
            ? election.every(expression::next, zone, task)
            : election.every(Duration.ofSeconds(2), task);
    Copy one = new Copy(direct(), options, every).elected();
    Copy two = new Copy(direct(), options, every);
    String tokens =
        "SELECT string_agg(count, ',') FROM (SELECT (count(*) >= 2)::text AS count FROM "
            + table
            + " GROUP BY token) AS of_token";
    until(() -> ask(tokens).equals("true"));
    one.close();
    two.elected();
    until(() -> ask(tokens).equals("true,true"));
    two.close();
    String odd =
        "SELECT count(*) - count(DISTINCT due) || ',' || count(*) FILTER (WHERE extract(second FROM due::timestamptz)::int % 2 <> 0) FROM ";
    assertEquals("0,0", ask(odd + table));
    assertEquals(ErrorKind.JOB, ((LeaderElectionException) one.errors.get(0)).kind());
    execute(direct(), "DROP TABLE " + table);
  }

  @Test
  void s07EveryInterval() throws Exception {
    everyIsDoneOnce(SESSION, false);
  }

  @Test
  void s07EveryByCron() throws Exception {
    everyIsDoneOnce(LEASE, true);
  }

  @Test
  void s07EveryReportsATaskThatHasCommitted() throws Exception {
    List<Instant> times = new CopyOnWriteArrayList<>();
    Task task =
        (transaction, due, term) -> {
          times.add(due);
          transaction.commit();
        };
    Job every = LeaderElection.of(direct(), name).every(Duration.ofSeconds(1), task);
    Copy one = new Copy(direct(), SESSION, every);
    until(() -> one.errors.size() >= 2);
    assertEquals(
        "the job has failed: java.lang.IllegalStateException: the task has ended its transaction",
        one.errors.get(0).getMessage());
    assertNotEquals(times.get(0), times.get(1)); // it was done
  }

  @Test
  void s07EveryLetsATaskChangeItsRole() throws Exception {
    List<Instant> times = new CopyOnWriteArrayList<>();
    Task task =
        (transaction, due, term) -> {
          try (Statement statement = transaction.createStatement()) {
            statement.execute("SET LOCAL ROLE pg_monitor");
          }
          times.add(due);
        };
    Job every = LeaderElection.of(direct(), name).every(Duration.ofSeconds(1), task);
    Copy one = new Copy(direct(), SESSION, every);
    until(() -> times.size() >= 2);
    assertNotEquals(times.get(0), times.get(1)); // it was done
    assertEquals(List.of(), one.errors);
  }

  @ParameterizedTest
  @ValueSource(booleans = {false, true})
  void s07EveryTriesAgainWhatWasRolledBack(boolean rollsBack) throws Exception {
    List<Instant> times = new CopyOnWriteArrayList<>();
    Task task =
        (transaction, due, term) -> {
          times.add(due);
          if (times.size() > 1) return;
          if (rollsBack) transaction.rollback();
          else assertThrows(SQLException.class, () -> Jdbc.ask(transaction, WRONG));
        };
    AtomicReference<Instant> only = new AtomicReference<>();
    Function<Instant, Instant> schedule =
        last -> {
          only.compareAndSet(null, last.plusSeconds(1));
          return last.isBefore(only.get()) ? only.get() : null;
        };
    Job every = LeaderElection.of(direct(), name).every(schedule, task);
    Copy one = new Copy(direct(), SESSION, every);
    until(() -> times.size() >= 2);
    assertEquals(times.get(0), times.get(1));
    until(() -> one.errors.size() == 1);
  }

  @Test
  void s07EveryIsCutAtCancellation() throws Exception {
    CompletableFuture<Void> begun = new CompletableFuture<>();
    Task task =
        (transaction, due, term) -> {
          begun.complete(null);
          Jdbc.ask(transaction, new Way.Query("SELECT pg_sleep(1000)"));
        };
    Job every = LeaderElection.of(direct(), name).every(Duration.ofSeconds(1), task);
    Copy one = new Copy(direct(), SESSION, every);
    begun.get();
    one.close();
  }

  @ParameterizedTest
  @ValueSource(booleans = {false, true})
  void s08Seats(boolean lease) throws Exception {
    UnaryOperator<LeaderElection.Builder> way = lease ? LEASE : SESSION;
    for (int i = 0; i < 3; i++) new Copy(direct(), o -> way.apply(o).seats(2));
    until(() -> copies.stream().filter(copy -> !copy.terms.isEmpty()).count() == 2);
    Thread.sleep(1500);
    List<Copy> leaders = copies.stream().filter(copy -> !copy.terms.isEmpty()).toList();
    assertEquals(2, leaders.size());
    String seat = leaders.get(0).terms.get(0).election();
    assertTrue(seat.matches(name + "/[12]"), seat);
    leaders.get(0).close();
    Copy third = copies.stream().filter(copy -> !leaders.contains(copy)).findAny().orElseThrow();
    assertEquals(seat, third.elected().terms.get(0).election());
  }

  @Test
  void s09StopWhileWaiting() throws Exception {
    new Copy(direct(), SESSION).elected();
    Copy two = new Copy(direct(), SESSION);
    until(() -> candidates() == 1);
    two.close();
    until(() -> candidates() == 0);
    assertEquals(List.of(), two.errors);
  }

  @Test
  void s10HikariSession() throws Exception {
    try (HikariDataSource pool = pool(url("DATABASE_URL"), 2)) {
      Copy one = new Copy(pool, SESSION).elected();
      String pid = ask("SELECT pid FROM le_leader(?)", name);
      one.close();
      String there = "SELECT count(*) FROM pg_stat_activity WHERE pid = ?::int";
      until(() -> ask(there, pid).equals("0")); // and not back in the pool
      try (Connection connection = pool.getConnection();
          Connection other = pool.getConnection()) {
        assertTrue(connection.isValid(60) && other.isValid(60)); // no place is lost
      }
    }
  }

  @Test
  void s10HikariLease() throws Exception {
    try (HikariDataSource pool = pool(url("DATABASE_URL"), 1)) {
      pool.setAutoCommit(false);
      leadsAndResigns(pool, LEASE);
      new Copy(pool, ttl(3)).elected();
      try (Connection taken = pool.getConnection()) {
        Copy starved = copies.get(2);
        until(() -> starved.errors.toString().contains("no connection"));
        until(() -> !starved.ousted.isEmpty());
        assertTrue(!taken.getAutoCommit());
      }
      copies.get(2).elected();
    }
  }

  /** A lease that is granted in a transaction only begins at its commit. */
  @ParameterizedTest
  @ValueSource(booleans = {false, true})
  void s10HikariInATransaction(boolean lease) throws Exception {
    try (HikariDataSource pool = pool(url("DATABASE_URL"), 1)) {
      execute(pool, "BEGIN");
      new Copy(pool, lease ? LEASE : SESSION).elected();
      assertEquals("copy-0", leader());
    }
  }

  @ParameterizedTest
  @ValueSource(booleans = {false, true})
  void s10HikariThatIsClosed(boolean lease) throws Exception {
    HikariDataSource pool = pool(url("DATABASE_URL"), 2);
    Copy one = new Copy(pool, lease ? ttl(6) : SESSION).elected();
    pool.close();
    until(() -> !one.ousted.isEmpty());
    until(() -> one.errors.toString().contains("has been closed"));
    assertEquals(Elector.Health.IN_DOUBT, one.elector.health());
    one.close();
  }

  /** Hides that this is pgjdbc. */
  @SuppressWarnings("unchecked")
  private static <T> T hide(Class<T> type, T hidden) {
    return (T)
        Proxy.newProxyInstance(
            type.getClassLoader(),
            new Class<?>[] {type},
            (self, method, arguments) -> {
              if (method.getName().equals("isWrapperFor")) return false;
              try {
                Object result = method.invoke(hidden, arguments);
                if (result instanceof Connection c) return hide(Connection.class, c);
                return result instanceof PreparedStatement s
                    ? hide(PreparedStatement.class, s)
                    : result;
              } catch (java.lang.reflect.InvocationTargetException e) {
                throw e.getCause();
              }
            });
  }

  @Test
  void s10OtherDriver() throws Exception {
    Copy one = new Copy(hide(DataSource.class, direct()), SESSION).elected();
    ask("SELECT pg_terminate_backend(pid) FROM le_leader(?)", name);
    until(() -> !one.ousted.isEmpty());
    assertEquals(Reason.LOST, one.ousted.get(0)); // by the next question
    one.elected();
  }

  @Test
  void s11Guard() throws Exception {
    Copy one = new Copy(direct(), LEASE).elected();
    Term term = one.terms.get(0);
    Instant due = Instant.parse("2026-01-01T00:00:00Z");
    DataSource source = direct();
    JdbcTemplate spring = new JdbcTemplate(source); // without a transaction
    try (Connection connection = source.getConnection()) {
      List<Executable> calls =
          List.of(
              () -> term.guard(connection),
              () -> term.once(connection, due),
              () -> spring.execute((Connection c) -> term.once(c, due)));
      for (Executable call : calls) assertThrows(IllegalStateException.class, call);
      assertEquals("0", ask("SELECT count(*) FROM le_once_done WHERE name = ?", name));
      connection.setAutoCommit(false);
      assertTrue(term.once(connection, due));
      connection.commit();
      one.close();
      SQLException over = assertThrows(SQLException.class, () -> term.guard(connection));
      assertEquals("LE001", over.getSQLState());
    }
  }

  @Test
  void s12PermanentErrors() throws Exception {
    String database = "java_" + System.nanoTime();
    execute(direct(), "CREATE DATABASE " + database);
    execute(direct(), "CREATE ROLE " + database + " LOGIN");
    DataSource other = source(url("DATABASE_URL").replaceFirst("/[^/]*\\?", "/" + database + "?"));
    String missing = new Copy(other, SESSION).failure(ErrorKind.EXTENSION).getMessage();
    String hint =
        "leader_election is not installed in database \"%s\": "
            + "run CREATE EXTENSION leader_election, or install the SQL edition";
    assertEquals(hint.formatted(database), missing);
    LeaderElection asked = LeaderElection.builder(other, name).build();
    assertEquals(missing, assertThrows(PermanentException.class, asked::leader).getMessage());
    install(other, "\"L e\"");
    String elsewhere = new Copy(other, LEASE).failure(ErrorKind.EXTENSION).getMessage();
    assertTrue(elsewhere.startsWith("leader_election is in schema \"L e\": set the option schema"));
    UnaryOperator<LeaderElection.Builder> schema = options -> options.schema("L e");
    new Copy(other, schema).elected().close();
    assertEquals(
        Optional.empty(), schema.apply(LeaderElection.builder(other, name)).build().leader());
    execute(
        other,
        "REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA \"L e\" FROM PUBLIC; GRANT USAGE ON SCHEMA \"L e\" TO PUBLIC");
    String unprivileged =
        url("DATABASE_URL").replaceFirst("/[^/]*$", "/" + database + "?user=" + database);
    new Copy(source(unprivileged), schema).failure(ErrorKind.PRIVILEGE);
    String refused = new Copy(direct(), ttl(80_000)).failure(ErrorKind.ARGUMENT).getMessage();
    assertTrue(refused.matches("(?s).*Hint: .*max_ttl.*"), refused);
    execute(direct(), "DROP DATABASE " + database + " WITH (FORCE)");
    execute(direct(), "DROP ROLE " + database);
  }

  @Test
  void s13TimeoutsOfTheRole() throws Exception {
    String role = "java_" + System.nanoTime();
    execute(
        direct(),
        "CREATE ROLE "
            + role
            + " LOGIN SUPERUSER; ALTER ROLE "
            + role
            + " SET statement_timeout = '4s'; ALTER ROLE "
            + role
            + " SET lock_timeout = '4s'; ALTER ROLE "
            + role
            + " SET idle_session_timeout = '4s'");
    String url = url("DATABASE_URL").replaceFirst("user=.*", "user=" + role);
    Copy one = new Copy(source(url), SESSION).elected();
    Copy two = new Copy(source(url + "&ApplicationName=mine"), SESSION);
    Follower follower =
        LeaderElection.builder(source(url), name).onError(one.errors::add).build().follow(l -> {});
    new Thread(follower::run).start();
    Thread.sleep(6000);
    String names =
        "SELECT string_agg(application_name, ',' ORDER BY pid) FROM pg_stat_activity WHERE usename = ?";
    String own = "leader_election: " + name;
    assertEquals(
        List.of("mine", own, own),
        java.util.Arrays.stream(ask(names, role).split(","))
            .sorted(java.util.Comparator.reverseOrder())
            .toList());
    assertEquals("copy-0", leader());
    follower.close();
    one.close();
    two.elected().close();
    assertEquals(List.of(), one.errors);
    assertEquals(List.of(), two.errors);
    execute(direct(), "DROP ROLE " + role);
  }

  @ParameterizedTest
  @ValueSource(booleans = {false, true})
  void s14TryRun(boolean lease) throws Exception {
    List<Exception> errors = new CopyOnWriteArrayList<>();
    List<String> ran = new CopyOnWriteArrayList<>();
    Supplier<Elector> one =
        () ->
            (lease ? LEASE : SESSION)
                .apply(LeaderElection.builder(direct(), name).identity("once").onError(errors::add))
                .build()
                .newElector();
    Copy other = new Copy(direct(), lease ? LEASE : SESSION).elected();
    assertFalse(one.get().tryRun(Duration.ZERO, term -> ran.add("too early")));
    long time = System.nanoTime();
    assertFalse(one.get().tryRun(Duration.ofMillis(1500), term -> ran.add("too early")));
    double took = (System.nanoTime() - time) / 1e9;
    assertTrue(took >= 1.4, took + " s");
    CompletableFuture.runAsync(
        other.elector::close, CompletableFuture.delayedExecutor(500, TimeUnit.MILLISECONDS));
    assertTrue(one.get().tryRun(Duration.ofSeconds(60), term -> ran.add(leader())));
    Throwable failure = new Throwable("the job's");
    Job job =
        term -> {
          throw Elector.<Exception>unchecked(failure);
        };
    assertSame(failure, assertThrows(Throwable.class, () -> one.get().tryRun(Duration.ZERO, job)));
    assertEquals("null", leader());
    assertEquals(List.of("once"), ran);
    assertEquals(List.of(), errors);
    Elector refused =
        ttl(80_000).apply(LeaderElection.builder(direct(), name)).build().newElector();
    assertThrows(PermanentException.class, () -> refused.tryRun(Duration.ofDays(1), term -> {}));
    DataSource none = source("jdbc:postgresql://127.0.0.1:1/none?user=none");
    Elector unreachable = LeaderElection.of(none, name).newElector();
    LeaderElectionException broken =
        assertThrows(
            LeaderElectionException.class, () -> unreachable.tryRun(Duration.ZERO, term -> {}));
    assertEquals(ErrorKind.BROKEN, broken.kind());
  }

  /** A transaction of a library: runs code in it, with each way to ask there, and then ends it. */
  private interface Library {
    void transact(boolean commits, BiConsumer<Asking, Asking> code) throws Exception;
  }

  /** Runs once or guard. */
  private interface Asking {
    Object ask(Term term, Instant due) throws SQLException;

    default Object ask(Term term) {
      try {
        return ask(term, Instant.EPOCH);
      } catch (SQLException e) {
        throw new IllegalStateException(e);
      }
    }
  }

  private static void jdbc(boolean commits, BiConsumer<Asking, Asking> code) throws SQLException {
    try (Connection connection = direct().getConnection()) {
      connection.setAutoCommit(false);
      code.accept(
          (term, due) -> term.once(connection, due),
          (term, due) -> {
            term.guard(connection);
            return null;
          });
      if (commits) connection.commit();
    }
  }

  private static void jdbcStatement(boolean commits, BiConsumer<Asking, Asking> code)
      throws SQLException {
    try (Connection connection = direct().getConnection()) {
      connection.setAutoCommit(false);
      code.accept(
          (term, due) -> Jdbc.ask(connection, new Way.Query(term.onceSql(due)))[0],
          (term, due) -> Jdbc.ask(connection, new Way.Query(term.guardSql()))[0]);
      if (commits) connection.commit();
    }
  }

  private static void spring(boolean commits, BiConsumer<Asking, Asking> code) {
    DataSource source = direct();
    JdbcTemplate template = new JdbcTemplate(source);
    new TransactionTemplate(new DataSourceTransactionManager(source))
        .executeWithoutResult(
            status -> {
              code.accept(
                  (term, due) -> term.once(DataSourceUtils.getConnection(source), due),
                  (term, due) ->
                      template.execute(
                          (ConnectionCallback<Object>)
                              connection -> {
                                term.guard(connection);
                                return null;
                              }));
              if (!commits) status.setRollbackOnly();
            });
  }

  private static void springStatement(boolean commits, BiConsumer<Asking, Asking> code) {
    DataSource source = direct();
    JdbcTemplate template = new JdbcTemplate(source);
    NamedParameterJdbcTemplate named = new NamedParameterJdbcTemplate(template);
    new TransactionTemplate(new DataSourceTransactionManager(source))
        .executeWithoutResult(
            status -> {
              code.accept(
                  (term, due) -> template.queryForObject(term.onceSql(due), Boolean.class),
                  (term, due) -> named.queryForList(term.guardSql(), Map.of()));
              if (!commits) status.setRollbackOnly();
            });
  }

  private static void hibernate(boolean commits, BiConsumer<Asking, Asking> code) {
    hibernate(
        commits,
        session ->
            code.accept(
                (term, due) -> session.doReturningWork(c -> term.once(c, due)),
                (term, due) -> {
                  session.doWork(term::guard);
                  return null;
                }));
  }

  private static void hibernateStatement(boolean commits, BiConsumer<Asking, Asking> code) {
    hibernate(
        commits,
        session ->
            code.accept(
                (term, due) ->
                    session.createNativeQuery(term.onceSql(due), Boolean.class).getSingleResult(),
                (term, due) ->
                    session.createNativeQuery(term.guardSql(), String.class).getSingleResult()));
  }

  private static void hibernate(boolean commits, Consumer<Session> code) {
    Configuration configuration =
        new Configuration().setProperty("hibernate.connection.url", url("DATABASE_URL"));
    try (SessionFactory factory = configuration.buildSessionFactory();
        Session session = factory.openSession()) {
      session.beginTransaction();
      code.accept(session);
      if (commits) session.getTransaction().commit();
      else session.getTransaction().rollback();
    }
  }

  private static final Map<String, Library> LIBRARIES =
      Map.of(
          "jdbc", ServerIT::jdbc,
          "jdbcStatement", ServerIT::jdbcStatement,
          "spring", ServerIT::spring,
          "springStatement", ServerIT::springStatement,
          "hibernate", ServerIT::hibernate,
          "hibernateStatement", ServerIT::hibernateStatement);

  @ParameterizedTest
  @ValueSource(strings = {"", " le_it's ? ?? :x %s $1 {d} \\ \"q\" /* -- ü"})
  void s11Libraries(String more) throws Exception {
    Copy one =
        new Copy(
                direct(),
                o ->
                    LeaderElection.builder(direct(), name + more)
                        .onElected(o.onElected)
                        .onOusted(o.onOusted)
                        .ttl(Duration.ofSeconds(60)))
            .elected();
    Term term = one.terms.get(0);
    List<Object> done = new ArrayList<>();
    Instant[] due = {Instant.parse("2026-01-01T00:00:00.123456Z")};
    for (Library library : LIBRARIES.values()) {
      due[0] = due[0].plusSeconds(60);
      for (boolean commits : new boolean[] {false, true, true}) {
        library.transact(
            commits,
            (once, guard) -> {
              try {
                done.add(once.ask(term, due[0]));
              } catch (SQLException e) {
                throw new IllegalStateException(e);
              }
              guard.ask(term);
            });
      }
      assertEquals(List.of(true, true, false), done);
      done.clear();
    }
    one.close();
    LIBRARIES.forEach(
        (name, library) -> {
          for (int i = 0; i < 2; i++) {
            int which = i;
            Exception over =
                assertThrows(
                    Exception.class,
                    () ->
                        library.transact(
                            true, (once, guard) -> (which == 0 ? once : guard).ask(term)),
                    name);
            assertEquals("LE001", state(over), name);
          }
        });
  }

  private static String state(Throwable error) {
    return error == null || error instanceof SQLException
        ? error == null ? null : ((SQLException) error).getSQLState()
        : state(error.getCause());
  }

  @ParameterizedTest
  @ValueSource(booleans = {false, true})
  void roleThatIsReplaced(boolean asOne) throws Exception {
    String app = "java_" + System.nanoTime();
    execute(direct(), "CREATE ROLE " + app);
    AtomicInteger number = new AtomicInteger();
    Callable<Void> replace =
        () -> {
          String role = "v" + (number.get() + 1) + "_" + app;
          execute(direct(), "CREATE ROLE " + role + " LOGIN IN ROLE " + app);
          if (asOne) execute(direct(), "ALTER ROLE " + role + " SET role = " + app);
          number.incrementAndGet();
          return null;
        };
    replace.call();
    String url = url("DATABASE_URL").replaceFirst("user=.*", "user=");
    Copy one =
        new Copy(sources(() -> source(url + "v" + number + "_" + app)), ttl(asOne ? 30 : 6))
            .elected();
    replace.call();
    int confirmed = one.elector.confirmations();
    until(() -> one.elector.confirmations() > confirmed + 1);
    assertTrue(asOne ? one.elector.terms() == 1 : one.elector.terms() > 1);
    assertEquals(!asOne, one.errors.toString().contains("permission denied"), one.errors::toString);
    one.close();
    execute(direct(), "DROP ROLE v1_" + app + ", v2_" + app + ", " + app);
  }

  /** Returns a source of connections that asks for another one each time. */
  private static DataSource sources(Supplier<DataSource> each) {
    return (DataSource)
        Proxy.newProxyInstance(
            DataSource.class.getClassLoader(),
            new Class<?>[] {DataSource.class},
            (self, method, arguments) -> method.invoke(each.get(), arguments));
  }
}
