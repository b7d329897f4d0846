package org.leaderelection;

/** The states of an {@link Elector}. */
public enum State {
  /** The elector campaigns. */
  WAITING,
  /** The elector leads, and its job runs. */
  LEADING,
  /** The job has been told to stop, or has stopped, and leadership has yet to be resigned. */
  STOPPING,
  /** The elector waits for a moment before it campaigns again. */
  PAUSED,
  /** The elector does not run: not yet, or no more. */
  STOPPED
}
