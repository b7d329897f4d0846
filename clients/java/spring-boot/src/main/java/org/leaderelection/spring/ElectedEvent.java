package org.leaderelection.spring;

import org.leaderelection.Term;

/**
 * This application is elected. {@link LeaderOnly} methods begin after the listeners have returned.
 *
 * @param term the term
 */
public record ElectedEvent(Term term) {}
