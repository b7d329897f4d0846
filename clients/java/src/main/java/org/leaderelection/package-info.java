/**
 * Runs a job while this process leads an election in PostgreSQL. Begin with {@link
 * org.leaderelection.LeaderElection#of LeaderElection.of}.
 */
@NullMarked
package org.leaderelection;

import org.jspecify.annotations.NullMarked;
