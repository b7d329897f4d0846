package org.leaderelection;

import java.sql.SQLException;
import org.jspecify.annotations.Nullable;

/** An error of an election. */
public class LeaderElectionException extends RuntimeException {
  private static final long serialVersionUID = 1;

  /** What kind of error this is. */
  private final ErrorKind kind;

  /** The SQLSTATE of what has caused this, or null. */
  private final @Nullable String sqlState;

  LeaderElectionException(ErrorKind kind, String message, @Nullable Throwable cause) {
    super(message, cause);
    this.kind = kind;
    this.sqlState = state(cause);
  }

  /** Returns the error that the user's code has ended by. */
  static LeaderElectionException of(ErrorKind kind, Throwable error) {
    String what = kind == ErrorKind.JOB ? "the job" : "a callback";
    return new LeaderElectionException(kind, what + " has failed: " + text(error), error);
  }

  /** Returns the error of a statement. */
  static LeaderElectionException ofStatement(Throwable error) {
    String state = state(error);
    ErrorKind kind = state == null || state.startsWith("08") ? ErrorKind.BROKEN : ErrorKind.SERVER;
    return new LeaderElectionException(kind, text(error), error);
  }

  private static @Nullable String state(@Nullable Throwable error) {
    if (error instanceof LeaderElectionException e) return e.sqlState;
    return error instanceof SQLException e ? e.getSQLState() : null;
  }

  /** Returns what an exception says, though its methods can throw. */
  private static String text(Throwable error) {
    try {
      String message = error instanceof SQLException ? error.getMessage() : null;
      return "" + (message == null ? error : message);
    } catch (Throwable e) {
      return error.getClass().getName();
    }
  }

  /**
   * Returns what kind of error this is.
   *
   * @return the kind
   */
  public final ErrorKind kind() {
    return kind;
  }

  /**
   * Returns the SQLSTATE of what has caused this error.
   *
   * @return the SQLSTATE, or null
   */
  public final @Nullable String sqlState() {
    return sqlState;
  }
}
