package org.leaderelection;

import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/** The states leading and stopping: from the confirmed election until leadership is resigned. */
final class Reign {
  private final Elector elector;
  private final World world;
  private final Elector.Timers timers;
  private final Leading term;

  private World.Running job;
  private CompletableFuture<Void> elected;
  private CompletableFuture<Void> ousted;
  private CompletableFuture<Void> watch;

  private CompletableFuture<World.Confirmation> question;
  private long asked;
  private boolean beat; // the question is a heartbeat
  private long confirmed;
  private long beaten; // when the last heartbeat was sent that the server has confirmed
  private long nextQuestion;

  private Reason reason; // once the job has been told to stop, or has stopped
  private long ended;
  private boolean over; // lost, or in doubt
  private boolean lost;
  private boolean late;
  private PoolerException pooler;

  Reign(Elector elector, World.Bid bid, long confirmed) {
    this.elector = elector;
    this.world = elector.world;
    this.timers = elector.timers;
    this.confirmed = confirmed;
    this.beaten = confirmed;
    this.nextQuestion = confirmed + timers.question();
    this.term = new Leading(world, bid, validity(), elector::report);
  }

  /** Runs the job to its end, and resigns. */
  Reason run() {
    if (!elector.stopping()) {
      elector.enter(State.LEADING);
      elected = elector.call(() -> elector.options.onElected.accept(term));
      try {
        lead();
      } catch (RuntimeException | Error e) { // such as no memory, or no more threads
        lost = true;
        term.validUntil(Long.MIN_VALUE);
        end(Reason.LOST);
        Optional.ofNullable(job).ifPresent(j -> j.end().handle((end, error) -> end).join());
        throw e;
      }
    }
    elector.enter(State.STOPPING);
    resign();
    if (pooler != null) {
      throw pooler;
    }
    return reason;
  }

  private void lead() {
    react();
    while (ousted == null || !ousted.isDone()) {
      elector.pass(nextTime());
      react();
    }
  }

  private void react() {
    if (!over && !term.isValid()) {
      over = true;
      end(Reason.IN_DOUBT);
      elector.report(error("leadership is in doubt: it was not confirmed in time", null));
    }
    readAnswer();
    if (watch != null && watch.isCompletedExceptionally()) {
      lose(Elector.failure(watch));
    }
    if (elector.stopping()) {
      end(Reason.RESIGNED);
    }
    runJob();
    ask();
  }

  private void runJob() {
    if (job == null && reason == null && elected.isDone()) {
      job = world.start(() -> elector.options.job.run(term));
      elector.track(job.end());
    }
    boolean stopped = job == null ? reason != null && elected.isDone() : job.end().isDone();
    if (stopped && ousted == null) {
      Exception failure = job == null ? null : Elector.failure(job.end());
      if (failure != null && !(term.isCancelled() && failure instanceof InterruptedException)) {
        elector.report(error("the job has failed", failure));
        end(Reason.JOB_FAILED);
      }
      end(Reason.JOB_RETURNED);
      ousted = elector.call(() -> elector.options.onOusted.accept(term, reason));
    }
    if (reason != null && !stopped && !late && world.now() - ended >= timers.stop()) {
      late = true;
      elector.report(error("the job has not stopped in time", null));
    }
  }

  private void end(Reason why) {
    if (reason == null) {
      reason = why;
      ended = world.now();
      elector.enter(State.STOPPING);
      term.cancel();
      if (job != null) {
        job.interrupt().run();
      }
    }
  }

  private void lose(Exception error) {
    boolean known = over;
    over = true;
    lost = true;
    term.validUntil(Long.MIN_VALUE);
    end(Reason.LOST);
    if (!known) {
      elector.report(error);
    }
  }

  private void ask() {
    if (over || question != null) {
      return;
    }
    if (world.now() >= nextQuestion()) {
      asked = world.now();
      nextQuestion = asked + timers.question();
      beat = term.takeBeat() && (elector.heartbeat() || elector.options.renewOnHeartbeat);
      watch = null; // the question ends it
      question = elector.track(elector.link.confirm(term.bid, beat));
    } else if (elector.session() && watch == null) {
      watch = elector.track(elector.link.watch());
    }
  }

  private void readAnswer() {
    if (question == null || !question.isDone() && world.now() < asked + timers.deadline()) {
      return;
    }
    CompletableFuture<World.Confirmation> answer = question;
    question = null;
    if (answer.isDone() && !answer.isCompletedExceptionally()) {
      World.Confirmation confirmation = answer.join();
      if (confirmation.backend() != elector.backend) {
        pooler = new PoolerException("the connection has changed its server connection", null);
        over = true;
        lose(pooler);
      } else if (!confirmation.leads()) {
        lose(error("leadership is lost", null));
      } else if (!over) {
        confirmed = asked;
        beaten = beat ? asked : beaten;
        term.validUntil(validity());
      }
      return;
    }
    Exception failure = Elector.failure(answer);
    if (elector.session()) {
      lose(failure);
      return;
    }
    if (!over) {
      elector.report(failure);
    }
    if (!answer.isDone()) {
      elector.reopen();
    }
    if (beat) {
      term.heartbeat(); // it has not been passed on
    }
    nextQuestion = world.now() + timers.retry();
  }

  private void resign() {
    while (question != null && !lost) {
      elector.pass(asked + timers.deadline());
      readAnswer();
    }
    try {
      if (pooler != null) {
        elector.answer(elector.link.expel(term.bid));
      } else if (!lost) {
        elector.answer(elector.link.resign(term.bid));
      }
    } catch (Exception e) {
      elector.unresigned = elector.session() ? null : term.bid;
      elector.report(e);
    }
  }

  private long validity() {
    long until = confirmed + timers.validity();
    return elector.heartbeat() ? Math.min(until, beaten + timers.heartbeatValidity()) : until;
  }

  private long nextQuestion() {
    if (elector.options.renewOnHeartbeat) {
      return term.beaten() ? nextQuestion : Long.MAX_VALUE;
    }
    return elector.heartbeat() && term.beaten()
        ? Math.min(nextQuestion, beaten + timers.question())
        : nextQuestion;
  }

  private long nextTime() {
    long next = question != null ? asked + timers.deadline() : Long.MAX_VALUE;
    if (!over) {
      next = Math.min(next, term.validUntil());
      next = question == null ? Math.min(next, nextQuestion()) : next;
    }
    return reason == null || late ? next : Math.min(next, ended + timers.stop());
  }

  private LeaderElectionException error(String what, Throwable cause) {
    return new LeaderElectionException(
        "election " + term.election() + ", token " + term.token() + ": " + what, cause);
  }
}
