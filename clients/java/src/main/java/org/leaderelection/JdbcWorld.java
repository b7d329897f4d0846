package org.leaderelection;

import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** The real world: threads, and a database. */
final class JdbcWorld implements World {
  /** Timers stand still while the machine is suspended, so the clock is looked at each second. */
  private static final long LONGEST_WAIT = TimeUnit.SECONDS.toNanos(1);

  private final Elector.Builder options;
  private final Semaphore signal = new Semaphore(0);
  private final Set<JdbcLink> links = ConcurrentHashMap.newKeySet();
  private final ThreadPoolExecutor callbacks;
  private volatile Thread callbackThread;
  private volatile Thread jobThread;

  JdbcWorld(Elector.Builder options) {
    this.options = options;
    this.callbacks = oneThread("leader-election callbacks " + options.election);
  }

  /** Returns an executor with one thread, which begins with the first call. */
  static ThreadPoolExecutor oneThread(String name) {
    return new ThreadPoolExecutor(
        1, 1, 0, TimeUnit.SECONDS, new LinkedBlockingQueue<>(), task -> daemon(name, task));
  }

  static Thread daemon(String name, Runnable task) {
    Thread thread = new Thread(task, name);
    thread.setDaemon(true);
    return thread;
  }

  @Override
  public long now() {
    return Clock.now();
  }

  @Override
  public double random() {
    return ThreadLocalRandom.current().nextDouble();
  }

  @Override
  public boolean await(long until) {
    try {
      if (signal.tryAcquire(Math.min(until - now(), LONGEST_WAIT), TimeUnit.NANOSECONDS)) {
        signal.drainPermits();
      }
      return true;
    } catch (InterruptedException e) {
      return false;
    }
  }

  @Override
  public void wake() {
    signal.release();
  }

  @Override
  public Link open() {
    JdbcLink link = new JdbcLink(options, links::remove);
    links.add(link);
    return link;
  }

  @Override
  public Running start(Body job) {
    CompletableFuture<Void> end = new CompletableFuture<>();
    Runnable body =
        () -> {
          try {
            job.run();
            end.complete(null);
          } catch (Throwable e) {
            end.completeExceptionally(e);
          }
        };
    Thread thread = new Thread(body, "leader-election job " + options.election);
    jobThread = thread;
    thread.start();
    return new Running(end, thread::interrupt);
  }

  @Override
  public CompletableFuture<Void> call(Runnable callback) {
    return CompletableFuture.runAsync(
        () -> {
          callbackThread = Thread.currentThread();
          callback.run();
        },
        callbacks);
  }

  @Override
  public boolean inside() {
    Thread current = Thread.currentThread();
    return current == jobThread || current == callbackThread;
  }

  @Override
  public void close() {
    callbacks.shutdown();
    long until = now() + TimeUnit.SECONDS.toNanos(5);
    boolean interrupted = Thread.interrupted();
    try {
      callbacks.awaitTermination(until - now(), TimeUnit.NANOSECONDS);
      for (JdbcLink link : links) {
        link.join(until - now());
      }
    } catch (InterruptedException e) {
      interrupted = true; // and the rest ends by itself
    }
    if (interrupted) {
      Thread.currentThread().interrupt();
    }
  }
}
