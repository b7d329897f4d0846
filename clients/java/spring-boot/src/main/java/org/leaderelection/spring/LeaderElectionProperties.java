package org.leaderelection.spring;

import java.time.Duration;
import org.jspecify.annotations.Nullable;
import org.leaderelection.LeaderElection;
import org.springframework.boot.context.properties.ConfigurationProperties;

/**
 * The options of each election: see {@link org.leaderelection.LeaderElection.Builder}.
 *
 * @param identity Name that tells this candidate apart from all others. By default made of the host
 *     name, the process ID and four digits.
 * @param schema Schema of the extension, if that is not in the search_path.
 * @param ttl Length of a lease. If it is not set, the application leads in session scope.
 * @param stopTimeout Time that methods may take to stop before that is reported.
 */
@ConfigurationProperties("leader-election")
public record LeaderElectionProperties(
    @Nullable String identity,
    @Nullable String schema,
    @Nullable Duration ttl,
    @Nullable Duration stopTimeout) {
  void apply(LeaderElection.Builder election) {
    if (identity != null) election.identity(identity);
    if (schema != null) election.schema(schema);
    if (ttl != null) election.ttl(ttl);
    if (stopTimeout != null) election.stopTimeout(stopTimeout);
  }
}
