package org.leaderelection.spring;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.binder.MeterBinder;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.regex.Pattern;
import javax.sql.DataSource;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.leaderelection.Elector;
import org.leaderelection.Term;
import org.mockito.Mockito;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.context.event.ContextRefreshedEvent;
import org.springframework.context.event.EventListener;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceUtils;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.scheduling.annotation.EnableScheduling;
import org.springframework.scheduling.annotation.Scheduled;
import org.springframework.transaction.annotation.Transactional;

@Timeout(300)
class SpringBootTest {
  private static final String NAME = "spring-" + System.nanoTime();
  private final List<ConfigurableApplicationContext> copies = new CopyOnWriteArrayList<>();

  /** What a copy has done; the configuration itself is behind a proxy. */
  static class State {
    final List<String> events = new CopyOnWriteArrayList<>();
    final AtomicInteger runs = new AtomicInteger();
    final AtomicInteger interrupts = new AtomicInteger();
    volatile boolean sleeps;
    volatile boolean sleeping;
    volatile Term term;
  }

  @Configuration
  @EnableAutoConfiguration
  @EnableScheduling
  @Import(State.class)
  static class App {
    private final LeaderElections elections;
    private final JdbcTemplate jdbc;
    private final State state;

    App(LeaderElections elections, JdbcTemplate jdbc, State state) {
      this.elections = elections;
      this.jdbc = jdbc;
      this.state = state;
    }

    @Scheduled(fixedDelay = 50)
    @LeaderOnly("${election}")
    @Transactional
    void work() throws Exception {
      DataSource source = jdbc.getDataSource();
      state.term = elections.term();
      state.term.guard(DataSourceUtils.getConnection(source));
      state.runs.incrementAndGet();
      if (!state.sleeps) return;
      state.sleeping = true;
      try {
        Thread.sleep(60_000);
      } catch (InterruptedException e) {
        state.interrupts.incrementAndGet();
      }
      state.sleeping = false;
    }

    @EventListener
    void elected(ElectedEvent event) {
      state.events.add("elected " + event.term().election());
    }

    @EventListener
    void ousted(OustedEvent event) {
      state.events.add("ousted " + event.reason());
    }
  }

  /** Says in an interface that only the leader works. */
  interface Worker {
    @LeaderOnly("${election}")
    void work();
  }

  static class Inherits implements Worker {
    private final State state;

    Inherits(State state) {
      this.state = state;
    }

    @Override
    @Scheduled(fixedDelay = 50)
    public void work() {
      state.runs.incrementAndGet();
    }
  }

  @Configuration
  @EnableAutoConfiguration
  @EnableScheduling
  @Import({State.class, Inherits.class})
  static class InheritingApp {}

  @Configuration
  @EnableAutoConfiguration
  @EnableScheduling
  @Import({State.class, Inherits.class})
  static class Customized {
    @Bean
    DataSource other() {
      return new DriverManagerDataSource("jdbc:none:");
    }

    @Bean
    DataSource leaderElectionDataSource(@Value("${spring.datasource.url}") String url) {
      return new DriverManagerDataSource(url);
    }

    @Bean
    LeaderElectionCustomizer customizer() {
      return (election, options) -> options.identity("one of " + election);
    }
  }

  @Configuration
  @EnableAutoConfiguration
  @Import(State.class)
  static class Replaced {
    @Bean
    LeaderElections mine() {
      return Mockito.mock();
    }

    @Bean
    MeterBinder leaderElectionMetrics() {
      return registry -> registry.counter("mine");
    }

    @Bean
    String leaderElectionHealthIndicator() { // of any type, as it differs between versions
      return "mine";
    }
  }

  @Configuration
  @EnableAutoConfiguration
  static class Wrong {
    @LeaderOnly("x")
    int answers() {
      return 42;
    }
  }

  /** Fails when its elections have been started. */
  @Configuration
  @EnableAutoConfiguration
  @Import({State.class, Inherits.class})
  static class Fails {
    static LeaderElections elections;

    @EventListener
    void refreshed(ContextRefreshedEvent event) {
      elections = event.getApplicationContext().getBean(LeaderElections.class);
      throw new IllegalStateException("the listener's");
    }
  }

  /** A program whose method ends it. */
  @Configuration
  @EnableAutoConfiguration
  static class Exits {
    @LeaderOnly("${election}")
    void exit() {
      System.exit(7);
    }

    public static void main(String[] arguments) throws Exception {
      SpringApplicationBuilder application = new SpringApplicationBuilder(Exits.class);
      Exits bean = application.web(WebApplicationType.NONE).run(arguments).getBean(Exits.class);
      for (; ; Thread.sleep(20)) bean.exit();
    }
  }

