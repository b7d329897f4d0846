package org.leaderelection;

import org.jspecify.annotations.Nullable;

/**
 * An error that goes on until something is configured differently. It ends {@code run}. Its {@link
 * #kind kind} is {@code EXTENSION}, {@code PRIVILEGE}, {@code ARGUMENT} or {@code POOLER}.
 */
public final class PermanentException extends LeaderElectionException {
  private static final long serialVersionUID = 1;
  private static final String SHARED =
      "session scope needs a connection of its own, and a pooler shares this one:"
          + " set a ttl, to lead by a lease";

  PermanentException(ErrorKind kind, String message, @Nullable Throwable cause) {
    super(kind, message, cause);
  }

  static PermanentException pooler(@Nullable Throwable cause) {
    return new PermanentException(ErrorKind.POOLER, SHARED, cause);
  }

  /** Returns the permanent error that an error of a bid is, or null. */
  static @Nullable PermanentException of(LeaderElectionException error) {
    String state = String.valueOf(error.sqlState());
    return switch (state) {
      case "LE005" -> pooler(error);
      case "42883", "42P01", "3F000" -> of(ErrorKind.EXTENSION, error);
      case "42501" -> of(ErrorKind.PRIVILEGE, error);
      default -> state.matches("(22|42)[0-9A-Z]{3}") ? of(ErrorKind.ARGUMENT, error) : null;
    };
  }

  private static PermanentException of(ErrorKind kind, LeaderElectionException error) {
    return new PermanentException(kind, error.getMessage(), error);
  }
}
