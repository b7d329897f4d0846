/*-------------------------------------------------------------------------
 *
 * registry/heartbeats.c
 *	  Heartbeats of terms in the registry: record them, and detect that they
 *	  are missing.
 *
 * The deadline of a term with a heartbeat is extended as that of a lease is:
 * under the shared lock of the partition, by a compare-and-swap on the
 * deadline.
 *
 * A heartbeat may read the clock just before the deadline and store its own
 * deadline after it.  Therefore, a session that finds the deadline passed
 * first takes one microsecond off it, also by a compare-and-swap.  The late
 * heartbeat then fails, reads the clock again, and finds that it is late.
 * Only after that is the term marked as silent, and no heartbeat revives it:
 * once one session has been told that the term has ended, all are told so.  If
 * the entry stays in place, this needs no lock, and it is done in a signal
 * handler as well.
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
 * Extend the deadline to one ttl from now.  Return false if it has passed.
 *
 * Other sessions may do the same at the same time; the latest deadline stays.
 * The caller must hold the partition lock.  Never raises an error.
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
		(entry->expiry.ttl_us == 0 || le_put_off_deadline(&entry->expiry));
	le_registry_unlock_entry(entry);
	return runs;
}
