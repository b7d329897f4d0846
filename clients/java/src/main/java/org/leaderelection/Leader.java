package org.leaderelection;

import java.time.Instant;

/**
 * The leader of an election.
 *
 * @param election the name of the election
 * @param identity the identity under which the leader was elected
 * @param token the token of its term
 * @param since when the term began
 * @param scope {@code session}, {@code transaction} or {@code lease}
 * @param value what the leader has published, or null
 */
public record Leader(
    String election, String identity, long token, Instant since, String scope, String value) {}
