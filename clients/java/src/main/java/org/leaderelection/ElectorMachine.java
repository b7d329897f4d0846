package org.leaderelection;

import org.jspecify.annotations.Nullable;
import org.leaderelection.Elector.Reason;

/** The state machine of an elector. */
final class ElectorMachine extends Machine {
  private static final double LASTING = 60; // a term of this length shows that the job works

  private enum Phase {
    STOPPED,
    CAMPAIGN,
    CONFIRMING,
    ELECTED,
    JOB,
    OUSTED,
    LEAVING,
    PAUSED
  }

  final Way way;
  volatile int terms;
  volatile int confirmations;
  private Phase phase = Phase.STOPPED;
  private @Nullable Object pid; // of the server connection
  private @Nullable Long token; // of the lease that could not be resigned
  private boolean refused; // the lease, to a role that has replaced another
  private @Nullable LeaderElectionException over; // that leadership is lost or in doubt
  private @Nullable Reason reason;
  private double due = NEVER; // of the next question
  private double reportAt = NEVER;
  private double began; // when elected was called
  private int crashes; // of the job in a row
  private boolean once; // the job is to be run
  private @Nullable LeaderElectionException result; // of that

  ElectorMachine(World world, Way way) {
    super(world);
    this.way = way;
  }

  synchronized Elector.State state() {
    return switch (phase) {
      case STOPPED -> Elector.State.STOPPED;
      case PAUSED -> Elector.State.PAUSED;
      case CAMPAIGN, CONFIRMING -> Elector.State.WAITING;
      default ->
          reason == null && phase != Phase.LEAVING ? Elector.State.LEADING : Elector.State.STOPPING;
    };
  }

  synchronized Elector.Health health() {
    if (phase == Phase.STOPPED) return Elector.Health.STOPPED;
    if (failures > 0 || over != null) return Elector.Health.IN_DOUBT;
    if (term == null || phase == Phase.CONFIRMING) return Elector.Health.WAITING;
    return world.clock() < term.validUntil() ? Elector.Health.LEADING : Elector.Health.IN_DOUBT;
  }

  @Override
  double wakeup() {
    double wakeup = Math.min(super.wakeup(), reportAt);
    if (holds()) wakeup = Math.min(wakeup, term.validUntil());
    return holds() && asking == null ? Math.min(wakeup, due) : wakeup;
  }

  private boolean inTerm() {
    return phase == Phase.ELECTED || phase == Phase.JOB || phase == Phase.OUSTED;
  }

  /** Returns whether there is a term whose leadership is neither lost nor in doubt. */
  private boolean holds() {
    return inTerm() && over == null;
  }

  @Override
  void passTime() {
    if (holds() && now >= term.validUntil()) doubt();
    super.passTime();
    if (now >= reportAt) {
      reportAt = NEVER;
      boolean job = phase == Phase.JOB;
      String what = job ? "the job has not stopped" : "a callback has not returned";
      ErrorKind kind = job ? ErrorKind.SLOW_JOB : ErrorKind.CALLBACK;
      String message = what + " within " + way.stopTimeout + " s";
      report(new LeaderElectionException(kind, message, null));
    }
    if (phase == Phase.LEAVING) leave();
    if (asking == null && holds() && now >= due) {
      boolean beats = way.opens && way.options.heartbeat != null && term.takeBeat();
      send(beats ? "beat" : "confirm", null, way.patience);
    }
  }

  // The campaign

  /** Campaigns for some seconds, to run the job once. */
  void tryFor(double wait) {
    once = true;
    lastAttempt = now + wait;
    result = new LeaderElectionException(ErrorKind.OVER, "another one leads", null);
    run();
  }

  @Override
  void run() {
    phase = Phase.CAMPAIGN;
    reason = null;
    refused = false;
    began = NEVER;
    if (way.opens) send("open", null, way.limit);
    else bid();
  }

  private void bid() {
    double round = failures > 0 ? Math.min(way.round, 1) : way.round;
    way.wait = Math.min(round, Math.max(0, lastAttempt - now));
    send("bid", token, way.limit + way.wait);
  }

  @Override
  void answered(Ask ask, @Nullable Object[] row) {
    switch (ask.kind()) {
      case "open" -> {
        pid = row[0];
        bid();
      }
      case "bid" -> bidden(ask, row);
      case "resign" -> {
        boolean yields = over != null && !way.opens;
        finish();
        if (yields) until += way.between; // to those that bid at this interval
      }
      default -> confirm(ask, Boolean.TRUE.equals(row[0]), way.opens && !row[1].equals(pid));
    }
  }

  private void bidden(Ask ask, @Nullable Object[] row) {
    token = null;
    if (row[0] != null) {
      term = new Term(this, row.length > 1 ? (String) row[1] : way.options.election, (Long) row[0]);
      if (way.opens) {
        phase = Phase.CONFIRMING;
        send(way.options.heartbeat != null ? "beat" : "confirm", null, way.limit);
        return;
      }
      term.beatenUntil = ask.asked() + way.heartbeat * 2 / 3;
      confirmed(ask);
      lead();
    } else if (stopping || now >= lastAttempt) {
      finish();
    } else if (way.opens) {
      bid();
    } else {
      until = Math.min(ask.asked() + way.between, lastAttempt);
    }
  }

