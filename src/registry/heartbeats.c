/*-------------------------------------------------------------------------
 *
 * registry/heartbeats.c
 *	  The heartbeats of terms in the registry: to store them, and to find that they stay away.
 *
 * The deadline of a term with a heartbeat is put off as that of a lease is: under the shared
 * lock of the partition, by a compare-and-swap on the deadline.  From the deadline on the term
 * is over, and no heartbeat revives it.
 *
 * A heartbeat may have read the clock just before the deadline and store its own after it.  So
 * a session that is about to act on the end of the term takes one microsecond off the deadline
 * first, by a compare-and-swap, too: the late heartbeat fails then, reads the clock again, and
 * finds the term over.  That needs no lock where the entry stays in its place, and may be done
 * in a signal handler.
 *
 * registry.c says which locks protect what, term/heartbeat.c what a heartbeat is.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

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
 * Check whether the entry's term is that of a leader which has given no heartbeat in time
 *
 * The entry's partition must be locked, or the entry be watched.  Does not throw.
 */
bool
le_entry_is_silent(LeElectionEntry *entry, uint64 now)
{
	return entry->token != 0 && entry->scope != LE_SCOPE_LEASE && entry->expiry.ttl_us != 0 &&
		le_deadline_is_over(pg_atomic_read_u64(&entry->expiry.deadline), now);
}

/*
 * See to it that no heartbeat comes any more for the term with that token, if its leader is
 * silent; false if it is not
 *
 * The entry's partition must be locked, or the entry be watched.  Does not throw, and is
 * called in a signal handler.
 */
bool
le_entry_close_silent(LeElectionEntry *entry, int64 token)
{
	uint64		deadline = pg_atomic_read_u64(&entry->expiry.deadline);

	do
	{
		if (entry->token != token || !le_entry_is_silent(entry, le_monotonic_us()))
			return false;
	} while (!pg_atomic_compare_exchange_u64(&entry->expiry.deadline, &deadline,
											 deadline - 1));
	return true;
}

/*
 * Do the same for the election, and return the process that has led it; 0 if none is silent
 */
int
le_registry_close_silent(const LeElectionKey *key)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, false);
	int			pid;

	if (entry == NULL)
		return 0;
	pid = le_entry_close_silent(entry, entry->token) ? entry->pid : 0;
	le_registry_unlock_entry(entry);
	return pid;
}

/*
 * Give the term of this session with that token another heartbeat, from now on, and return its
 * entry, which stays where it is until LE_BEATING watches it no more; NULL if it is off the
 * record already, or its leader is silent
 */
LeElectionEntry *
le_registry_set_heartbeat(const LeElectionKey *key, int64 token, int64 heartbeat_us)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, true);
	bool		runs;

	if (entry == NULL)
		return NULL;
	runs = entry->token == token && !le_entry_is_silent(entry, le_monotonic_us());
	if (runs)
	{
		if (entry->expiry.ttl_us == 0)
			entry->watchers[LE_BEATING]++;
		entry->expiry.ttl_us = heartbeat_us;
		pg_atomic_write_u64(&entry->expiry.deadline, le_monotonic_us() + heartbeat_us);
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
