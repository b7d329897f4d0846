package org.leaderelection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.fail;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.net.URI;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.List;
import java.util.concurrent.Callable;
import org.postgresql.ds.PGSimpleDataSource;

/** The server that tests use, and how they wait. */
final class Database {
  private Database() {}

  static String jdbcUrl(String variable) {
    String url = System.getenv(variable);
    assumeTrue(url != null && !url.isEmpty(), variable + " is not set");
    return jdbcUrl(URI.create(url), URI.create(url).getPort());
  }

  static String jdbcUrl(URI uri, int port) {
    return "jdbc:postgresql://"
        + (uri.getHost() + ":" + (port < 0 ? 5432 : port) + uri.getPath())
        + ("?user=" + uri.getUserInfo());
  }

  static PGSimpleDataSource direct() {
    return source(jdbcUrl("DATABASE_URL"));
  }

  static PGSimpleDataSource pooler() {
    return source(jdbcUrl("POOLER_URL"));
  }

  static PGSimpleDataSource source(String jdbcUrl) {
    PGSimpleDataSource source = new PGSimpleDataSource();
    source.setURL(jdbcUrl);
    return source;
  }

  static HikariDataSource pool(String jdbcUrl, int size) {
    HikariConfig config = new HikariConfig();
    config.setJdbcUrl(jdbcUrl);
    config.setMaximumPoolSize(size);
    config.setMinimumIdle(0);
    config.setInitializationFailTimeout(-1);
    return new HikariDataSource(config);
  }

  /** Returns the value that a statement of the tests' own connection returns, or null. */
  static String ask(String sql, Object... arguments) throws SQLException {
    try (Connection connection = direct().getConnection();
        PreparedStatement statement = connection.prepareStatement(sql)) {
      for (int i = 0; i < arguments.length; i++) {
        statement.setObject(i + 1, arguments[i]);
      }
      try (ResultSet row = statement.executeQuery()) {
        return row.next() ? row.getString(1) : null;
      }
    }
  }

  static String identity(String election) throws SQLException {
    return ask("SELECT identity FROM le_leader(?)", election);
  }

  static void eventually(double seconds, String what, Callable<Boolean> condition)
      throws Exception {
    long until = System.nanoTime() + Math.round(seconds * 1e9);
    while (!condition.call()) {
      if (System.nanoTime() > until) {
        fail("not within " + seconds + " s: " + what);
      }
      Thread.sleep(20);
    }
  }

  /** Returns the threads of this library. */
  static List<String> threads() {
    return Thread.getAllStackTraces().keySet().stream()
        .filter(Thread::isAlive)
        .map(Thread::getName)
        .filter(name -> name.startsWith("leader-election"))
        .toList();
  }

  static void noThreads() throws Exception {
    eventually(4, "no thread is left", () -> threads().isEmpty());
    assertEquals(List.of(), threads());
  }
}
