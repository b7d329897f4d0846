package org.leaderelection;

import org.jspecify.annotations.Nullable;

/**
 * The leader of an election.
 *
 * @param identity the identity under which the leader was elected
 * @param token the token of its term
 * @param value what the leader has proclaimed, or null
 */
public record Leader(String identity, long token, @Nullable String value) {
  /** Returns the leader that {@code le_observe} has told, or null. */
  static @Nullable Leader of(@Nullable Object[] row) {
    return row[1] == null ? null : new Leader((String) row[2], (Long) row[1], (String) row[3]);
  }
}
