/*-------------------------------------------------------------------------
 *
 * registry/heartbeats.c
 *	  The heartbeats of terms in the registry: to store them, and to find that they stay away.
 *
 * The deadline of a term with a heartbeat is put off as that of a lease is: under the shared
 * lock of the partition, by a compare-and-swap on the deadline.
 *
 * A heartbeat may have read the clock just before the deadline and store its own after it.  So
 * each session that finds the deadline passed takes one microsecond off it first, by a
 * compare-and-swap, too.  The late heartbeat fails then, reads the clock again, and finds that
 * it is late.  Only then is the term called silent, and no heartbeat revives it: what one
 * session has been told of its end is true for all.  That takes no lock where the entry stays
 * in its place, and is done in a signal handler, too.
 *
 * registry.c says which locks protect what, term/heartbeat.c what a heartbeat is.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "registry/internal.h"

/*
 * Put off the deadline to one ttl from now; false if it has passed
 *
 * Others may do the same at the same time; the latest deadline stays.  The entry's partition
 * must be locked.  Does not throw.
 */
bool
le_put_off_deadline(LeExpiry *expiry)
{
	uint64		deadline = pg_atomic_read_u64(&expiry->deadline);
	uint64		now;

	do
	{
		now = le_monotonic_us();
		if (!le_deadline_runs(deadline, now))
			return false;
	} while (deadline < now + expiry->ttl_us &&
			 !pg_atomic_compare_exchange_u64(&expiry->deadline, &deadline,
											 now + expiry->ttl_us));
	return true;
}

/*
 * Note that the session of the silent term with that token ends it, and goes on; false if it
 * was told to go
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
 * Terminate the session whose term has that token, and is silent; nothing if that session ends
 * it in place, or has done so
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
 * Give the term of this session with that token another heartbeat, and return its entry, which
 * stays where it is until LE_BEATING watches it no more; NULL if it is off the record already,
 * or silent
 *
 * The end of the term may come earlier by that, but no later: to ask is no heartbeat.
 */
LeElectionEntry *
le_registry_set_heartbeat(const LeElectionKey *key, int64 token, int64 heartbeat_us)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, true);
	uint64		deadline = le_monotonic_us() + heartbeat_us;
	bool		runs;

	if (entry == NULL)
		return NULL;
	runs = entry->token == token && !le_entry_close_silent(entry, token);
	if (runs)
	{
		if (entry->expiry.ttl_us == 0)
			entry->watchers[LE_BEATING]++;
		else
			deadline = Min(deadline, pg_atomic_read_u64(&entry->expiry.deadline));
		entry->expiry.ttl_us = heartbeat_us;
		pg_atomic_write_u64(&entry->expiry.deadline, deadline);
		ConditionVariableBroadcast(&entry->changed);
	}
	le_registry_unlock_entry(entry);
	return runs ? entry : NULL;
}

/*
 * Store a heartbeat of the term with that token; false if it is over
 *
 * Nothing is stored of a term that has none.
 */
bool
le_registry_beat(const LeElectionKey *key, int64 token)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, false);
	bool		runs;

	if (entry == NULL)
		return false;
	runs = entry->token == token && entry->scope != LE_SCOPE_LEASE &&
		(entry->expiry.ttl_us == 0 || le_put_off_deadline(&entry->expiry));
	le_registry_unlock_entry(entry);
	return runs;
}
