package org.leaderelection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.lang.module.Configuration;
import java.lang.module.ModuleFinder;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.net.URI;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneId;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Queue;
import java.util.ResourceBundle;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Function;
import java.util.spi.ToolProvider;
import java.util.stream.Stream;
import javax.sql.DataSource;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import org.postgresql.PGConnection;
import org.springframework.jdbc.datasource.TransactionAwareDataSourceProxy;
import org.springframework.scheduling.support.CronExpression;

@Timeout(300)
class UnitTest {
  private final FakeDatabase database = new FakeDatabase();
  private volatile Throwable failure;
  private final LeaderElection.Builder election = LeaderElection.builder(database.source(), "e");

  @Test
  void t1WrongOption() {
    LeaderElection.Builder wrong = LeaderElection.builder(database.source(), "{a}");
    assertThrows(IllegalArgumentException.class, wrong::build);
    DataSource source = database.source();
    assertThrows(IllegalArgumentException.class, () -> LeaderElection.of(source, ""));
    assertThrows(NullPointerException.class, () -> LeaderElection.of(null, "e"));
    assertThrows(NullPointerException.class, () -> LeaderElection.of(source, null));
    assertThrows(NullPointerException.class, () -> wrong.ttl(null));
    assertThrows(NullPointerException.class, () -> wrong.onError(null));
    Elector elector = LeaderElection.of(source, "e").newElector();
    assertThrows(NullPointerException.class, () -> elector.run(null));
    assertThrows(NullPointerException.class, () -> elector.tryRun(null, term -> {}));
    assertEquals(0, database.opened.get());
  }

  @Test
  void electionDoesNotChange() throws Exception {
    LeaderElection.Builder builder = election.identity("before");
    LeaderElection built = builder.build();
    builder.identity("after").onElected(term -> builder.identity("called"));
    try (Elector elector = built.newElector()) {
      assertEquals("before", elector.identity());
      assertTrue(elector.tryRun(Duration.ZERO, term -> {}));
    }
    assertEquals("after", builder.build().newElector().identity());
  }

  @Test
  void t1IntervalOfEvery() {
    Task task = (transaction, due, term) -> {};
    assertThrows(
        IllegalArgumentException.class, () -> election.build().every(Duration.ofMillis(999), task));
    LeaderElection built = election.build();
    assertThrows(NullPointerException.class, () -> built.every(Duration.ofSeconds(1), null));
    assertThrows(NullPointerException.class, () -> built.every(null, ZoneId.of("UTC"), task));
    assertThrows(NullPointerException.class, () -> built.every(last -> last, (ZoneId) null, task));
    Function<Object, Instant> schedule = last -> null; // takes more, and returns less
    election.build().every(schedule, task);
    election.build().every(Duration.ofSeconds(1), task);
    election.build().every(Duration.ofDays(7), task);
  }

  /** Frameworks call methods by reflection, which a class that is not public prevents. */
  @ParameterizedTest
  @ValueSource(classes = {Elector.class, Follower.class})
  void methodsAreOfAPublicClass(Class<?> type) {
    for (Method method : type.getMethods()) {
      assertTrue(Modifier.isPublic(method.getDeclaringClass().getModifiers()), method::toString);
    }
  }

  @Test
  void t2Identities() {
    Locale before = Locale.getDefault();
    Locale.setDefault(Locale.forLanguageTag("ar-EG-u-nu-arab")); // which has digits of its own
    String identity = election.build().newElector().identity();
    Locale.setDefault(before);
    assertNotEquals(identity, election.build().newElector().identity());
    assertTrue(identity.matches(".+:" + ProcessHandle.current().pid() + ":[0-9a-f]{4}"), identity);
    assertEquals(3000, Stream.generate(LeaderElection::newIdentity).limit(3000).distinct().count());
  }

  @Test
  void t3ClockGoesOnInSuspension() throws Exception {
    double before = uptime();
    double now = Clock.now();
    assertTrue(before <= now && now <= uptime());
  }

