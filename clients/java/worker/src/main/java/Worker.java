import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.net.URI;
import java.time.Duration;
import javax.sql.DataSource;
import org.leaderelection.Elector;
import org.leaderelection.LeaderElection;
import org.leaderelection.Term;
import org.postgresql.ds.PGSimpleDataSource;

/**
 * Leads, and tells about it on stdout. Arguments: session, heartbeat or lease; election; identity.
 */
public final class Worker {
  private static final Duration TTL = Duration.ofSeconds(3);

  private final String identity;

  private Worker(String identity) {
    this.identity = identity;
  }

  /** Runs until SIGTERM. */
  public static void main(String[] args) {
    String way = args[0];
    Worker worker = new Worker(args[2]);
    DataSource dataSource = way.equals("lease") ? pool() : connections();
    LeaderElection.Builder election =
        LeaderElection.builder(dataSource, args[1])
            .identity(worker.identity)
            .onError(worker::error);
    switch (way) {
      case "session" -> {}
      case "heartbeat" -> election.heartbeat(Duration.ofSeconds(5));
      case "lease" -> election.ttl(TTL);
      default -> throw new IllegalArgumentException(way);
    }
    Elector elector = election.build().newElector();
    Runtime.getRuntime()
        .addShutdownHook(
            new Thread(
                () -> {
                  elector.close();
                  Runtime.getRuntime().halt(0); // instead of 143
                }));
    elector.run(worker::job);
  }

  private void job(Term term) {
    say("elected", term.token());
    try {
      while (term.isLeading()) {
        Thread.sleep(100);
        term.heartbeat();
      }
    } catch (InterruptedException e) {
      // cancelled
    } finally {
      say("ousted", term.token());
    }
  }

  private void error(Exception error) {
    Throwable cause = error.getCause();
    say("error", (error + (cause == null ? "" : ": " + cause)).replaceAll("\\s+", " "));
  }

  private synchronized void say(String event, Object what) {
    long now = System.currentTimeMillis();
    System.out.printf("%d.%03d %s %s %s%n", now / 1000, now % 1000, identity, event, what);
    System.out.flush();
  }

  private static DataSource connections() {
    PGSimpleDataSource dataSource = new PGSimpleDataSource();
    dataSource.setURL(jdbcUrl());
    return dataSource;
  }

  private static DataSource pool() {
    HikariConfig config = new HikariConfig();
    config.setJdbcUrl(jdbcUrl());
    config.setMaximumPoolSize(2);
    config.setMinimumIdle(0);
    config.setConnectionTimeout(TTL.toMillis() / 3);
    config.setValidationTimeout(TTL.toMillis() / 6);
    config.setInitializationFailTimeout(-1); // starts even if the server does not run yet
    return new HikariDataSource(config);
  }

  /** Returns postgres://user@host:port,host:port/dbname as pgjdbc reads it. */
  private static String jdbcUrl() {
    URI uri = URI.create(System.getenv("DATABASE_URL"));
    String[] address = uri.getRawAuthority().split("@");
    String url = "jdbc:postgresql://" + address[1] + uri.getPath() + "?user=" + address[0];
    boolean primary = "target_session_attrs=read-write".equals(uri.getQuery());
    return primary ? url + "&targetServerType=primary" : url;
  }
}
