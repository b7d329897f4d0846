/*-------------------------------------------------------------------------
 *
 * bid/decision.c
 *	  The rule that decides whether a candidate may be elected now, or what the
 *	  obstacle is.
 *
 * This is the rule alone.  succession.c reads the situation of the election
 * and acts on the decision; t/decision_cases.c has a table of cases.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "bid/bid.h"

/*
 * Decide about a vacant election whose last term is not recorded any more.
 * Never raises an error.
 */
LeDecision
le_decide_vacant(const LeSituation *situation)
{
	uint64		grace_from = situation->term.grace_from;
	LeDecision	decision = {.obstacle = LE_MAY_LEAD,.until = situation->grants_from};

	if (grace_from != 0 && situation->grace_us != 0)
		decision.until = Max(decision.until, grace_from + situation->grace_us);
	if (decision.until > situation->now)
		decision.obstacle = decision.until == situation->grants_from ?
			LE_PROMOTION : LE_GRACE;
	return decision;
}

/*
 * Decide about an election that has a recorded term
 *
 * Without the election's lock, only a lease that runs is certain to be an
 * obstacle.  With the lock, any other term has ended: its lock was released
 * without the extension's knowledge, it is the lease of an extension that was
 * dropped, or it was never committed.
 */
static LeDecision
decide_on_term(const LeSituation *situation)
{
	const LeTerm *term = &situation->term;
	LeDecision	decision = {.obstacle = LE_STALE_TERM};

	if (term->scope == LE_SCOPE_LEASE && situation->lease_counts)
	{
		decision.until = term->deadline;
		if (le_deadline_runs(term->deadline, situation->now))
			decision.obstacle = LE_LEASE_RUNS;
		else if (le_deadline_is_committed(term->deadline) || situation->has_lock)
			decision.obstacle = LE_LEASE_OVER;
		else
			decision.obstacle = LE_LED_BY_LOCK;
	}
	else if (term->scope != LE_SCOPE_LEASE && !situation->has_lock)
		decision.obstacle = LE_LED_BY_LOCK;
	return decision;
}

/*
 * Decide whether the candidate may be elected, or what the obstacle is.  Never
 * raises an error.
 *
 * Guarded transactions of the last term are not part of the situation: the
 * candidate passes their lock when there is no other obstacle.
 */
LeDecision
le_decide(const LeSituation *situation)
{
	if (situation->term.token != 0)
		return decide_on_term(situation);
	return le_decide_vacant(situation);
}
