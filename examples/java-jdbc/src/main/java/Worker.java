import java.net.URI;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.concurrent.atomic.AtomicBoolean;

/** What the programs share: the lines on stdout, the job, the connection string, and an orderly end on SIGTERM. */
final class Worker {
    final String election;
    final String identity;

    Worker(String[] args) {
        if (args.length != 2) {
            throw new IllegalArgumentException("arguments: ELECTION IDENTITY");
        }
        election = args[0];
        identity = args[1];
    }

    synchronized void say(String event, Object what) {
        long now = System.currentTimeMillis();
        System.out.printf("%d.%03d %s %s %s%n", now / 1000, now % 1000, identity, event, what);
        System.out.flush();
    }

    void error(Throwable error) {
        Throwable cause = error;
        while (cause.getCause() != null) {
            cause = cause.getCause();
        }
        say("error", (error + (cause == error ? "" : ": " + cause)).replaceAll("\\s+", " "));
    }

    /** What only the leader does, until it is interrupted. Passes the token along with what it writes elsewhere. */
    Thread startJob(long token) {
        Thread job = new Thread(() -> {
            try {
                while (true) {
                    Thread.sleep(100);
                }
            } catch (InterruptedException stop) {
                // the end of the job
            }
        }, "job of term " + token);
        job.start();
        return job;
    }

    /** Returns when the job has stopped. */
    static void stopJob(Thread job) {
        boolean interrupted = Thread.interrupted();
        while (job.isAlive()) {
            job.interrupt();
            try {
                job.join();
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** The one value that a SELECT or a CALL returns. */
    static <T> T answer(PreparedStatement statement, Class<T> type) throws SQLException {
        try (ResultSet row = statement.executeQuery()) {
            row.next();
            return row.getObject(1, type);
        }
    }

    /** postgres://user@host:port/dbname, which pgjdbc does not read. */
    static String jdbcUrl() {
        URI uri = URI.create(System.getenv("DATABASE_URL"));
        int port = uri.getPort() < 0 ? 5432 : uri.getPort();
        return "jdbc:postgresql://" + uri.getHost() + ":" + port + uri.getPath() + "?user=" + uri.getUserInfo();
    }

    /** On SIGTERM: sets stopping, runs stop, lets the calling thread come to its end, and exits with 0 instead of 143. */
    static void onSigterm(AtomicBoolean stopping, Runnable stop) {
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopping.set(true);
            stop.run();
            main.interrupt();
            try {
                main.join(10_000);
            } catch (InterruptedException e) {
                // nobody interrupts a shutdown hook
            }
            Runtime.getRuntime().halt(main.isAlive() ? 1 : 0);
        }));
    }
}
