package org.leaderelection;

import org.jspecify.annotations.Nullable;

/** To lead, or to follow, with a connection of its own, which is opened for each campaign. */
final class Session extends Way {
  private static final String PID = ", pg_backend_pid()";
  private static final String OBSERVE =
      "CALL le_observe(?::text, version => ?::bigint, timeout => '30 s')";

  Session(LeaderElection.Builder options) {
    super(options, true);
    interval = Math.min(1, heartbeat / 4);
    limit = Math.min(5, heartbeat / 3);
    patience = limit;
    validity = 6;
    round = 300;
  }

  @Override
  Query query(String kind, @Nullable Object value, @Nullable Term term) {
    String name = term == null ? options.election : term.election();
    return switch (kind) {
      case "open" -> new Query(Jdbc.SETTINGS, "leader_election: " + options.election);
      case "bid" ->
          campaign("timeout => '" + Math.round(wait * 1000) + " ms', heartbeat", options.heartbeat);
      case "beat" -> query("SELECT le_heartbeat(?::text)" + PID, name);
      case "observe" -> query(OBSERVE, name, value);
      case "resign" -> query("SELECT le_resign(?::text, identity => ?::text)", name, identity);
      default -> query("SELECT le_am_leader(?::text, identity => ?::text)" + PID, name, identity);
    };
  }
}
