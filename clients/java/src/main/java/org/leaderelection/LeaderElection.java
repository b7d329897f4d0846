package org.leaderelection;

import java.sql.SQLException;
import java.time.Duration;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import javax.sql.DataSource;

/** Followers, and jobs of points in time. */
public final class LeaderElection {
  private LeaderElection() {}

  /**
   * Returns the leader.
   *
   * @param dataSource where the connection comes from
   * @param election the name of the election, or of a seat
   * @return the leader, or none
   * @throws SQLException if there is no answer, at the latest after five seconds
   */
  public static Optional<Leader> leader(DataSource dataSource, String election)
      throws SQLException {
    JdbcLink link = new JdbcLink(dataSource, false, Elector.Builder.checkElection(election));
    CompletableFuture<Optional<Leader>> answer = link.leader(election);
    try {
      return answer.get(5, TimeUnit.SECONDS);
    } catch (ExecutionException | TimeoutException e) {
      Exception failure = Elector.failure(answer);
      throw failure instanceof SQLException known ? known : new SQLException(failure);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new SQLException("interrupted", e);
    } finally {
      link.close();
    }
  }

  /**
   * Follows an election: tells the present leader, or none, and then each change. Of changes that
   * come at once, only the last one may be told. Keeps a connection. Errors are logged, as a
   * warning to the {@link System.Logger} {@code org.leaderelection}, and the connection is opened
   * again.
   *
   * @param dataSource where the connection comes from
   * @param election the name of the election, or of a seat
   * @param listener gets the leader, or none, on a thread of the follower
   * @return the follower, which runs until it is closed
   */
  public static Follower follow(
      DataSource dataSource, String election, Consumer<? super Optional<Leader>> listener) {
    return follow(dataSource, election, listener, error -> Elector.log(election, error));
  }

  /**
   * Follows an election, as {@link #follow(DataSource, String, Consumer)} does.
   *
   * @param dataSource where the connection comes from
   * @param election the name of the election, or of a seat
   * @param listener gets the leader, or none, on a thread of the follower
   * @param onError gets each error
   * @return the follower, which runs until it is closed
   */
  public static Follower follow(
      DataSource dataSource,
      String election,
      Consumer<? super Optional<Leader>> listener,
      Consumer<? super Exception> onError) {
    Objects.requireNonNull(dataSource, "dataSource");
    Elector.Builder.checkElection(election);
    return new Follower(
        election,
        () -> new JdbcLink(dataSource, true, election),
        Objects.requireNonNull(listener, "listener"),
        Objects.requireNonNull(onError, "onError"));
  }

  /**
   * Makes a job of a task that is to be done once for each point in time, in a transaction that
   * records it. Of the times that no leader has done, only the last one is done later. The points
   * in time are multiples of the interval since 2000-01-01 00:00 UTC, by the server's clock.
   *
   * <p>When the term is over, the connection of the task is cut off, and its transaction is rolled
   * back.
   *
   * @param dataSource where the connection of the task comes from
   * @param interval from one point in time to the next
   * @param task what to do
   * @return the job of an {@link Elector}
   */
  public static Job every(DataSource dataSource, Duration interval, Task task) {
    if (interval.isNegative() || interval.toNanos() < 1_000) {
      throw new IllegalArgumentException("interval: less than a microsecond");
    }
    return new Every(
        Objects.requireNonNull(dataSource, "dataSource"),
        interval,
        Objects.requireNonNull(task, "task"));
  }
}