  private static double uptime() throws IOException {
    return Double.parseDouble(Files.readString(Path.of("/proc/uptime")).split(" ")[0]);
  }

  private static void await(CountDownLatch end) {
    try {
      end.await();
    } catch (InterruptedException e) {
      throw new IllegalStateException(e);
    }
  }

  @ParameterizedTest
  @ValueSource(booleans = {false, true})
  void t4ErrorCallbackThatHangsOrFails(boolean fails) throws Exception {
    CountDownLatch end = new CountDownLatch(1);
    Lines lines = new Lines();
    election.logger(lines);
    election.onError(
        error -> {
          if (fails) throw new IllegalStateException("the callback's");
          await(end);
        });
    Elector elector = election.build().newElector();
    Job job =
        term -> {
          database.lost = true;
          try {
            Thread.sleep(60_000);
          } finally {
            database.lost = false;
            if (elector.terms() == 2) elector.stop();
          }
        };
    ends(run(elector, job));
    assertEquals(Elector.State.STOPPED, elector.state());
    assertEquals(2, elector.errors());
    assertEquals(
        fails,
        lines.toString().contains("onError failed; its error: " + LostException.class.getName()),
        lines::toString);
    end.countDown();
  }

  /** A logger that keeps what it gets. */
  private static final class Lines implements System.Logger {
    private final Queue<String> lines = new ConcurrentLinkedQueue<>();

    @Override
    public String getName() {
      return "lines";
    }

    @Override
    public boolean isLoggable(Level level) {
      return true;
    }

    @Override
    public void log(Level level, ResourceBundle bundle, String message, Throwable thrown) {
      lines.add(message);
    }

    @Override
    public void log(Level level, ResourceBundle bundle, String format, Object... parameters) {
      lines.add(format);
    }

    @Override
    public String toString() {
      return String.join("\n", lines);
    }
  }

  /** Runs an elector on a thread of its own. */
  private Thread run(Elector elector, Job job) {
    Thread run = new Thread(() -> elector.run(job));
    run.setDaemon(true);
    run.setUncaughtExceptionHandler((thread, e) -> failure = e);
    run.start();
    return run;
  }

  static void ends(Thread run) throws InterruptedException {
    run.join(60_000);
    assertFalse(run.isAlive());
  }

  private static void sleep(Term term) throws InterruptedException {
    Thread.sleep(60_000);
  }

  @ParameterizedTest
  @ValueSource(booleans = {false, true})
  void t5StopBeforeRun(boolean lease) {
    if (lease) election.ttl(Duration.ofSeconds(6));
    try (Elector elector = election.build().newElector()) {
      elector.stop();
      elector.run(term -> {});
      assertEquals(Elector.State.STOPPED, elector.state());
    }
    Follower follower = election.build().follow(leader -> {});
    follower.close();
    follower.run();
    assertEquals(0, database.opened.get());
  }

  @ParameterizedTest
  @ValueSource(doubles = {0, Double.NaN, Double.NEGATIVE_INFINITY})
  void termThatIsNotConfirmedDoesNotLead(double confirmedUntil) {
    Term term = new Term((ElectorMachine) election.build().newElector().machine, "e", 7);
    assertFalse(term.isLeading());
    term.confirmedUntil = confirmedUntil;
    term.heartbeat();
    assertFalse(term.isLeading());
  }

  @Test
  void runThatFailsCancelsTheJob() throws Exception {
    CompletableFuture<Term> begun = new CompletableFuture<>();
    CompletableFuture<Term> cancelled = new CompletableFuture<>();
    Elector elector = election.build().newElector();
    Job job =
        term -> {
          begun.complete(term);
          try {
            sleep(term);
          } finally {
            cancelled.complete(term);
          }
        };
    Thread run = run(elector, job);
    begun.get();
    elector.post(
        () -> {
          throw new IllegalStateException("the library's");
        });
    Term term = cancelled.get();
    assertFalse(term.isLeading());
    ends(run);
    assertEquals("the library's", failure.getMessage());
    elector.close();
    until(() -> elector.state() == Elector.State.STOPPED);
    until(() -> database.closed.get() >= database.opened.get());
  }

