package org.leaderelection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.sql.SQLException;
import java.sql.SQLTimeoutException;
import java.time.Duration;
import java.util.List;
import java.util.function.Function;
import org.junit.jupiter.api.Test;
import org.leaderelection.World.Bid;
import org.leaderelection.World.Confirmation;

/** The lines U01 to U24 of the conformance list, on a simulated clock and server. */
class ElectorTest {
  private static final double TOLERANCE = 0.05; // some answers of the simulated server
  private static final Duration TTL = Duration.ofSeconds(9);
  private static final Duration HEARTBEAT = Duration.ofSeconds(3);

  private final Sim sim = new Sim();

  /** Gives an answer to questions that begin so, from that time on. */
  private void answer(String what, double from, Object answer) {
    Function<Sim.Asked, Object> before = sim.server;
    sim.server =
        asked -> asked.what().startsWith(what) && sim.time() >= from ? answer : before.apply(asked);
  }

  private static void assertTime(double expected, double time) {
    assertEquals(expected, time, TOLERANCE);
  }

  private static SQLException broken() {
    return new SQLException("broken", "08006");
  }

  @Test
  void u01JobStartsAfterFirstConfirmation() {
    sim.server =
        asked -> {
          if (asked.what().startsWith("confirm")) {
            assertEquals(0, sim.count("job"), "the job runs before the confirmation");
            assertEquals(0, sim.count("elected"));
          }
          return null;
        };
    sim.run(sim.builder(), 0.5);
    assertTrue(sim.time("confirm") < sim.time("job"));
    assertTrue(sim.time("bid") < sim.time("confirm"));
  }

  @Test
  void u01NoJobWithoutConfirmation() {
    answer("confirm", 0, Sim.SILENCE);
    sim.run(sim.builder(), 4);
    assertEquals(0, sim.count("job"));
    assertEquals(0, sim.count("elected"));
  }

  @Test
  void u01NoJobIfTheConfirmationIsFalse() {
    sim.server =
        asked ->
            asked.what().startsWith("confirm")
                ? new Confirmation(false, 7000 + asked.link().number)
                : null;
    sim.run(sim.builder(), 0.3);
    assertEquals(0, sim.count("job"));
    assertEquals(1, sim.errors.size());
  }

  @Test
  void u02SilenceCancelsWhenValidityHasPassed() {
    answer("confirm", 2.5, Sim.SILENCE);
    sim.run(sim.builder(), 20);
    double last = sim.times("confirm").stream().filter(time -> time < 2.5).toList().get(2);
    assertEquals(last + 6, sim.time("interrupt"), 1e-6); // from before it was sent
    assertEquals(1, sim.count("ousted IN_DOUBT"));
  }

  @Test
  void u02LeaseSilenceCancelsWhenValidityHasPassed() {
    answer("confirm", 5, Sim.SILENCE);
    answer("resign", 5, Sim.SILENCE);
    sim.run(sim.builder().ttl(TTL), 14);
    double last = sim.times("confirm").get(0);
    assertEquals(3, last, TOLERANCE);
    assertEquals(last + 6, sim.time("interrupt"), 1e-6);
    assertEquals(1, sim.count("ousted IN_DOUBT"));
  }

  @Test
  void u02LeaseBidCountsFromBeforeItWasSent() {
    answer("confirm", 0, Sim.SILENCE);
    sim.run(sim.builder().ttl(TTL), 8);
    assertEquals(sim.time("bid") + 6, sim.time("interrupt"), 1e-6);
  }

  @Test
  void u02SlowAnswerDoesNotProlongValidity() {
    sim.server =
        asked -> {
          if (!asked.what().startsWith("confirm") || sim.time() < 1) {
            return null;
          }
          return Sim.SILENCE;
        };
    sim.run(sim.builder(), 20);
    assertEquals(sim.times("confirm").get(0) + 6, sim.time("interrupt"), 1e-6);
  }

