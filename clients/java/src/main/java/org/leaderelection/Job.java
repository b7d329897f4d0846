package org.leaderelection;

/** What the leader does. */
@FunctionalInterface
public interface Job {
  /**
   * Does the leader's work, on a thread of its own. When the term is over or in doubt, and when the
   * elector is stopped, that thread is interrupted, and the job must return.
   *
   * @param term the term
   * @throws Exception if the job fails. The elector reports this, resigns and campaigns again
   */
  void run(Term term) throws Exception;
}
