package org.leaderelection;

import java.io.IOException;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import javax.sql.DataSource;
import org.postgresql.PGConnection;
import org.postgresql.PGStatement;
import org.postgresql.ds.PGSimpleDataSource;

/** What only pgjdbc can do. Each method does nothing where the driver is another one. */
final class Pgjdbc {
  private static final boolean PRESENT = present();
  private static final int TIMEOUT = 5; // seconds

  private Pgjdbc() {}

  private static boolean present() {
    try {
      return PGConnection.class.getName() != null;
    } catch (NoClassDefFoundError e) {
      return false;
    }
  }

  /**
   * Keeps the driver from preparing this statement by name. It counts executions for each text and
   * connection, and PgBouncer before 1.21 does not know of names.
   */
  static void unprepared(Statement statement) throws SQLException {
    if (PRESENT && statement.isWrapperFor(PGStatement.class)) {
      statement.unwrap(PGStatement.class).setPrepareThreshold(0);
    }
  }

  /** Sets when this connection prepares by name; returns the setting before, or -1. */
  static int prepareThreshold(Connection connection, int threshold) throws SQLException {
    if (!PRESENT || threshold < 0 || !connection.isWrapperFor(PGConnection.class)) {
      return -1;
    }
    PGConnection pgjdbc = connection.unwrap(PGConnection.class);
    int before = pgjdbc.getPrepareThreshold();
    pgjdbc.setPrepareThreshold(threshold);
    return before;
  }

  /**
   * Waits for a message, or the end of the connection; returns false if it cannot be waited for.
   */
  static boolean read(Connection connection, int milliseconds) throws SQLException {
    if (!PRESENT || !connection.isWrapperFor(PGConnection.class)) {
      return false;
    }
    connection.unwrap(PGConnection.class).getNotifications(milliseconds);
    return true;
  }

  /**
   * Returns a data source that does not wait forever behind a proxy that forwards nothing. A thread
   * that opens a connection cannot be interrupted, and would be left behind.
   */
  static DataSource bounded(DataSource dataSource) {
    if (!PRESENT || !Bounded.applies(dataSource)) {
      return dataSource;
    }
    return Bounded.copy(dataSource);
  }

  private static final class Bounded {
    static boolean applies(DataSource dataSource) {
      return dataSource.getClass() == PGSimpleDataSource.class
          && ((PGSimpleDataSource) dataSource).getSocketTimeout() == 0;
    }

    static DataSource copy(DataSource dataSource) {
      PGSimpleDataSource copy = new PGSimpleDataSource();
      try {
        copy.initializeFrom((PGSimpleDataSource) dataSource);
      } catch (IOException | ClassNotFoundException e) {
        throw new IllegalArgumentException("dataSource", e);
      }
      copy.setSocketTimeout(TIMEOUT);
      copy.setConnectTimeout(limit(copy.getConnectTimeout()));
      copy.setCancelSignalTimeout(limit(copy.getCancelSignalTimeout()));
      copy.setTcpKeepAlive(true);
      return copy;
    }

    static int limit(int seconds) {
      return seconds == 0 ? TIMEOUT : Math.min(seconds, TIMEOUT);
    }
  }
}
