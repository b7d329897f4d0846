package org.leaderelection;

import java.util.concurrent.CompletableFuture;

/**
 * All that the state machine sees of the outside, so that tests can simulate it. Nothing here
 * blocks but {@link #await} and {@link #close}. Times are in nanoseconds.
 */
interface World {
  /** Returns the time of a clock that goes on while the machine is suspended. */
  long now();

  /** Returns a random number from 0 to 1. */
  double random();

  /** Waits for that time, or less; returns false if the thread was interrupted. */
  boolean await(long until);

  /** Ends an {@link #await}, or the next one. */
  void wake();

  /** Opens a link to the server, which connects with its first question. */
  Link open();

  /** Starts a job on a thread of its own. */
  Running start(Body job);

  /** Calls back: one after the other, on a thread apart. */
  CompletableFuture<Void> call(Runnable callback);

  /** Waits, for no longer than a deadline, until links and threads are gone. */
  void close();

  /** Returns whether the calling thread is that of the job or the callbacks. */
  boolean inside();

  /** What a job does. */
  interface Body {
    void run() throws Exception;
  }

  /** A bid that was granted. */
  record Bid(long token, String election) {}

  /** The answer to a confirmation, and the process ID of the server that gave it, or 0. */
  record Confirmation(boolean leads, int backend) {}

  /** A job that has been started. */
  record Running(CompletableFuture<Void> end, Runnable interrupt) {}

  /** The connection of a session; or the connections, one after the other, of a lease. */
  interface Link {
    /** Asks for the server's process ID. */
    CompletableFuture<Integer> backend();

    /** Bids, by a lease with the token of the last term, if any; null: not elected. */
    CompletableFuture<Bid> bid(Bid last);

    /** Confirms, or renews, leadership. */
    CompletableFuture<Confirmation> confirm(Bid bid, boolean heartbeat);

    /** Reads from the connection until the next question: fails when the connection ends. */
    CompletableFuture<Void> watch();

    /** Resigns. */
    CompletableFuture<Boolean> resign(Bid bid);

    /** Resigns on whatever server connection leads, by its end if there is no other way. */
    CompletableFuture<Boolean> expel(Bid bid);

    /** Cancels the question that has not been answered. */
    void cancel();

    /** Ends the connection, and fails the question that has not been answered. */
    void close();
  }
}