  private static String url() {
    String url = System.getenv("DATABASE_URL");
    assumeTrue(url != null, "DATABASE_URL is not set");
    URI uri = URI.create(url);
    String address = uri.getHost() + ":" + uri.getPort() + uri.getPath();
    return "spring.datasource.url=jdbc:postgresql://" + address + "?user=" + uri.getUserInfo();
  }

  private State begin(Class<?> type, String... properties) {
    ConfigurableApplicationContext copy =
        new SpringApplicationBuilder(type)
            .web(WebApplicationType.NONE)
            .properties(url(), "election=" + NAME)
            .properties("spring.datasource.hikari.maximum-pool-size=4")
            .properties(properties)
            .run();
    copies.add(copy);
    return copy.getBean(State.class);
  }

  private static void eventually(Callable<Boolean> condition) throws Exception {
    long until = System.nanoTime() + 60_000_000_000L;
    while (!condition.call()) {
      assertTrue(System.nanoTime() < until, "not within 60 s");
      Thread.sleep(20);
    }
  }

  @AfterEach
  void closeAll() {
    copies.forEach(ConfigurableApplicationContext::close);
  }

  private double meter(int copy, String name) {
    MeterRegistry registry = copies.get(copy).getBean(MeterRegistry.class);
    return registry
        .get("leader.election." + name)
        .tag("election", NAME)
        .meter()
        .measure()
        .iterator()
        .next()
        .getValue();
  }

  @Test
  void editorsKnowTheProperties() throws IOException {
    String name = "META-INF/spring-configuration-metadata.json";
    URL jar = LeaderElections.class.getProtectionDomain().getCodeSource().getLocation();
    try (InputStream metadata = new URL("jar:" + jar + "!/" + name).openStream()) {
      String text = new String(metadata.readAllBytes(), StandardCharsets.UTF_8);
      for (String property : List.of("identity", "schema", "ttl", "stop-timeout")) {
        assertTrue(text.contains("\"leader-election." + property + "\""), property);
      }
      assertTrue(text.contains("\"management.health.leader-election.enabled\""), text);
      assertFalse(
          Pattern.compile("\"description\": \"(The |An? |[a-z])").matcher(text).find(), text);
    }
  }

  /** Returns what the health indicator says, whose type differs between versions. */
  private String health(int copy) throws ReflectiveOperationException {
    Object indicator = copies.get(copy).getBean("leaderElectionHealthIndicator");
    var method = indicator.getClass().getMethod("health");
    method.setAccessible(true);
    return method.invoke(indicator).toString();
  }

  private void leadsAndHandsOver(String... properties) throws Exception {
    State one = begin(App.class, properties);
    eventually(() -> one.runs.get() >= 3);
    assertEquals(List.of("elected " + NAME), one.events);
    State two = begin(App.class, properties);
    int runs = one.runs.get();
    eventually(() -> one.runs.get() >= runs + 10);
    assertEquals(0, two.runs.get());
    assertEquals(1, meter(0, "leading"));
    assertEquals(0, meter(1, "leading"));
    assertEquals(1, meter(0, "terms"));
    assertTrue(meter(0, "confirmations") >= 1);
    assertTrue(health(0).contains("UP") && health(0).contains("LEADING"), health(0));
    assertTrue(health(1).contains("UP") && health(1).contains("WAITING"), health(1));
    one.sleeps = true;
    eventually(() -> one.sleeping);
    Term term = one.term;
    assertTrue(term.isLeading());
    copies.get(0).close();
    assertEquals(1, one.interrupts.get());
    assertFalse(term.isLeading() || one.sleeping);
    assertEquals(List.of("elected " + NAME, "ousted resigned"), one.events);
    eventually(() -> two.runs.get() >= 3);
    assertTrue(two.term.token() > term.token());
    LeaderElections elections = copies.get(1).getBean(LeaderElections.class);
    elections.stop(); // as a pause of the context does
    int after = two.runs.get();
    Thread.sleep(300);
    assertEquals(after, two.runs.get());
    assertEquals(Elector.Health.STOPPED, elections.electors().get(NAME).health());
    assertTrue(health(1).contains("DOWN"), health(1));
    elections.start();
    eventually(() -> two.runs.get() >= after + 3);
    assertThrows(IllegalStateException.class, elections::term);
  }

  @Test
  void session() throws Exception {
    leadsAndHandsOver();
  }

  @Test
  void lease() throws Exception {
    leadsAndHandsOver("leader-election.ttl=30s", "leader-election.identity=me");
  }

  @Test
  void annotationOfAnInterface() throws Exception {
    State one = begin(InheritingApp.class);
    eventually(() -> one.runs.get() >= 3);
    State two = begin(InheritingApp.class);
    int runs = one.runs.get();
    eventually(() -> one.runs.get() >= runs + 10);
    assertEquals(0, two.runs.get());
  }

