/*-------------------------------------------------------------------------
 *
 * registry_terms.c
 *	  The terms in the registry: to read, begin, renew, end and list them.
 *
 * registry.c says which locks protect what.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "leader_election.h"

/* How many bare keys without a term are remembered before a look at them */
#define LE_KNOWN_KEYS	1000

/*
 * Return the entry of the election, with its partition locked; NULL if none
 */
LeTermEntry *
le_registry_lock_entry(const LeElectionKey *key, bool exclusive)
{
	return dshash_find(le_registry_term_table(), key, exclusive);
}

void
le_registry_unlock_entry(LeTermEntry *entry)
{
	dshash_release_lock(le_registry_term_table(), entry);
}

/*
 * Make an entry one of a bare key that somebody asked for
 */
static void
clear_entry(LeTermEntry *entry)
{
	LeElectionKey key = entry->election;

	memset(entry, 0, sizeof(LeTermEntry));
	entry->election = key;
	entry->strings = InvalidDsaPointer;
}

static void
free_strings(dsa_pointer strings)
{
	if (DsaPointerIsValid(strings))
		dsa_free(le_registry_area(), strings);
}

/*
 * Put the term's identity and name into shared memory; false if there is none left
 */
static bool
store_strings(const LeTerm *term, dsa_pointer *strings)
{
	size_t		identity_size = strlen(term->identity.string) + 1;
	size_t		name_size = strlen(term->name) + 1;
	dsa_area   *area = le_registry_area();
	char	   *address;

	*strings = dsa_allocate_extended(area, identity_size + name_size,
									 DSA_ALLOC_NO_OOM);
	if (!DsaPointerIsValid(*strings))
		return false;
	address = dsa_get_address(area, *strings);
	memcpy(address, term->identity.string, identity_size);
	memcpy(address + identity_size, term->name, name_size);
	return true;
}

/*
 * Return the entry's name, which stays where it is while the partition is locked
 */
const char *
le_registry_entry_name(const LeTermEntry *entry)
{
	const char *strings;

	if (!DsaPointerIsValid(entry->strings))
		return "";
	strings = dsa_get_address(le_registry_area(), entry->strings);
	return strings + strlen(strings) + 1;
}

static void
copy_entry(LeTerm *term, LeTermEntry *entry)
{
	const char *identity = "";

	if (DsaPointerIsValid(entry->strings))
		identity = dsa_get_address(le_registry_area(), entry->strings);

	term->election = entry->election;
	term->token = entry->token;
	term->scope = entry->scope;
	term->pid = entry->pid;
	term->role = entry->role;
	term->lease_table = entry->lease_table;
	term->since = entry->since;
	if (entry->scope == LE_SCOPE_LEASE)
	{
		term->ttl_us = entry->lease.ttl_us;
		term->deadline = pg_atomic_read_u64(&entry->lease.deadline);
		term->renewals = pg_atomic_read_u64(&entry->lease.renewals);
	}
	term->identity.has_client = entry->identity_has_client;
	strcpy(term->identity.string, identity);
	strcpy(term->name, le_registry_entry_name(entry));
}

/*
 * Copy the election's term; false when none is on record
 *
 * What is on record may be the term of a leader that has just lost its lock, or a
 * lease that is over.
 */
bool
le_registry_read(const LeElectionKey *key, LeTerm *term)
{
	LeTermEntry *entry = le_registry_lock_entry(key, false);

	if (entry == NULL)
		return false;
	if (entry->token == 0)
	{
		le_registry_unlock_entry(entry);
		return false;
	}
	copy_entry(term, entry);
	le_registry_unlock_entry(entry);
	return true;
}

/*
 * Count an entry that was added, if it is for a bare key
 */
static void
count_key(const LeElectionKey *key)
{
	if (key->lock_class == LE_CLASS_BARE_KEY)
		pg_atomic_fetch_add_u32(le_registry_keys_added(), 1);
}

static void
fill_entry(LeTermEntry *entry, const LeTerm *term, dsa_pointer strings)
{
	entry->token = term->token;
	entry->scope = term->scope;
	entry->pid = term->pid;
	entry->role = term->role;
	entry->lease_table = term->lease_table;
	entry->since = term->since;
	if (term->scope == LE_SCOPE_LEASE)
	{
		entry->lease.ttl_us = term->ttl_us;
		pg_atomic_init_u64(&entry->lease.deadline, term->deadline);
		pg_atomic_init_u64(&entry->lease.renewals, term->renewals);
		ConditionVariableInit(&entry->lease.ended);
	}
	entry->identity_has_client = term->identity.has_client;
	entry->strings = strings;
}