  @Test
  void u02TheClockIsLookedAtEachSecond() {
    World world = new JdbcWorld(sim.builder());
    long begin = world.now();
    assertTrue(world.await(begin + Sim.seconds(60)));
    assertTrue(world.now() - begin < Sim.seconds(2), "a timer can stand still for a minute");
    world.close();
  }

  @Test
  void u03FalseCancelsAtOnce() {
    sim.server =
        asked ->
            asked.what().startsWith("confirm") && sim.time() > 3
                ? new Confirmation(false, 7000 + asked.link().number)
                : null;
    sim.run(sim.builder(), 3.2);
    double asked = sim.times("confirm").stream().filter(time -> time > 3).toList().get(0);
    assertTime(asked, sim.time("interrupt"));
    assertEquals(1, sim.count("ousted LOST"));
    assertEquals(0, sim.count("resign"));
    assertFalse(sim.term().isLeading());
    assertEquals(1, sim.errors.size());
  }

  @Test
  void u03LeaseFalseCancelsAtOnce() {
    answer("confirm", 5, new Confirmation(false, 0));
    sim.run(sim.builder().ttl(TTL), 6.1);
    assertTime(6, sim.time("interrupt"));
    assertEquals(1, sim.count("ousted LOST"));
    assertEquals(0, sim.count("resign"));
  }

  @Test
  void u04EndOfConnectionCancelsAtOnce() {
    sim.at(2.5, () -> sim.links.get(sim.links.size() - 1).end());
    sim.run(sim.builder(), 2.6);
    assertEquals(2.5, sim.time("interrupt"), 1e-6);
    assertEquals(1, sim.count("ousted LOST"));
    assertEquals(1, sim.errors.size());
    assertEquals(0, sim.count("resign"));
  }

  @Test
  void u04FailedStatementCancelsAtOnce() {
    answer("confirm", 2.5, broken());
    sim.run(sim.builder(), 3.3);
    assertTime(3, sim.time("interrupt"));
    assertEquals(1, sim.count("ousted LOST"));
    assertEquals(1, sim.errors.size());
  }

  @Test
  void u05LeaseErrorOfRenewalIsTriedAgain() {
    sim.server =
        asked ->
            asked.what().startsWith("confirm") && sim.time() < 5 ? broken() : null; // at 3.0, 3.9
    sim.run(sim.builder().ttl(TTL), 20);
    assertTime(3.0, sim.times("confirm").get(0));
    assertTime(3.9, sim.times("confirm").get(1));
    assertTime(4.8, sim.times("confirm").get(2));
    assertTime(5.7, sim.times("confirm").get(3));
    assertEquals(3, sim.errors.size());
    assertEquals(1, sim.count("job billing"));
    assertTime(20, sim.time("interrupt"));
  }

  @Test
  void u05LeaseSilentRenewalIsAbandonedAndTriedAgain() {
    boolean[] silent = {false};
    sim.server =
        asked -> {
          if (asked.what().startsWith("confirm") && !silent[0]) {
            silent[0] = true;
            return Sim.SILENCE; // until 6.0, when the lease is in doubt
          }
          return null;
        };
    sim.run(sim.builder().ttl(Duration.ofSeconds(30)), 25);
    assertInstanceOf(SQLTimeoutException.class, sim.errors.get(0));
    assertEquals(1, sim.errors.size());
    assertFalse(sim.links.get(0).open);
    assertTime(10, sim.times("confirm").get(0));
    assertTime(16, sim.times("confirm").get(1)); // a deadline of 5 s, and a pause of 1 s
    assertTime(25, sim.time("interrupt"));
  }

  @Test
  void u06HeartbeatOfJobIsMissing() {
    sim.run(sim.builder().heartbeat(HEARTBEAT), 2.2);
    double last = sim.time("heartbeat");
    assertEquals(last + 2, sim.time("interrupt"), 1e-6);
    assertEquals(1, sim.count("ousted IN_DOUBT"));
  }

