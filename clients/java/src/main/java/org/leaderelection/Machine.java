package org.leaderelection;

import java.util.Locale;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;

/**
 * What the state machines have in common. They are pure: {@code step} gets the time and what has
 * happened, and tells a {@link World} what is to be done.
 */
abstract class Machine {
  static final double NEVER = Double.POSITIVE_INFINITY;
  private static final Set<String> JUDGED = Set.of("bid", "observe");
  private static final Pattern NAMED = Pattern.compile("Retry in (\\d+) ms");

  /** A statement on its way. */
  record Ask(String kind, double asked, double deadline) {}

  final World world;
  double now;
  double until = NEVER; // the end of a pause
  double lastAttempt = NEVER; // when the last one begins
  @Nullable Ask asking;
  @Nullable Term term; // of an elector
  int failures; // in a row
  boolean stopping;
  volatile int errors;
  boolean begun; // the last statement has got its connection
  private boolean toldNotYet;

  Machine(World world) {
    this.world = world;
  }

  /** Begins a campaign, or to follow. */
  abstract void run();

  abstract void answered(Ask ask, @Nullable Object[] row);

  /** Lets time pass, and then an event happen: a call of a method of this. */
  synchronized void step(double now, Runnable event) {
    this.now = now;
    passTime();
    event.run();
    passTime();
  }

  /** Returns when {@link #step} is to be called although nothing has happened. */
  double wakeup() {
    return Math.min(until, asking == null ? NEVER : asking.deadline);
  }

  /** A statement has got its connection. */
  void begun(Ask ask) {
    begun |= ask == asking;
  }

  /** A statement was answered by a row, or has failed. */
  void done(Ask ask, @Nullable LeaderElectionException error, @Nullable Object... row) {
    if (ask != asking) return; // it was given up
    asking = null;
    boolean ends = error == null && JUDGED.contains(ask.kind);
    failures = ends ? 0 : failures;
    toldNotYet &= !ends;
    if (error == null) answered(ask, row);
    else fail(ask, error);
  }

  /** The connection has ended. */
  void broken(LeaderElectionException error) {
    if (asking != null) done(asking, error);
  }

  /** Nothing drives this any more. */
  synchronized void abandon() {
    world.disconnect();
  }

  void stop() {
    world.disconnect();
    end(null);
  }

  void passTime() {
    if (asking != null && now >= asking.deadline) {
      String what = begun ? "no answer" : "no connection from the data source";
      String message = String.format(Locale.ROOT, "%s for %.1f s", what, now - asking.asked);
      ErrorKind kind = begun ? ErrorKind.TIMEOUT : ErrorKind.NO_CONNECTION;
      done(asking, new LeaderElectionException(kind, message, null));
    }
    if (now >= until) {
      until = NEVER;
      run();
    }
  }

  void send(String kind, @Nullable Object value, double limit) {
    asking = new Ask(kind, now, now + limit);
    begun = false;
    world.ask(asking, value);
  }

  void disconnect() {
    asking = null;
    world.disconnect();
  }

  void report(LeaderElectionException error) {
    errors++;
    world.error(error);
  }

  void fail(Ask ask, LeaderElectionException error) {
    failAttempt(error, begun && JUDGED.contains(ask.kind) ? PermanentException.of(error) : null);
  }

  /** Ends, or pauses, after an error, which can be a permanent one. */
  void failAttempt(LeaderElectionException error, @Nullable PermanentException permanent) {
    disconnect();
    if (!stopping && (permanent != null || now >= lastAttempt)) {
      end(permanent != null ? permanent : error);
      return;
    }
    boolean notYet = "LE003".equals(error.sqlState());
    if (!notYet || !toldNotYet) report(error);
    toldNotYet = notYet;
    if (stopping) {
      end(null);
      return;
    }
    Matcher named = NAMED.matcher(error.getMessage());
    boolean told = notYet && named.find();
    pause(told ? Double.parseDouble(named.group(1)) / 1000 : backoff(15, failures));
    until = Math.min(until, lastAttempt);
  }

  double backoff(double most, int before) {
    failures++;
    return Math.min(most, 0.5 * Math.pow(2, before)) * (0.5 + world.random() / 2);
  }

  void pause(double length) {
    until = now + length;
  }

  void end(@Nullable LeaderElectionException error) {
    asking = null;
    until = NEVER;
    world.end(error);
  }
}
