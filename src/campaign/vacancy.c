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
 * le_registry_forgotten_at).  Where that is not known, it is fixed when a candidate that has the
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
 * Find out when the last term of the election ended without resignation, or may have
 *
 * With the election's lock, that is final.  Of a term that is still on record, nothing else
 * is known yet.
 */
static void
complete_record(const LeElection *election, LeSituation *situation)
{
	LeRecord   *record = &situation->record;

	le_announce_owed(election);
	if (record->end_known)
		return;
	record->lost_at = Max(record->lost_at, le_registry_forgotten_at(le_is_kept(election)));
	if (situation->has_lock)
		record->lost_at = le_registry_fix_lost_at(election, record->lost_at);
}

/*
 * Look for how long the election, whose record was read, stays vacant after its last term
 *
 * May raise an error, and wait as le_grants_from does.  No LWLock may be held.
 */
void
le_look_at_vacancy(const LeBid *bid, LeSituation *situation)
{
	situation->grace_us = le_grace_of(&bid->election);
	if (unlikely(situation->grace_us != 0))
		complete_record(&bid->election, situation);
	if (bid->scope == LE_SCOPE_LEASE)
		situation->grants_from = le_grants_from();
}

/*
 * Sleep until that time, but maybe not as long, see le_sleep
 */
void
le_wait_vacant(uint64 until, LeObstacle why)
{
	bool		is_grace = why == LE_GRACE;

	le_show_wait(is_grace ? LE_WAITS_FOR_GRACE : LE_WAITS_AFTER_PROMOTION);
	le_sleep(NULL, until, is_grace ? LE_SLEEP_GRACE : LE_SLEEP_PROMOTION);
}
