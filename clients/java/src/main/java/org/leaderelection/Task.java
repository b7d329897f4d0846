package org.leaderelection;

import java.sql.Connection;
import java.time.Instant;

/** What {@link LeaderElection#every every} does for each point in time. */
@FunctionalInterface
public interface Task {
  /**
   * Does the work of a point in time, in the transaction that records it as done. The caller
   * commits. The task must neither commit nor roll back.
   *
   * @param connection the connection of the transaction
   * @param due the point in time
   * @param term the term of the leader
   * @throws Exception if the task fails. It is rolled back, reported, and tried again a second
   *     later
   */
  void run(Connection connection, Instant due, Term term) throws Exception;
}
