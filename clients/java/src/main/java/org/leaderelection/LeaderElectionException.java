package org.leaderelection;

/** An error of an {@link Elector} that is not the driver's. */
public class LeaderElectionException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  LeaderElectionException(String message, Throwable cause) {
    super(message, cause);
  }
}
