package org.leaderelection;

import java.util.Objects;
import org.jspecify.annotations.Nullable;

/** The state machine of a follower. */
final class FollowMachine extends Machine {
  private @Nullable Leader last;
  private boolean told;

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
    Leader leader = observed ? Leader.of(row) : last;
    if (observed && !(told && Objects.equals(leader, last))) world.told(leader);
    told |= observed;
    last = leader;
    send("observe", observed ? row[0] : null, 35);
  }
}
