/*-------------------------------------------------------------------------
 *
 * campaign/vacancy.c
 *	  Why an election that nobody leads stays vacant for a while.
 *
 * After a promotion no lease is granted for some time (origin.c).  And after a term that
 * ended without resignation there may be a grace period, in which the program that has led
 * can notice and stop.  It counts from when the term ended: a session's, when the server
 * saw it go; a lease's, when it ran out.  Of an election that the registry knows no term
 * of, the last one may have ended with a crash, or have been forgotten (see
 * le_registry_lost_at).  Where that is not known, it is fixed when a candidate that has the
 * election's lock first asks, so that terms which others lose meanwhile do not put it off.
 *
 * Whoever bids decides this by the settings of his session and the election's declaration.
 * A candidate waits here with the election's lock, and so keeps the first place in line.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "announce/announce.h"
#include "campaign/campaign.h"

/*
 * Until when does the election, which nobody leads, stay vacant after its last term?
 * By le_monotonic_us; 0: it does not
 *
 * May throw.  No LWLock may be held.
 */
static uint64
grace_until(const LeElection *election)
{
	int64		grace_us = le_grace_of(election);
	uint64		lost_at;

	if (likely(grace_us == 0))
		return 0;
	le_announce_owed(election);
	lost_at = le_registry_lost_at(election, le_is_kept(election),
								  le_has_lock(&election->key));
	return lost_at == 0 ? 0 : lost_at + grace_us;
}

/*
 * Until when must the bid wait although nobody leads, and why?
 *
 * May throw, and wait as le_grants_from does.
 */
uint64
le_vacant_until(const LeBid *bid, LeWait *why)
{
	uint64		grace = grace_until(&bid->election);
	uint64		grants_from = bid->scope == LE_SCOPE_LEASE ? le_grants_from() : 0;

	*why = grants_from > grace ? LE_WAITS_AFTER_PROMOTION : LE_WAITS_FOR_GRACE;
	return Max(grace, grants_from);
}

/*
 * Sleep until that time, but maybe not as long, see le_sleep
 */
void
le_wait_vacant(uint64 until, LeWait why)
{
	le_show_wait(why);
	le_sleep(NULL, until, why == LE_WAITS_FOR_GRACE ? LE_SLEEP_GRACE : LE_SLEEP_PROMOTION);
}
