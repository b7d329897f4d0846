/*-------------------------------------------------------------------------
 *
 * registry/expiry.c
 *	  Deadlines and heartbeats of terms in the registry: extend them, and
 *	  detect that they have passed.
 *
 * Leases, and terms with a heartbeat, have a deadline.  It is extended under
 * the shared lock of the partition, by a compare-and-swap.
 *
 * A session may read the clock just before the deadline, and be about to
 * extend it when the deadline passes.  Therefore, a session that finds the
 * deadline passed first sets its last bit, also by a compare-and-swap.  The
 * late heartbeat or renewal then fails, reads the clock again, and finds that
 * it is late: once one session has been told that the term has ended, all are
 * told so.  This needs no lock if the entry stays in place, and it is done in
 * a signal handler as well.
 *
 * If the deadline of a term with a heartbeat has passed, the term is marked as
 * silent.  The mark outlives the deadline, for example if the term
 * is to lose its heartbeat.  It is set under the partition lock only, because
 * without that lock it could fall on the next term.
 *
 * registry.c says which locks protect what, and term/heartbeat.c what a
 * heartbeat is.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "registry/internal.h"

/*
 * Check whether the deadline has passed, and if so, ensure that it is not
 * extended any more.  An uncommitted lease has not expired.
 *
 * The caller must hold the partition lock, or pin the entry.  Never raises
 * an error.  Called in a signal handler as well.
 */
bool
le_has_expired(LeExpiry *expiry)
{
	uint64		deadline = pg_atomic_read_u64(&expiry->deadline);

	do
	{
		if (!le_deadline_is_over(deadline, le_monotonic_us()))
			return false;
	} while ((deadline & LE_DEADLINE_SEEN) == 0 &&
			 !pg_atomic_compare_exchange_u64(&expiry->deadline, &deadline,
											 deadline | LE_DEADLINE_SEEN));
	return true;
}

/*
 * Has any session found that the deadline has passed?  Never raises an error.
 */
bool
le_found_expired(LeExpiry *expiry)
{
	uint64		deadline = pg_atomic_read_u64(&expiry->deadline);

	return le_deadline_is_time(deadline) && deadline != le_deadline_time(deadline);
}

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

	while (le_deadline_is_committed(deadline))
	{
		uint64		now = le_monotonic_us();
		uint64		later = le_deadline_after(now, expiry->lasts_us);

		if (le_deadline_time(deadline) > now)
		{
			if (deadline >= later ||
				pg_atomic_compare_exchange_u64(&expiry->deadline, &deadline, later))
				return true;
		}
		else if (le_has_expired(expiry))
			return false;
		else
			deadline = pg_atomic_read_u64(&expiry->deadline);
	}
	return false;
}

/*
 * Check whether the term with the given token is silent.  If so, it stays so
 *
 * The caller must hold the partition lock, or pin the entry.  In the latter
 * case, another term may take the place of this one at any moment, so this
 * marks nothing.  Never raises an error.  Called in a signal handler as well.
 */
bool
le_entry_is_silent(LeElectionEntry *entry, int64 token)
{
	const volatile int64 *present = &entry->token;

	if (token == 0 || *present != token)
		return false;
	if (!entry->silent &&
		(entry->scope == LE_SCOPE_LEASE || entry->expiry.lasts_us == 0 ||
		 !le_has_expired(&entry->expiry)))
		return false;
	pg_read_barrier();
	return *present == token;
}

/*
 * The same, and mark the term as silent
 *
 * The caller must hold the partition lock.  Never raises an error.
 */
bool
le_entry_close_silent(LeElectionEntry *entry, int64 token)
{
	AssertPartitionLocked();
	if (!le_entry_is_silent(entry, token))
		return false;
	entry->silent = true;
	return true;
}

/*
 * Give this session's term with the given token another heartbeat, and return
 * its entry, which stays in place while LE_BEATING pins it.  Return NULL if
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
			pg_atomic_fetch_add_u32(&entry->pins[LE_BEATING], 1);
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
