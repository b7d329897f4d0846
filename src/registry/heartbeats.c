/*-------------------------------------------------------------------------
 *
 * registry/heartbeats.c
 *	  Heartbeats of terms in the registry.
 *
 * A term with a heartbeat has a deadline, as a lease has: see expiry.c.  If
 * the deadline has passed, the term is marked as silent.  The mark outlives
 * the deadline, for example if the term is to lose its heartbeat.  It is set
 * under the partition lock only, because without that lock it could fall on
 * the next term.
 *
 * registry.c says which locks protect what, and term/heartbeat.c what a
 * heartbeat is.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "registry/internal.h"

/*
 * Give this session's term with the given token another heartbeat, and return
 * its entry, which stays in place while LE_BEATING watches it.  Return NULL if
 * the term is no longer recorded, or is silent.
 *
 * This can bring the end of the term forward, but not put it off: a bid is no
 * heartbeat.
 */
LeElectionEntry *
le_registry_set_heartbeat(const LeElectionKey *key, int64 token, int64 heartbeat_us)
{
	LeElectionEntry *entry = le_registry_lock_term(key, token, true);
	uint64		deadline = le_deadline_after(le_monotonic_us(), heartbeat_us);
	bool		runs;

	if (entry == NULL)
		return NULL;
	runs = !le_entry_close_silent(entry, token);
	if (runs)
	{
		if (entry->expiry.lasts_us == 0)
			pg_atomic_fetch_add_u32(&entry->watchers[LE_BEATING], 1);
		else
			deadline = Min(deadline, pg_atomic_read_u64(&entry->expiry.deadline));
		entry->expiry.lasts_us = heartbeat_us;
		pg_atomic_write_u64(&entry->expiry.deadline, deadline);
		ConditionVariableBroadcast(&entry->changed);
	}
	le_registry_unlock_entry(entry);
	return runs ? entry : NULL;
}

/*
 * Record a heartbeat of the term with the given token.  Return false if the
 * term has ended.
 *
 * If the term has no heartbeat, records nothing.
 */
bool
le_registry_beat(const LeElectionKey *key, int64 token)
{
	LeElectionEntry *entry = le_registry_lock_term(key, token, false);
	bool		runs;

	if (entry == NULL)
		return false;
	runs = entry->scope != LE_SCOPE_LEASE &&
		(entry->expiry.lasts_us == 0 || le_put_off_deadline(&entry->expiry));
	le_registry_unlock_entry(entry);
	return runs;
}
