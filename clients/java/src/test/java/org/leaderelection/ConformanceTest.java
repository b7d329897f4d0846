package org.leaderelection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.sql.SQLException;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Function;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/** Runs the cases of clients/conformance on the state machines. */
class ConformanceTest {
  private static final Path CASES = Path.of("../conformance/cases.txt");
  private static final Instant EPOCH = Instant.parse("2000-01-01T00:00:00Z");

  @TestFactory
  Stream<DynamicTest> cases() throws Exception {
    Map<String, List<String>> cases = new LinkedHashMap<>();
    List<String> lines = new ArrayList<>();
    for (String line : Files.readAllLines(CASES)) {
      if (line.startsWith("== ")) {
        cases.put(line.substring(3), lines = new ArrayList<>());
      } else if (line.isEmpty()) {
        lines = new ArrayList<>();
      } else if (line.startsWith("given ") || !lines.isEmpty()) {
        lines.add(line);
      }
    }
    return cases.entrySet().stream()
        .map(
            each ->
                DynamicTest.dynamicTest(each.getKey(), () -> run(each.getKey(), each.getValue())));
  }

  /** The length of a term before does not count for one that was not confirmed. */
  @Test
  void jobFailsThenNotConfirmed() throws Exception {
    String lines =
        """
        given session
        hold bid confirm
        0 > bid
        0 < answer 7
        0 > confirm
        0 < answer true 11
        0 > job 7
        0 < job fails
        0 > error job
        0 > ousted job failed
        0.5 > bid
        1.5 < answer none
        1.5 > bid
        70 < answer 8
        70 > confirm
        70 < answer false 11
        70 > error lost
        70.5 > bid
        70.5 < answer 9
        70.5 > confirm
        70.5 < answer true 11
        70.5 > job 9
        70.5 < job fails
        70.5 > error job
        70.5 > ousted job failed
        71.5 > bid""";
    run("job-fails-not-confirmed", lines.lines().toList());
  }

