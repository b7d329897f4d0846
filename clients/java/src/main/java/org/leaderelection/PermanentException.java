package org.leaderelection;

/**
 * An error that goes on until something is configured differently. It ends {@code run}. Its {@link
 * #kind kind} is {@code extension}, {@code privilege}, {@code argument} or {@code pooler}.
 */
public final class PermanentException extends LeaderElectionException {
  private static final long serialVersionUID = 1;
  private static final String SHARED =
      "session scope needs a connection of its own, and a pooler shares this one:"
          + " set a ttl, to lead by a lease";

  PermanentException(String kind, String message, Throwable cause) {
    super(kind, message, cause);
  }

  static PermanentException pooler(Throwable cause) {
    return new PermanentException("pooler", SHARED, cause);
  }

  /** Returns the same error in other words. */
  PermanentException because(String message) {
    return new PermanentException(kind(), message, getCause());
  }

  /** Returns the permanent error that an error of a bid is, or null. */
  static PermanentException of(LeaderElectionException error) {
    String kind =
        switch (error.kind()) {
          case "42883", "42P01", "3F000" -> "extension";
          case "42501" -> "privilege";
          case "LE005" -> "pooler";
          default -> error.kind().matches("(22|42)[0-9A-Z]{3}") ? "argument" : "";
        };
    if (kind.equals("pooler")) {
      return pooler(error);
    }
    return kind.isEmpty() ? null : new PermanentException(kind, error.getMessage(), error);
  }
}