  @Test
  void u06HeartbeatOfJobKeepsLeadership() {
    sim.beat(0.3, 5);
    sim.run(sim.builder().heartbeat(HEARTBEAT), 10);
    double last = sim.times("heartbeat").stream().filter(time -> time < 7).reduce(0.0, Math::max);
    assertTrue(last > 5 && last < 6.1);
    assertEquals(last + 2, sim.time("interrupt"), 1e-6);
  }

  @Test
  void u07HeartbeatIsSentOnlyIfTheJobHasCalled() {
    sim.at(1.5, () -> sim.term().heartbeat());
    sim.run(sim.builder().heartbeat(HEARTBEAT), 3.2);
    assertEquals(2, sim.count("heartbeat")); // the one after the election, and the job's
    assertEquals(1.5, sim.times("heartbeat").get(1), 1e-6);
    assertEquals(List.of(1, 1), List.of(sim.count("elected"), sim.count("job billing")));
    assertEquals(2, sim.count("confirm")); // meanwhile, leadership is confirmed without
  }

  @Test
  void u07ManyHeartbeatsOfTheJobAreSentOnceInAThird() {
    sim.beat(0.01, 9);
    sim.run(sim.builder().heartbeat(HEARTBEAT), 9);
    assertEquals(9, sim.count("heartbeat"), 1);
  }

  @Test
  void u08RenewOnHeartbeat() {
    sim.at(2, () -> sim.term().heartbeat());
    sim.run(sim.builder().ttl(TTL).renewOnHeartbeat(), 9.2);
    assertEquals(1, sim.count("heartbeat"));
    double renewed = sim.time("heartbeat");
    assertTime(3, renewed);
    assertEquals(renewed + 6, sim.time("interrupt"), 1e-6);
    assertEquals(1, sim.count("ousted IN_DOUBT"));
  }

  @Test
  void u08LateHeartbeatRenewsAtOnce() {
    sim.at(4.5, () -> sim.term().heartbeat());
    sim.run(sim.builder().ttl(TTL).renewOnHeartbeat(), 10);
    assertEquals(4.5, sim.time("heartbeat"), 1e-6);
    assertTime(10, sim.time("interrupt"));
  }

  @Test
  void u09NoCampaignBeforeTheJobHasStopped() {
    sim.interruption = s -> s.in(400, () -> s.endJob(null));
    sim.at(2.5, () -> sim.links.get(sim.links.size() - 1).end());
    sim.run(sim.builder(), 410);
    assertTime(2.5, sim.time("interrupt"));
    assertTime(402.5, sim.time("job ends"));
    assertTrue(sim.times("bid").get(1) > 402.5);
    assertTrue(sim.times("backend").stream().noneMatch(time -> time > 1 && time <= 402.5));
  }

  @Test
  void u10StubbornJobIsReportedOnce() {
    sim.interruption = s -> s.in(30, () -> s.endJob(null));
    sim.run(sim.builder().stopTimeout(Duration.ofSeconds(4)), 5);
    assertEquals(1, sim.errors.size());
    assertTrue(sim.errors.get(0).getMessage().contains("not stopped"));
    assertEquals(9, sim.time("error"), 1e-6);
    assertTime(35, sim.time("job ends"));
  }

  @Test
  void u11StopWhileLeading() {
    sim.interruption = s -> s.in(3, () -> s.endJob(null));
    sim.run(sim.builder(), 5);
    assertEquals(5, sim.time("interrupt"), 1e-6);
    assertTrue(sim.term().isCancelled());
    assertFalse(sim.term().isLeading());
    assertTrue(sim.times("confirm").stream().anyMatch(time -> time > 6), "leadership is kept");
    assertEquals(8, sim.time("job ends"), 1e-6);
    assertEquals(8, sim.time("resign"), TOLERANCE);
    assertEquals(1, sim.count("ousted RESIGNED"));
    List<String> order = sim.log.stream().map(Sim.Entry::what).toList();
    assertTrue(order.indexOf("resign billing") > order.indexOf("job ends"));
    assertTrue(order.lastIndexOf("close") > order.indexOf("resign billing"));
    assertTime(8, sim.time("returned"));
    assertEquals(State.STOPPED, sim.elector.state());
    assertEquals(List.of(), sim.errors);
  }