  private static void run(String name, List<String> lines) throws Exception {
    Simulation simulation = new Simulation();
    for (String line : lines) {
      try {
        simulation.read(line);
      } catch (AssertionError e) {
        throw new AssertionError(line + ": " + e.getMessage(), e);
      }
    }
    assertEquals(List.of(), List.copyOf(simulation.out), "at the end");
    String report = System.getenv("CONFORMANCE_REPORT");
    if (report != null) {
      String passed = "case " + name + ": passed\n";
      Files.writeString(
          Path.of(report), passed, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }
  }

  private static Object value(String word) {
    if (word.contains("*")) {
      return word.substring(0, word.indexOf('*'))
          .repeat(Integer.parseInt(word.substring(word.indexOf('*') + 1)));
    }
    return switch (word) {
      case "none" -> null;
      case "true", "false" -> Boolean.valueOf(word);
      case "empty" -> "";
      default ->
          word.startsWith("\"")
              ? word.substring(1, word.length() - 1).replace("\\0", "\0")
              : word.matches("\\d+") ? (Object) Long.valueOf(word) : word;
    };
  }

  /** The clock, the server and the program of one case. */
  private static final class Simulation extends World {
    final Deque<String> out = new ArrayDeque<>();
    private final Set<String> shown =
        new HashSet<>(List.of("job", "cancel", "ousted", "error", "end", "told"));
    private final Set<String> held = new HashSet<>();
    private final Set<String> starved = new HashSet<>();
    private final Deque<Runnable> inbox = new ArrayDeque<>();
    private List<String> given;
    private double time;
    private double random = 1;
    private double once = -1;
    private Machine machine; // of an elector or a follower
    private ElectorMachine elector;
    private Every every;
    private Instant last;
    private boolean seated;
    private boolean ended;
    private long token = 6;
    private Machine.Ask asked; // the statement that waits for the case's answer
    private Machine.Ask givenUp;

    void read(String line) {
      List<String> words = List.of(line.split(" "));
      List<String> rest = words.subList(1, words.size());
      switch (words.get(0)) {
        case "given" -> given = rest;
        case "hold" -> held.addAll(rest);
        case "starve" -> starved.addAll(rest);
        case "show" -> shown.addAll(rest);
        case "random" -> random = Double.parseDouble(rest.get(0));
        default ->
            follow(Double.parseDouble(words.get(0)), rest.get(0), rest.subList(1, rest.size()));
      }
    }

    private void follow(double at, String mark, List<String> words) {
      if (given != null) {
        make(given.get(0), given.subList(1, given.size()));
        given = null;
      }
      advance(at, mark.equals(">"));
      if (mark.equals(">")) {
        assertTrue(!out.isEmpty(), "nothing has followed");
        assertEquals(at + " " + String.join(" ", words), out.remove());
        return;
      }
      assertEquals(List.of(), List.copyOf(out));
      if (mark.equals("<")) {
        arrive(words);
      } else {
        check(words);
      }
    }

    private void make(String kind, List<String> words) {
      if (kind.equals("every")) {
        Duration interval = Duration.ofSeconds(Long.parseLong(words.get(0)));
        every = new Every(null, Every.multiples(interval), interval, null);
      } else if (kind.equals("schedule")) {
        String[] parts = words.get(0).split("\\+");
        Duration shift = Duration.ofSeconds(Long.parseLong(parts[1]));
        Function<Instant, Instant> multiples =
            Every.multiples(Duration.ofSeconds(Long.parseLong(parts[0])));
        every = new Every(null, t -> multiples.apply(t.minus(shift)).plus(shift), null, null);
      } else if (kind.equals("follow")) {
        machine = new FollowMachine(this);
      } else {
        makeElector(words);
      }
      if (every != null) {
        last = EPOCH.plusSeconds(Long.parseLong(words.get(2)));
      } else if (machine != null) {
        step(once < 0 ? machine::run : () -> elector.tryFor(once));
      }
    }

    private void makeElector(List<String> words) {
      Map<String, String> options = new LinkedHashMap<>();
      for (int i = 0; i < words.size(); i += 2) {
        options.put(words.get(i), words.get(i + 1));
      }
      LeaderElection.Builder election =
          LeaderElection.builder(
              new FakeDatabase().source(),
              String.valueOf(value(options.getOrDefault("election", "e"))));
      options.forEach(
          (option, word) -> {
            switch (option) {
              case "identity" -> election.identity((String) value(word));
              case "schema" -> election.schema((String) value(word));
              case "seats" -> election.seats(Integer.parseInt(word));
              case "ttl" -> election.ttl(duration(word));
              case "heartbeat" -> election.heartbeat(duration(word));
              case "stop_timeout" -> election.stopTimeout(duration(word));
              case "once" -> once = Double.parseDouble(word);
              default -> assertEquals("election", option);
            }
          });
      try {
        election.build();
        seated = options.containsKey("seats");
        elector = new ElectorMachine(this, Way.of(election));
        machine = elector;
      } catch (IllegalArgumentException e) {
        String option = e.getMessage().split(" ")[0];
        out.add("0.0 refused " + option.replace("stopTimeout", "stop_timeout"));
      }
    }

    private static Duration duration(String word) {
      return Duration.ofMillis(Math.round(Double.parseDouble(word) * 1000));
    }

    private void advance(double until, boolean inclusive) {
      while (machine != null && !ended) {
        double wakeup = Math.max(machine.wakeup(), time);
        if (wakeup > until + 1e-6 || wakeup > until - 1e-6 && !inclusive) {
          break;
        }
        time = wakeup;
        step(() -> {});
      }
      time = Math.max(time, until);
    }

    /** Lets the machine take a step, and then all that follows from it at once. */
    private void step(Runnable first) {
      inbox.add(first);
      while (!inbox.isEmpty()) {
        machine.step(time, inbox.remove());
      }
    }

    private void arrive(List<String> words) {
      String first =
          words.get(0) + (words.get(0).matches("elected|job|ousted") ? " " + words.get(1) : "");
      LeaderElectionException error =
          first.endsWith("fails")
              ? LeaderElectionException.of(
                  words.get(0).equals("job") ? ErrorKind.JOB : ErrorKind.CALLBACK,
                  new Exception("fails"))
              : null;
      Machine.Ask ask = asked;
      switch (first) {
        case "answer" -> answer(ask, words.subList(1, words.size()));
        case "late" -> answer(givenUp, words.subList(2, words.size()));
        case "fails" -> {
          String hint = String.join(" ", words.subList(1, words.size()));
          asked = null;
          step(
              () ->
                  machine.done(
                      ask,
                      LeaderElectionException.ofStatement(new SQLException(hint, words.get(1)))));
        }
        case "broken" -> {
          asked = null;
          step(() -> machine.broken(new LeaderElectionException(ErrorKind.BROKEN, "broken", null)));
        }
        case "elected returns", "elected fails", "job returns", "job fails" ->
            step(() -> elector.returned(error));
        case "ousted returns", "ousted fails" -> step(() -> elector.returned(error));
        case "asleep" -> time = Double.parseDouble(words.get(2));
        case "heartbeat" -> {
          elector.term.heartbeat();
          step(() -> {});
        }
        case "stop" -> step(machine::stop);
        default -> fail("unknown");
      }
    }

    private void answer(Machine.Ask ask, List<String> words) {
      assertTrue(ask != null, "no statement waits for an answer");
      asked = ask == asked ? null : asked;
      step(() -> machine.done(ask, null, words.stream().map(ConformanceTest::value).toArray()));
    }

    private void check(List<String> words) {
      String text = String.join(" ", words.subList(1, words.size()));
      switch (words.get(0)) {
        case "leading" -> assertTrue(elector.term.isLeading());
        case "not" -> assertTrue(elector.term == null || !elector.term.isLeading());
        case "state" -> assertEquals(text, word(elector.state()));
        case "health" -> assertEquals(text, word(elector.health()));
        case "terms" -> assertEquals(text, "" + elector.terms);
        case "confirmations" -> assertEquals(text, "" + elector.confirmations);
        case "errors" -> assertEquals(text, "" + machine.errors);
        default -> {
          Every.Due due = every.due(last, EPOCH.plusMillis(Math.round(time * 1000)));
          last = due.last();
          assertEquals(
              value(text),
              due.latest() == null ? null : EPOCH.until(due.latest(), ChronoUnit.SECONDS));
        }
      }
    }

    private static String kind(LeaderElectionException error) {
      if (error.kind() == ErrorKind.SERVER) return error.sqlState();
      return error.kind() == ErrorKind.NO_CONNECTION ? "no-connection" : word(error.kind());
    }

    private static String word(Object item) {
      if (item instanceof Enum<?> constant) return Way.words(constant);
      return item == null ? "none" : item.toString();
    }

    private void show(String what, Object... words) {
      if (shown.contains(what) || held.contains(what) || starved.contains(what)) {
        out.add(
            time(time)
                + " "
                + String.join(" ", Arrays.stream(words).map(Simulation::word).toList()));
      }
    }

    private static double time(double time) {
      return Math.round(time * 1e6) / 1e6;
    }

    @Override
    double clock() {
      return time;
    }

    @Override
    double random() {
      return random;
    }

    @Override
    void post(Runnable event) {
      step(event);
    }

    @Override
    void ask(Machine.Ask ask, Object value) {
      String statement = ask.kind();
      String what = statement.equals("beat") ? "confirm" : statement;
      if (!starved.contains(what)) {
        inbox.add(() -> machine.begun(ask));
      }
      if (held.contains(what) || starved.contains(what)) {
        asked = ask;
      } else {
        Object[] row = usual(statement);
        inbox.add(() -> machine.done(ask, null, row));
      }
      if (value == null) {
        show(what, statement);
      } else {
        show(what, statement, value);
      }
    }

    private Object[] usual(String kind) {
      return switch (kind) {
        case "open" -> new Object[] {11L};
        case "bid" -> seated ? new Object[] {++token, "e/2"} : new Object[] {++token};
        case "confirm", "beat" -> new Object[] {true, 11L};
        default -> new Object[] {true};
      };
    }

    @Override
    void disconnect() {
      givenUp = asked != null ? asked : givenUp;
      asked = null;
      show("close", "close");
    }

    @Override
    void elected(Term term) {
      if (!held.contains("elected")) {
        inbox.add(() -> elector.returned(null));
      }
      show("elected", "elected", term.token());
    }

    @Override
    void job(Term term) {
      show("job", "job", term.token() + (seated ? " " + term.election() : ""));
    }

    @Override
    void cancel() {
      if (!held.contains("job")) {
        inbox.add(() -> elector.returned(null));
      }
      show("cancel", "cancel");
    }

    @Override
    void ousted(Term term, Elector.Reason reason) {
      if (!held.contains("ousted")) {
        inbox.add(() -> elector.returned(null));
      }
      show("ousted", "ousted", reason);
    }

    @Override
    void error(LeaderElectionException error) {
      show("error", "error", kind(error));
    }

    @Override
    void told(Optional<Leader> leader) {
      leader.ifPresentOrElse(
          l -> show("told", "told", l.token(), l.identity(), l.value()),
          () -> show("told", "told none none none"));
    }

    @Override
    void end(LeaderElectionException error) {
      ended = true;
      show("end", "end" + (error == null ? "" : " " + kind(error).replace("over", "denied")));
    }
  }
}