  @Test
  void closeDoesNotWaitForARunThatFailsTwice() throws Exception {
    Runnable fails =
        () -> {
          throw new IllegalStateException("the library's");
        };
    CountDownLatch begun = new CountDownLatch(1);
    CountDownLatch end = new CountDownLatch(1);
    Elector elector = election.stopTimeout(Duration.ofDays(1)).build().newElector();
    Job job =
        term -> {
          term.atCancellation(fails);
          begun.countDown();
          end.await();
        };
    Thread run = run(elector, job);
    begun.await();
    elector.post(fails);
    ends(run);
    assertTimeoutPreemptively(Duration.ofMinutes(1), elector::close);
    end.countDown();
  }

  @ParameterizedTest
  @ValueSource(booleans = {false, true})
  void answerOfAnotherType(boolean lease) throws Exception {
    if (lease) election.ttl(Duration.ofSeconds(6));
    database.token = "7";
    Elector elector = election.build().newElector();
    assertThrows(ClassCastException.class, () -> elector.run(UnitTest::sleep));
    assertEquals(Elector.State.STOPPED, elector.state());
    assertEquals(Elector.Health.STOPPED, elector.health());
  }

  /** As if no thread could be started: the job's error lets its thread end at once. */
  @Test
  void tryRunWithoutThread() {
    SQLException error =
        new SQLException() {
          private static final long serialVersionUID = 1;

          @Override
          public String getSQLState() {
            throw new IllegalStateException("in getSQLState");
          }
        };
    Job job =
        term -> {
          throw error;
        };
    Elector elector = election.build().newElector();
    assertThrows(OutOfMemoryError.class, () -> elector.tryRun(Duration.ZERO, job));
  }

  /** A class of a named module does not find the resources of another one. */
  @Test
  void findsDriverFromModule(@TempDir Path folder) throws Exception {
    String jar = folder.resolve("elections.jar").toString();
    URI classes = Jdbc.class.getProtectionDomain().getCodeSource().getLocation().toURI();
    String[] pack = {"cf", jar, "-C", Path.of(classes).toString(), "."};
    assertEquals(0, ToolProvider.findFirst("jar").orElseThrow().run(System.out, System.err, pack));
    ModuleLayer boot = ModuleLayer.boot();
    ModuleFinder module = ModuleFinder.of(Path.of(jar));
    Configuration found =
        boot.configuration().resolve(module, ModuleFinder.of(), Set.of("elections"));
    ModuleLayer layer = boot.defineModulesWithOneLoader(found, Jdbc.class.getClassLoader());
    Field pgjdbc =
        layer.findLoader("elections").loadClass(Jdbc.class.getName()).getDeclaredField("PGJDBC");
    pgjdbc.setAccessible(true);
    assertTrue(pgjdbc.getBoolean(null));
  }

  @ParameterizedTest
  @ValueSource(strings = {"elected", "job", "ousted"})
  void closeFromWithin(String where) throws Exception {
    Elector[] elector = {null};
    election
        .onElected(term -> closeIf(where.equals("elected"), elector[0]))
        .onOusted((term, reason) -> closeIf(where.equals("ousted"), elector[0]));
    elector[0] = election.build().newElector();
    ends(run(elector[0], term -> closeIf(where.equals("job"), elector[0])));
    assertEquals(1, elector[0].terms());
    assertEquals(0, elector[0].errors());
  }

  private static void closeIf(boolean here, Elector elector) {
    if (here) elector.close();
  }

