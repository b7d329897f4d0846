package org.leaderelection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import javax.sql.DataSource;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The lines S01 to S10 of the conformance list, against a real server. */
@Timeout(120)
@SuppressWarnings("try") // a follower is closed only
public class ServerIT {
  private static final AtomicInteger COUNT = new AtomicInteger();

  // A lease of 6 s, whose validity is 4 s, and which is renewed each 2 s: it outlives a pause of
  // the
  // machine of 2 s. A heartbeat likewise.
  private static final int TTL = 6000;

  private final String election =
      "java-" + ProcessHandle.current().pid() + "-" + System.nanoTime() + "-" + COUNT.addAndGet(1);
  private final List<Copy> copies = new ArrayList<>();

  /** An elector, and what it has done. */
  private final class Copy {
    final List<Term> terms = new CopyOnWriteArrayList<>();
    final List<Reason> ousted = new CopyOnWriteArrayList<>();
    final List<Exception> errors = new CopyOnWriteArrayList<>();
    final AtomicInteger jobs = new AtomicInteger(); // that run
    final Elector elector;

    Copy(DataSource dataSource, Consumer<Elector.Builder> options, Job job) {
      Elector.Builder builder =
          Elector.builder(dataSource, election, term -> count(job, term))
              .identity("copy-" + copies.size())
              .onElected(terms::add)
              .onOusted((term, reason) -> ousted.add(reason))
              .onError(errors::add);
      options.accept(builder);
      elector = builder.build();
      copies.add(this);
      elector.start();
    }

    Copy(DataSource dataSource, Consumer<Elector.Builder> options) {
      this(dataSource, options, ServerIT::untilCancelled);
    }

    private void count(Job job, Term term) throws Exception {
      jobs.incrementAndGet();
      try {
        job.run(term);
      } finally {
        jobs.decrementAndGet();
      }
    }

    void awaitElected() throws Exception {
      try {
        Database.eventually(15, "elected", () -> !terms.isEmpty() && jobs.get() == 1);
      } catch (AssertionError e) {
        errors.forEach(e::addSuppressed);
        throw e;
      }
    }

    boolean leads() {
      return jobs.get() == 1;
    }
  }

  private static void untilCancelled(Term term) throws InterruptedException {
    while (true) {
      term.heartbeat();
      Thread.sleep(50);
    }
  }

  private static void session(Elector.Builder builder) {}

  private static Consumer<Elector.Builder> lease(int millis) {
    return builder -> builder.ttl(Duration.ofMillis(millis));
  }

  /**
   * Ends terms until one's job is cancelled before the next question, which comes a second after
   * the one before. A busy machine may be late, but not each time.
   */
  private void cancelledAtOnce(Copy copy, String sql) throws Exception {
    long took = Long.MAX_VALUE;
    for (int attempt = 0; attempt < 5 && took > 500e6; attempt++) {
      Database.eventually(15, "leads", copy::leads);
      int ousted = copy.ousted.size();
      Thread.sleep(300);
      long begun = System.nanoTime();
      Database.ask(sql, election);
      Database.eventually(15, "cancelled", () -> copy.ousted.size() > ousted);
      took = System.nanoTime() - begun;
    }
    assertTrue(took < 500e6, "cancelled after " + took / 1e9 + " s");
  }

  @AfterEach
  void closeAll() throws Exception {
    copies.forEach(copy -> copy.elector.stop());
    copies.forEach(copy -> copy.elector.close());
    Database.noThreads();
  }

  private void awaitRenewals(int count) throws Exception {
    String renewals = "SELECT renewals FROM le_leader(?)";
    Database.eventually(
        30, "renewed", () -> Integer.parseInt(Database.ask(renewals, election)) >= count);
  }

  private long candidates() throws SQLException {
    return Long.parseLong(
        Database.ask("SELECT count(*) FROM le_candidates WHERE name = ?", election));
  }