  @Test
  void u12StopWhileWaiting() {
    answer("bid", 0, Sim.SILENCE);
    sim.run(sim.builder(), 5);
    assertEquals(5, sim.time("cancel"), 1e-6);
    assertTime(5, sim.time("returned"));
    assertTrue(sim.links.stream().noneMatch(link -> link.open));
    assertEquals(List.of(), sim.errors);
    assertEquals(0, sim.count("job"));
  }

  @Test
  void u12CancelBeforeTheServerHasBegunIsRepeated() {
    answer("bid", 0, Sim.SILENCE);
    sim.missedCancels = 2;
    sim.run(sim.builder(), 5);
    assertEquals(3, sim.count("cancel"));
    assertEquals(5.5, sim.time("returned"), 1e-6);
    assertEquals(List.of(), sim.errors);
  }

  @Test
  void u12StopWhileALeaseIsBidForResigns() {
    sim.at(0.005, () -> sim.elector.stop()); // before the answer, which is a token
    sim.run(sim.builder().ttl(TTL), 5);
    assertEquals(1, sim.count("resign"));
    assertEquals(0, sim.count("job"));
    assertTime(0, sim.time("returned"));
  }

  @Test
  void u12StopWhileConnecting() {
    answer("backend", 0, Sim.SILENCE);
    sim.run(sim.builder(), 2);
    assertEquals(2, sim.time("returned"), 1e-6);
    assertTrue(sim.links.stream().noneMatch(link -> link.open));
  }

  @Test
  void u13StopWhilePaused() {
    answer("bid", 0, broken());
    State[] states = {null};
    sim.at(0.2, () -> states[0] = sim.elector.state());
    sim.run(sim.builder(), 0.2);
    assertEquals(State.PAUSED, states[0]);
    assertEquals(0.2, sim.time("returned"), 1e-6);
    assertTrue(sim.links.stream().noneMatch(link -> link.open));
  }

  @Test
  void u14JobThatReturns() {
    for (double random : new double[] {0, 1}) {
      Sim each = new Sim();
      each.random = random;
      each.at(2, () -> each.endJob(null));
      each.run(each.builder(), 4);
      assertTime(2, each.time("resign"));
      double pause = each.times("bid").get(1) - each.time("resign");
      assertEquals(random == 0 ? 0.5 : 1, pause, 2 * TOLERANCE);
      assertEquals(1, each.count("ousted JOB_RETURNED"));
      assertEquals(List.of(), each.errors);
      assertTrue(each.times("resign").get(0) < each.times("bid").get(1));
    }
  }

  @Test
  void u15JobThatFails() {
    Exception failure = new IllegalStateException("the job's");
    sim.random = 1;
    sim.at(2, () -> sim.endJob(failure));
    sim.run(sim.builder(), 4);
    assertEquals(1, sim.errors.size());
    assertSame(failure, sim.errors.get(0).getCause());
    assertTime(2, sim.time("resign"));
    assertEquals(0.5, sim.times("bid").get(1) - sim.time("resign"), 2 * TOLERANCE);
    assertEquals(1, sim.count("ousted JOB_FAILED"));
  }

  @Test
  void u15CancelledJobThatIsInterruptedHasNotFailed() {
    sim.interruption = s -> s.endJob(new InterruptedException());
    sim.run(sim.builder(), 2);
    assertEquals(List.of(), sim.errors);
    assertEquals(1, sim.count("ousted RESIGNED"));
  }