  private void confirm(Ask ask, boolean leads, boolean pooled) {
    if (over != null) return;
    if (pooled) lose(PermanentException.pooler(null));
    else if (leads) confirmed(ask);
    else lose(new LostException(ErrorKind.LOST, term, null));
    if (phase == Phase.CONFIRMING) lead();
  }

  private void confirmed(Ask ask) {
    confirmations++;
    due = ask.asked() + way.interval;
    term.confirmedUntil = ask.asked() + way.validity;
    if (ask.kind().equals("beat")) term.beatenUntil = ask.asked() + way.heartbeat * 2 / 3;
  }

  private void lead() {
    if (over == null && now >= term.validUntil()) doubt();
    if (over != null || stopping) {
      phase = Phase.LEAVING;
      return;
    }
    phase = Phase.ELECTED;
    began = now;
    reportAt = now + way.stopTimeout;
    terms++;
    world.elected(term);
  }

  // The term

  /** A callback or the job has returned, or failed. */
  void returned(@Nullable LeaderElectionException error) {
    boolean job = phase == Phase.JOB;
    boolean told = job && reason != null; // to stop, by an interrupt
    if (job && once && over == null && error != null) result = error;
    else if (error != null && !(told && error.getCause() instanceof InterruptedException))
      report(error);
    reportAt = NEVER;
    if (phase == Phase.OUSTED) {
      phase = Phase.LEAVING;
    } else if (job || reason != null) {
      phase = Phase.OUSTED;
      reportAt = now + way.stopTimeout;
      if (job) cancel(error == null ? Reason.JOB_RETURNED : Reason.JOB_FAILED);
      world.ousted(term, reason);
    } else {
      phase = Phase.JOB;
      result = null;
      world.job(term);
    }
  }

  // The end of a term

  @Override
  void stop() {
    if (stopping) return;
    stopping = true;
    boolean bidding = !way.opens && asking != null && asking.kind().equals("bid");
    if (inTerm()) cancel(Reason.RESIGNED);
    else if (phase != Phase.LEAVING && !bidding) super.stop();
  }

  @Override
  synchronized void abandon() {
    stopping = true;
    if (holds()) cancel(Reason.LOST); // first, as there can be no memory for what follows
    super.abandon();
    if (holds()) lose(new LostException(ErrorKind.LOST, term, null));
    if (!inTerm()) phase = Phase.STOPPED; // else it is when the job has returned
  }

  private void cancel(Reason why) {
    if (reason != null) return;
    reason = why;
    if (why == Reason.JOB_RETURNED || now >= began + LASTING) crashes = 0;
    term.cancel();
    if (phase == Phase.JOB) {
      world.cancel();
      reportAt = now + way.stopTimeout;
    }
  }

  private void doubt() {
    lose(new LostException(ErrorKind.IN_DOUBT, term, null));
  }

  private void lose(LeaderElectionException error) {
    over = error;
    if (once && (phase == Phase.JOB || reason == null)) result = error;
    else if (error instanceof LostException) report(error);
    if (!way.opens && asking != null) disconnect();
    cancel(error.kind() == ErrorKind.IN_DOUBT ? Reason.IN_DOUBT : Reason.LOST);
  }

  /** Resigns, unless there is nothing to resign, or an answer to wait for. */
  private void leave() {
    boolean asked = asking != null && !asking.kind().equals("resign");
    if (over != null && (asked || over.kind() != ErrorKind.IN_DOUBT)) finish();
    else if (asking == null) send("resign", null, way.limit);
  }

  private void finish() {
    disconnect();
    if (over instanceof PermanentException) end(over);
    else if (stopping || once) end(null);
    else if (reason == Reason.JOB_RETURNED) pause(0.5 + world.random() / 2);
    else pause(reason == Reason.JOB_FAILED ? backoff(60, crashes++) : backoff(15, failures));
  }

  @Override
  void pause(double length) {
    phase = Phase.PAUSED;
    over = null;
    term = null;
    super.pause(length);
  }

  @Override
  void end(@Nullable LeaderElectionException error) {
    phase = Phase.STOPPED;
    super.end(error == null ? result : error);
  }

  // Errors

  @Override
  void broken(LeaderElectionException error) {
    if (asking == null) connectionLost(error);
    super.broken(error);
  }

  @Override
  void fail(Ask ask, LeaderElectionException error) {
    refused |= begun && "42501".equals(error.sqlState());
    if (refused && token != null) {
      token = null;
      failAttempt(error, null);
    } else if (phase == Phase.CAMPAIGN || phase == Phase.CONFIRMING) {
      super.fail(ask, error);
    } else if (ask.kind().equals("resign") || way.opens && phase == Phase.LEAVING) {
      report(error);
      token = way.opens || refused ? null : (Long) term.token();
      finish();
    } else if (way.opens) {
      connectionLost(error);
    } else if (over == null) {
      report(error);
      disconnect();
      due = now + way.retry;
    }
  }

  private void connectionLost(LeaderElectionException error) {
    if (holds()) lose(new LostException(ErrorKind.LOST, term, error));
    else if (over instanceof LostException) over = new LostException(ErrorKind.LOST, term, error);
  }
}
