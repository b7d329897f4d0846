package org.leaderelection;

import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Timestamp;
import java.time.Duration;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import javax.sql.DataSource;
import org.postgresql.core.BaseConnection;

/** A database that elects, and then says that leadership is lost if the test wants that. */
final class FakeDatabase {
  private final Set<String> recorded = ConcurrentHashMap.newKeySet(); // by le_once
  volatile boolean lost;
  volatile boolean missing;
  volatile boolean autoCommit;
  // what is unwrapped to the driver's connection; if any, a pool's own keeps its place when aborted
  volatile Class<?> driver = Void.class;
  private volatile long clock;
  volatile Callable<?> opening = () -> null;
  volatile Asking asking = sql -> null;
  volatile Object token = 7L;
  final AtomicInteger opened = new AtomicInteger();
  final AtomicInteger closed = new AtomicInteger();
  final AtomicInteger aborted = new AtomicInteger();

  /** What the database does before it answers. */
  interface Asking {
    Object ask(String sql) throws Exception;
  }

  /** Returns whether an elector runs its job. */
  static boolean leads() throws Exception {
    Elector elector = LeaderElection.of(new FakeDatabase().source(), "e").newElector();
    return elector.tryRun(Duration.ZERO, term -> Thread.sleep(300));
  }

  DataSource source() {
    return fake(DataSource.class, null);
  }

  @SuppressWarnings("unchecked")
  private <T> T fake(Class<T> type, String sql) {
    Object proxy =
        Proxy.newProxyInstance(
            type.getClassLoader(),
            new Class<?>[] {type},
            (self, method, arguments) ->
                switch (method.getName()) {
                  case "getConnection" -> {
                    opened.incrementAndGet();
                    opening.call();
                    yield fake(Connection.class, null);
                  }
                  case "close" -> type == Connection.class ? closed.incrementAndGet() : null;
                  case "abort" -> {
                    if (driver != Void.class && sql == null) yield closed.getAndDecrement();
                    recorded.clear();
                    asking.ask("abort");
                    yield aborted.incrementAndGet();
                  }
                  case "commit" -> asking.ask("commit");
                  case "getAutoCommit" -> autoCommit;
                  case "setAutoCommit" -> autoCommit = (Boolean) arguments[0];
                  case "prepareStatement" -> fake(PreparedStatement.class, (String) arguments[0]);
                  case "executeQuery" -> {
                    asking.ask(sql);
                    yield fake(ResultSet.class, sql);
                  }
                  case "getMetaData" ->
                      type == ResultSet.class ? fake(ResultSetMetaData.class, sql) : null;
                  case "getColumnCount" -> 2;
                  case "getObject" -> answer(sql, (Integer) arguments[0]);
                  case "next" -> true;
                  case "isWrapperFor" -> arguments[0] == driver || arguments[0] == Connection.class;
                  case "unwrap" ->
                      arguments[0] == driver ? fake(BaseConnection.class, "the driver's") : self;
                  default -> null;
                });
    return (T) proxy;
  }

  private Object answer(String sql, int column) throws SQLException {
    if (missing && sql.startsWith("CALL")) throw new SQLException("there is none", "42883");
    if (sql.startsWith("SELECT le_once") && column == 1) return recorded.add(sql);
    if (sql.contains("txid_current")) return 9L;
    if (sql.startsWith("SELECT clock")) return column == 1 ? new Timestamp(clock += 1000) : null;
    if (sql.contains("le_lease") || sql.startsWith("CALL")) return column == 1 ? token : "e";
    return column == 1 && !sql.startsWith("SELECT pg_backend_pid") ? (Object) !lost : (Object) 11;
  }
}