  @Test
  void u16PausesGrowWithErrorsInARow() {
    for (double random : new double[] {0, 1}) {
      Sim each = new Sim();
      each.random = random;
      each.server = asked -> asked.what().equals("bid") && each.time() < 90 ? broken() : null;
      each.at(200, () -> each.server = asked -> broken());
      each.run(each.builder(), 203);
      List<Double> errors = each.times("error");
      double[] pauses = {0.5, 1, 2, 4, 8, 15, 15};
      for (int i = 0; i < pauses.length; i++) {
        double pause = errors.get(i + 1) - errors.get(i);
        assertEquals(pauses[i] * (random == 0 ? 0.5 : 1), pause, 2 * TOLERANCE);
      }
      long campaigns = each.times("bid").stream().filter(time -> time < 90).count();
      assertEquals(campaigns, errors.stream().filter(time -> time < 91).count());
      List<Double> anew = errors.stream().filter(time -> time >= 200).toList();
      assertEquals(random == 0 ? 0.25 : 0.5, anew.get(1) - anew.get(0), 2 * TOLERANCE);
    }
  }

  @Test
  void u17LeaseThatCouldNotBeResigned() {
    sim.at(1, () -> sim.endJob(null));
    answer("resign", 0, broken());
    sim.run(sim.builder().ttl(TTL), 2.5);
    assertEquals(1, sim.count("resign") - 1); // and one at the end
    assertEquals(0, sim.time("bid"), 1e-6);
    assertEquals(1, sim.count("bid 101"));
    assertEquals(2, sim.count("elected"));
  }

  @Test
  void u17ResignedLeaseIsForgotten() {
    sim.at(1, () -> sim.endJob(null));
    sim.run(sim.builder().ttl(TTL), 2.5);
    assertEquals(2, sim.count("bid"));
    assertEquals(0, sim.count("bid 101"));
  }

  @Test
  void u18TwoConnectionsWithOneServerProcess() {
    answer("backend", 0, 4711);
    assertThrows(PoolerException.class, () -> sim.run(sim.builder(), 50));
    assertEquals(0, sim.count("bid"));
    assertEquals(1, sim.errors.size());
    assertTrue(sim.links.stream().noneMatch(link -> link.open));
    assertEquals(State.STOPPED, sim.elector.state());
  }

  @Test
  void u18ChangedServerProcessWhileLeading() {
    answer("confirm", 2.5, new Confirmation(true, 4711));
    sim.interruption = s -> s.in(1, () -> s.endJob(null));
    assertThrows(PoolerException.class, () -> sim.run(sim.builder(), 50));
    assertTime(3, sim.time("interrupt"));
    assertTime(4, sim.time("job ends"));
    assertTime(4, sim.time("expel"));
    assertEquals(1, sim.count("ousted LOST"));
    assertEquals(1, sim.errors.size());
    assertEquals(1, sim.count("bid"));
  }

  @Test
  void u18ChangedServerProcessBeforeLeading() {
    answer("confirm", 0, new Confirmation(false, 4711));
    assertThrows(PoolerException.class, () -> sim.run(sim.builder(), 50));
    assertEquals(1, sim.count("expel"));
    assertEquals(0, sim.count("job"));
    assertEquals(1, sim.errors.size());
  }

  @Test
  void u18ChangedServerProcessThatCannotBeExpelled() {
    answer("confirm", 0, new Confirmation(false, 4711));
    answer("expel", 0, broken());
    assertThrows(PoolerException.class, () -> sim.run(sim.builder(), 50));
    assertEquals(1, sim.count("bid"));
    assertEquals(2, sim.errors.size());
  }

  @Test
  void u18AnotherIdentityOnThisConnection() {
    String message = "cannot wait to lead election \"x\", which this session leads already";
    answer("bid", 0, new SQLException(message, "LE005"));
    assertThrows(PoolerException.class, () -> sim.run(sim.builder(), 50));
    assertEquals(0, sim.count("job"));
    assertEquals(1, sim.errors.size());
  }

