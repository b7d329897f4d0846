package org.leaderelection;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.HexFormat;
import java.util.Locale;
import java.util.regex.Matcher;
import org.jspecify.annotations.Nullable;

/** A way to lead: its timers, in seconds, and its statements. */
abstract class Way {
  /** A statement and its arguments. */
  record Query(String sql, @Nullable Object... arguments) {}

  final LeaderElection.Builder options;
  final String identity;
  final double heartbeat; // NEVER if there is none
  final double stopTimeout;
  final String names; // in SQL, with the election as its parameter
  private final String prefix;
  final boolean opens; // a connection for each campaign
  double interval; // from one question to the next
  double between; // from one bid to the next
  double limit; // until an answer
  double patience; // until the answer of a confirmation in the term
  double validity; // of a confirmation
  double round; // how long a bid waits at most
  double wait; // how long the next one does
  double retry; // after an error of a confirmation

  Way(LeaderElection.Builder options, boolean opens) {
    this.options = options;
    identity = options.identity == null ? LeaderElection.newIdentity() : options.identity;
    heartbeat = seconds(options.heartbeat);
    stopTimeout = seconds(options.stopTimeout);
    names = options.seats == null ? "?::text" : "le_seats(?::text, " + options.seats + ")";
    String schema =
        options.schema == null ? "" : '"' + options.schema.replace("\"", "\"\"") + "\".";
    prefix = schema + "le_";
    this.opens = opens;
  }

  static Way of(LeaderElection.Builder options) {
    return options.ttl == null ? new Session(options) : new Lease(options);
  }

  static double seconds(@Nullable Duration length) {
    return length == null ? Machine.NEVER : length.getSeconds() + length.getNano() / 1e9;
  }

  /** Returns the words that a constant shows in all languages. */
  static String words(Enum<?> constant) {
    return constant.name().toLowerCase(Locale.ROOT).replace('_', ' ');
  }

  /** Returns a statement with the schema before each name of the extension. */
  Query query(String sql, @Nullable Object... arguments) {
    return new Query(sql.replaceAll("\\ble_", Matcher.quoteReplacement(prefix)), arguments);
  }

  /** Returns a whole statement, in which nothing looks like a parameter. */
  String statement(String function, String name, String arguments) {
    String hex = HexFormat.of().formatHex(name.getBytes(UTF_8));
    String text =
        name.matches("[\\w ./-]*")
            ? "'" + name + "'"
            : "convert_from(decode('" + hex + "', 'hex'), 'UTF8')";
    return "SELECT " + prefix + function + "(" + text + ", " + arguments + ")";
  }

  /** Returns a bid that waits; the arguments are the election's name, a length and the identity. */
  Query campaign(String lengths, @Nullable Duration length) {
    String sql =
        "CALL le_campaign(" + names + ", " + lengths + " => ?::interval, identity => ?::text)";
    return query(sql, options.election, length == null ? null : length.toString(), identity);
  }

  /** Returns a statement of the state machine; the term is null before the election. */
  abstract Query query(String kind, @Nullable Object value, @Nullable Term term);
}