  @Test
  void s01Session() throws Exception {
    Copy one = new Copy(Database.direct(), ServerIT::session);
    one.awaitElected();
    assertEquals("copy-0", Database.identity(election));
    assertEquals("session", Database.ask("SELECT scope FROM le_leader(?)", election));
    assertEquals(
        one.terms.get(0).token(),
        Long.parseLong(Database.ask("SELECT token FROM le_leader(?)", election)));
    Copy two = new Copy(Database.direct(), ServerIT::session);
    Database.eventually(5, "a candidate", () -> candidates() == 1);
    Thread.sleep(1500);
    assertTrue(one.leads() && one.terms.get(0).isLeading());
    assertEquals(State.LEADING, one.elector.state());
    assertEquals(State.WAITING, two.elector.state());
    one.elector.close();
    assertEquals(List.of(Reason.RESIGNED), one.ousted);
    assertEquals(State.STOPPED, one.elector.state());
    two.awaitElected();
    assertTrue(two.terms.get(0).token() > one.terms.get(0).token());
    two.elector.close();
    assertEquals(null, Database.identity(election));
    assertEquals(List.of(), one.errors);
    assertEquals(List.of(), two.errors);
  }

  @Test
  void s02Lease() throws Exception {
    Copy one = new Copy(Database.direct(), lease(TTL));
    one.awaitElected();
    assertEquals("copy-0", Database.identity(election));
    assertEquals("lease", Database.ask("SELECT scope FROM le_leader(?)", election));
    awaitRenewals(4);
    assertTrue(one.leads());
    assertEquals(1, one.terms.size());
    one.elector.close();
    assertEquals(null, Database.identity(election));
    assertEquals(List.of(Reason.RESIGNED), one.ousted);
    assertEquals(List.of(), one.errors);
  }

  @Test
  void s02RenewOnHeartbeat() throws Exception {
    Copy one = new Copy(Database.direct(), b -> b.ttl(Duration.ofMillis(TTL)).renewOnHeartbeat());
    one.awaitElected();
    Thread.sleep(TTL); // longer than the validity
    assertTrue(one.leads());
    assertEquals(1, one.terms.size());
  }

  @Test
  void s03Heartbeat() throws Exception {
    Consumer<Elector.Builder> heartbeat = builder -> builder.heartbeat(Duration.ofMillis(TTL));
    Copy one = new Copy(Database.direct(), heartbeat, term -> Thread.sleep(60_000));
    one.awaitElected();
    Copy two =
        new Copy(
            Database.direct(),
            heartbeat,
            term -> {
              assertEquals(0, one.jobs.get(), "cancelled by then");
              untilCancelled(term);
            });
    two.awaitElected();
    assertEquals(Reason.IN_DOUBT, one.ousted.get(0));
    Thread.sleep(TTL); // its job calls heartbeat
    assertTrue(two.leads());
    assertEquals(List.of(), two.errors);
  }

  @Test
  void s04TerminatedAndDeposed() throws Exception {
    Copy one = new Copy(Database.direct(), ServerIT::session);
    one.awaitElected();
    cancelledAtOnce(one, "SELECT pg_terminate_backend(pid) FROM le_leader(?)");
    cancelledAtOnce(one, "SELECT le_depose(?)");
    assertEquals(Set.of(Reason.LOST), Set.copyOf(one.ousted));
    assertEquals(one.ousted.size(), one.errors.size());
  }

  @Test
  void s04DeposedLease() throws Exception {
    Copy one = new Copy(Database.direct(), lease(TTL));
    one.awaitElected();
    Database.ask("SELECT le_depose(?)", election);
    Database.eventually(15, "cancelled by the next renewal", () -> !one.ousted.isEmpty());
    assertEquals(List.of(Reason.LOST), one.ousted);
    assertEquals(1, one.errors.size());
  }

  @Test
  void s05PoolerErrorOfASession() throws Exception {
    List<Exception> errors = new CopyOnWriteArrayList<>();
    AtomicInteger jobs = new AtomicInteger();
    Elector elector =
        Elector.builder(Database.pooler(), election, term -> jobs.incrementAndGet())
            .onError(errors::add)
            .build();
    assertThrows(PoolerException.class, elector::run);
    assertEquals(0, jobs.get());
    assertEquals(1, errors.size());
    assertEquals(null, Database.identity(election));
    assertEquals(0, candidates());
  }

  @Test
  void s05LeaseThroughAPooler() throws Exception {
    Copy one = new Copy(Database.pooler(), lease(TTL));
    one.awaitElected();
    Copy two = new Copy(Database.pooler(), lease(TTL));
    awaitRenewals(7); // pgjdbc prepares a statement that has run five times
    assertTrue(one.leads());
    one.elector.close();
    two.awaitElected();
    assertEquals(List.of(), one.errors);
    assertEquals(List.of(), two.errors);
  }