  @Test
  void secondRunIsRefused() throws Exception {
    CompletableFuture<Void> opens = new CompletableFuture<>();
    CompletableFuture<String> ran = new CompletableFuture<>();
    database.opening = opens::get;
    Elector elector = election.build().newElector();
    Thread run = run(elector, term -> ran.complete("the first job"));
    until(() -> database.opened.get() == 1);
    Job second = term -> ran.complete("the second job");
    assertThrows(IllegalStateException.class, () -> elector.run(second));
    assertThrows(IllegalStateException.class, () -> elector.tryRun(Duration.ZERO, second));
    opens.complete(null);
    assertEquals("the first job", ran.get());
    elector.stop();
    ends(run);
  }

  @ParameterizedTest
  @ValueSource(booleans = {false, true})
  void waitThatIsForEver(boolean lease) throws Exception {
    if (lease) election.ttl(Duration.ofSeconds(6));
    Duration forEver = ChronoUnit.FOREVER.getDuration();
    assertTrue(election.build().newElector().tryRun(forEver, term -> {}));
  }

  @ParameterizedTest
  @ValueSource(booleans = {false, true})
  void tryRunThrowsTheInterruptByAStop(boolean lost) throws Exception {
    Elector elector = election.onError(error -> {}).build().newElector();
    Job job =
        term -> {
          if (lost) database.lost = true;
          else elector.stop();
          sleep(term);
        };
    Class<? extends Exception> thrown = lost ? LostException.class : InterruptedException.class;
    assertThrows(thrown, () -> elector.tryRun(Duration.ZERO, job));
    assertEquals(0, elector.errors());
  }

  /** The program may use the library's objects as monitors. */
  @Test
  void monitorsOfTheProgram() throws Exception {
    CountDownLatch begun = new CountDownLatch(1);
    Elector elector = election.build().newElector();
    Job job =
        term -> {
          synchronized (term) {
            begun.countDown();
            sleep(term);
          }
        };
    Thread run = run(elector, job);
    begun.await();
    Thread close =
        new Thread(
            () -> {
              synchronized (elector) {
                elector.close();
              }
            });
    close.start();
    ends(close);
    ends(run);
  }

  @Test
  void errorWithoutMessage() throws Exception {
    database.opening =
        () -> {
          throw new SQLException(null, "53300");
        };
    Elector elector = election.build().newElector();
    Thread run = run(elector, UnitTest::sleep);
    until(() -> elector.errors() >= 2);
    elector.stop();
    ends(run);
    assertNull(failure);
  }

  /** A lazy connection is opened by the first call of a method, on any thread. */
  @ParameterizedTest
  @ValueSource(booleans = {false, true})
  void connectionThatOpensTooLateIsClosed(boolean lazy) throws Exception {
    DataSource source =
        lazy ? new TransactionAwareDataSourceProxy(database.source()) : database.source();
    CountDownLatch late = new CountDownLatch(1);
    database.opening =
        () -> {
          while (late.getCount() > 0) awaitIgnoringInterrupts(late);
          return null;
        };
    Elector elector =
        LeaderElection.builder(source, "e")
            .heartbeat(Duration.ofSeconds(1)) // opens in 1/3 s
            .build()
            .newElector();
    Thread run = run(elector, UnitTest::sleep);
    until(() -> elector.errors() >= 2);
    elector.stop();
    ends(run);
    assertEquals(0, database.closed.get());
    late.countDown();
    until(() -> database.closed.get() >= database.opened.get());
  }

  @Test
  void lazyConnectionThatCannotOpenIsTriedOnce() throws Exception {
    database.opening =
        () -> {
          throw new SQLException(null, "53300");
        };
    DataSource lazy = new TransactionAwareDataSourceProxy(database.source());
    Elector elector = LeaderElection.of(lazy, "e").newElector();
    Thread run = run(elector, UnitTest::sleep);
    until(() -> elector.errors() >= 2);
    elector.stop();
    ends(run);
    assertTrue(database.opened.get() <= elector.errors() + 1, database.opened::toString);
  }

  private static void awaitIgnoringInterrupts(CountDownLatch late) {
    try {
      late.await();
    } catch (InterruptedException e) {
      // as a connect of the driver
    }
  }

