package org.leaderelection.spring;

import org.leaderelection.Elector;
import org.leaderelection.Term;

/**
 * A term is over, and its {@link LeaderOnly} methods have returned. Leadership is resigned after
 * the listeners have returned.
 *
 * @param term the term
 * @param reason why it has ended
 */
public record OustedEvent(Term term, Elector.Reason reason) {}
