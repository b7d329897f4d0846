/**
 * Runs a job while this process leads an election in PostgreSQL. Begin with {@link
 * org.leaderelection.LeaderElection#of LeaderElection.of}.
 *
 * <p>A method whose argument is null where {@code Nullable} does not allow that throws a {@link
 * NullPointerException}.
 */
@NullMarked
package org.leaderelection;

import org.jspecify.annotations.NullMarked;
