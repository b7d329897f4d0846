/*-------------------------------------------------------------------------
 *
 * registry/leases.c
 *	  Leases in the registry: renew and end them, list those that have ended,
 *	  and begin those that were loaded.
 *
 * registry.c says which locks protect what, and lease.c what a lease is.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "miscadmin.h"

#include "registry/internal.h"

/*
 * Apply an action to a lease.  Return false if the lease has ended.
 *
 * The caller must hold the partition lock, exclusively unless the action is to
 * look or to renew.
 */
static bool
act_on_entry(LeElectionEntry *entry, const LeLeaseOrder *order)
{
	LeLeaseAction action = order->action;
	LeExpiry   *lease = &entry->expiry;

	AssertPartitionLocked();
	if (action == LE_LEASE_RENEW)
	{
		if (!le_put_off_deadline(lease))
			return false;
		pg_atomic_fetch_add_u64(&lease->renewals, 1);
		return true;
	}

	if (!le_deadline_is_committed(pg_atomic_read_u64(&lease->deadline)) ||
		le_has_expired(lease))
		return false;
	if (action == LE_LEASE_SET_TTL)
	{
		lease->lasts_us = order->ttl_us;
		pg_atomic_write_u64(&lease->deadline,
							le_deadline_after(le_monotonic_us(), order->ttl_us));
	}
	else if (action != LE_LEASE_LOOK)
	{
		pg_atomic_write_u64(&lease->deadline, LE_DEADLINE_OVER);
		le_count_end(entry, action == LE_LEASE_END ? LE_END_RESIGNED : LE_END_DEPOSED,
					 le_monotonic_us());
	}
	if (action != LE_LEASE_LOOK)
		ConditionVariableBroadcast(&entry->changed);
	return true;
}

/*
 * Apply an action to the election's lease with the given token, if the lease
 * runs, and belongs to the given role or is to be deposed
 *
 * *role is set to the role that the lease belongs to, and *old_ttl_us to the
 * ttl that it had.
 */
LeLeaseAnswer
le_registry_act_on_lease(const LeElection *election, int64 token, Oid lease_table,
						 const LeLeaseOrder *order, Oid *role, int64 *old_ttl_us)
{
	static const LeLeaseOrder look = {.action = LE_LEASE_LOOK};
	LeLeaseAction action = order->action;
	bool		exclusive = action != LE_LEASE_LOOK && action != LE_LEASE_RENEW;
	LeElectionEntry *entry = le_registry_lock_term(&election->key, token, exclusive);
	LeLeaseAnswer answer = LE_LEASE_NOT_RUNNING;

	if (entry == NULL)
		return LE_LEASE_NOT_RUNNING;
	if (entry->scope == LE_SCOPE_LEASE && entry->lease_table == lease_table &&
		strcmp(le_registry_string(entry->name), election->name) == 0)
	{
		bool		is_ours = entry->role == *role || action == LE_LEASE_DEPOSE;

		*old_ttl_us = entry->expiry.lasts_us;
		*role = entry->role;
		if (act_on_entry(entry, is_ours ? order : &look))
			answer = is_ours ? LE_LEASE_DONE : LE_LEASE_OF_ANOTHER_ROLE;
	}
	le_registry_unlock_entry(entry);
	return answer;
}

/*
 * Mark the lease with the given token as over if its deadline has passed.
 * Return false if it has not.
 *
 * *expired is set if it had not been marked before.
 */
bool
le_registry_close_lease(const LeElectionKey *key, int64 token, bool *expired)
{
	LeElectionEntry *entry = le_registry_lock_term(key, token, true);
	bool		closed = true;

	*expired = false;
	if (entry == NULL)
		return true;
	if (entry->scope == LE_SCOPE_LEASE)
	{
		uint64		deadline = pg_atomic_read_u64(&entry->expiry.deadline);

		closed = !le_deadline_runs(deadline, le_monotonic_us());
		*expired = closed && deadline != LE_DEADLINE_OVER;
		if (closed)
			pg_atomic_write_u64(&entry->expiry.deadline, LE_DEADLINE_OVER);
		if (*expired)
			le_count_end(entry, LE_END_EXPIRED, le_deadline_time(deadline));
	}
	le_registry_unlock_entry(entry);
	return closed;
}

