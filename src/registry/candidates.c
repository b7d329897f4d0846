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

	entry = dshash_find_or_insert(le_registry_table(LE_CANDIDATE_TABLE), &candidate->pid, &found);
	*entry = *candidate;
	dshash_release_lock(le_registry_table(LE_CANDIDATE_TABLE), entry);
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

	entry = dshash_find(le_registry_table(LE_CANDIDATE_TABLE), &pid, true);
	Assert(entry != NULL);
	entry->keys = stored;
	entry->key_count = count;
	dshash_release_lock(le_registry_table(LE_CANDIDATE_TABLE), entry);
}

/*
 * Record what this candidate waits for.  Does nothing if the backend is not
 * recorded.
 */
void
le_registry_set_wait(int pid, LeWait waits_for)
{
	LeCandidate *entry;

	entry = dshash_find(le_registry_table(LE_CANDIDATE_TABLE), &pid, true);
	if (entry == NULL)
		return;
	entry->waits_for = waits_for;
	dshash_release_lock(le_registry_table(LE_CANDIDATE_TABLE), entry);
}

/*
 * Record whether this candidate has given way to a successor.  Does nothing if
 * the backend is not recorded.
 */
void
le_registry_set_gave_way(int pid, bool gave_way)
{
	LeCandidate *entry = dshash_find(le_registry_table(LE_CANDIDATE_TABLE), &pid, true);

	if (entry == NULL)
		return;
	entry->gave_way = gave_way;
	dshash_release_lock(le_registry_table(LE_CANDIDATE_TABLE), entry);
}

/*
 * Remove this backend's entry, if there is one
 */
void
le_registry_remove_candidate(int pid)
{
	LeCandidate *entry;
	dsa_pointer keys;

	entry = dshash_find(le_registry_table(LE_CANDIDATE_TABLE), &pid, true);
	if (entry == NULL)
		return;
	keys = entry->keys;
	dshash_delete_entry(le_registry_table(LE_CANDIDATE_TABLE), entry);
	le_registry_free(&keys);
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

	entry = dshash_find(le_registry_table(LE_CANDIDATE_TABLE), &candidate->pid, false);
	if (entry == NULL)
		return false;
	stands = entry->keys == candidate->keys &&
		entry->key_count == candidate->key_count;
	if (stands)
		memcpy(keys, dsa_get_address(le_registry_area(), entry->keys),
			   entry->key_count * sizeof(int64));
	dshash_release_lock(le_registry_table(LE_CANDIDATE_TABLE), entry);
	return stands;
}

static bool
copy_candidate(void *entry, void *row)
{
	const LeCandidate *candidate = entry;

	if (candidate->election.database != MyDatabaseId)
		return false;
	if (row != NULL)
		*(LeCandidate *) row = *candidate;
	return true;
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
	return le_registry_list(le_registry_table(LE_CANDIDATE_TABLE), sizeof(LeCandidate),
							copy_candidate, count);
}