  @Test
  void oneInterruptTellsOfTwoTerms() throws Exception {
    begin(InheritingApp.class);
    LeaderElections elections = copies.get(0).getBean(LeaderElections.class);
    elections.start(); // again
    Candidate outer = elections.candidate(NAME);
    Candidate inner = elections.candidate(NAME + " inner");
    CountDownLatch begun = new CountDownLatch(1);
    CompletableFuture<Void> told = new CompletableFuture<>();
    Executable sleep = () -> Thread.sleep(200_000);
    Candidate.Work both =
        () -> {
          Term term = elections.term();
          inner.ifLeading(
              () -> {
                begun.countDown();
                while (term.isLeading()) assertThrows(InterruptedException.class, sleep);
              });
          if (begun.getCount() > 0) return;
          assertThrows(InterruptedException.class, sleep);
          told.complete(null);
        };
    Thread worker =
        new Thread(
            () -> {
              try {
                for (; !told.isDone(); Thread.sleep(20)) outer.ifLeading(both);
              } catch (Throwable e) {
                told.completeExceptionally(e);
              }
            });
    worker.start();
    begun.await();
    elections.stop();
    told.get();
  }

  @Test
  void waitsForAllElectionsAtTheSameTime() throws Exception {
    begin(InheritingApp.class, "leader-election.stop-timeout=1s");
    LeaderElections elections = copies.get(0).getBean(LeaderElections.class);
    CountDownLatch end = new CountDownLatch(1);
    CountDownLatch begun = new CountDownLatch(3);
    for (String name : List.of(NAME, NAME + " 2", NAME + " 3")) {
      Candidate candidate = elections.candidate(name);
      eventually(() -> candidate.elector.state() == Elector.State.LEADING);
      Candidate.Work work =
          () -> {
            begun.countDown();
            for (; end.getCount() > 0; Thread.interrupted()) LockSupport.parkNanos(10_000_000);
          };
      Executable loop =
          () -> {
            for (; end.getCount() > 0; Thread.sleep(20)) candidate.ifLeading(work);
          };
      new Thread(() -> assertDoesNotThrow(loop)).start();
    }
    begun.await();
    CountDownLatch stopped = new CountDownLatch(1);
    elections.stop(stopped::countDown);
    boolean inTime = stopped.await(11, TimeUnit.SECONDS);
    end.countDown();
    assertTrue(inTime); // and not 6 s for each
  }

  @Test
  void exitInAMethod(@TempDir Path folder) throws Exception {
    String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
    ProcessBuilder program = new ProcessBuilder(java, Exits.class.getName(), "--" + url());
    program.command().add("--election=" + NAME);
    program.command().add("--spring.lifecycle.timeout-per-shutdown-phase=1h");
    program.environment().put("CLASSPATH", System.getProperty("java.class.path"));
    Path output = folder.resolve("output");
    Process process = program.redirectErrorStream(true).redirectOutput(output.toFile()).start();
    boolean ended = process.waitFor(120, TimeUnit.SECONDS);
    process.destroyForcibly();
    assertTrue(ended, Files.readString(output));
    assertEquals(7, process.exitValue());
  }

  @Test
  void customized() throws Exception {
    State one = begin(Customized.class);
    eventually(() -> one.runs.get() >= 1);
    LeaderElections elections = copies.get(0).getBean(LeaderElections.class);
    assertEquals("one of " + NAME, elections.electors().get(NAME).identity());
  }

  @Test
  void beansOfTheApplicationWin() {
    begin(Replaced.class);
    ConfigurableApplicationContext copy = copies.get(0);
    assertEquals(Set.of("mine"), copy.getBeansOfType(LeaderElections.class).keySet());
    assertEquals("mine", copy.getBean("leaderElectionHealthIndicator"));
    MeterRegistry registry = copy.getBean(MeterRegistry.class);
    assertEquals(0, registry.get("mine").counter().count());
  }

  @ParameterizedTest
  @ValueSource(strings = {"leader-election", "defaults"})
  void withoutHealth(String which) {
    begin(InheritingApp.class, "management.health." + which + ".enabled=false");
    assertFalse(copies.get(0).containsBean("leaderElectionHealthIndicator"));
  }

  @Test
  void applicationThatFailsDoesNotCampaign() {
    Exception failure = assertThrows(Exception.class, () -> begin(Fails.class));
    assertEquals("the listener's", failure.getMessage());
    assertFalse(Fails.elections.isRunning());
    assertEquals(Elector.State.STOPPED, Fails.elections.electors().get(NAME).state());
  }

  @Test
  void methodThatReturnsSomething() {
    Exception refused = assertThrows(Exception.class, () -> begin(Wrong.class));
    assertTrue(refused.toString().contains("@LeaderOnly needs a method"), refused.toString());
  }
}
