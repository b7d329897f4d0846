package org.leaderelection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Supplier;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Whatever the user's code ends by, that is reported, and the elector campaigns again. */
@Timeout(300)
class EndsTest {
  private static final Map<String, Supplier<Throwable>> ENDS = new LinkedHashMap<>();

  static {
    ENDS.put("no message", () -> new RuntimeException((String) null));
    ENDS.put("checked", () -> new Exception("sneaky"));
    ENDS.put("neither Exception nor Error", () -> new Throwable("plain"));
    ENDS.put("out of memory", () -> new OutOfMemoryError("none is left"));
    ENDS.put("stack", () -> assertThrows(StackOverflowError.class, EndsTest::overflow));
    ENDS.put("assertion", () -> new AssertionError(new Exception("detail")));
    ENDS.put("linkage", () -> new NoClassDefFoundError("x"));
    ENDS.put("cancelled", CancellationException::new);
    ENDS.put("interrupted", InterruptedException::new);
    ENDS.put(
        "permanent", () -> new PermanentException(ErrorKind.EXTENSION, "of another elector", null));
    ENDS.put("lost", () -> new LeaderElectionException(ErrorKind.LOST, "of another elector", null));
    ENDS.put("getMessage", BadMessage::new);
    ENDS.put("toString", BadText::new);
    ENDS.put("getCause", BadCause::new);
    ENDS.put("text that is null", NullText::new);
  }

  private static volatile CountDownLatch hang = new CountDownLatch(1);
  private final List<Elector> electors = new ArrayList<>();

  private static int overflow() {
    return overflow() + 1;
  }

  private static final class BadMessage extends Exception {
    private static final long serialVersionUID = 1;

    @Override
    public String getMessage() {
      throw new IllegalStateException("in getMessage");
    }
  }

  private static final class BadText extends Error {
    private static final long serialVersionUID = 1;

    @Override
    public String toString() {
      throw new Error("in toString");
    }
  }

  private static final class BadCause extends RuntimeException {
    private static final long serialVersionUID = 1;

    @Override
    public synchronized Throwable getCause() {
      throw new IllegalStateException("in getCause");
    }
  }

  private static final class NullText extends Exception {
    private static final long serialVersionUID = 1;

    @Override
    public String toString() {
      return null;
    }
  }

  /** Returns at the end of the test, whatever interrupts it. */
  private static String hang() {
    for (CountDownLatch end = hang; end.getCount() > 0; ) {
      try {
        end.await();
      } catch (InterruptedException e) {
        // go on
      }
    }
    return "hung";
  }

  /** An elector that runs, and whose user's code fails once, at one place. */
  private final class Copy {
    final FakeDatabase database = new FakeDatabase();
    final List<LeaderElectionException> errors = new CopyOnWriteArrayList<>();
    final Elector elector;
    final Thread run;
    volatile Throwable result;
    volatile boolean working;
    private final AtomicBoolean first = new AtomicBoolean(true);

    Copy(String name, boolean lease, String place, Callable<?> end) {
      LeaderElection.Builder election = LeaderElection.builder(database.source(), name);
      if (lease) election.ttl(Duration.ofSeconds(15));
      database.opening = () -> fail(place.equals("connect"), end);
      database.asking = sql -> fail(place.equals("statement"), end);
      election.onElected(term -> sneak(() -> fail(place.equals("elected"), end)));
      election.onOusted((term, reason) -> sneak(() -> fail(place.equals("ousted"), end)));
      if (!place.equals("logger")) {
        election.onError(
            error -> {
              errors.add(error);
              sneak(() -> fail(place.equals("error"), end));
            });
      }
      elector = election.build().newElector();
      electors.add(elector);
      run = new Thread(() -> elector.run(term -> job(term, place, end)), name);
      run.setUncaughtExceptionHandler((thread, e) -> result = e);
      run.start();
    }