  @Test
  void u19IsLeadingLooksAtTheClock() {
    answer("confirm", 2.5, Sim.SILENCE);
    boolean[] leads = new boolean[2];
    double valid = 2 + 6;
    sim.at(valid - 0.1, () -> leads[0] = sim.term().isLeading());
    sim.at(valid + 0.1, () -> leads[1] = sim.term().isLeading());
    // no timer runs from 7.95 on, as if the process had been suspended
    sim.run(sim.builder(), 20);
    assertTrue(leads[0]);
    assertFalse(leads[1]);
    boolean[] late = new boolean[2];
    long[] now = {Sim.seconds(5)};
    World clock =
        new Sim() {
          @Override
          public long now() {
            return now[0];
          }
        };
    Leading term = new Leading(clock, new Bid(1, "x"), Sim.seconds(8), error -> {});
    late[0] = term.isLeading();
    now[0] = Sim.seconds(8);
    late[1] = term.isLeading();
    assertTrue(late[0]);
    assertFalse(late[1]);
  }

  @Test
  void u20CallbacksInOrder() {
    answer("confirm", 2.5, broken());
    sim.run(sim.builder(), 3.2);
    List<String> calls =
        sim.log.stream()
            .map(Sim.Entry::what)
            .filter(what -> what.matches("(elected|ousted|error|job|interrupt).*"))
            .toList();
    assertEquals(
        List.of("elected 101", "job billing", "interrupt", "job ends", "error", "ousted LOST"),
        calls.stream().toList());
  }

  @Test
  void u20FailingCallbacksAreReportedAndHarmNothing() {
    RuntimeException elected = new RuntimeException("elected");
    RuntimeException ousted = new RuntimeException("ousted");
    Elector.Builder builder =
        sim.builder()
            .onElected(
                term -> {
                  throw elected;
                })
            .onOusted(
                (term, reason) -> {
                  throw ousted;
                });
    sim.at(2, () -> sim.endJob(null));
    sim.run(builder, 2.2);
    assertEquals(List.of(elected, ousted), sim.errors.stream().map(Exception::getCause).toList());
    assertEquals(1, sim.count("job billing"));
    assertEquals(1, sim.count("resign"));
    Sim other = new Sim();
    other.server = asked -> asked.what().equals("bid") && other.time() < 1 ? broken() : null;
    other.run(
        other
            .builder()
            .onError(
                error -> {
                  other.note("error");
                  throw new RuntimeException("error");
                }),
        5);
    assertEquals(1, other.count("job billing"));
    assertEquals(other.times("bid").size() - 1, other.count("error"));
  }

  @Test
  void u21Seats() {
    answer("bid", 0, new Bid(5, "billing/2"));
    sim.run(sim.builder().seats(3), 2.5);
    assertEquals("billing/2", sim.term().election());
    assertEquals(3, sim.count("confirm billing/2"));
    assertEquals(3, sim.count("confirm"));
    assertEquals(1, sim.count("resign billing/2"));
  }

  @Test
  void u22BadArguments() {
    List<Runnable> bad =
        List.of(
            () -> Elector.builder(null, "x", term -> {}),
            () -> Elector.builder(new NoDataSource(), null, term -> {}),
            () -> Elector.builder(new NoDataSource(), "", term -> {}),
            () -> Elector.builder(new NoDataSource(), "é".repeat(128), term -> {}),
            () -> Elector.builder(new NoDataSource(), "-2929", term -> {}),
            () -> Elector.builder(new NoDataSource(), "{a,b}", term -> {}),
            () -> Elector.builder(new NoDataSource(), "x", null),
            () -> sim.builder().identity(""),
            () -> sim.builder().identity("x".repeat(256)),
            () -> sim.builder().seats(0),
            () -> sim.builder().seats(10_001),
            () -> Elector.builder(new NoDataSource(), "x".repeat(254), term -> {}).seats(1),
            () -> sim.builder().ttl(Duration.ofMillis(999)),
            () -> sim.builder().ttl(null),
            () -> sim.builder().heartbeat(Duration.ofMillis(999)),
            () -> sim.builder().heartbeat(Duration.ofDays(2)),
            () -> sim.builder().stopTimeout(Duration.ofSeconds(-1)),
            () -> sim.builder().ttl(TTL).heartbeat(HEARTBEAT).build(),
            () -> sim.builder().renewOnHeartbeat().build(),
            () -> sim.builder().onElected(null),
            () -> LeaderElection.every(new NoDataSource(), Duration.ZERO, (c, due, term) -> {}));
    for (int i = 0; i < bad.size(); i++) {
      RuntimeException e =
          assertThrows(RuntimeException.class, bad.get(i)::run, "bad argument " + i);
      assertTrue(
          e instanceof IllegalArgumentException || e instanceof NullPointerException, "" + e);
    }
    Elector.builder(new NoDataSource(), "é".repeat(127), term -> {}).build();
  }

