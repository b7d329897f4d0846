package org.leaderelection;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import javax.sql.DataSource;
import org.jspecify.annotations.Nullable;
import org.postgresql.PGConnection;
import org.postgresql.PGStatement;

/** A connection, or one that is being opened, and the thread that asks on it. */
final class Jdbc implements AutoCloseable {
  static final String SETTINGS =
      """
      SELECT pg_backend_pid(),
             count(set_config(name, CASE name WHEN 'application_name' THEN ?::text
                 WHEN 'client_connection_check_interval' THEN '5s' ELSE '0' END, false))
      FROM pg_settings
      WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_session_timeout',
                     'idle_in_transaction_session_timeout', 'transaction_timeout')
         OR name = 'application_name' AND setting IN ('', 'PostgreSQL JDBC Driver')
         OR name = 'client_connection_check_interval' AND setting = '0'""";

  private static final boolean PGJDBC =
      !CompletableFuture.runAsync(() -> PGConnection.class.getName(), Runnable::run)
          .isCompletedExceptionally(); // there is such a class

  private final DataSource dataSource;
  private final @Nullable Run keeper; // is told of the end; null: not kept for the next statement
  private final ThreadPoolExecutor thread;
  private @Nullable Connection connection;
  private boolean autoCommit; // of the connection, when it was opened
  private volatile boolean closed;

  Jdbc(DataSource dataSource, String name, @Nullable Run keeper) {
    this.dataSource = dataSource;
    this.keeper = keeper;
    this.thread = worker(name);
  }

  /** Returns a queue with a thread, which ends when there was nothing to do for 1 s. */
  static ThreadPoolExecutor worker(String name) {
    return new ThreadPoolExecutor(
        0, 1, 1, TimeUnit.SECONDS, new LinkedBlockingQueue<>(), task -> daemon(name, task)) {
      @Override
      public void execute(Runnable task) {
        try {
          super.execute(task);
        } catch (OutOfMemoryError e) {
          // there can be no thread now: it is in the queue, before the next task
        }
      }
    };
  }

  static Thread daemon(String name, Runnable task) {
    Thread thread = new Thread(task, "leader-election " + name);
    thread.setDaemon(true);
    return thread;
  }

  /** Asks, after a connection was opened if there is none; {@code begun} is called in between. */
  CompletableFuture<@Nullable Object[]> ask(Way.Query query, Runnable begun) {
    CompletableFuture<@Nullable Object[]> answer = new CompletableFuture<>();
    thread.execute(
        () -> {
          try {
            Connection c = connect();
            begun.run();
            @Nullable Object[] row = ask(c, query);
            if (keeper == null) release(c);
            answer.complete(row);
          } catch (Throwable e) {
            answer.completeExceptionally(LeaderElectionException.ofStatement(e));
          }
          if (keeper != null) watch();
        });
    return answer;
  }

  /** Asks a statement that the driver prepares, and the server does not. */
  static @Nullable Object[] ask(Connection connection, Way.Query query) throws SQLException {
    try (PreparedStatement statement = connection.prepareStatement(query.sql())) {
      // by a name, which PgBouncer before 1.21 does not know
      if (PGJDBC && statement.isWrapperFor(PGStatement.class)) {
        statement.unwrap(PGStatement.class).setPrepareThreshold(0);
      }
      @Nullable Object[] arguments = query.arguments();
      for (int i = 0; i < arguments.length; i++) statement.setObject(i + 1, arguments[i]);
      try (ResultSet answer = statement.executeQuery()) {
        answer.next();
        @Nullable Object[] row = new Object[answer.getMetaData().getColumnCount()];
        for (int i = 0; i < row.length; i++) row[i] = answer.getObject(i + 1);
        return row;
      }
    }
  }

  private Connection connect() throws SQLException {
    if (connection != null) return connection;
    Connection opened = dataSource.getConnection();
    try {
      opened.getMetaData(); // a proxy of Spring opens its connection now, and does not in cut
      synchronized (this) {
        if (!closed) connection = opened;
      }
    } finally {
      if (connection == null) opened.close();
    }
    if (connection == null) throw new SQLException("opened too late");
    autoCommit = opened.getAutoCommit();
    // ends the transaction that a pool's connection may be in: no lease would begin there
    opened.setAutoCommit(false);
    opened.rollback(); // which asks nothing if there is none
    opened.setAutoCommit(true);
    if (!opened.getAutoCommit()) throw new SQLException("autocommit cannot be turned on");
    if (keeper != null) opened.setNetworkTimeout(Runnable::run, 0);
    return opened;
  }

  /** Gives a connection back as it was, unless it was cut. */
  private void release(Connection used) {
    synchronized (this) {
      if (closed) return;
      connection = null;
    }
    try (used) {
      used.setAutoCommit(autoCommit);
    } catch (Throwable e) {
      // there is an answer nevertheless
    }
  }

  /** Reads from the connection until there is something to ask, to notice its end. */
  private void watch() {
    try {
      boolean reads = PGJDBC && connection != null && connection.isWrapperFor(PGConnection.class);
      while (reads && !closed && thread.getQueue().isEmpty())
        connection.unwrap(PGConnection.class).getNotifications(100);
    } catch (Throwable e) {
      keeper.broken(this, LeaderElectionException.ofStatement(e));
    }
  }

  /** Asks one statement on a connection of its own, for 5 s at most. */
  static @Nullable Object[] once(Way way, Way.Query query) throws InterruptedException {
    try (Jdbc link = new Jdbc(way.options.dataSource, "question", null)) {
      return await("answer", link.ask(query, () -> {}));
    }
  }

  /** Opens the connection, for 5 s at most. */
  Connection open() throws InterruptedException {
    return await("connection", thread.submit(this::connect));
  }

  /** Asks a question, which can hang, for 5 s at most. */
  <T> T answer(Callable<T> question) throws InterruptedException {
    return await("answer", thread.submit(question));
  }

  private static <T> T await(String what, Future<T> result) throws InterruptedException {
    try {
      return result.get(5, TimeUnit.SECONDS);
    } catch (ExecutionException e) {
      throw Elector.<RuntimeException>unchecked(e.getCause());
    } catch (TimeoutException e) {
      throw new LeaderElectionException(ErrorKind.TIMEOUT, "no " + what + " for 5 s", null);
    }
  }

  /**
   * Cuts the connection: a pool does not get it back in use, and nothing that hangs is waited for.
   */
  @Override
  public synchronized void close() {
    closed = true;
    try {
      if (connection != null) daemon("close", this::cut).start();
    } catch (OutOfMemoryError e) { // there can be no thread now
      cut();
    }
    thread.shutdownNow(); // also ends a wait for a pool's connection
  }

  private void cut() {
    try (Connection pooled = connection) {
      // that of some pools keeps the session, or its place in the pool, or waits for a statement
      boolean postgres = PGJDBC && pooled.isWrapperFor(PGConnection.class);
      Class<?> own = postgres ? PGConnection.class : Connection.class; // can be a wrapper's again
      Object driver = pooled.isWrapperFor(own) ? pooled.unwrap(own) : pooled;
      ((Connection) driver).abort(Runnable::run);
    } catch (Throwable e) {
      // it has ended already
    }
  }
}
