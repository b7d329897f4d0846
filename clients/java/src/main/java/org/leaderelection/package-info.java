/**
 * Runs a job while its process leads an election in PostgreSQL, by the extension {@code
 * leader_election}. Start with {@link org.leaderelection.Elector}.
 */
package org.leaderelection;
