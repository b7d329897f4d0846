package org.leaderelection;

import java.time.Duration;
import org.jspecify.annotations.Nullable;

/** To lead by a lease: each statement may use another connection. */
final class Lease extends Way {
  private static final String LEASE =
      "SELECT le_lease(?::text, ?::interval, identity => ?::text, token => ?::bigint)";
  private final Duration ttl;

  Lease(LeaderElection.Builder options) {
    super(options, false);
    ttl = options.ttl;
    double length = seconds(ttl);
    interval = length / 3;
    between = Math.min(1, interval);
    limit = Math.min(5, length / 3);
    patience = Math.min(5, length / 5);
    validity = length * 2 / 3;
    retry = Math.min(1, length / 10);
  }

  @Override
  Query query(String kind, @Nullable Object value, @Nullable Term term) {
    if (kind.equals("bid") && seats != null) return campaign("timeout => '0', ttl", ttl);
    if (kind.equals("bid")) return query(LEASE, election, ttl.toString(), identity, value);
    String name = term.election();
    long token = term.token();
    String function = kind.equals("resign") ? "le_resign" : "le_renew";
    return query("SELECT " + function + "(?::text, ?::bigint)", name, token);
  }
}
