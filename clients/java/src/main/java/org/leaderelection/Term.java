package org.leaderelection;

/** A term of leadership, as the job sees it. All methods can be called from any thread. */
public interface Term {
  /**
   * Returns the fencing token, which grows from term to term. Pass it along with what the job
   * writes.
   *
   * @return the token of this term
   */
  long token();

  /**
   * Returns the name of the election. If the elector campaigns for seats, this is the seat's name.
   *
   * @return the name of the election that this term leads
   */
  String election();

  /**
   * Tells that the job has made progress. Costs nothing, sends nothing by itself, and never fails.
   * The elector passes it on to the server if it leads with a heartbeat, or renews on heartbeat.
   */
  void heartbeat();

  /**
   * Returns whether the job may go on: it was not told to stop, and the last confirmation of
   * leadership holds at this moment. Looks at the clock and does not ask the server. Ask before
   * each step that matters: a timer can be late, the clock is not.
   *
   * @return whether the job may go on
   */
  boolean isLeading();

  /**
   * Returns whether the job must stop. The thread of the job is interrupted at the same time.
   *
   * @return whether the job has been cancelled
   */
  boolean isCancelled();
}
