package org.leaderelection;

import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import org.jspecify.annotations.Nullable;

/** What a state machine acts on, in the order in which it is to be done. None of this waits. */
abstract class World {
  double clock() {
    return Clock.now();
  }

  double random() {
    return ThreadLocalRandom.current().nextDouble();
  }

  /** Lets the state machine take a step with this event, later. */
  abstract void post(Runnable event);

  /** Asks a statement of the table in clients/README.md. */
  abstract void ask(Machine.Ask ask, @Nullable Object value);

  abstract void disconnect();

  abstract void error(LeaderElectionException error);

  abstract void end(@Nullable LeaderElectionException error);

  void elected(Term term) {}

  void job(Term term) {}

  void cancel() {}

  void ousted(Term term, Elector.Reason reason) {}

  void told(Optional<Leader> leader) {}
}
