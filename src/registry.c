/*-------------------------------------------------------------------------
 *
 * registry.c
 *	  The registry: what the server's shared memory remembers of terms,
 *	  candidates and databases.
 *
 * A lock of the lock manager says who leads; the registry holds what a lock
 * cannot hold: names, identities, tokens, and leases, which have no lock.  It lives
 * in dynamic shared memory, found through a small struct in the server's own, both
 * made on first use, and is empty after a restart.
 *
 * Three hash tables, each guarded by the LWLocks of its partitions: shared to
 * read an entry, exclusive to write, add or remove one.  Callers get copies, and
 * never an entry, with the exceptions named here.  Beyond that:
 *
 *	terms		An entry with a token is written and removed only by a backend
 *				that holds the election's lock in the lock manager, before it
 *				lets go of it.  So whoever comes to hold the lock and finds a
 *				token has found a term whose lock went away behind its back, or
 *				a lease; the former it may overwrite, the latter only when it is
 *				over.  Whoever removes a term names its token, so that it never
 *				removes a successor's.
 *				(Leases that are loaded after a restart are written by whoever
 *				loads them, before anybody can hold a lock.)
 *				An entry without a token is a bare key that somebody asked for:
 *				anybody may add or remove one.
 *				A lease is renewed and ended by whoever has its token.  Its
 *				deadline and renewals are atomic: to renew it, the shared lock
 *				is enough; to end it or to change its ttl takes the exclusive
 *				one.  Who renews has read the clock under the shared lock; so a
 *				lease that has run out is over only when it has been marked as
 *				over, under the exclusive one.  Nothing revives it then.
 *				Of an uncommitted lease, the transaction that took it has the
 *				address, and sets deadline and ttl without an LWLock: it holds the
 *				election's lock, so that the entry stays.  In the same way the
 *				first candidate in line sleeps on a lease's condition variable.
 *	candidates	An entry is written and removed by its own backend only.
 *	databases	One entry a database, never removed.  token.c and lease.c say
 *				what they keep there.
 *
 * Order: a lock of the lock manager is taken before a partition lock, never
 * after, and no lock but the area's own is taken while one is held.  Under a
 * partition lock there is no catalog access, no allocation in private memory and
 * no ereport.
 *
 * Every function that other files call may throw, unless it says that it does not,
 * and none may be called with an LWLock held.  What throws is dshash itself, when
 * it runs out of memory or cannot map a segment that another backend has added.
 * It has changed nothing then, and the server releases the LWLock on abort.  Where
 * the server cannot bear an error, at the end of a transaction, callers catch it
 * (le_catching): a term that stays on record without a lock misleads nobody.
 *
 * registry_terms.c has what is done with the terms.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

#include "leader_election.h"

/* The struct in the server's own shared memory */
typedef struct LeControl
{
	/* written once, under AddinShmemInitLock */
	bool		ready;			/* are the tables there? */
	int			tranche_id;		/* 0 until first set up */
	dsa_handle	area;
	dshash_table_handle terms;
	dshash_table_handle candidates;
	dshash_table_handle databases;

	/* atomic: how many bare keys were added since the last sweep */
	pg_atomic_uint32 keys_added;
} LeControl;

/* This backend's way to the registry; NULL until first used */
static LeControl *control = NULL;
static dsa_area *area;
static dshash_table *terms;
static dshash_table *candidates;
static dshash_table *databases;

static dshash_parameters
term_parameters(void)
{
	return dshash_parameters_compat(sizeof(LeElectionKey), sizeof(LeTermEntry),
									control->tranche_id);
}

static dshash_parameters
candidate_parameters(void)
{
	return dshash_parameters_compat(sizeof(int), sizeof(LeCandidate),
									control->tranche_id);
}

static dshash_parameters
database_parameters(void)
{
	return dshash_parameters_compat(sizeof(Oid), sizeof(LeDatabase),
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
	dshash_parameters params;

	area = dsa_create(control->tranche_id);
	params = term_parameters();
	terms = dshash_create(area, &params, NULL);
	params = candidate_parameters();
	candidates = dshash_create(area, &params, NULL);
	params = database_parameters();
	databases = dshash_create(area, &params, NULL);

	dsa_pin(area);
	dsa_pin_mapping(area);
	control->terms = dshash_get_hash_table_handle(terms);
	control->candidates = dshash_get_hash_table_handle(candidates);
	control->databases = dshash_get_hash_table_handle(databases);
	control->area = dsa_get_handle(area);
	control->ready = true;
}

static void
attach_tables(void)
{
	dshash_parameters params;

	area = dsa_attach(control->area);
	params = term_parameters();
	terms = dshash_attach(area, &params, control->terms, NULL);
	params = candidate_parameters();
	candidates = dshash_attach(area, &params, control->candidates, NULL);
	params = database_parameters();
	databases = dshash_attach(area, &params, control->databases, NULL);
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
 * Return the area that the tables are in
 */
dsa_area *
le_registry_area(void)
{
	attach();
	return area;
}

/*
 * Return the table of terms, for registry_terms.c
 */
dshash_table *
le_registry_term_table(void)
{
	attach();
	return terms;
}

/*
 * Return this database's entry with its partition locked
 *
 * To be given back by le_registry_unlock_database, with nothing but reading and
 * writing it in between.
 */
LeDatabase *
le_registry_lock_database(bool exclusive)
{
	LeDatabase *entry;
	bool		found;

	attach();
	entry = dshash_find(databases, &MyDatabaseId, exclusive);
	if (entry != NULL)
		return entry;

	/* an entry that was just added is locked exclusively, which will do, too */
	entry = dshash_find_or_insert(databases, &MyDatabaseId, &found);
	if (!found)
	{
		memset(entry, 0, sizeof(LeDatabase));
		entry->database = MyDatabaseId;
		entry->next = entry->end = 1;
		pg_atomic_init_u32(&entry->leases_begun, 0);
		pg_atomic_init_u32(&entry->sweep_after, 0);
	}
	return entry;
}

void
le_registry_unlock_database(LeDatabase *entry)
{
	dshash_release_lock(databases, entry);
}

/*
 * Return the counter of the bare keys that were added, for registry_terms.c
 */
pg_atomic_uint32 *
le_registry_keys_added(void)
{
	attach();
	return &control->keys_added;
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
