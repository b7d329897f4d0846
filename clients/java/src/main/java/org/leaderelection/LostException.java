package org.leaderelection;

import org.jspecify.annotations.Nullable;

/** Leadership is lost, or in doubt. */
public final class LostException extends LeaderElectionException {
  private static final long serialVersionUID = 1;

  LostException(ErrorKind kind, Term term, @Nullable Throwable cause) {
    super(kind, message(kind, term) + (cause == null ? "" : ": " + cause.getMessage()), cause);
  }

  private static String message(ErrorKind kind, Term term) {
    return "leadership of " + term.election() + " is " + Way.words(kind);
  }
}