/*
 * Write down a term
 *
 * True when it took the place of a term whose lock had gone away behind its
 * back; that one is copied to stale.  *lease, unless NULL, is set to where the
 * registry keeps what changes of a lease.  The election's lock must be held, and no
 * lease may run.
 */
bool
le_registry_begin_term(const LeTerm *term, LeTerm *stale, LeLease **lease)
{
	dshash_table *table = le_registry_term_table();
	LeTermEntry *entry;
	dsa_pointer strings;
	dsa_pointer old_strings;
	bool		found;
	bool		was_stale;

	entry = dshash_find_or_insert(table, &term->election, &found);
	if (!found)
		clear_entry(entry);
	if (!store_strings(term, &strings))
	{
		if (found)
			dshash_release_lock(table, entry);
		else
			dshash_delete_entry(table, entry);
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of shared memory"),
				 errdetail("The registry of elections has no room for another term.")));
	}

	was_stale = entry->token != 0;
	if (was_stale)
		copy_entry(stale, entry);
	old_strings = entry->strings;
	fill_entry(entry, term, strings);
	if (lease != NULL)
		*lease = &entry->lease;
	dshash_release_lock(table, entry);

	free_strings(old_strings);
	if (!found)
		count_key(&term->election);
	return was_stale;
}

/*
 * Remove the term with that token; false when it was not on record any more
 *
 * A bare key stays known.  To be called before the election's lock is let go; where
 * it has gone already, the token keeps a successor's term safe.
 */
bool
le_registry_end_term(const LeElectionKey *key, int64 token)
{
	LeTermEntry *entry = le_registry_lock_entry(key, true);
	dsa_pointer strings;

	if (entry == NULL)
		return false;
	if (entry->token != token)
	{
		le_registry_unlock_entry(entry);
		return false;
	}

	strings = entry->strings;
	if (key->lock_class == LE_CLASS_BARE_KEY)
	{
		clear_entry(entry);
		le_registry_unlock_entry(entry);
	}
	else
		dshash_delete_entry(le_registry_term_table(), entry);
	free_strings(strings);
	return true;
}

/*
 * Change what the term with that token is bound to
 */
void
le_registry_set_scope(const LeElectionKey *key, int64 token, LeScope scope)
{
	LeTermEntry *entry = le_registry_lock_entry(key, true);

	if (entry == NULL)
		return;
	if (entry->token == token)
		entry->scope = scope;
	le_registry_unlock_entry(entry);
}

typedef bool (*LeTermFilter) (LeTermEntry *entry);

static bool
is_of_this_database(LeTermEntry *entry)
{
	return entry->election.database == MyDatabaseId;
}

static bool
has_no_token(LeTermEntry *entry)
{
	return entry->token == 0;
}

static bool
is_lease(LeTermEntry *entry)
{
	return is_of_this_database(entry) && entry->token != 0 &&
		entry->scope == LE_SCOPE_LEASE;
}

static bool
is_over(LeLease *lease)
{
	uint64		deadline = pg_atomic_read_u64(&lease->deadline);

	return deadline != LE_DEADLINE_UNCOMMITTED && deadline <= le_monotonic_us();
}

/*
 * Copy up to capacity entries that pass the filter to array; return how many do
 */
static int
copy_terms(LeTerm *array, int capacity, LeTermFilter passes)
{
	dshash_seq_status status;
	LeTermEntry *entry;
	int			count = 0;

	dshash_seq_init(&status, le_registry_term_table(), false);
	while ((entry = dshash_seq_next(&status)) != NULL)
	{
		if (!passes(entry))
			continue;
		if (count < capacity)
			copy_entry(&array[count], entry);
		count++;
	}
	dshash_seq_term(&status);
	return count;
}

/*
 * Copy the entries that pass the filter to palloc'd memory
 *
 * The memory must be there before the table is locked, and the table may grow in
 * between: look again until it suffices.
 */
static LeTerm *
list_terms(LeTermFilter passes, int *count)
{
	LeTerm	   *array = NULL;
	int			capacity = 0;

	while ((*count = copy_terms(array, capacity, passes)) > capacity)
	{
		capacity = *count + *count / 4 + 8;
		if (array != NULL)
			pfree(array);
		array = MemoryContextAllocHuge(CurrentMemoryContext,
									   capacity * sizeof(LeTerm));
	}
	return array;
}

