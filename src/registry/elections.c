/*-------------------------------------------------------------------------
 *
 * registry/elections.c
 *	  Entries of elections in the registry: add them, and keep them in place.
 *
 * registry.c says which locks protect what.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "registry/internal.h"

static void
init_entry(LeElectionEntry *entry)
{
	LeElectionKey key = entry->election;

	memset(entry, 0, sizeof(LeElectionEntry));
	entry->election = key;
	entry->name = InvalidDsaPointer;
	entry->identity = InvalidDsaPointer;
	entry->value = InvalidDsaPointer;
	entry->used = InvalidDsaPointer;
	entry->denied_identity = InvalidDsaPointer;
	pg_atomic_init_u64(&entry->denied_at, 0);
	pg_atomic_init_u64(&entry->expiry.deadline, LE_DEADLINE_OVER);
	pg_atomic_init_u64(&entry->expiry.renewals, 0);
	ConditionVariableInit(&entry->changed);
	pg_atomic_init_u32(&entry->releases, 0);
	le_start_tally(entry, le_monotonic_us());
	for (int i = 0; i < LE_PINS; i++)
		pg_atomic_init_u32(&entry->pins[i], 0);
}

/*
 * Free and uncount what an entry without a term has, so that it can be deleted
 *
 * The caller must hold the partition lock exclusively.  Never raises an error.
 */
void
le_empty_entry(LeElectionEntry *entry)
{
	AssertPartitionLocked();
	Assert(entry->token == 0);
	le_forget_denial(entry);
	le_registry_free(&entry->name);
	pg_atomic_fetch_sub_u32(&le_registry_counters()->elections, 1);
}

/*
 * Check whether the entry must stay although no term is recorded
 *
 * The caller must hold the partition lock.  Never raises an error.
 */
bool
le_entry_is_pinned(LeElectionEntry *entry)
{
	AssertPartitionLocked();
	for (int i = 0; i < LE_PINS; i++)
	{
		if (pg_atomic_read_u32(&entry->pins[i]) > 0)
			return true;
	}
	return false;
}

/*
 * Give the entry this name.  If there is no room for it, unlock the entry and
 * raise an error.
 */
static void
name_entry(LeElectionEntry *entry, const char *name)
{
	dsa_pointer stored = InvalidDsaPointer;

	if (name[0] != '\0' && !le_registry_store_string(name, &stored))
	{
		le_registry_unlock_entry(entry);
		le_raise_registry_full();
	}
	le_registry_free(&entry->name);
	entry->name = stored;
}

/*
 * Reuse the entry for the election of the given name.  Its statistics start
 * from zero, but the end of the last term is kept, since a grace period counts
 * from it.
 *
 * Does nothing if the entry has that name already.  The caller must hold the
 * partition lock exclusively.  If there is no room for the name, unlocks the
 * entry and raises an error.
 */
void
le_registry_adopt_entry(LeElectionEntry *entry, const char *name)
{
	AssertPartitionLocked();
	if (strcmp(le_registry_string(entry->name), name) == 0)
		return;
	name_entry(entry, name);
	entry->grace_from_known = entry->grace_from_known || entry->last_token != 0;
	entry->last_token = 0;
	entry->first_row = 0;
	le_start_tally(entry, le_monotonic_us());
}

/*
 * Return the election's entry with its partition locked exclusively, adding
 * the entry if there is none.  Return NULL if there is none, and the server
 * has "most" entries or more.
 *
 * An entry of another election with the same key is reused for this one,
 * unless the other election is led or pinned.
 */
LeElectionEntry *
le_registry_lock_or_add_within(const LeElectionKey *key, const char *name, bool declared,
							   uint32 most)
{
	LeElectionEntry *entry;
	bool		found;

	entry = le_registry_insert(LE_ELECTION_TABLE, key, &found);
	if (!found)
	{
		init_entry(entry);
		if (!le_count_within(&le_registry_counters()->elections, 1, most))
		{
			dshash_delete_entry(le_registry_table(LE_ELECTION_TABLE), entry);
			return NULL;
		}
		name_entry(entry, name);
	}
	if (found && entry->token == 0 && !le_entry_is_pinned(entry))
		le_registry_adopt_entry(entry, name);
	if (strcmp(le_registry_string(entry->name), name) == 0)
		entry->declared = declared;
	return entry;
}

/*
 * Do the same as le_registry_lock_or_add_within, within what the current user
 * may add, or raise an error
 */
static LeElectionEntry *
lock_or_add(const LeElection *election)
{
	int			reserved = le_registry_reserve(election->declared);
	LeElectionEntry *entry = le_registry_lock_or_add_within(&election->key, election->name,
															election->declared,
															le_max_elections - reserved);

	if (entry == NULL)
		le_raise_server_full(reserved);
	return entry;
}

/*
 * Pin the entry, so that it stays in place, and return it
 *
 * le_registry_unpin undoes this.  Raises an error if another election with
 * the same key is in the way.  Call le_registry_charge before, unless the
 * number of pins is bounded anyway: a session stands in line for one
 * election only, and its terms are limited.
 */
LeElectionEntry *
le_registry_pin(const LeElection *election, LePin what)
{
	LeElectionEntry *entry;
	char		name[LE_TEXT_SIZE];
	bool		is_ours;

	entry = lock_or_add(election);
	strcpy(name, le_registry_string(entry->name));
	is_ours = strcmp(name, election->name) == 0;
	if (is_ours)
		pg_atomic_fetch_add_u32(&entry->pins[what], 1);
	le_registry_unlock_entry(entry);
	if (!is_ours)
		le_refuse_collision(election, name);
	return entry;
}

static void
count_down(pg_atomic_uint32 *counter)
{
	uint32		value = pg_atomic_read_u32(counter);

	while (value > 0 &&
		   !pg_atomic_compare_exchange_u32(counter, &value, value - 1))
		;
}

/*
 * Take a pin away, after which the entry may disappear at any time.  Needs no
 * lock, and never raises an error.
 */
void
le_registry_unpin(LeElectionEntry *entry, LePin what)
{
	bool		was_idle = entry->token == 0;

	Assert(pg_atomic_read_u32(&entry->pins[what]) > 0);
	pg_atomic_fetch_sub_u32(&entry->pins[what], 1);
	if (was_idle)
		count_down(&le_registry_counters()->pinned);
}

/*
 * Record when the last term of a vacant election ended, or may have ended,
 * without resignation, unless that is known already.  Return the time that is
 * recorded.
 *
 * The caller must hold the election's lock, which makes that time final: a
 * term that is lost and forgotten later belongs to another election.
 */
uint64
le_registry_fix_grace_from(const LeElection *election, uint64 grace_from)
{
	LeElectionEntry *entry = lock_or_add(election);

	Assert(le_has_lock(&election->key));
	if (entry->last_token == 0 && !entry->grace_from_known)
	{
		entry->grace_from = Max(entry->grace_from, grace_from);
		entry->grace_from_known = true;
	}
	grace_from = entry->grace_from;
	le_registry_unlock_entry(entry);
	return grace_from;
}
