package org.leaderelection;

import java.sql.Connection;
import java.time.Instant;

/** What {@link LeaderElection#every} does for each due time. */
@FunctionalInterface
public interface Task {
  /**
   * Does the work of a due time, in the transaction that records it as done. The task must neither
   * commit nor roll back.
   *
   * @param transaction the connection
   * @param due the due time
   * @param term the term of the leader
   * @throws Exception if the task fails. It is rolled back, reported, and tried again a second
   *     later
   */
  void run(Connection transaction, Instant due, Term term) throws Exception;
}
