import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Types;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Tells who leads, by the long poll le_observe: for a router, a dashboard, or whoever sends requests to the leader.
 * Prints a line `observed TOKEN [IDENTITY]` for each change; the token is negative while nobody leads.
 * It waits on a connection of its own, as a pooled one would be missing from the pool meanwhile.
 */
public final class Observer {
    private static final AtomicBoolean stopping = new AtomicBoolean();
    private static final AtomicReference<Connection> current = new AtomicReference<>();

    private Long token; // all that the last call has returned is handed back to the next one
    private String leader;
    private String value;

    public static void main(String[] args) {
        Worker worker = new Worker(args);
        Observer observer = new Observer();
        Worker.onSigterm(stopping, Observer::disconnect);
        while (!stopping.get()) {
            try {
                observer.observe(worker);
            } catch (SQLException e) {
                if (!stopping.get()) {
                    worker.error(e);
                    pause();
                }
            }
        }
    }

    private void observe(Worker worker) throws SQLException {
        String url = Worker.jdbcUrl() + "&connectTimeout=5&socketTimeout=35";
        // Without names: pgjdbc sends them as they come. The interval is a literal: a parameter would need ?::interval.
        String sql = "CALL le_observe(?, ?, '30 s', ?, ?, ?)";
        try (Connection connection = DriverManager.getConnection(url);
             PreparedStatement call = connection.prepareStatement(sql)) {
            current.set(connection);
            while (!stopping.get()) {
                call.setString(1, worker.election);
                call.setObject(2, token, Types.BIGINT);
                call.setObject(3, token, Types.BIGINT);
                call.setString(4, leader);
                call.setString(5, value);
                try (ResultSet row = call.executeQuery()) {
                    row.next();
                    Long nowToken = row.getObject("token", Long.class);
                    String nowLeader = row.getString("identity");
                    value = row.getString("value");
                    if (!nowToken.equals(token) || !Objects.equals(nowLeader, leader)) {
                        worker.say("observed", nowLeader == null ? nowToken : nowToken + " " + nowLeader);
                    }
                    token = nowToken;
                    leader = nowLeader;
                }
            }
        }
    }

    private static void pause() {
        try {
            Thread.sleep(500);
        } catch (InterruptedException stop) {
            // stopping is set
        }
    }

    private static void disconnect() {
        Connection connection = current.get();
        if (connection != null) {
            try {
                connection.abort(Runnable::run);
            } catch (SQLException e) {
                // it is closed already
            }
        }
    }
}
