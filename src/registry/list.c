/*-------------------------------------------------------------------------
 *
 * registry/list.c
 *	  To list the elections that views show.
 *
 * registry.c says which locks protect what.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "registry/internal.h"

/*
 * Check whether the entry is of a bare key that a session asked for, or, unless those only are
 * listed, has a term
 */
static bool
is_listed(const LeElectionEntry *entry, bool only_bare)
{
	if (entry->election.database != MyDatabaseId)
		return false;
	if (entry->election.lock_class == LE_CLASS_BARE_KEY)
		return entry->token != 0 || !entry->hidden;
	return entry->token != 0 && !only_bare;
}

/*
 * Copy up to capacity keys to the array; return how many there are
 */
static int
copy_keys(LeElectionKey *array, int capacity, bool only_bare)
{
	dshash_seq_status status;
	LeElectionEntry *entry;
	int			count = 0;

	dshash_seq_init(&status, le_registry_election_table(), false);
	while ((entry = dshash_seq_next(&status)) != NULL)
	{
		if (!is_listed(entry, only_bare))
			continue;
		if (count < capacity)
			array[count] = entry->election;
		count++;
	}
	dshash_seq_term(&status);
	return count;
}

/*
 * Return the keys of this database's elections that have a term on record, and of the bare keys
 * that a session asked for; or only of bare keys
 *
 * The memory must be there before the table is locked, and the table may grow in between: look
 * again until it suffices.
 */
LeElectionKey *
le_registry_list_keys(bool only_bare, int *count)
{
	int			capacity = pg_atomic_read_u32(&le_registry_counters()->elections) + 8;
	LeElectionKey *array;

	for (;;)
	{
		array = MemoryContextAllocHuge(CurrentMemoryContext, capacity * sizeof(LeElectionKey));
		*count = copy_keys(array, capacity, only_bare);
		if (*count <= capacity)
			return array;
		pfree(array);
		capacity = *count + *count / 4;
	}
}
