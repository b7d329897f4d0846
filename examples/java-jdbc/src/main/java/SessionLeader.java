import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Leads in session scope: for services that can keep one connection for leadership. It is a connection of its own and
 * not the pool's: to "close" a pooled connection puts it back, still leading. The job uses the pool as ever.
 * Autocommit stays on, so that the candidate waits outside a transaction, without a snapshot.
 * Not through PgBouncer in transaction mode: see LeaseLeader.
 */
public final class SessionLeader {
    private static final AtomicBoolean stopping = new AtomicBoolean();
    private static final AtomicReference<Connection> waiting = new AtomicReference<>();

    public static void main(String[] args) {
        Worker worker = new Worker(args);
        Worker.onSigterm(stopping, SessionLeader::stopWaiting);
        while (!stopping.get()) {
            try {
                try {
                    campaignAndLead(worker);
                } catch (SQLException e) {
                    worker.error(e);
                    Thread.sleep(500);
                }
            } catch (InterruptedException stop) {
                break;
            }
        }
    }

    private static void campaignAndLead(Worker worker) throws SQLException, InterruptedException {
        String url = Worker.jdbcUrl() + "&connectTimeout=5&tcpKeepAlive=true";
        try (Connection connection = DriverManager.getConnection(url)) {
            Long token = campaign(connection, worker);
            if (token == null) {
                return;
            }
            Thread job = worker.startJob(token);
            worker.say("elected", token);
            try {
                watch(connection, worker);
            } finally {
                Worker.stopJob(job);
                try {
                    if (stopping.get()) {
                        resign(connection, worker);
                    } else {
                        connection.abort(Runnable::run); // it may be half dead: end the term without asking it
                    }
                } finally {
                    worker.say("ousted", token);
                }
            }
        }
    }

    /** Waits to be elected, in rounds of half a minute, to notice when the server's host has gone; null: stop. */
    private static Long campaign(Connection connection, Worker worker) throws SQLException {
        connection.setNetworkTimeout(Runnable::run, 35_000);
        waiting.set(connection);
        try (PreparedStatement call = connection.prepareStatement("CALL le_campaign(?, timeout => '30 s', identity => ?)")) {
            call.setString(1, worker.election);
            call.setString(2, worker.identity);
            Long token = null;
            while (token == null && !stopping.get()) {
                token = Worker.answer(call, Long.class);
            }
            return waiting.getAndSet(null) == null ? null : token;
        } catch (SQLException e) {
            if (!stopping.get()) {
                throw e;
            }
            return null;
        }
    }

    /** From the shutdown hook: a candidate whose connection has gone is not elected. */
    private static void stopWaiting() {
        Connection connection = waiting.getAndSet(null);
        if (connection != null) {
            try {
                connection.abort(Runnable::run);
            } catch (SQLException e) {
                // it is closed already
            }
        }
    }

    /** Returns with an exception when the leader does not lead any more, or is to stop. */
    private static void watch(Connection connection, Worker worker) throws SQLException, InterruptedException {
        connection.setNetworkTimeout(Runnable::run, 2_000);
        try (PreparedStatement ask = connection.prepareStatement("SELECT le_am_leader(?, identity => ?)")) {
            ask.setString(1, worker.election);
            ask.setString(2, worker.identity);
            while (true) {
                Thread.sleep(1_000);
                if (!Worker.answer(ask, Boolean.class)) {
                    throw new SQLException("the session leads no more");
                }
            }
        }
    }

    private static void resign(Connection connection, Worker worker) throws SQLException {
        try (PreparedStatement ask = connection.prepareStatement("SELECT le_resign(?, identity => ?)")) {
            ask.setString(1, worker.election);
            ask.setString(2, worker.identity);
            ask.execute();
        }
    }
}
