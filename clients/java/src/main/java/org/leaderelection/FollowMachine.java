package org.leaderelection;

import java.util.Optional;
import org.jspecify.annotations.Nullable;

/** The state machine of a follower. */
final class FollowMachine extends Machine {
  private @Nullable Optional<Leader> told;

  FollowMachine(World world) {
    super(world);
  }

  @Override
  void run() {
    send("open", null, 5);
  }

  @Override
  void answered(Ask ask, @Nullable Object[] row) {
    boolean observed = ask.kind().equals("observe");
    if (observed) tell(Leader.of(row));
    send("observe", observed ? row[0] : null, 35);
  }

  private void tell(Optional<Leader> leader) {
    if (!leader.equals(told)) world.told(leader);
    told = leader;
  }
}
