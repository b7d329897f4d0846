/*-------------------------------------------------------------------------
 *
 * registry/lists.c
 *	  Functions that look at all terms of a database: list them, and begin
 *	  those that were loaded.
 *
 * registry.c says which locks protect what.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "miscadmin.h"

#include "registry/internal.h"

static bool
copy_shown(void *entry, void *row)
{
	LeElectionEntry *shown = entry;
	LeTerm	   *term = row;

	if (shown->election.database != MyDatabaseId || shown->token == 0)
		return false;
	if (term != NULL)
	{
		le_copy_entry(term, shown);
		le_copy_denial(&term->last_denied, shown);
	}
	return true;
}

static bool
is_lease(LeElectionEntry *entry)
{
	return entry->election.database == MyDatabaseId && entry->token != 0 &&
		entry->scope == LE_SCOPE_LEASE;
}

/*
 * Return copies of this database's terms, including leases that have ended
 */
LeTerm *
le_registry_list_terms(int *count)
{
	return le_registry_list(le_registry_table(LE_ELECTION_TABLE), sizeof(LeTerm), copy_shown, count);
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
