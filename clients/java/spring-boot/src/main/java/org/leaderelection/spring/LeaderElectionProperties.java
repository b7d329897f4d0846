package org.leaderelection.spring;

import java.time.Duration;
import org.jspecify.annotations.Nullable;
import org.leaderelection.LeaderElection;
import org.springframework.boot.context.properties.ConfigurationProperties;

/**
 * The options of each election: see {@link org.leaderelection.LeaderElection.Builder}.
 *
 * @param identity tells the candidates apart
 * @param schema the schema of the extension
 * @param ttl how long a lease lasts; none: session scope
 * @param stopTimeout how long methods may take to stop before that is reported
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