  @Test
  void s05LeaseThroughAPoolerAndAPool() throws Exception {
    try (HikariDataSource pool = Database.pool(Database.jdbcUrl("POOLER_URL"), 2)) {
      Copy one = new Copy(pool, lease(TTL));
      one.awaitElected();
      awaitRenewals(7);
      assertTrue(one.leads());
      one.elector.close();
      assertEquals(List.of(), one.errors);
      assertEquals(0, pool.getHikariPoolMXBean().getActiveConnections());
    }
  }

  @Test
  void s06LeaderAndFollow() throws Exception {
    DataSource source = Database.direct();
    List<Optional<Leader>> seen = new CopyOnWriteArrayList<>();
    assertEquals(Optional.empty(), LeaderElection.leader(source, election));
    try (Follower follower = LeaderElection.follow(source, election, seen::add)) {
      Database.eventually(5, "none", () -> seen.size() == 1);
      Copy one = new Copy(source, lease(TTL));
      one.awaitElected();
      Database.eventually(5, "a leader", () -> seen.size() == 2);
      String proclaim = "SELECT le_proclaim(?, 'host-1:8080', ?)";
      Database.ask(proclaim, election, one.terms.get(0).token());
      Database.eventually(5, "its value", () -> seen.size() == 3);
      assertEquals(seen.get(2), LeaderElection.leader(source, election));
      one.elector.close();
      Database.eventually(5, "none", () -> seen.get(seen.size() - 1).isEmpty());
      Copy two = new Copy(source, ServerIT::session);
      two.awaitElected();
      Database.eventually(5, "the next leader", () -> seen.get(seen.size() - 1).isPresent());
      two.elector.close();
      Database.eventually(5, "none", () -> seen.get(seen.size() - 1).isEmpty());
      assertEquals(6, seen.size());
      Leader leader = seen.get(2).orElseThrow();
      assertEquals(election, leader.election());
      assertEquals("copy-0", leader.identity());
      assertEquals("lease", leader.scope());
      assertEquals("host-1:8080", leader.value());
      assertEquals(one.terms.get(0).token(), leader.token());
      assertTrue(Duration.between(leader.since(), Instant.now()).abs().toSeconds() < 60);
      assertEquals("copy-1", seen.get(4).orElseThrow().identity());
    }
    Database.eventually(
        15, // a round of le_observe lasts 30 s
        "no connection waits",
        () ->
            Database.ask(
                    "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%le_observe%'"
                        + " AND pid <> pg_backend_pid() AND datname = current_database()")
                .equals("0"));
  }

  @Test
  void s06FollowReconnects() throws Exception {
    List<Optional<Leader>> seen = new CopyOnWriteArrayList<>();
    List<Exception> errors = new CopyOnWriteArrayList<>();
    try (Follower follower =
        LeaderElection.follow(Database.direct(), election, seen::add, errors::add)) {
      Database.eventually(5, "none", () -> seen.size() == 1);
      Database.ask(
          "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE"
              + " '%le_observe%' AND pid <> pg_backend_pid() AND datname = current_database()");
      Copy one = new Copy(Database.direct(), ServerIT::session);
      one.awaitElected();
      Database.eventually(5, "a leader", () -> seen.size() == 2);
      assertEquals(1, errors.size());
    }
  }

  private void countTable() throws SQLException {
    execute(
        "DROP TABLE IF EXISTS \"" + election + "\"",
        "CREATE TABLE \"" + election + "\" (due timestamptz, token bigint)");
  }

  private static void execute(String... commands) throws SQLException {
    try (Connection connection = Database.direct().getConnection();
        Statement statement = connection.createStatement()) {
      for (String command : commands) {
        statement.execute(command);
      }
    }
  }

  private void record(Connection connection, Term term) throws SQLException {
    String sql =
        "INSERT INTO \""
            + election
            + "\" SELECT due, token FROM le_once_done WHERE name = '"
            + term.election()
            + "'";
    try (PreparedStatement insert = connection.prepareStatement(sql)) {
      assertEquals(1, insert.executeUpdate());
    }
  }

