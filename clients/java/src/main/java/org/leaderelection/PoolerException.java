package org.leaderelection;

/**
 * The connections of a session-scope elector are not its own: a pooler in transaction mode shares
 * its server connections among clients. Lead by a lease there, or connect without the pooler.
 */
public final class PoolerException extends LeaderElectionException {
  private static final long serialVersionUID = 1L;

  PoolerException(String message, Throwable cause) {
    super(message + ": lead by a lease through a pooler in transaction mode", cause);
  }
}
