package org.leaderelection;

/**
 * What kind of error a {@link LeaderElectionException} is. Later versions can have more kinds, so a
 * {@code switch} needs a {@code default}.
 */
public enum ErrorKind {
  /** The server has refused a statement: see {@link LeaderElectionException#sqlState}. */
  SERVER,
  /** A statement was not answered in time. */
  TIMEOUT,
  /** The data source has given no connection in time. */
  NO_CONNECTION,
  /** A connection could not be opened, or has ended. */
  BROKEN,
  /** Leadership is lost. */
  LOST,
  /** Leadership is in doubt. */
  IN_DOUBT,
  /** The term of this call is over. */
  OVER,
  /** The job has failed. */
  JOB,
  /** The job has not stopped in time. */
  SLOW_JOB,
  /** A callback has failed. */
  CALLBACK,
  /** The server does not find the extension. */
  EXTENSION,
  /** The role lacks a privilege. */
  PRIVILEGE,
  /** The server refuses an option. */
  ARGUMENT,
  /** A pooler shares the connection. */
  POOLER
}
