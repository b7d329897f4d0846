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
 *	tokens		One entry a database: the block that tokens come from.  next and
 *				end only grow, whatever sequence they come from.
 *
 * Order: a lock of the lock manager is taken before a partition lock, never
 * after; never two partition locks at a time.  Under a partition lock there is
 * no catalog access, no allocation in private memory and no ereport.  What can
 * throw there is dshash itself, when it is out of memory, and then it has
 * changed nothing; the server releases the LWLock on abort.
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

/* The struct in the server's own shared memory; protected by AddinShmemInitLock */
typedef struct LeControl
{
	bool		ready;			/* are the tables there? */
	int			tranche_id;		/* 0 until first set up */
	dsa_handle	area;
	dshash_table_handle terms;
	dshash_table_handle candidates;
	dshash_table_handle tokens;
	pg_atomic_uint32 keys_remembered;	/* since the last sweep */
} LeControl;

/* The block that a database's tokens come from */
typedef struct LeTokenBlock
{
	Oid			database;		/* hash key; must be first */
	Oid			sequence;		/* the sequence it was drawn from */
	int64		next;
	int64		end;			/* exclusive */
} LeTokenBlock;

/* This backend's way to the registry; NULL until first used */
static LeControl *control = NULL;
static dshash_table *terms;
static dshash_table *candidates;
static dshash_table *tokens;

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
token_parameters(void)
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
	params = token_parameters();
	tokens = dshash_create(area, &params, NULL);

	dsa_pin(area);
	dsa_pin_mapping(area);
	control->terms = dshash_get_hash_table_handle(terms);
	control->candidates = dshash_get_hash_table_handle(candidates);
	control->tokens = dshash_get_hash_table_handle(tokens);
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
	params = token_parameters();
	tokens = dshash_attach(area, &params, control->tokens, NULL);
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
		pg_atomic_init_u32(&control->keys_remembered, 0);
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

	attach();
	entry = dshash_find_or_insert(terms, &term->election, &found);
	found = found && entry->token != 0;
	if (found)
		*stale = *entry;
	*entry = *term;
	dshash_release_lock(terms, entry);
	return found;
}

/*
 * Remove the term with that token; false when it was not on record any more
 *
 * A bare key stays known.  While the session still has the election's lock, it
 * must hold it; where it has lost it, the token keeps a successor's term safe.
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
		pg_atomic_fetch_add_u32(&control->keys_remembered, 1);
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
		pg_atomic_fetch_add_u32(&control->keys_remembered, 1);
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
	remembered = pg_atomic_read_u32(&control->keys_remembered);
	if (remembered < LE_KNOWN_KEYS ||
		!pg_atomic_compare_exchange_u32(&control->keys_remembered,
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
 * Take the next token of the block; false when the block is used up, or was
 * drawn from another sequence
 */
bool
le_registry_take_token(Oid sequence, int64 *token)
{
	LeTokenBlock *block;
	bool		taken = false;

	attach();
	block = dshash_find(tokens, &MyDatabaseId, true);
	if (block == NULL)
		return false;
	if (block->sequence == sequence && block->next < block->end)
	{
		*token = block->next++;
		taken = true;
	}
	dshash_release_lock(tokens, block);
	return taken;
}

/*
 * Return the greatest token that may have been handed out since the server
 * started, 0 if none was
 */
int64
le_registry_token_floor(void)
{
	LeTokenBlock *block;
	int64		floor;

	attach();
	block = dshash_find(tokens, &MyDatabaseId, false);
	if (block == NULL)
		return 0;
	floor = block->end - 1;
	dshash_release_lock(tokens, block);
	return floor;
}

/*
 * Hand out tokens from this block from now on
 *
 * The caller holds the lock on the sequence under which it drew the block.
 */
void
le_registry_offer_tokens(Oid sequence, int64 first, int64 end)
{
	LeTokenBlock *block;
	bool		found;

	attach();
	block = dshash_find_or_insert(tokens, &MyDatabaseId, &found);
	Assert(!found || first >= block->end);
	block->sequence = sequence;
	block->next = first;
	block->end = end;
	dshash_release_lock(tokens, block);
}
