package org.leaderelection;

import java.util.Optional;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/** Follows an election, on a connection of its own. All methods can be called from any thread. */
public final class Follower extends Run {
  private final Consumer<? super Optional<Leader>> listener;

  Follower(LeaderElection.Builder options, Consumer<? super Optional<Leader>> listener) {
    super(options, true);
    machine = new FollowMachine(this);
    this.listener = listener;
  }

  /**
   * Follows the election until {@link #stop}, {@link #close} or an interrupt of this thread.
   *
   * @throws PermanentException if something must be configured differently
   * @throws IllegalStateException if the follower has run before
   */
  public void run() {
    LeaderElectionException error = drive(machine::run);
    if (error != null) throw error;
  }

  @Override
  Way.Query query(String kind, @Nullable Object version) {
    String sql = "CALL le_observe(?::text, version => ?::bigint, timeout => '30 s')";
    return kind.equals("open")
        ? Jdbc.settings(way.election)
        : way.query(sql, way.election, version);
  }

  @Override
  void told(@Nullable Leader leader) {
    tell(() -> listener.accept(Optional.ofNullable(leader)));
  }
}
