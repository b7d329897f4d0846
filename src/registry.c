/*-------------------------------------------------------------------------
 *
 * registry.c
 *	  The registry: what the server's shared memory remembers of terms,
 *	  candidates and tokens.
 *
 * A lock of the lock manager says who leads; the registry holds what a lock
 * cannot hold: names, identities, tokens.  It lives in dynamic shared memory,
 * found through a small struct in the server's own, both made on first use, and
 * is empty after a restart.
 *
 * Three hash tables, each guarded by the LWLocks of its partitions: shared to
 * read an entry, exclusive to write, add or remove one.  Callers get copies, and
 * never an entry.  Beyond that:
 *
 *	terms		An entry with a token is written and removed only by a backend
 *				that holds the election's lock in the lock manager, before it
 *				lets go of it.  So whoever comes to hold the lock and finds a
 *				token has found a term whose lock went away behind its back, and
 *				may overwrite it; and whoever removes a term names its token, so
 *				that it never removes a successor's.
 *				An entry without a token is a bare key that somebody asked for:
 *				anybody may add or remove one.
 *	candidates	An entry is written and removed by its own backend only.
 *	tokens		One entry a database: the block that tokens come from.  token.c
 *				says how it is used.
 *
 * Order: a lock of the lock manager is taken before a partition lock, never
 * after, and nothing else is taken while one is held.  Under a partition lock
 * there is no catalog access, no allocation in private memory and no ereport.
 *
 * Every function that other files call may throw, and none may be called with an
 * LWLock held.  What throws is dshash itself, when it runs out of memory or cannot
 * map a segment that another backend has added.  It has changed nothing then, and
 * the server releases the LWLock on abort.  Where the server cannot bear an error,
 * at the end of a transaction, callers catch it (le_catching): a term that stays on
 * record without a lock misleads nobody.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/dsa.h"
#include "utils/memutils.h"

#include "leader_election.h"

/* How many bare keys without a term are remembered before a look at them */
#define LE_KNOWN_KEYS	1000

/* The struct in the server's own shared memory */
typedef struct LeControl
{
	/* written once, under AddinShmemInitLock */
	bool		ready;			/* are the tables there? */
	int			tranche_id;		/* 0 until first set up */
	dsa_handle	area;
	dshash_table_handle terms;
	dshash_table_handle candidates;
	dshash_table_handle token_blocks;

	/* atomic: how many bare keys were added since the last sweep */
	pg_atomic_uint32 keys_added;
} LeControl;

/* This backend's way to the registry; NULL until first used */
static LeControl *control = NULL;
static dshash_table *terms;
static dshash_table *candidates;
static dshash_table *token_blocks;

static dshash_parameters
term_parameters(void)
{
	return dshash_parameters_compat(sizeof(LeElectionKey), sizeof(LeTerm),
									control->tranche_id);
}

static dshash_parameters
candidate_parameters(void)
{
	return dshash_parameters_compat(sizeof(int), sizeof(LeCandidate),
									control->tranche_id);
}

static dshash_parameters
token_block_parameters(void)
{
	return dshash_parameters_compat(sizeof(Oid), sizeof(LeTokenBlock),
									control->tranche_id);
}

/*
 * Create the tables, and leave word of them when all are there
 *
 * If this fails half-way, the area goes with the failed transaction.
 */
static void
create_tables(void)
{
	dsa_area   *area = dsa_create(control->tranche_id);
	dshash_parameters params;

	params = term_parameters();
	terms = dshash_create(area, &params, NULL);
	params = candidate_parameters();
	candidates = dshash_create(area, &params, NULL);
	params = token_block_parameters();
	token_blocks = dshash_create(area, &params, NULL);

	dsa_pin(area);
	dsa_pin_mapping(area);
	control->terms = dshash_get_hash_table_handle(terms);
	control->candidates = dshash_get_hash_table_handle(candidates);
	control->token_blocks = dshash_get_hash_table_handle(token_blocks);
	control->area = dsa_get_handle(area);
	control->ready = true;
}

static void
attach_tables(void)
{
	dsa_area   *area = dsa_attach(control->area);
	dshash_parameters params;

	params = term_parameters();
	terms = dshash_attach(area, &params, control->terms, NULL);
	params = candidate_parameters();
	candidates = dshash_attach(area, &params, control->candidates, NULL);
	params = token_block_parameters();
	token_blocks = dshash_attach(area, &params, control->token_blocks, NULL);
	dsa_pin_mapping(area);
}

/*
 * Find the registry, or make it
 */
static void
attach(void)
{
	static bool attached = false;
	MemoryContext caller;
	bool		found;

	if (likely(attached))
		return;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	control = ShmemInitStruct("leader_election", sizeof(LeControl), &found);
	if (!found)
	{
		memset(control, 0, sizeof(LeControl));
		pg_atomic_init_u32(&control->keys_added, 0);
	}
	if (control->tranche_id == 0)
		control->tranche_id = LWLockNewTrancheId();
	LWLockRegisterTranche(control->tranche_id, "leader_election");

	/* what is made here lasts as long as the session */
	caller = MemoryContextSwitchTo(TopMemoryContext);
	if (control->ready)
		attach_tables();
	else
		create_tables();
	MemoryContextSwitchTo(caller);

	LWLockRelease(AddinShmemInitLock);
	attached = true;
}

/*
 * Copy the election's term; false when none is on record
 *
 * What is on record may be the term of a leader that has just lost its lock.
 */
bool
le_registry_read(const LeElectionKey *key, LeTerm *term)
{
	LeTerm	   *entry;

	attach();
	entry = dshash_find(terms, key, false);
	if (entry == NULL)
		return false;
	*term = *entry;
	dshash_release_lock(terms, entry);
	return term->token != 0;
}

