package org.leaderelection;

import java.sql.SQLException;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;

/** An error of an election. */
public class LeaderElectionException extends RuntimeException {
  private static final long serialVersionUID = 1;

  /** What kind of error this is. */
  private final ErrorKind kind;

  /** The SQLSTATE of what has caused this, or null. */
  private final @Nullable String sqlState;

  LeaderElectionException(ErrorKind kind, String message, @Nullable Throwable cause) {
    this(kind, message, cause, cause instanceof LeaderElectionException e ? e.sqlState : null);
  }

  private LeaderElectionException(
      ErrorKind kind, String message, @Nullable Throwable cause, @Nullable String sqlState) {
    super(message, cause);
    this.kind = kind;
    this.sqlState = sqlState;
  }

  /** Returns the error that the user's code has ended by; null if it has none. */
  static @Nullable LeaderElectionException of(ErrorKind kind, @Nullable Throwable error) {
    if (error == null) return null;
    String what = kind == ErrorKind.JOB ? "the job" : "a callback";
    String[] said = said(error);
    return new LeaderElectionException(kind, what + " has failed: " + said[0], error, said[1]);
  }

  /** Returns the error of a statement. */
  static LeaderElectionException ofStatement(Throwable error) {
    String[] said = said(error);
    boolean broken = said[1] == null || said[1].startsWith("08");
    return new LeaderElectionException(
        broken ? ErrorKind.BROKEN : ErrorKind.SERVER, said[0], error, said[1]);
  }

  /** Returns what an exception says, and its SQLSTATE, though its methods can throw, or hang. */
  static String[] said(Throwable error) {
    Thread.interrupted(); // which was by, or to, code that has ended
    if (error instanceof LeaderElectionException e) return new String[] {e.toString(), e.sqlState};
    String[] said = {error.getClass().getName(), null};
    try {
      Callable<String> ask =
          () -> {
            SQLException sql = error instanceof SQLException e ? e : null;
            said[1] = sql == null ? null : sql.getSQLState();
            String message = sql == null ? null : sql.getMessage();
            return said[0] = "" + (message == null ? error : message);
          };
      Jdbc.within(1, "what it says", ask, late -> {});
    } catch (Throwable e) {
      // what is known remains
    }
    return said;
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