  @Test
  void connectionThatIsGivenUpWhileItIsGivenBack() throws Exception {
    for (int i = 0; i < 200; i++) {
      Jdbc link = new Jdbc(database.source(), "e", null);
      AtomicInteger begun = new AtomicInteger();
      link.ask(new Way.Query("SELECT 1"), begun::incrementAndGet);
      while (begun.get() == 0) Thread.onSpinWait();
      for (int spin = i % 500; spin > 0; spin--) Thread.onSpinWait();
      link.close();
    }
    until(() -> database.closed.get() >= database.opened.get());
  }

  @Test
  void connectionOfAPoolIsGivenBackAsItWas() throws Exception {
    Jdbc.once(Way.of(LeaderElection.builder(database.source(), "e")), new Way.Query("SELECT 1"));
    assertFalse(database.autoCommit);
    assertEquals(1, database.closed.get());
  }

  @ParameterizedTest
  @ValueSource(classes = {Void.class, Connection.class, PGConnection.class})
  void connectionThatIsCutDoesNotKeepItsPlaceInAPool(Class<?> driver) throws Exception {
    database.driver = driver;
    assertTrue(election.build().newElector().tryRun(Duration.ZERO, term -> {}));
    until(() -> database.aborted.get() == 1 && database.closed.get() == 1);
  }

  @Test
  void connectionOfATaskThatFailedIsCut() throws Exception {
    Task task =
        (transaction, due, term) -> {
          throw new SQLException("the task's");
        };
    Elector elector = election.build().newElector();
    Thread run = run(elector, election.build().every(Duration.ofSeconds(1), task));
    until(() -> database.aborted.get() >= 1);
    elector.stop();
    ends(run);
  }

  @Test
  void interruptLeavesNothingBehind() throws Exception {
    CompletableFuture<Void> begun = new CompletableFuture<>();
    Elector elector = election.build().newElector();
    Thread run =
        run(
            elector,
            term -> {
              begun.complete(null);
              sleep(term);
            });
    begun.get();
    run.interrupt();
    run.interrupt();
    ends(run);
    assertEquals(Elector.State.STOPPED, elector.state());
    until(() -> database.closed.get() >= database.opened.get());
  }

  @Test
  void interruptInTheDiagnosis() throws Exception {
    CountDownLatch end = new CountDownLatch(1);
    database.missing = true;
    database.opening =
        () -> {
          if (database.opened.get() == 1) throw new SQLException("the first error, which is told");
          if (database.opened.get() == 3) end.await();
          return null;
        };
    Thread run = run(election.build().newElector(), UnitTest::sleep);
    until(() -> database.opened.get() >= 3);
    run.interrupt();
    ends(run);
    assertEquals(ErrorKind.EXTENSION, ((PermanentException) failure).kind());
  }

  @Test
  void withoutTheOptionalDependencies() throws Exception {
    List<URL> path = new ArrayList<>();
    for (Class<?> type : List.of(Elector.class, FakeDatabase.class)) {
      path.add(type.getProtectionDomain().getCodeSource().getLocation());
    }
    ClassLoader platform = ClassLoader.getPlatformClassLoader();
    try (URLClassLoader loader = new URLClassLoader(path.toArray(URL[]::new), platform)) {
      Class<?> database = loader.loadClass("org.leaderelection.FakeDatabase");
      assertNotEquals(FakeDatabase.class, database);
      Method leads = database.getDeclaredMethod("leads");
      leads.setAccessible(true);
      assertEquals(true, leads.invoke(null));
    }
  }

