package org.leaderelection;

import java.sql.Connection;
import java.sql.Timestamp;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneId;
import java.time.zone.ZoneOffsetTransition;
import java.util.function.Function;
import javax.sql.DataSource;
import org.jspecify.annotations.Nullable;

/** A job that does a task once for each due time. */
record Every(
    DataSource dataSource,
    Function<? super Instant, ? extends @Nullable Instant> schedule,
    @Nullable Duration interval,
    Task task)
    implements Job {
  private static final Instant EPOCH = Instant.parse("2000-01-01T00:00:00Z");
  private static final int STEPS = 10_000;
  private static final String XID = "pg_catalog.txid_current()";

  /** The last time that is due, or null, and where to go on. */
  record Due(@Nullable Instant latest, Instant last) {}

  /** Returns the schedule of an interval: its multiples. */
  static Function<Instant, Instant> multiples(Duration interval) {
    long length = interval.toNanos();
    return last -> {
      long count = Math.floorDiv(Duration.between(EPOCH, last).toNanos(), length) + 1;
      return EPOCH.plusNanos(count * length);
    };
  }

  /** Returns the schedule of what the clocks of a zone show. */
  static Function<Instant, @Nullable Instant> inZone(
      Function<? super LocalDateTime, ? extends @Nullable LocalDateTime> schedule, ZoneId zone) {
    return last -> {
      LocalDateTime shown = LocalDateTime.ofInstant(last, zone);
      for (LocalDateTime next; (next = schedule.apply(shown)) != null; shown = next) {
        if (!next.isAfter(shown))
          throw new IllegalStateException("the schedule stands at " + shown);
        ZoneOffsetTransition change = zone.getRules().getTransition(next);
        boolean leftOut = change != null && change.isGap();
        Instant due = leftOut ? change.getInstant() : next.atZone(zone).toInstant();
        if (due.isAfter(last)) return due;
      }
      return null;
    };
  }

  Due due(Instant after, Instant now) {
    boolean behind = interval != null && after.isBefore(now.minus(interval));
    Instant last = behind ? now.minus(interval) : after;
    Instant latest = null;
    for (int i = 0; ; i++) {
      Instant next = schedule.apply(last);
      if (next == null || next.isAfter(now)) return new Due(latest, last);
      if (i == STEPS) return new Due(null, last);
      if (!next.isAfter(last)) throw new IllegalStateException("the schedule stands at " + last);
      latest = next;
      last = next;
    }
  }

  @Override
  public void run(Term term) throws InterruptedException {
    for (Instant last = null; !term.cancelled; Thread.sleep(term.cancelled ? 0 : 1000)) {
      try (Jdbc link = new Jdbc(dataSource, "every " + term.election(), null)) {
        // an interrupt does not reach a statement that waits for the server
        term.atCancellation(link::close);
        for (; !term.cancelled; Thread.sleep(term.cancelled ? 0 : 1000))
          last = look(link, term, last);
      } catch (Throwable e) {
        Thread.interrupted(); // by the task; if by the elector, the term is cancelled
        term.report(e);
      }
    }
  }

  /** Does what is due; returns where to go on. */
  private Instant look(Jdbc link, Term term, @Nullable Instant after) throws Exception {
    term.heartbeat();
    Connection connection = link.open();
    @Nullable Object[] row = link.answer(() -> term.times(connection));
    Instant now = ((Timestamp) row[0]).toInstant();
    Instant recorded = row[1] == null ? now : ((Timestamp) row[1]).toInstant();
    Due due = due(after == null ? recorded : after, now);
    if (due.latest == null) return due.last;
    connection.setAutoCommit(false);
    String once = term.onceSql(due.latest) + ", " + XID;
    Object[] first = link.answer(() -> Term.ask(connection, once));
    if (Boolean.TRUE.equals(first[0])) {
      task.run(connection, due.latest, term);
      Thread.interrupted(); // by the task; if by the elector, the term is cancelled
      // a commit can roll back without a word, after an error that the task has caught
      Object[] again = link.answer(() -> Term.ask(connection, "SELECT " + XID));
      if (!first[1].equals(again[0]))
        throw new IllegalStateException("the task has ended its transaction");
    }
    link.answer(
        () -> {
          connection.commit();
          connection.setAutoCommit(true);
          return null;
        });
    return due.last;
  }
}