  @Test
  void u23NullIsBidAgainWithoutAPause() {
    sim.server =
        asked -> {
          if (asked.what().equals("bid") && sim.count("bid") < 4) {
            return Sim.NULL;
          }
          return null;
        };
    sim.run(sim.builder(), 2);
    assertEquals(4, sim.count("bid"));
    assertTrue(sim.times("bid").get(3) < 0.1);
    assertEquals(List.of(), sim.errors);
    assertEquals(3, sim.links.size()); // two to look for a pooler, and one
  }

  @Test
  void u23NullOfALeaseIsBidAgainAfterAThird() {
    sim.server = asked -> asked.what().equals("bid") && sim.time() < 5 ? Sim.NULL : null;
    sim.run(sim.builder().ttl(TTL), 7);
    assertEquals(3, sim.count("bid"));
    assertTime(3, sim.times("bid").get(1));
    assertTime(6, sim.times("bid").get(2));
    assertEquals(List.of(), sim.errors);
  }

  @Test
  void u24DefaultIdentitiesDiffer() {
    Elector.Builder builder = Elector.builder(new NoDataSource(), "x", term -> {});
    String one = builder.build().identity();
    String two = builder.build().identity();
    assertNotEquals(one, two);
    String expected = ".+:" + ProcessHandle.current().pid() + ":[0-9a-f]{4}";
    assertTrue(one.matches(expected) && two.matches(expected), one);
  }

  @Test
  void u09NoCampaignBesideAJobAfterAnErrorOfTheLibraryItself() {
    boolean[] failed = {false};
    sim.server =
        asked -> {
          if (asked.what().startsWith("confirm") && sim.time() > 2.5 && !failed[0]) {
            failed[0] = true;
            throw new IllegalStateException("no thread");
          }
          return null;
        };
    sim.run(sim.builder(), 5);
    assertTime(3, sim.time("interrupt"));
    assertTrue(sim.time("job ends") < sim.times("bid").get(1));
    assertEquals(2, sim.count("job billing"));
    assertEquals(1, sim.errors.size());
  }

  @Test
  void bidHasADeadline() {
    answer("bid", 0, Sim.SILENCE);
    sim.run(sim.builder(), 306);
    assertTime(305, sim.time("error"));
  }

  @Test
  void lateElectionAtAStopIsResigned() {
    sim.server = asked -> null;
    sim.at(0.005 + 0.02, () -> sim.elector.stop());
    sim.run(sim.builder(), 1);
    assertEquals(0, sim.count("job"));
    assertTrue(sim.links.stream().noneMatch(link -> link.open));
  }

  @Test
  void inDoubtIsNotConfirmedAnyMore() {
    sim.interruption = s -> s.in(20, () -> s.endJob(null));
    sim.run(sim.builder().heartbeat(HEARTBEAT), 23);
    double doubt = sim.time("interrupt");
    assertEquals(
        0,
        sim.log.stream()
            .filter(e -> e.time() > doubt && e.time() < doubt + 19)
            .filter(e -> e.what().startsWith("confirm") || e.what().startsWith("heartbeat"))
            .count());
    assertTime(doubt + 20, sim.time("resign"));
  }
}
