/*-------------------------------------------------------------------------
 *
 * campaign/decision.c
 *	  May this candidate be elected now, and if not, what is in its way?
 *
 * The rule alone.  succession.c looks at the election and acts on the answer;
 * t/decision_cases.c has a table of cases.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "campaign/campaign.h"

/*
 * Decide likewise about an election that nobody leads, and whose last term has left
 * nothing on record
 *
 * Never raises an error.
 */
LeDecision
le_decide_vacant(const LeSituation *situation)
{
	const LeRecord *record = &situation->record;
	LeDecision	decision = {.obstacle = LE_MAY_LEAD,.until = situation->grants_from};

	if (record->lost_at != 0 && situation->grace_us != 0)
		decision.until = Max(decision.until, record->lost_at + situation->grace_us);
	if (decision.until > situation->now)
		decision.obstacle = decision.until == situation->grants_from ?
			LE_PROMOTION : LE_GRACE;
	return decision;
}

/*
 * Decide about an election that has a term on record
 *
 * Without the election's lock, only a lease that runs is certain to be in the way.  With it,
 * any other term is over: its lock went away behind its back, it is the lease of an
 * extension that was dropped, or it was never committed.
 */
static LeDecision
decide_on_term(const LeSituation *situation)
{
	const LeTerm *term = &situation->record.term;
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
 * Decide whether the candidate may be elected, or what is in its way
 *
 * That transactions are guarded by the last term is not on record: the candidate passes
 * their lock when nothing else is in its way.  Never raises an error.
 */
LeDecision
le_decide(const LeSituation *situation)
{
	const LeDecision wait_for_successor = {.obstacle = LE_SUCCESSOR};

	if (situation->successor_waits)
		return wait_for_successor;
	if (situation->record.term.token != 0)
		return decide_on_term(situation);
	return le_decide_vacant(situation);
}
