package org.leaderelection;

import java.sql.Connection;
import java.sql.SQLException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;

/** A term of leadership, as the job sees it. All methods can be called from any thread. */
public final class Term {
  private final ElectorMachine machine;
  private final String election;
  private final long token;
  private boolean beaten;
  volatile double confirmedUntil;
  volatile double beatenUntil = Machine.NEVER;
  double beatLength; // by a lease with a heartbeat
  volatile boolean cancelled;
  private Runnable atCancellation = () -> {};

  Term(ElectorMachine machine, String election, long token) {
    this.machine = machine;
    this.election = election;
    this.token = token;
  }

  /**
   * Returns the name of the election. If the elector campaigns for seats, this is the seat's name.
   *
   * @return the name of the election that this term leads
   */
  public String election() {
    return election;
  }

  /**
   * Returns the fencing token, which grows from term to term.
   *
   * @return the token of this term
   */
  public long token() {
    return token;
  }

  /**
   * Returns whether the job may go on: it was not told to stop, and the last confirmation of
   * leadership is still valid. Looks at the clock, and sends nothing.
   *
   * @return whether the job may go on
   */
  public boolean isLeading() {
    return !cancelled && machine.world.clock() < validUntil();
  }

  /** Tells that the job has made progress. Sends nothing, and never fails. */
  public synchronized void heartbeat() {
    beaten = true;
    if (beatLength > 0) beatenUntil = machine.world.clock() + beatLength;
  }

  /**
   * Guards a transaction: it cannot commit when this term is over.
   *
   * @param transaction a connection of the job, with autocommit off
   * @throws SQLException if the term is over, with the SQLSTATE {@code LE001}
   */
  public void guard(Connection transaction) throws SQLException {
    if (transaction.getAutoCommit()) {
      throw new IllegalStateException("autocommit is on: there is no transaction to guard");
    }
    ask(transaction, "SELECT le_assert_leader(?::text, ?::bigint)", election, token);
  }

  /**
   * Publishes a value for followers, until the term ends. Waits for the server's answer.
   *
   * @param value such as the address at which the leader is reached
   * @throws LostException if the term is over
   * @throws LeaderElectionException if the value could not be published
   * @throws InterruptedException if the thread is interrupted while it waits
   */
  public void proclaim(String value) throws InterruptedException {
    World.Proclamation call = new World.Proclamation(value, new CompletableFuture<>());
    machine.world.post(() -> machine.proclaim(this, call));
    try {
      call.done().get();
    } catch (ExecutionException e) {
      throw (LeaderElectionException) e.getCause();
    }
  }

  /** Returns whether the job has called heartbeat since this was asked before. */
  synchronized boolean takeBeat() {
    boolean taken = beaten;
    beaten = false;
    return taken;
  }

  double validUntil() {
    return Math.min(confirmedUntil, beatenUntil);
  }

  Object[] ask(Connection connection, String sql, Object... arguments) throws SQLException {
    return Jdbc.ask(connection, machine.way.query(sql, arguments));
  }

  /** Reports an error of the job that does not end it. */
  void report(Throwable failure) {
    LeaderElectionException error = LeaderElectionException.of("job", failure);
    if (!cancelled) machine.world.post(() -> machine.note(error));
  }

  synchronized void cancel() {
    cancelled = true;
    atCancellation.run();
  }

  /** Lets this action, which must not block, run at the cancellation, or now if that has been. */
  synchronized void atCancellation(Runnable action) {
    atCancellation = action;
    if (cancelled) action.run();
  }
}
