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
 * Return this backend's entry with its partition locked, or NULL if the
 * backend is not recorded
 */
static LeCandidate *
lock_own(void)
{
	int			pid = MyProcPid;

	return dshash_find(le_registry_table(LE_CANDIDATE_TABLE), &pid, true);
}

static void
unlock(LeCandidate *entry)
{
	dshash_release_lock(le_registry_table(LE_CANDIDATE_TABLE), entry);
}

/*
 * Record that this backend is about to wait, for the elections with these
 * keys, or for a single one if there are none
 */
void
le_registry_add_candidate(const LeCandidate *candidate, const int64 *keys, int count)
{
	size_t		size = count * sizeof(int64);
	dsa_area   *area = le_registry_area();
	LeCandidate *entry;
	bool		found;
	bool		full;

	entry = le_registry_insert(LE_CANDIDATE_TABLE, &candidate->pid, &found);

	/* a process whose end has failed may have had the same ID */
	if (found)
		le_registry_free(&entry->keys);
	*entry = *candidate;
	if (count > 0)
		entry->keys = le_registry_allocate(size);
	full = count > 0 && !DsaPointerIsValid(entry->keys);
	if (DsaPointerIsValid(entry->keys))
	{
		memcpy(dsa_get_address(area, entry->keys), keys, size);
		entry->key_count = count;
	}
	unlock(entry);
	if (full)
		le_raise_registry_full();
}

/*
 * Record what this candidate waits for.  Does nothing if the backend is not
 * recorded.
 */
void
le_registry_set_wait(LeWait waits_for)
{
	LeCandidate *entry = lock_own();

	if (entry == NULL)
		return;
	entry->waits_for = waits_for;
	unlock(entry);
}

/*
 * Remove this backend's entry, if there is one
 */
void
le_registry_remove_candidate(void)
{
	LeCandidate *entry = lock_own();
	dsa_pointer keys;

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
	bool		is_same;

	entry = dshash_find(le_registry_table(LE_CANDIDATE_TABLE), &candidate->pid, false);
	if (entry == NULL)
		return false;
	is_same = entry->keys == candidate->keys &&
		entry->key_count == candidate->key_count;
	if (is_same)
		memcpy(keys, dsa_get_address(le_registry_area(), entry->keys),
			   entry->key_count * sizeof(int64));
	unlock(entry);
	return is_same;
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
