/*-------------------------------------------------------------------------
 *
 * registry/leases.c
 *	  The leases in the registry: to renew and end them.
 *
 * registry.c says which locks protect what, lease.c what a lease is.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "registry/internal.h"

static bool
ends(LeLeaseAction action)
{
	return action == LE_LEASE_END || action == LE_LEASE_DEPOSE;
}

/*
 * Do something with a lease whose partition is locked, exclusively but to look or
 * to renew; false if it is over
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

	if (!le_deadline_runs(pg_atomic_read_u64(&lease->deadline), le_monotonic_us()))
		return false;
	if (action == LE_LEASE_SET_TTL)
	{
		lease->ttl_us = order->ttl_us;
		pg_atomic_write_u64(&lease->deadline, le_monotonic_us() + order->ttl_us);
	}
	else if (ends(action))
	{
		pg_atomic_write_u64(&lease->deadline, LE_DEADLINE_OVER);
		entry->successor = order->successor;
		le_count_end(entry, action == LE_LEASE_END ? LE_END_RESIGNED : LE_END_DEPOSED,
					 le_monotonic_us());
	}
	if (action != LE_LEASE_LOOK)
		ConditionVariableBroadcast(&entry->changed);
	return true;
}

/*
 * Do something with the election's lease that has this token, if it runs and
 * belongs to the role, or is to be deposed
 *
 * *role is set to the role that it belongs to, *old_ttl_us to the ttl that it has
 * had.
 */
LeLeaseAnswer
le_registry_act_on_lease(const LeElection *election, int64 token, Oid lease_table,
						 const LeLeaseOrder *order, Oid *role, int64 *old_ttl_us)
{
	static const LeLeaseOrder look = {.action = LE_LEASE_LOOK};
	LeLeaseAction action = order->action;
	bool		exclusive = action == LE_LEASE_SET_TTL || ends(action);
	LeElectionEntry *entry = le_registry_lock_entry(&election->key, exclusive);
	LeLeaseAnswer answer = LE_LEASE_NOT_RUNNING;

	if (entry == NULL)
		return LE_LEASE_NOT_RUNNING;
	if (entry->token == token && entry->scope == LE_SCOPE_LEASE &&
		entry->lease_table == lease_table &&
		strcmp(le_registry_string(entry->name), election->name) == 0)
	{
		bool		is_ours = entry->role == *role || action == LE_LEASE_DEPOSE;

		*old_ttl_us = entry->expiry.ttl_us;
		*role = entry->role;
		if (act_on_entry(entry, is_ours ? order : &look))
			answer = is_ours ? LE_LEASE_DONE : LE_LEASE_OF_ANOTHER_ROLE;
	}
	le_registry_unlock_entry(entry);
	return answer;
}

/*
 * Mark the lease with that token as over if its deadline has passed; false if it
 * has not
 *
 * Whoever is about to renew it has read the clock under the shared lock, maybe just
 * in time: so only under the exclusive one is it certain that the lease has run
 * out.  *expired is set if it had not been marked before, and *news to what this session
 * is to announce.
 */
bool
le_registry_close_lease(const LeElectionKey *key, int64 token, bool *expired,
						LeNews *news)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, true);
	bool		closed = true;

	*expired = false;
	news->what = 0;
	if (entry == NULL)
		return true;
	if (entry->token == token && entry->scope == LE_SCOPE_LEASE)
	{
		uint64		deadline = pg_atomic_read_u64(&entry->expiry.deadline);

		closed = !le_deadline_runs(deadline, le_monotonic_us());
		*expired = closed && deadline != LE_DEADLINE_OVER;
		if (closed)
			pg_atomic_write_u64(&entry->expiry.deadline, LE_DEADLINE_OVER);
		if (*expired)
			le_count_end(entry, LE_END_EXPIRED, deadline);
		if (*expired || le_news_owed(entry))
			le_news_copy(news, entry);
	}
	le_registry_unlock_entry(entry);
	return closed;
}

/*
 * Return the entry of the election; NULL if it has no lease
 *
 * For whoever holds the election's lock: so it stays there.
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
 * Begin the lease with that token; false if it is off the record already
 *
 * For the transaction that took it, when it has committed.
 */
bool
le_registry_begin_lease(const LeElectionKey *key, int64 token)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, true);
	bool		found;

	if (entry == NULL)
		return false;
	found = entry->token == token;
	if (found)
	{
		pg_atomic_write_u64(&entry->expiry.deadline,
							le_monotonic_us() + entry->expiry.ttl_us);
		le_count_begin(entry);
		ConditionVariableBroadcast(&entry->changed);
	}
	le_registry_unlock_entry(entry);
	return found;
}

/*
 * Put a lease that was found written down on record, unless the registry knows
 * better
 *
 * For whoever loads the table, before anybody can bid.  If one who was at it before
 * has failed, his entries are written anew.
 */
void
le_registry_load_lease(const LeTerm *term)
{
	LeTerm		known;

	if (le_registry_read(&term->election, &known) && known.token > term->token)
		return;
	le_registry_add_lease(term, NULL);
}
