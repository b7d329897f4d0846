package org.leaderelection;

/** Why a term of an {@link Elector} has ended. */
public enum Reason {
  /** The elector was stopped. */
  RESIGNED,
  /** The job has returned. */
  JOB_RETURNED,
  /** The job has failed. */
  JOB_FAILED,
  /** The server has said that this term is over, or its session has ended. */
  LOST,
  /** The validity of the last confirmation has passed. */
  IN_DOUBT
}
