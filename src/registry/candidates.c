/*-------------------------------------------------------------------------
 *
 * registry/candidates.c
 *	  Candidates in the registry: add, change, remove and list them.
 *
 * registry.c says which locks protect what.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "registry/internal.h"

/*
 * Record that this backend is about to wait
 */
void
le_registry_add_candidate(const LeCandidate *candidate)
{
	LeCandidate *entry;
	bool		found;

	entry = dshash_find_or_insert(le_registry_candidate_table(), &candidate->pid, &found);
	*entry = *candidate;
	dshash_release_lock(le_registry_candidate_table(), entry);
}

/*
 * Record the keys of all elections that this backend, which is already
 * recorded as a candidate, waits for
 */
void
le_registry_add_keys(int pid, const int64 *keys, int count)
{
	size_t		size = count * sizeof(int64);
	dsa_pointer stored;
	LeCandidate *entry;

	stored = dsa_allocate_extended(le_registry_area(), size, DSA_ALLOC_NO_OOM | DSA_ALLOC_HUGE);
	if (!DsaPointerIsValid(stored))
		le_raise_registry_full();
	memcpy(dsa_get_address(le_registry_area(), stored), keys, size);

	entry = dshash_find(le_registry_candidate_table(), &pid, true);
	Assert(entry != NULL);
	entry->keys = stored;
	entry->key_count = count;
	dshash_release_lock(le_registry_candidate_table(), entry);
}

/*
 * Record what this candidate waits for.  Does nothing if the backend is not
 * recorded.
 */
void
le_registry_set_wait(int pid, LeWait waits_for)
{
	LeCandidate *entry;

	entry = dshash_find(le_registry_candidate_table(), &pid, true);
	if (entry == NULL)
		return;
	entry->waits_for = waits_for;
	dshash_release_lock(le_registry_candidate_table(), entry);
}

/*
 * Record whether this candidate has given way to a successor.  Does nothing if
 * the backend is not recorded.
 */
void
le_registry_set_gave_way(int pid, bool gave_way)
{
	LeCandidate *entry = dshash_find(le_registry_candidate_table(), &pid, true);

	if (entry == NULL)
		return;
	entry->gave_way = gave_way;
	dshash_release_lock(le_registry_candidate_table(), entry);
}

/*
 * Remove this backend's entry, if there is one
 */
void
le_registry_remove_candidate(int pid)
{
	LeCandidate *entry;
	dsa_pointer keys;

	entry = dshash_find(le_registry_candidate_table(), &pid, true);
	if (entry == NULL)
		return;
	keys = entry->keys;
	dshash_delete_entry(le_registry_candidate_table(), entry);
	le_registry_free(&keys);
}

/*
 * Copy the entry of the given backend, if it stands in line for the given
 * election.  Return false otherwise.
 */
bool
le_registry_read_candidate(int pid, const LeElectionKey *election, LeCandidate *candidate)
{
	LeCandidate *entry = dshash_find(le_registry_candidate_table(), &pid, false);
	bool		stands;

	if (entry == NULL)
		return false;
	stands = entry->key_count == 0 &&
		memcmp(&entry->election, election, sizeof(LeElectionKey)) == 0;
	if (stands)
		*candidate = *entry;
	dshash_release_lock(le_registry_candidate_table(), entry);
	return stands;
}

/*
 * Copy the keys of a candidate for many elections.  Return false if it no
 * longer waits for them.
 */
bool
le_registry_copy_keys(const LeCandidate *candidate, int64 *keys)
{
	LeCandidate *entry;
	bool		stands;

	entry = dshash_find(le_registry_candidate_table(), &candidate->pid, false);
	if (entry == NULL)
		return false;
	stands = entry->keys == candidate->keys &&
		entry->key_count == candidate->key_count;
	if (stands)
		memcpy(keys, dsa_get_address(le_registry_area(), entry->keys),
			   entry->key_count * sizeof(int64));
	dshash_release_lock(le_registry_candidate_table(), entry);
	return stands;
}

static int
copy_candidates(LeCandidate *array, int capacity)
{
	dshash_seq_status status;
	LeCandidate *entry;
	int			count = 0;

	dshash_seq_init(&status, le_registry_candidate_table(), false);
	while ((entry = dshash_seq_next(&status)) != NULL)
	{
		if (entry->election.database != MyDatabaseId)
			continue;
		if (count < capacity)
			array[count] = *entry;
		count++;
	}
	dshash_seq_term(&status);
	return count;
}

/*
 * Return copies of this database's candidates
 *
 * A candidate that has just been elected or has just given up may be among
 * them.
 */
LeCandidate *
le_registry_list_candidates(int *count)
{
	LeCandidate *array;

	/* a backend has at most one entry */
	array = palloc_array(LeCandidate, MaxBackends);
	*count = Min(copy_candidates(array, MaxBackends), MaxBackends);
	return array;
}