  private void everyIsDoneOnce(DataSource source, Consumer<Elector.Builder> options)
      throws Exception {
    countTable();
    try {
      AtomicInteger failures = new AtomicInteger(1);
      Task task =
          (connection, due, term) -> {
            record(connection, term);
            if (failures.getAndDecrement() > 0) {
              throw new IOException("the task's");
            }
          };
      Job every = LeaderElection.every(source, Duration.ofSeconds(2), task);
      Copy one = new Copy(source, options, every);
      Copy two = new Copy(source, options, every);
      String rows = "SELECT count(*) FROM \"" + election + "\"";
      Database.eventually(15, "two times", () -> Integer.parseInt(Database.ask(rows)) >= 2);
      Copy leader = one.leads() ? one : two;
      leader.elector.close();
      String tokens = "SELECT count(DISTINCT token) FROM \"" + election + "\"";
      Database.eventually(15, "the other's", () -> Database.ask(tokens).equals("2"));
      (leader == one ? two : one).elector.close();
      String twice = "SELECT count(*) - count(DISTINCT due) FROM \"" + election + "\"";
      assertEquals("0", Database.ask(twice));
      List<Exception> errors = new ArrayList<>(one.errors);
      errors.addAll(two.errors);
      // a server that is too busy to answer in time loses its connection, which is reported, too
      errors.removeIf(e -> e instanceof SQLException lost && lost.getSQLState().startsWith("08"));
      assertEquals(1, errors.size(), errors::toString);
      assertEquals("the task's", errors.get(0).getMessage());
    } finally {
      execute("DROP TABLE \"" + election + "\"");
    }
  }

  @Test
  void s07Every() throws Exception {
    everyIsDoneOnce(Database.direct(), ServerIT::session);
  }

  @Test
  void s07EveryThroughAPoolerAndAPool() throws Exception {
    try (HikariDataSource pool = Database.pool(Database.jdbcUrl("POOLER_URL"), 4)) {
      everyIsDoneOnce(pool, lease(TTL));
      assertEquals(0, pool.getHikariPoolMXBean().getActiveConnections());
    }
  }

  @Test
  void s07EveryIsCutAtCancellation() throws Exception {
    Task task =
        (connection, due, term) -> {
          try (Statement statement = connection.createStatement()) {
            statement.execute("SELECT pg_sleep(60)");
          }
        };
    Copy one =
        new Copy(
            Database.direct(),
            ServerIT::session,
            LeaderElection.every(Database.direct(), Duration.ofSeconds(1), task));
    one.awaitElected();
    Thread.sleep(1000);
    long begun = System.nanoTime();
    one.elector.close();
    assertTrue(System.nanoTime() - begun < 8e9); // the statement goes on for 60 s
  }

  private void seats(Consumer<Elector.Builder> options) throws Exception {
    for (int i = 0; i < 3; i++) {
      new Copy(Database.direct(), options.andThen(builder -> builder.seats(2)));
    }
    Database.eventually(10, "two lead", () -> copies.stream().filter(Copy::leads).count() == 2);
    Thread.sleep(1500);
    List<Copy> leaders = copies.stream().filter(Copy::leads).toList();
    assertEquals(2, leaders.size());
    List<String> names =
        leaders.stream().map(copy -> copy.terms.get(0).election()).sorted().toList();
    assertEquals(List.of(election + "/1", election + "/2"), names);
    Copy third = copies.stream().filter(copy -> !leaders.contains(copy)).findAny().orElseThrow();
    leaders.get(0).elector.close();
    third.awaitElected();
    assertEquals(leaders.get(0).terms.get(0).election(), third.terms.get(0).election());
  }

  @Test
  void s08Seats() throws Exception {
    seats(ServerIT::session);
  }

  @Test
  void s08SeatsByALease() throws Exception {
    seats(lease(TTL));
  }

  @Test
  void s09StopWhileWaiting() throws Exception {
    Copy one = new Copy(Database.direct(), ServerIT::session);
    one.awaitElected();
    Copy two = new Copy(Database.direct(), ServerIT::session);
    Database.eventually(5, "a candidate", () -> candidates() == 1);
    long begun = System.nanoTime();
    two.elector.close();
    assertTrue(System.nanoTime() - begun < 4e9); // the deadline of an answer is 5 s
    assertEquals(0, candidates());
    assertEquals(List.of(), two.errors);
    assertTrue(one.leads());
  }

