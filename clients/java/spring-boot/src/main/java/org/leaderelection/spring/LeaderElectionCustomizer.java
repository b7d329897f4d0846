package org.leaderelection.spring;

import org.leaderelection.LeaderElection;

/** A bean of this type sets options of the elections, after the properties. */
@FunctionalInterface
public interface LeaderElectionCustomizer {
  /**
   * Sets options. Callbacks of a term replace {@link ElectedEvent} and {@link OustedEvent}.
   *
   * @param election the name of the election
   * @param options its options
   */
  void customize(String election, LeaderElection.Builder options);
}
