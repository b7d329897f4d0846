package org.leaderelection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Programs that need a process of their own. */
@Timeout(300)
class ProcessTest {
  @TempDir Path folder;

  /** Runs a program below with an argument; returns its status and what it has printed. */
  private String run(String limits, Class<?> program, String argument) throws Exception {
    Path output = folder.resolve("output");
    String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
    ProcessBuilder builder = new ProcessBuilder("sh", "-c", limits + "exec \"$@\"", "sh", java);
    builder
        .command()
        .addAll(List.of("-Xmx32m", "-Xss64m", "-XX:+UseSerialGC", program.getName(), argument));
    builder.environment().put("CLASSPATH", System.getProperty("java.class.path"));
    Process process = builder.redirectErrorStream(true).redirectOutput(output.toFile()).start();
    boolean ended = process.waitFor(120, TimeUnit.SECONDS);
    process.destroyForcibly();
    String text = Files.readString(output);
    assertTrue(ended, "has not ended: " + text);
    return process.exitValue() + " " + text;
  }

  /** A program whose job or callback ends it, while a shutdown hook closes the elector. */
  static final class Exits {
    public static void main(String[] place) {
      LeaderElection.Builder election = LeaderElection.builder(new FakeDatabase().source(), "e");
      election.stopTimeout(Duration.ofSeconds(1)).onError(error -> {});
      election.onElected(term -> exitIf(place[0].equals("elected")));
      election.onOusted((term, reason) -> exitIf(place[0].equals("ousted")));
      Elector elector = election.build().newElector();
      Runtime.getRuntime().addShutdownHook(new Thread(elector::close));
      elector.run(term -> exitIf(place[0].equals("job")));
    }

    private static void exitIf(boolean here) {
      if (here) System.exit(7);
    }
  }

  @ParameterizedTest
  @ValueSource(strings = {"elected", "job", "ousted"})
  void exit(String place) throws Exception {
    String result = run("", Exits.class, place);
    assertEquals('7', result.charAt(0), result);
  }

  /** A program that cannot start a thread until it has told an error. */
  static final class Threads {
    private static final CountDownLatch END = new CountDownLatch(1);

    public static void main(String[] way) throws Exception {
      LeaderElection.Builder election = LeaderElection.builder(new FakeDatabase().source(), "e");
      if (way[0].equals("lease")) election.ttl(Duration.ofSeconds(6));
      Elector elector = election.build().newElector();
      Runnable free =
          () -> {
            while (elector.errors() == 0) LockSupport.parkNanos(50_000_000);
            END.countDown();
          };
      start(free);
      try {
        while (true) start(Threads::await);
      } catch (OutOfMemoryError e) {
        // there is no place for a stack any more
      }
      elector.run(term -> elector.stop());
      System.out.println(elector.terms());
    }

    private static void start(Runnable body) {
      Thread thread = new Thread(body);
      thread.setDaemon(true);
      thread.start();
    }

    private static void await() {
      try {
        END.await();
      } catch (InterruptedException e) {
        // ends
      }
    }
  }

  @ParameterizedTest
  @ValueSource(strings = {"session", "lease"})
  void withoutThreads(String way) throws Exception {
    String result = run("ulimit -v 5000000; ", Threads.class, way);
    assertTrue(result.startsWith("0") && result.endsWith("1\n"), result);
  }
}
