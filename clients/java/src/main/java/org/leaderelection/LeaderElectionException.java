package org.leaderelection;

/** An error of an election. */
public class LeaderElectionException extends RuntimeException {
  private static final long serialVersionUID = 1;

  /** What kind of error this is. */
  private final String kind;

  LeaderElectionException(String kind, String message, Throwable cause) {
    super(message, cause);
    this.kind = kind;
  }

  /** Returns the error that the user's code has ended by; null if it has none. */
  static LeaderElectionException of(String kind, Throwable error) {
    String message = "the " + kind + " has failed: ";
    return error == null ? null : new LeaderElectionException(kind, message + text(error), error);
  }

  /** Returns what an exception says, though its methods can throw. */
  static String text(Throwable error) {
    try {
      return error.toString();
    } catch (Throwable e) {
      return error.getClass().getName();
    }
  }

  /**
   * Returns what kind of error this is: the SQLSTATE if the server has raised it; else {@code
   * timeout}, {@code no-connection} or {@code broken} for a statement, {@code lost} or {@code in
   * doubt} for leadership, {@code job}, {@code slow job} or {@code callback} for what the elector
   * runs.
   *
   * @return the kind of error
   */
  public final String kind() {
    return kind;
  }

  boolean isOfServer() {
    return kind.matches("[0-9A-Z]{5}");
  }
}