/*
 * Return copies of this database's terms, of its leases that are over, and of the
 * bare keys that somebody asked for, which have no token
 */
LeTerm *
le_registry_list_terms(int *count)
{
	return list_terms(is_of_this_database, count);
}

/*
 * Copy up to capacity of this database's leases that are over to array; return how
 * many.  *leases is set to the number of all leases
 *
 * If there are more, any of them: some may be such that nothing can be done about
 * them for now, and they must not stand in the way of the others.
 */
int
le_registry_list_ended_leases(LeTerm *array, int capacity, uint32 *leases)
{
	dshash_seq_status status;
	LeTermEntry *entry;
	int			count = 0;

	*leases = 0;
	dshash_seq_init(&status, le_registry_term_table(), false);
	while ((entry = dshash_seq_next(&status)) != NULL)
	{
		uint64		place = count;

		if (!is_lease(entry))
			continue;
		(*leases)++;
		if (!is_over(&entry->lease))
			continue;
		if (count >= capacity)
			place = pg_prng_uint64_range(&pg_global_prng_state, 0, count);
		if (place < (uint64) capacity)
			copy_entry(&array[place], entry);
		count++;
	}
	dshash_seq_term(&status);
	return Min(count, capacity);
}

/*
 * Begin the leases that were loaded from the table; return how many there are
 *
 * All at once, when the last of them is there: nobody can renew the first one before.
 */
int
le_registry_start_loaded(Oid lease_table)
{
	dshash_seq_status status;
	LeTermEntry *entry;
	uint64		now = le_monotonic_us();
	int			count = 0;

	dshash_seq_init(&status, le_registry_term_table(), true);
	while ((entry = dshash_seq_next(&status)) != NULL)
	{
		LeLease    *lease = &entry->lease;

		if (!is_lease(entry) || entry->lease_table != lease_table ||
			pg_atomic_read_u64(&lease->deadline) != LE_DEADLINE_UNCOMMITTED)
			continue;
		pg_atomic_write_u64(&lease->deadline, now + lease->ttl_us);
		count++;
	}
	dshash_seq_term(&status);
	return count;
}

/*
 * Forget the bare keys that nobody holds or waits for
 *
 * What remains is at most what the lock table holds.
 */
static void
sweep_keys(void)
{
	int			count;
	LeTerm	   *known = list_terms(has_no_token, &count);

	for (int i = 0; i < count; i++)
	{
		LeElectionKey *key = &known[i].election;
		LOCKTAG		tag;
		LeTermEntry *entry;

		SET_LOCKTAG_ADVISORY(tag, key->database, (uint32) (key->key >> 32),
							 (uint32) key->key, LE_CLASS_BARE_KEY);
		if (LockWaiterCount(&tag) > 0)
			continue;
		entry = le_registry_lock_entry(key, true);
		if (entry == NULL)
			continue;
		if (entry->token == 0)
			dshash_delete_entry(le_registry_term_table(), entry);
		else
			le_registry_unlock_entry(entry);
	}
	if (known != NULL)
		pfree(known);
}

/*
 * Remember that somebody asked for this bare key, so that le_leaders shows it
 */
void
le_registry_remember_key(const LeElection *election)
{
	LeTermEntry *entry;
	bool		found;

	if (election->key.lock_class != LE_CLASS_BARE_KEY)
		return;

	entry = le_registry_lock_entry(&election->key, false);
	if (entry != NULL)
	{
		le_registry_unlock_entry(entry);
		return;
	}

	entry = dshash_find_or_insert(le_registry_term_table(), &election->key, &found);
	if (!found)
		clear_entry(entry);
	le_registry_unlock_entry(entry);
	if (!found)
		count_key(&election->key);
}

/*
 * Keep the number of bare keys in the registry within bounds
 *
 * Called when no lock is held that matters to others.
 */
void
le_registry_bound_keys(void)
{
	pg_atomic_uint32 *added = le_registry_keys_added();
	uint32		remembered = pg_atomic_read_u32(added);

	if (remembered < LE_KNOWN_KEYS ||
		!pg_atomic_compare_exchange_u32(added, &remembered, 0))
		return;
	sweep_keys();
}