  @Test
  void s10SessionFromHikariIsReallyClosed() throws Exception {
    try (HikariDataSource pool = Database.pool(Database.jdbcUrl("DATABASE_URL"), 2)) {
      Copy one = new Copy(pool, ServerIT::session);
      one.awaitElected();
      String leader = Database.ask("SELECT pid FROM le_leader(?)", election);
      one.elector.close();
      Database.eventually(
          15, // the pool keeps an idle one for minutes
          "the connection is closed",
          () ->
              Database.ask("SELECT count(*) FROM pg_stat_activity WHERE pid = ?::int", leader)
                  .equals("0"));
      assertEquals(0, pool.getHikariPoolMXBean().getActiveConnections());
      for (int i = 0; i < 2; i++) { // no place in the pool is lost
        try (Connection connection = pool.getConnection();
            Connection other = pool.getConnection()) {
          assertTrue(connection.isValid(1) && other.isValid(1));
        }
      }
      assertEquals(List.of(), one.errors);
    }
  }

  @Test
  void s10SessionFromHikariEndsAtOnce() throws Exception {
    try (HikariDataSource pool = Database.pool(Database.jdbcUrl("DATABASE_URL"), 2)) {
      Copy one = new Copy(pool, builder -> builder.heartbeat(Duration.ofSeconds(3)));
      one.awaitElected();
      cancelledAtOnce(one, "SELECT pg_terminate_backend(pid) FROM le_leader(?)");
      Database.eventually(15, "elected again", one::leads);
    }
  }

  @Test
  void s10LeaseFromHikari() throws Exception {
    HikariConfig config = new HikariConfig();
    config.setJdbcUrl(Database.jdbcUrl("DATABASE_URL"));
    config.setMaximumPoolSize(1);
    config.setAutoCommit(false);
    try (HikariDataSource pool = new HikariDataSource(config)) {
      Copy one = new Copy(pool, lease(TTL));
      one.awaitElected();
      awaitRenewals(2);
      assertTrue(one.leads());
      one.elector.close();
      assertEquals(null, Database.identity(election));
      assertEquals(List.of(), one.errors);
      try (Connection connection = pool.getConnection()) {
        assertFalse(connection.getAutoCommit());
      }
    }
  }

  /** A driver that is not pgjdbc, as far as can be seen. */
  private static final class OtherDriver extends NoDataSource {
    @Override
    public Connection getConnection() throws SQLException {
      return hide(Connection.class, DriverManager.getConnection(Database.jdbcUrl("DATABASE_URL")));
    }

    private static <T> T hide(Class<T> type, T hidden) {
      Object proxy =
          java.lang.reflect.Proxy.newProxyInstance(
              type.getClassLoader(),
              new Class<?>[] {type},
              (self, method, arguments) -> {
                if (method.getName().equals("isWrapperFor")) {
                  return false;
                }
                try {
                  Object result = method.invoke(hidden, arguments);
                  return result instanceof PreparedStatement statement
                      ? hide(PreparedStatement.class, statement)
                      : result;
                } catch (java.lang.reflect.InvocationTargetException e) {
                  throw e.getCause();
                }
              });
      return type.cast(proxy);
    }
  }

  @Test
  void s10OtherDriver() throws Exception {
    Copy one = new Copy(new OtherDriver(), ServerIT::session);
    one.awaitElected();
    Thread.sleep(1500);
    assertTrue(one.leads());
    Database.ask("SELECT pg_terminate_backend(pid) FROM le_leader(?)", election);
    Database.eventually(15, "cancelled by the next question", () -> !one.ousted.isEmpty());
    assertEquals(Reason.LOST, one.ousted.get(0)); // and not in doubt, after 6 s
    Database.eventually(15, "elected again", one::leads);
  }

