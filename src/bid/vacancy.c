/*-------------------------------------------------------------------------
 *
 * bid/vacancy.c
 *	  Reasons for a vacant election to stay vacant for a while.
 *
 * After a promotion no lease is granted for some time (origin.c).  After a
 * term that ended without resignation, there may be a grace period, in which
 * the former leader can notice and stop.  It counts from the end of the term:
 * of a session's, when the server noticed it; of a lease, when it expired.  If
 * the registry knows no term of an election, its last term may have ended with
 * a crash, or may have been forgotten (see le_registry_forgotten_at).  An end
 * that is not known is fixed when a candidate that holds the election's lock
 * first asks, so that terms which others lose meanwhile do not defer it.
 *
 * The bidding session's settings and the election's declaration decide.  A
 * candidate waits here while it holds the election's lock, and so keeps the
 * first place in line.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "bid/bid.h"

/*
 * Find out when the last term of the election ended, or may have ended,
 * without resignation
 *
 * With the election's lock, the result is final.  Without it, a recorded term
 * may have ended without that being known yet.
 */
static void
complete_record(const LeElection *election, LeSituation *situation)
{
	LeTerm	   *term = &situation->term;

	if (term->end_known)
		return;
	term->grace_from = Max(term->grace_from, le_registry_forgotten_at());
	if (situation->has_lock)
		term->grace_from = le_registry_fix_grace_from(election, term->grace_from);
}

/*
 * Find out how long the election, whose record was read, stays vacant after
 * its last term
 *
 * May raise an error, and may wait as le_grants_from does.  The caller must
 * not hold an LWLock.
 */
void
le_look_at_vacancy(const LeBid *bid, LeSituation *situation)
{
	situation->grace_us = bid->grace_us;
	if (unlikely(situation->grace_us != 0))
		complete_record(&bid->election, situation);
	if (bid->scope == LE_SCOPE_LEASE)
		situation->grants_from = le_grants_from();
}

/*
 * Sleep until the given time.  May return earlier: see le_sleep.
 */
void
le_wait_vacant(uint64 until, LeObstacle why)
{
	bool		is_grace = why == LE_GRACE;

	le_show_wait(is_grace ? LE_WAITS_FOR_GRACE : LE_WAITS_AFTER_PROMOTION);
	le_sleep(NULL, until, is_grace ? LE_SLEEP_GRACE : LE_SLEEP_PROMOTION);
}