    private void job(Term term, String place, Callable<?> end) throws Exception {
      working = true;
      try {
        fail(place.equals("job") || place.equals("logger"), end);
        // these two begin when there was a term, or an error
        if (elector.terms() == 1 && place.equals("ousted")) return;
        if (elector.errors() == 0 && place.equals("error")) throw new Exception("the first");
        Thread.sleep(60_000);
      } finally {
        working = false;
      }
    }

    private Object fail(boolean here, Callable<?> end) throws Exception {
      return here && first.getAndSet(false) ? end.call() : null;
    }

    void stopsWell() throws InterruptedException {
      elector.stop();
      UnitTest.ends(run);
      assertFalse(working);
      assertNull(result);
      assertEquals(Elector.State.STOPPED, elector.state());
    }
  }

  private static void sneak(Callable<?> code) {
    try {
      code.call();
    } catch (Throwable e) {
      throw Elector.<RuntimeException>unchecked(e);
    }
  }

  private static Callable<?> throwing(Supplier<Throwable> end) {
    return () -> {
      throw Elector.<Exception>unchecked(end.get());
    };
  }

  @ParameterizedTest
  @CsvSource({
    "job, 2, false",
    "elected, 1, false",
    "ousted, 2, false",
    "connect, 1, false",
    "statement, 1, false",
    "error, 2, false",
    "logger, 2, false",
    "job, 2, true",
    "elected, 1, true",
    "ousted, 2, true",
    "connect, 1, true",
    "statement, 1, true",
    "error, 2, true",
    "logger, 2, true"
  })
  void leadsAgain(String place, int terms, boolean lease) throws Exception {
    List<Copy> copies = new ArrayList<>();
    ENDS.forEach((name, end) -> copies.add(new Copy(name, lease, place, throwing(end))));
    for (Copy copy : copies) {
      UnitTest.until(() -> copy.elector.terms() == terms && copy.working);
      assertEquals(1, copy.elector.errors(), copy.elector.identity() + copy.run.getName());
      if (!place.equals("logger")) UnitTest.until(() -> copy.errors.size() == 1);
    }
    for (Copy copy : copies) copy.stopsWell();
  }

  @Test
  void interruptsItself() throws Exception {
    Copy copy =
        new Copy(
            "e",
            false,
            "job",
            () -> {
              Thread.currentThread().interrupt();
              return null;
            });
    UnitTest.until(() -> copy.elector.terms() == 2 && copy.working);
    copy.stopsWell();
  }

  @ParameterizedTest
  @ValueSource(booleans = {false, true})
  void tryRunThrowsWhatTheJobThrows(boolean lease) throws Exception {
    for (Supplier<Throwable> end : ENDS.values()) {
      LeaderElection.Builder election = LeaderElection.builder(new FakeDatabase().source(), "e");
      if (lease) election.ttl(Duration.ofSeconds(15));
      Throwable failure = end.get();
      Elector elector = election.build().newElector();
      Callable<?> throwing = throwing(() -> failure);
      Throwable thrown =
          assertThrows(
              Throwable.class, () -> elector.tryRun(Duration.ZERO, term -> throwing.call()));
      assertSame(failure, thrown);
      assertEquals(0, elector.errors());
    }
  }

  @ParameterizedTest
  @ValueSource(strings = {"task", "schedule", "task that is interrupted"})
  void everyGoesOn(String place) throws Exception {
    List<String> done = new CopyOnWriteArrayList<>();
    ENDS.forEach(
        (name, end) -> {
          AtomicBoolean first = new AtomicBoolean(true);
          Callable<?> fails =
              () -> {
                if (!first.getAndSet(false)) return null;
                if (place.endsWith("interrupted")) Thread.currentThread().interrupt();
                return throwing(end).call();
              };
          LeaderElection.Builder election =
              LeaderElection.builder(new FakeDatabase().source(), name).onError(error -> {});
          Task task =
              (transaction, due, term) -> {
                if (!place.equals("schedule")) fails.call();
                done.add(name);
              };
          Job every =
              election
                  .build()
                  .every(
                      last -> {
                        if (place.equals("schedule")) sneak(fails);
                        return last.plusSeconds(1);
                      },
                      task);
          Elector elector = election.build().newElector();
          electors.add(elector);
          new Thread(() -> elector.run(every)).start();
        });
    UnitTest.until(() -> done.containsAll(ENDS.keySet()));
    for (Elector elector : electors) {
      assertEquals(1, elector.errors());
      assertEquals(1, elector.terms());
      elector.close();
    }
  }

