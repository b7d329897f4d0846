package org.leaderelection;

import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;

/** The term that a job is given. */
final class Leading implements Term {
  final World.Bid bid;
  final Consumer<Exception> errors;
  private final World world;
  private final AtomicBoolean beaten = new AtomicBoolean();
  private volatile long validUntil;
  private volatile boolean cancelled;
  private Runnable atCancellation = () -> {};

  Leading(World world, World.Bid bid, long validUntil, Consumer<Exception> errors) {
    this.world = world;
    this.bid = bid;
    this.validUntil = validUntil;
    this.errors = errors;
  }

  @Override
  public long token() {
    return bid.token();
  }

  @Override
  public String election() {
    return bid.election();
  }

  @Override
  public void heartbeat() {
    if (!beaten.get() && beaten.compareAndSet(false, true)) {
      world.wake(); // the question may be due
    }
  }

  @Override
  public boolean isLeading() {
    return !cancelled && isValid();
  }

  boolean isValid() {
    return world.now() < validUntil;
  }

  @Override
  public boolean isCancelled() {
    return cancelled;
  }

  long validUntil() {
    return validUntil;
  }

  void validUntil(long time) {
    validUntil = time;
  }

  boolean beaten() {
    return beaten.get();
  }

  boolean takeBeat() {
    return beaten.getAndSet(false);
  }

  void cancel() {
    Runnable action;
    synchronized (this) {
      cancelled = true;
      action = atCancellation;
    }
    action.run();
  }

  /** Lets this action, which must not block, run at the cancellation; false: that has been. */
  synchronized boolean atCancellation(Runnable action) {
    atCancellation = action;
    return !cancelled;
  }
}
