/*-------------------------------------------------------------------------
 *
 * registry/heartbeats.c
 *	  Heartbeats of terms in the registry: record them, detect that they are
 *	  missing, and end the sessions of leaders that are silent.
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

#include <signal.h>

#include "registry/internal.h"

/*
 * Record that the session whose term is silent ends that term itself and
 * continues.  Return false if the session has already been terminated for it.
 */
bool
le_registry_end_in_place(const LeElectionKey *key, int64 token)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, true);
	bool		told_to_go;

	if (entry == NULL)
		return true;
	told_to_go = entry->token == token && entry->terminated;
	if (entry->token == token && !told_to_go)
		entry->ends_in_place = true;
	le_registry_unlock_entry(entry);
	return !told_to_go;
}

/*
 * Terminate the session whose term has the given token and is silent.  Does
 * nothing if that session ends the term itself, or has done so.
 */
void
le_registry_terminate_silent(const LeElectionKey *key, int64 token)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, false);

	if (entry == NULL)
		return;
	if (le_entry_close_silent(entry, token) && !entry->ends_in_place)
	{
		entry->terminated = true;
#ifdef HAVE_SETSID
		(void) kill(-entry->pid, SIGTERM);
#else
		(void) kill(entry->pid, SIGTERM);
#endif
	}
	le_registry_unlock_entry(entry);
}

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
	LeElectionEntry *entry = le_registry_lock_entry(key, true);
	uint64		deadline = le_deadline_after(le_monotonic_us(), heartbeat_us);
	bool		runs;

	if (entry == NULL)
		return NULL;
	runs = entry->token == token && !le_entry_close_silent(entry, token);
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
	LeElectionEntry *entry = le_registry_lock_entry(key, false);
	bool		runs;

	if (entry == NULL)
		return false;
	runs = entry->token == token && entry->scope != LE_SCOPE_LEASE &&
		(entry->expiry.lasts_us == 0 || le_put_off_deadline(&entry->expiry));
	le_registry_unlock_entry(entry);
	return runs;
}
