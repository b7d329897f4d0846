package org.leaderelection;

import org.jspecify.annotations.Nullable;

/** To lead by a lease: each statement may use another connection. */
final class Lease extends Way {
  private static final String LEASE =
      "SELECT le_lease(?::text, ?::interval, identity => ?::text, token => ?::bigint)";

  Lease(LeaderElection.Builder options) {
    super(options, false);
    double length = seconds(options.ttl);
    interval = length / 3;
    between = Math.min(1, interval);
    limit = Math.min(5, length / 3);
    patience = Math.min(5, length / 5);
    validity = length * 2 / 3;
    retry = Math.min(1, length / 10);
  }

  @Override
  Query query(String kind, @Nullable Object value, @Nullable Term term) {
    if (!kind.equals("bid")) {
      String function = kind.equals("resign") ? "le_resign" : "le_renew";
      return query("SELECT " + function + "(?::text, ?::bigint)", term.election(), term.token());
    }
    return options.seats == null
        ? query(LEASE, options.election, options.ttl.toString(), identity, value)
        : campaign("timeout => '0', ttl", options.ttl);
  }
}