  /** What is due at a time of day in a zone, after a time, as the clocks of that zone show it. */
  private static String due(String time, ZoneId zone, String after, int times) {
    CronExpression cron = CronExpression.parse("0 " + time + " * * *");
    Function<Instant, Instant> schedule = Every.inZone(cron::next, zone);
    List<String> due = new ArrayList<>();
    for (Instant last = Instant.parse(after); times-- > 0; due.add(last.toString())) {
      last = schedule.apply(last);
    }
    return String.join(" ", due).replace(":00Z", "");
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      value = {
        // put forward from 02:00 to 03:00: due at 03:00, once
        "30 2 | Europe/Berlin | 2027-03-27T12:00:00Z | 2027-03-28T01:00 2027-03-29T00:30",
        "0 3 | Europe/Berlin | 2027-03-27T12:00:00Z | 2027-03-28T01:00 2027-03-29T01:00",
        "15,45 2 | Europe/Berlin | 2027-03-27T12:00:00Z | 2027-03-28T01:00 2027-03-29T00:15",
        // put back from 03:00 to 02:00: due the first time only
        "30 2 | Europe/Berlin | 2026-10-24T12:00:00Z | 2026-10-25T00:30 2026-10-26T01:30",
        "30 2 | Europe/Berlin | 2026-10-25T01:10:00Z | 2026-10-26T01:30 2026-10-27T01:30",
        "0 3 | Europe/Berlin | 2026-10-24T12:00:00Z | 2026-10-25T02:00 2026-10-26T02:00",
        // by half an hour
        "15 2 | Australia/Lord_Howe | 2026-10-03T00:00:00Z | 2026-10-03T15:30 2026-10-04T15:15",
        "45 1 | Australia/Lord_Howe | 2027-04-03T00:00:00Z | 2027-04-03T14:45 2027-04-04T15:15",
        // at midnight, and a day that there was not
        "0 0 | America/Sao_Paulo | 2018-11-03T12:00:00Z | 2018-11-04T03:00 2018-11-05T02:00",
        "0 12 | Pacific/Apia | 2011-12-28T23:00:00Z | 2011-12-29T22:00 2011-12-30T10:00",
      })
  void t6TimesOfAZone(String time, String zone, String after, String due) {
    assertEquals(due, due(time, ZoneId.of(zone), after, 2));
  }

  @Test
  void t6ScheduleThatStandsOrEnds() {
    ZoneId berlin = ZoneId.of("Europe/Berlin");
    assertNull(Every.inZone(last -> null, berlin).apply(Instant.EPOCH));
    Function<Instant, Instant> stands = Every.inZone(last -> last, berlin);
    assertThrows(IllegalStateException.class, () -> stands.apply(Instant.EPOCH));
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      value = {
        "report | SELECT le_once('report', to_timestamp(1790000000.000001), 42)",
        "le_a b./-9 | SELECT le_once('le_a b./-9', to_timestamp(1790000000.000001), 42)",
      })
  void onceSql(String name, String sql) {
    assertEquals(sql, term(name).onceSql(Instant.ofEpochSecond(1790000000, 1999)));
  }

  @Test
  void sqlOfANameWithWhatLooksLikeAParameter() {
    Elector elector =
        LeaderElection.builder(database.source(), "a?b:c").schema("L\"e$1").build().newElector();
    Term term = new Term((ElectorMachine) elector.machine, "a?b:c", 42);
    assertEquals(
        "SELECT \"L\"\"e$1\".le_assert_leader(convert_from(decode('613f623a63', 'hex'), 'UTF8'), 42)",
        term.guardSql());
    assertEquals(
        "-1.500000", term.onceSql(Instant.ofEpochMilli(-1500)).replaceAll(".*stamp\\(|\\).*", ""));
  }

  private Term term(String name) {
    return new Term((ElectorMachine) election.build().newElector().machine, name, 42);
  }

  @AfterEach
  void noThreadIsLeft() throws Exception {
    until(
        () ->
            Thread.getAllStackTraces().keySet().stream()
                .noneMatch(thread -> thread.getName().startsWith("leader-election")));
  }

  static void until(Callable<Boolean> condition) throws Exception {
    long until = System.nanoTime() + 60_000_000_000L;
    while (!condition.call()) {
      assertTrue(System.nanoTime() < until, "not within 60 s");
      Thread.sleep(20);
    }
  }
}
