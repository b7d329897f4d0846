package org.leaderelection;

import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * The leader of an election.
 *
 * @param identity the identity under which the leader was elected
 * @param token the token of its term
 * @param value what the leader has proclaimed, or null
 */
public record Leader(String identity, long token, @Nullable String value) {
  /** Returns the leader that {@code le_observe} has told. */
  static Optional<Leader> of(@Nullable Object[] row) {
    return Optional.ofNullable((Long) row[1])
        .map(token -> new Leader((String) row[2], token, (String) row[3]));
  }
}
