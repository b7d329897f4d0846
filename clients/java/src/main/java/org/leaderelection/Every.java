package org.leaderelection;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.time.OffsetDateTime;
import javax.sql.DataSource;

/** A job that does a task once for each point in time. */
final class Every implements Job {
  private static final int SECOND = 1_000; // milliseconds

  private final DataSource dataSource;
  private final Duration interval;
  private final Task task;

  Every(DataSource dataSource, Duration interval, Task task) {
    this.dataSource = Pgjdbc.bounded(dataSource);
    this.interval = interval;
    this.task = task;
  }

  @Override
  public void run(Term term) throws InterruptedException {
    OffsetDateTime[] done = {null};
    while (!term.isCancelled()) {
      try (Connection connection = dataSource.getConnection()) {
        work(connection, term, done);
      } catch (InterruptedException e) {
        throw e;
      } catch (Exception e) {
        if (term instanceof Leading leading && !term.isCancelled()) {
          leading.errors.accept(e);
        }
        pause(term);
      }
    }
  }

  private void work(Connection connection, Term term, OffsetDateTime[] done) throws Exception {
    boolean autoCommit = connection.getAutoCommit();
    int threshold = Pgjdbc.prepareThreshold(connection, 0);
    cutAtCancellation(connection, term);
    try {
      while (!term.isCancelled()) {
        connection.setAutoCommit(true);
        OffsetDateTime due =
            ask(
                connection,
                OffsetDateTime.class,
                "SELECT date_bin(?::interval, clock_timestamp(), '2000-01-01 00:00+00')",
                JdbcLink.text(interval));
        if (!due.equals(done[0])) {
          once(connection, term, due);
          done[0] = due;
        }
        pause(term);
      }
    } finally {
      if (!connection.isClosed()) {
        Pgjdbc.prepareThreshold(connection, threshold);
        connection.setAutoCommit(autoCommit);
      }
    }
  }

  private void once(Connection connection, Term term, OffsetDateTime due) throws Exception {
    connection.setAutoCommit(false);
    try {
      String sql = "SELECT le_once(?, ?::timestamptz, ?)";
      if (ask(connection, Boolean.class, sql, term.election(), due, term.token())) {
        task.run(connection, due.toInstant(), term);
      }
      connection.commit();
    } catch (Throwable e) {
      rollback(connection, e);
      throw e;
    }
  }

  private static void rollback(Connection connection, Throwable cause) {
    try {
      connection.rollback();
    } catch (SQLException e) {
      cause.addSuppressed(e);
    }
  }

  /** The thread's interruption does not reach a statement that waits for the server. */
  private static void cutAtCancellation(Connection connection, Term term) throws SQLException {
    Runnable cut = () -> JdbcLink.attempt(() -> connection.abort(Runnable::run));
    Runnable apart = () -> JdbcWorld.daemon("leader-election cut", cut).start();
    if (term instanceof Leading leading && !leading.atCancellation(apart)) {
      throw new SQLException("the term is over");
    }
  }

  private static <T> T ask(Connection connection, Class<T> type, String sql, Object... arguments)
      throws SQLException {
    int timeout = connection.getNetworkTimeout();
    connection.setNetworkTimeout(Runnable::run, 5 * SECOND);
    try (PreparedStatement asking = JdbcLink.prepare(connection, sql, arguments);
        ResultSet row = asking.executeQuery()) {
      row.next();
      T answer = row.getObject(1, type);
      connection.setNetworkTimeout(Runnable::run, timeout);
      return answer;
    }
  }

  private static void pause(Term term) throws InterruptedException {
    term.heartbeat();
    if (!term.isCancelled()) {
      Thread.sleep(SECOND);
    }
  }
}
