import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Types;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Leads by a lease, from whatever connection of a HikariCP pool: for services whose connections come from a pool, and
 * through PgBouncer in transaction mode. For that, prepareThreshold=0 keeps pgjdbc from preparing statements on a server
 * connection that the next transaction does not get; and PgBouncer needs ignore_startup_parameters = extra_float_digits.
 * Autocommit stays on: the lease counts from the commit.
 */
public final class LeaseLeader {
    private static final long TTL_MS = 3_000;
    private static final AtomicBoolean stopping = new AtomicBoolean();

    private final Worker worker;
    private final HikariDataSource pool;

    private LeaseLeader(Worker worker, HikariDataSource pool) {
        this.worker = worker;
        this.pool = pool;
    }

    public static void main(String[] args) {
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl(Worker.jdbcUrl() + "&prepareThreshold=0&connectTimeout=1&socketTimeout=1"); // seconds
        config.setMaximumPoolSize(2);
        config.setMinimumIdle(0);
        config.setConnectionTimeout(TTL_MS / 3);
        config.setValidationTimeout(TTL_MS / 6);
        config.setInitializationFailTimeout(-1); // start even if the server does not run yet
        Worker worker = new Worker(args);
        Worker.onSigterm(stopping, () -> { });
        try (HikariDataSource pool = new HikariDataSource(config)) {
            new LeaseLeader(worker, pool).run();
        }
    }

    private void run() {
        Long token = null;
        try (LeaseTerm term = new LeaseTerm(worker)) {
            while (!stopping.get()) {
                long asked = System.nanoTime(); // a monotonic clock, read before asking
                long next = asked + TimeUnit.MILLISECONDS.toNanos(TTL_MS / 3);
                try {
                    token = lease(token);
                    if (token == null) {
                        term.oust(); // somebody else leads
                    } else {
                        term.lead(token, asked + TimeUnit.MILLISECONDS.toNanos(TTL_MS * 2 / 3));
                    }
                } catch (SQLException e) { // no answer: keep token and deadline, and ask again soon
                    worker.error(e);
                    next = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(300);
                }
                try {
                    TimeUnit.NANOSECONDS.sleep(next - System.nanoTime());
                } catch (InterruptedException stop) {
                    break;
                }
            }
            Thread.interrupted(); // or the pool would hand out no connection to resign
            boolean led = term.stopJob();
            if (token != null) {
                resign(token);
            }
            if (led) {
                worker.say("ousted", token);
            }
        }
    }

    private Long lease(Long token) throws SQLException {
        try (Connection connection = pool.getConnection();
             PreparedStatement ask = connection.prepareStatement("SELECT le_lease(?, '3 s', ?, ?)")) {
            ask.setString(1, worker.election);
            ask.setString(2, worker.identity);
            ask.setObject(3, token, Types.BIGINT);
            return Worker.answer(ask, Long.class);
        }
    }

    private void resign(long token) {
        try (Connection connection = pool.getConnection();
             PreparedStatement ask = connection.prepareStatement("SELECT le_resign(?, ?)")) {
            ask.setString(1, worker.election);
            ask.setLong(2, token);
            ask.execute();
        } catch (SQLException e) {
            worker.error(e); // it ends by the ttl, then
        }
    }
}