/*
 * Return the entry of the election, or NULL if it has no lease
 *
 * The caller must hold the election's lock, so that the entry stays in place.
 */
LeElectionEntry *
le_registry_find_lease(const LeElectionKey *key)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, false);
	bool		has_lease;

	if (entry == NULL)
		return NULL;
	has_lease = entry->token != 0 && entry->scope == LE_SCOPE_LEASE;
	le_registry_unlock_entry(entry);
	return has_lease ? entry : NULL;
}

/*
 * Begin the lease with the given token.  Return false if it is no longer
 * recorded.
 *
 * *begun, unless NULL, is set to a copy of it.  Called after the transaction
 * that took the lease has committed.
 */
bool
le_registry_begin_lease(const LeElectionKey *key, int64 token, LeTerm *begun)
{
	LeElectionEntry *entry = le_registry_lock_term(key, token, true);

	if (entry == NULL)
		return false;
	pg_atomic_write_u64(&entry->expiry.deadline,
						le_deadline_after(le_monotonic_us(), entry->expiry.lasts_us));
	le_count_begin(entry);
	if (begun != NULL)
		le_copy_entry(begun, entry);
	ConditionVariableBroadcast(&entry->changed);
	le_registry_unlock_entry(entry);
	return true;
}

static bool
is_lease(LeElectionEntry *entry)
{
	return entry->election.database == MyDatabaseId && entry->token != 0 &&
		entry->scope == LE_SCOPE_LEASE;
}

/*
 * Copy up to capacity of this database's leases that have ended to array, and
 * return how many were copied
 *
 * If there are more, a random selection is copied.  Some of them may be such
 * that nothing can be done about them for now, and they must not stand in the
 * way of the others.
 */
int
le_registry_list_ended_leases(LeTerm *array, int capacity)
{
	dshash_seq_status status;
	LeElectionEntry *entry;
	int			count = 0;

	dshash_seq_init(&status, le_registry_table(LE_ELECTION_TABLE), false);
	while ((entry = dshash_seq_next(&status)) != NULL)
	{
		uint64		deadline = pg_atomic_read_u64(&entry->expiry.deadline);
		uint64		place = count;

		if (!is_lease(entry) || !le_deadline_is_over(deadline, le_monotonic_us()))
			continue;
		if (count >= capacity)
			place = pg_prng_uint64_range(&pg_global_prng_state, 0, count);
		if (place < (uint64) capacity)
			le_copy_entry(&array[place], entry);
		count++;
	}
	dshash_seq_term(&status);
	return Min(count, capacity);
}

/*
 * Begin the leases that were loaded from the table, and return how many there
 * are
 *
 * They all begin at once, after the last one was loaded: none can be renewed
 * before that.
 */
int
le_registry_start_loaded(Oid lease_table)
{
	dshash_seq_status status;
	LeElectionEntry *entry;
	uint64		now = le_monotonic_us();
	int			count = 0;

	dshash_seq_init(&status, le_registry_table(LE_ELECTION_TABLE), true);
	while ((entry = dshash_seq_next(&status)) != NULL)
	{
		LeExpiry   *lease = &entry->expiry;

		if (!is_lease(entry) || entry->lease_table != lease_table ||
			le_deadline_is_committed(pg_atomic_read_u64(&lease->deadline)))
			continue;
		pg_atomic_write_u64(&lease->deadline, le_deadline_after(now, lease->lasts_us));
		le_count_loaded(entry);
		ConditionVariableBroadcast(&entry->changed);
		count++;
	}
	dshash_seq_term(&status);
	return count;
}