  /** Loads this library without pgjdbc. */
  private static final class WithoutDriver extends ClassLoader {
    @Override
    protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
      if (name.startsWith("org.postgresql.")) {
        throw new ClassNotFoundException(name);
      }
      if (!name.startsWith("org.leaderelection.")) {
        return super.loadClass(name, resolve);
      }
      Class<?> loaded = findLoadedClass(name);
      String file = name.replace('.', '/') + ".class";
      try (InputStream in = ServerIT.class.getClassLoader().getResourceAsStream(file)) {
        byte[] bytes = in.readAllBytes();
        return loaded != null ? loaded : defineClass(name, bytes, 0, bytes.length);
      } catch (IOException e) {
        throw new ClassNotFoundException(name, e);
      }
    }
  }

  @Test
  void s10WithoutPgjdbcOnTheClassPath() throws Exception {
    DataSource source = Database.direct(); // as from another class loader
    Class<?> program = new WithoutDriver().loadClass("org.leaderelection.ServerIT$Program");
    assertNotEquals(Program.class, program);
    Object token =
        program.getMethod("run", DataSource.class, String.class).invoke(null, source, election);
    assertTrue((Long) token > 0);
    assertEquals(null, Database.identity(election));
  }

  /** What is run without pgjdbc. */
  public static final class Program {
    private Program() {}

    /** Leads once. */
    public static long run(DataSource source, String election) {
      long[] token = {0};
      Elector[] elector = {null};
      Job job =
          term -> {
            token[0] = term.token();
            elector[0].stop();
          };
      elector[0] = Elector.builder(source, election, job).build();
      elector[0].run();
      return token[0];
    }
  }

  private static int port() {
    Database.jdbcUrl("DATABASE_URL");
    return URI.create(System.getenv("DATABASE_URL")).getPort();
  }

  private static String through(Proxy proxy) {
    return Database.jdbcUrl(URI.create(System.getenv("DATABASE_URL")), proxy.port());
  }

  @Test
  void stalledProxySession() throws Exception {
    try (Proxy proxy = new Proxy(port())) {
      Copy one = new Copy(Database.source(through(proxy)), ServerIT::session);
      one.awaitElected();
      Thread.sleep(1200);
      proxy.stall(true);
      Database.eventually(9, "in doubt, after 6 s", () -> one.ousted.size() == 1);
      assertFalse(one.terms.get(0).isLeading());
      Thread.sleep(7000); // it tries to connect
      long begun = System.nanoTime();
      one.elector.close();
      assertTrue(System.nanoTime() - begun < 9e9); // 5 s to connect
      Database.eventually(9, "no thread", () -> Database.threads().isEmpty());
    }
  }

  @Test
  void stalledProxyLeaseFromHikari() throws Exception {
    try (Proxy proxy = new Proxy(port());
        HikariDataSource pool =
            Database.pool(through(proxy) + "&connectTimeout=1&socketTimeout=1", 2)) {
      Copy one = new Copy(pool, lease(3000));
      one.awaitElected();
      Thread.sleep(1200);
      proxy.stall(true);
      Database.eventually(5, "in doubt, after 2 s", () -> one.ousted.size() == 1);
      Thread.sleep(2000);
      proxy.stall(false);
      Database.eventually(10, "elected again", one::leads);
      proxy.stall(true);
      long begun = System.nanoTime();
      one.elector.close(); // the resignation is not answered
      assertTrue(System.nanoTime() - begun < 7e9); // 1 s for each of two timeouts
    }
  }

  @Test
  void stopBehindAStalledProxyWhileWaiting() throws Exception {
    Copy one = new Copy(Database.direct(), ServerIT::session);
    one.awaitElected();
    try (Proxy proxy = new Proxy(port())) {
      Copy two = new Copy(Database.source(through(proxy)), ServerIT::session);
      Database.eventually(5, "a candidate", () -> candidates() == 1);
      proxy.stall(true);
      long begun = System.nanoTime();
      two.elector.close();
      assertTrue(System.nanoTime() - begun < 9e9); // 5 s for an answer
      Database.eventually(9, "no thread", () -> Database.threads().size() <= 4);
    }
  }

  @Test
  void interruptOfTheCallerStops() throws Exception {
    Elector elector =
        Elector.builder(Database.direct(), election, ServerIT::untilCancelled).build();
    boolean[] interrupted = {false};
    Thread caller =
        new Thread(
            () -> {
              elector.run();
              interrupted[0] = Thread.interrupted();
            });
    caller.start();
    Database.eventually(5, "leading", () -> elector.state() == State.LEADING);
    caller.interrupt();
    caller.join(15_000);
    assertFalse(caller.isAlive());
    assertTrue(interrupted[0]);
    assertEquals(null, Database.identity(election));
  }

  @Test
  void closeFromWithinTheJobOnlyAsks() throws Exception {
    Elector[] elector = {null};
    Job once = term -> elector[0].close();
    elector[0] = Elector.builder(Database.direct(), election, once).build();
    elector[0].run();
    assertEquals(State.STOPPED, elector[0].state());
    assertThrows(IllegalStateException.class, elector[0]::run);
  }
}
