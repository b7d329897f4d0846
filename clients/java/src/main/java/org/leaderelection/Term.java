package org.leaderelection;

import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Instant;
import java.util.concurrent.atomic.AtomicBoolean;
import org.jspecify.annotations.Nullable;

/**
 * A term of leadership, as the job sees it. All methods can be called from any thread. Those with a
 * connection wait for the server's answer, as a statement of the job on it does; the others wait
 * for nothing.
 */
public final class Term {
  private final ElectorMachine machine;
  private final String election;
  private final long token;
  private final AtomicBoolean beaten = new AtomicBoolean();
  volatile double confirmedUntil;
  volatile double beatenUntil = Machine.NEVER;
  volatile boolean cancelled;
  private volatile Runnable atCancellation = () -> {};

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
  public void heartbeat() {
    beaten.set(true);
    if (!machine.way.opens) beatenUntil = machine.world.clock() + machine.way.heartbeat * 2 / 3;
  }

  /**
   * Guards a transaction: it cannot commit when this term is over.
   *
   * @param transaction a connection of the job, with autocommit off
   * @throws SQLException if the term is over, with the SQLSTATE {@code LE001}, or the statement
   *     fails
   * @throws IllegalStateException if autocommit is on
   */
  public void guard(Connection transaction) throws SQLException {
    ask(transaction, guardSql());
  }

  /**
   * Records in a transaction that the job of a time is done there, and guards that transaction.
   *
   * @param transaction a connection of the job, with autocommit off
   * @param due the time, to the microsecond
   * @return whether the job is to be done; false if it was done before
   * @throws SQLException if the term is over, with the SQLSTATE {@code LE001}, or the statement
   *     fails
   * @throws IllegalStateException if autocommit is on
   */
  public boolean once(Connection transaction, Instant due) throws SQLException {
    return Boolean.TRUE.equals(ask(transaction, onceSql(due))[0]);
  }

  /**
   * Returns what {@link #guard} runs, for a library that has no connection to give: a whole
   * statement without parameters.
   *
   * @return the statement
   */
  public String guardSql() {
    return machine.way.statement("assert_leader", election, "" + token);
  }

  /**
   * Returns what {@link #once} runs, for a library that has no connection to give: a whole
   * statement without parameters, which returns true or false.
   *
   * @param due the time, to the microsecond
   * @return the statement
   */
  public String onceSql(Instant due) {
    BigDecimal seconds = BigDecimal.valueOf(due.getNano() / 1000, 6);
    String time = seconds.add(BigDecimal.valueOf(due.getEpochSecond())).toPlainString();
    return machine.way.statement("once", election, "to_timestamp(" + time + "), " + token);
  }

  static @Nullable Object[] ask(Connection transaction, String sql) throws SQLException {
    if (transaction.getAutoCommit()) {
      throw new IllegalStateException("autocommit is on: there is no transaction to guard");
    }
    return Jdbc.ask(transaction, new Way.Query(sql));
  }

  /**
   * Publishes a value for followers, until the term ends: at once, also in a transaction that is
   * rolled back; by the SQL edition, at the commit.
   *
   * @param connection a connection of the job
   * @param value such as the address at which the leader is reached; null for none any more
   * @throws LostException if the term is over
   * @throws SQLException if the server refuses the value, or the statement fails
   */
  public void proclaim(Connection connection, @Nullable String value) throws SQLException {
    String sql = "SELECT le_proclaim(?::text, ?::text, ?::bigint)";
    @Nullable Object[] row = Jdbc.ask(connection, machine.way.query(sql, election, value, token));
    if (!Boolean.TRUE.equals(row[0])) throw new LostException(ErrorKind.OVER, this, null);
  }

  /** Returns whether the job has called heartbeat since this was asked before. */
  boolean takeBeat() {
    return beaten.getAndSet(false);
  }

  double validUntil() {
    return Math.min(confirmedUntil, beatenUntil);
  }

  /** Returns the server's time, and the last time whose job is recorded as done, or null. */
  @Nullable Object[] times(Connection connection) throws SQLException {
    String times = "SELECT clock_timestamp(), (SELECT due FROM le_once_done WHERE name = ?::text)";
    return Jdbc.ask(connection, machine.way.query(times, election));
  }

  /** Reports an error of the job that does not end it. */
  void report(Throwable failure) {
    LeaderElectionException error = LeaderElectionException.of(ErrorKind.JOB, failure);
    if (!cancelled) machine.world.post(() -> machine.report(error));
  }

  void cancel() {
    cancelled = true;
    atCancellation.run();
  }

  /** Lets this action, which must not block, run at the cancellation, or now if that has been. */
  void atCancellation(Runnable action) {
    atCancellation = action;
    if (cancelled) action.run();
  }
}