/*
 * Count an entry that was added, if it is for a bare key
 */
static void
count_key(const LeElectionKey *key)
{
	if (key->lock_class == LE_CLASS_BARE_KEY)
		pg_atomic_fetch_add_u32(&control->keys_added, 1);
}

/*
 * Write down a term
 *
 * True when it took the place of a term whose lock had gone away behind its
 * back; that one is copied to stale.  The election's lock must be held.
 */
bool
le_registry_begin_term(const LeTerm *term, LeTerm *stale)
{
	LeTerm	   *entry;
	bool		found;
	bool		was_stale;

	attach();
	entry = dshash_find_or_insert(terms, &term->election, &found);
	was_stale = found && entry->token != 0;
	if (was_stale)
		*stale = *entry;
	*entry = *term;
	dshash_release_lock(terms, entry);
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
	LeTerm	   *entry;

	attach();
	entry = dshash_find(terms, key, true);
	if (entry == NULL)
		return false;
	if (entry->token != token)
	{
		dshash_release_lock(terms, entry);
		return false;
	}

	if (key->lock_class == LE_CLASS_BARE_KEY)
	{
		memset(entry, 0, sizeof(LeTerm));
		entry->election = *key;
		dshash_release_lock(terms, entry);
	}
	else
		dshash_delete_entry(terms, entry);
	return true;
}

/*
 * Change what the term with that token is bound to
 */
void
le_registry_set_scope(const LeElectionKey *key, int64 token, LeScope scope)
{
	LeTerm	   *entry;

	attach();
	entry = dshash_find(terms, key, true);
	if (entry == NULL)
		return;
	if (entry->token == token)
		entry->scope = scope;
	dshash_release_lock(terms, entry);
}

/*
 * Copy up to capacity terms or known bare keys to array; return how many match
 */
static int
copy_terms(LeTerm *array, int capacity, Oid database, bool without_token)
{
	dshash_seq_status status;
	LeTerm	   *entry;
	int			count = 0;

	dshash_seq_init(&status, terms, false);
	while ((entry = dshash_seq_next(&status)) != NULL)
	{
		if (OidIsValid(database) && entry->election.database != database)
			continue;
		if (without_token && entry->token != 0)
			continue;
		if (count < capacity)
			array[count] = *entry;
		count++;
	}
	dshash_seq_term(&status);
	return count;
}

/*
 * Copy the matching entries of the terms table to palloc'd memory
 *
 * The memory must be there before the table is locked, and the table may grow in
 * between: look again until it suffices.
 */
static LeTerm *
list_terms(Oid database, bool without_token, int *count)
{
	LeTerm	   *array = NULL;
	int			capacity = 0;

	attach();
	while ((*count = copy_terms(array, capacity, database, without_token)) > capacity)
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
 * Return copies of this database's terms, and of the bare keys that somebody
 * asked for, which have no token
 */
LeTerm *
le_registry_list_terms(int *count)
{
	return list_terms(MyDatabaseId, false, count);
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
	LeTerm	   *known = list_terms(InvalidOid, true, &count);

	for (int i = 0; i < count; i++)
	{
		LeElectionKey *key = &known[i].election;
		LOCKTAG		tag;
		LeTerm	   *entry;

		SET_LOCKTAG_ADVISORY(tag, key->database, (uint32) (key->key >> 32),
							 (uint32) key->key, LE_CLASS_BARE_KEY);
		if (LockWaiterCount(&tag) > 0)
			continue;
		entry = dshash_find(terms, key, true);
		if (entry == NULL)
			continue;
		if (entry->token == 0)
			dshash_delete_entry(terms, entry);
		else
			dshash_release_lock(terms, entry);
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
	LeTerm	   *entry;
	bool		found;

	if (election->key.lock_class != LE_CLASS_BARE_KEY)
		return;

	attach();
	entry = dshash_find(terms, &election->key, false);
	if (entry != NULL)
	{
		dshash_release_lock(terms, entry);
		return;
	}

	entry = dshash_find_or_insert(terms, &election->key, &found);
	if (!found)
	{
		memset(entry, 0, sizeof(LeTerm));
		entry->election = election->key;
	}
	dshash_release_lock(terms, entry);
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
	uint32		remembered;

	attach();
	remembered = pg_atomic_read_u32(&control->keys_added);
	if (remembered < LE_KNOWN_KEYS ||
		!pg_atomic_compare_exchange_u32(&control->keys_added,
										&remembered, 0))
		return;
	sweep_keys();
}

/*
 * Write down that this backend is about to wait in an election's lock queue
 */
void
le_registry_add_candidate(const LeCandidate *candidate)
{
	LeCandidate *entry;
	bool		found;

	attach();
	entry = dshash_find_or_insert(candidates, &candidate->pid, &found);
	*entry = *candidate;
	dshash_release_lock(candidates, entry);
}

/*
 * Remove this backend's entry, if there is one
 */
void
le_registry_remove_candidate(int pid)
{
	attach();
	(void) dshash_delete_key(candidates, &pid);
}

static int
copy_candidates(LeCandidate *array, int capacity)
{
	dshash_seq_status status;
	LeCandidate *entry;
	int			count = 0;

	dshash_seq_init(&status, candidates, false);
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
 * One that has been elected or has given up by now may be among them.
 */
LeCandidate *
le_registry_list_candidates(int *count)
{
	LeCandidate *array;

	/* there is at most one a backend */
	attach();
	array = palloc_array(LeCandidate, MaxBackends);
	*count = Min(copy_candidates(array, MaxBackends), MaxBackends);
	return array;
}

/*
 * Return the table of token blocks, for token.c
 */
dshash_table *
le_registry_token_blocks(void)
{
	attach();
	return token_blocks;
}
