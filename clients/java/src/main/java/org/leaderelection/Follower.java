package org.leaderelection;

import java.util.Optional;
import java.util.function.Consumer;

/** Follows an election, on a connection of its own. All methods can be called from any thread. */
public final class Follower extends Run {
  private final Consumer<? super Optional<Leader>> listener;

  Follower(LeaderElection.Builder options, Consumer<? super Optional<Leader>> listener) {
    super(new Session(options));
    machine = new FollowMachine(this);
    this.listener = listener;
  }

  /**
   * Follows the election until {@link #stop}, {@link #close() close} or an interrupt of this
   * thread, whose interrupted status is set again at the return.
   *
   * @throws PermanentException if something must be configured differently
   * @throws IllegalStateException if the follower has run before
   */
  public void run() {
    LeaderElectionException error = drive(machine::run);
    if (error != null) throw error;
  }

  @Override
  void told(Optional<Leader> leader) {
    tell("the listener has failed", () -> listener.accept(leader));
  }
}