  /** A connection, or a question, that hangs is reported, and a stop does not wait for it. */
  @ParameterizedTest
  @CsvSource({
    "connect, no connection for 5 s",
    "SELECT clock, no answer for 5 s",
    "SELECT le_once, no answer for 5 s",
    "commit, no answer for 5 s"
  })
  void everyThatHangs(String place, String message) throws Exception {
    FakeDatabase hanging = new FakeDatabase();
    hanging.opening = () -> place.equals("connect") ? hang() : null;
    hanging.asking = sql -> sql.startsWith(place) ? hang() : null;
    List<String> errors = new CopyOnWriteArrayList<>();
    Elector elector =
        LeaderElection.builder(new FakeDatabase().source(), "e")
            .onError(error -> errors.add(error.getMessage()))
            .build()
            .newElector();
    electors.add(elector);
    Job every =
        LeaderElection.of(hanging.source(), "e")
            .every(Duration.ofSeconds(1), (transaction, due, term) -> {});
    Thread run = new Thread(() -> elector.run(every));
    run.start();
    UnitTest.until(() -> !errors.isEmpty());
    assertTrue(errors.get(0).endsWith(message), errors.get(0));
    UnitTest.until(() -> hanging.opened.get() >= 2); // it tries again
    elector.stop();
    UnitTest.ends(run);
    assertEquals(1, elector.terms());
    hang.countDown();
    UnitTest.until(() -> hanging.closed.get() >= hanging.opened.get());
  }

  /** What a task leaves behind in its thread is no reason to stop what comes after it. */
  @Test
  void everyWithATaskThatIsInterrupted() throws Exception {
    List<Instant> done = new CopyOnWriteArrayList<>();
    FakeDatabase database = new FakeDatabase();
    LeaderElection election = LeaderElection.of(database.source(), "e");
    Task task =
        (transaction, due, term) -> {
          done.add(due);
          Thread.currentThread().interrupt();
        };
    Elector elector = election.newElector();
    electors.add(elector);
    Thread run = new Thread(() -> elector.run(election.every(Duration.ofSeconds(1), task)));
    run.start();
    UnitTest.until(() -> done.size() >= 3);
    assertEquals(0, elector.errors());
    assertEquals(0, database.aborted.get());
    elector.close();
  }

  @ParameterizedTest
  @ValueSource(longs = {Long.MIN_VALUE, -1, 0, Long.MAX_VALUE})
  void scheduleThatStands(long seconds) throws Exception {
    Elector elector =
        LeaderElection.builder(new FakeDatabase().source(), "e")
            .onError(error -> {})
            .build()
            .newElector();
    Job every =
        LeaderElection.of(new FakeDatabase().source(), "e")
            .every(
                last ->
                    seconds == Long.MIN_VALUE
                        ? Instant.MIN
                        : seconds == Long.MAX_VALUE ? Instant.MAX : last.plusSeconds(seconds),
                (transaction, due, term) -> {});
    electors.add(elector);
    Thread run = new Thread(() -> elector.run(every));
    run.start();
    boolean stands = seconds < Long.MAX_VALUE;
    UnitTest.until(() -> elector.confirmations() >= 3 && (elector.errors() > 0 || !stands));
    assertEquals(1, elector.terms());
    assertEquals(stands, elector.errors() > 0);
    elector.close();
  }

  @AfterEach
  void noThreadIsLeft() throws Exception {
    electors.forEach(Elector::stop);
    hang.countDown();
    hang = new CountDownLatch(1);
    new UnitTest().noThreadIsLeft();
  }
}
