import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** Keeps the job running up to a deadline, which each renewal moves on. All times are those of System.nanoTime(). */
final class LeaseTerm implements AutoCloseable {
    private final Worker worker;
    private final ScheduledThreadPoolExecutor clock = new ScheduledThreadPoolExecutor(1);
    private Thread job;
    private long token; // of the job
    private long until;
    private ScheduledFuture<?> deadline;

    LeaseTerm(Worker worker) {
        this.worker = worker;
    }

    synchronized void lead(long newToken, long newUntil) {
        if (job != null && token != newToken) {
            oust(); // the term of that job is over
        }
        token = newToken;
        until = newUntil;
        long left = until - System.nanoTime();
        if (left > 0 && job == null) {
            job = worker.startJob(token);
            worker.say("elected", token);
        }
        if (deadline != null) {
            deadline.cancel(false);
        }
        deadline = clock.schedule(this::atDeadline, left, TimeUnit.NANOSECONDS);
    }

    private synchronized void atDeadline() {
        if (System.nanoTime() - until >= 0) { // else it was renewed just now
            oust();
        }
    }

    synchronized void oust() {
        if (stopJob()) {
            worker.say("ousted", token);
        }
    }

    /** Was there a job? */
    synchronized boolean stopJob() {
        if (job == null) {
            return false;
        }
        Worker.stopJob(job);
        job = null;
        return true;
    }

    @Override
    public void close() {
        clock.shutdownNow();
        oust();
    }
}
