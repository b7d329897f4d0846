package org.leaderelection.spring;

import java.lang.System.Logger.Level;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import org.jspecify.annotations.Nullable;
import org.leaderelection.Elector;
import org.leaderelection.LeaderElection;
import org.leaderelection.LeaderElectionException;
import org.leaderelection.Term;

/** This application's part in an election. */
final class Candidate {
  /** What is done as the leader. */
  interface Work {
    void run() throws Throwable;
  }

  static final ThreadLocal<@Nullable Term> CURRENT = new ThreadLocal<>();
  private static final System.Logger LOGGER = System.getLogger("org.leaderelection");

  final LeaderElection election;
  volatile Elector elector;
  private final String name;
  private final Set<Thread> working = new HashSet<>();
  private @Nullable Term term;

  Candidate(String name, LeaderElection election) {
    this.name = name;
    this.election = election;
    elector = election.newElector();
  }

  /** Campaigns, until it is stopped. */
  void start() {
    Elector begun = election.newElector();
    elector = begun;
    Runnable run =
        () -> {
          try {
            begun.run(this::lead);
          } catch (LeaderElectionException e) {
            LOGGER.log(Level.ERROR, "election " + name + " has ended", e);
          }
        };
    Thread thread = new Thread(run, "leader-election " + name);
    thread.setDaemon(true);
    thread.start();
  }

  private void lead(Term now) throws InterruptedException {
    synchronized (this) {
      term = now;
    }
    try {
      new CountDownLatch(1).await(); // until the term is over
    } finally {
      stopWork();
    }
  }

  private synchronized void stopWork() {
    term = null;
    working.forEach(Thread::interrupt);
    while (!working.isEmpty()) {
      try {
        wait();
      } catch (InterruptedException e) {
        // the work was told already
      }
    }
  }

  /** Does the work if this application leads. */
  void ifLeading(Work work) throws Throwable {
    Thread thread = Thread.currentThread();
    Term during;
    boolean outermost;
    synchronized (this) {
      during = term;
      if (during == null || !during.isLeading()) return;
      outermost = working.add(thread);
    }
    Term before = CURRENT.get();
    CURRENT.set(during);
    try {
      work.run();
    } finally {
      CURRENT.set(before);
      if (outermost) end(thread, during);
      // one interrupt can have told of both terms
      if (before != null && !before.isLeading()) thread.interrupt();
    }
  }

  private synchronized void end(Thread thread, Term during) {
    working.remove(thread);
    notifyAll();
    if (term != during) Thread.interrupted(); // what comes next on this thread goes on
  }
}
