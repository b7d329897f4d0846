package org.leaderelection;

/** Leadership is lost, or in doubt. */
public final class LostException extends LeaderElectionException {
  private static final long serialVersionUID = 1;

  LostException(String kind, Term term, Throwable cause) {
    super(kind, "leadership of " + term.election() + " is " + kind + because(cause), cause);
  }

  private static String because(Throwable cause) {
    return cause == null ? "" : ": " + cause.getMessage();
  }
}
