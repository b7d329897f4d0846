/*-------------------------------------------------------------------------
 *
 * registry/registry.c
 *	  The registry: shared memory for terms, candidates and databases.
 *
 * A lock of the lock manager decides which session leads.  The registry holds
 * what a lock cannot hold: names, identities, tokens, and leases, which have
 * no lock.  It is in dynamic shared memory, which is found through a small
 * struct with a well-known name.  Both are created on first use, and are empty
 * after a restart.  A library of another version that finds the registry
 * raises an error and leaves it alone.
 *
 * There are four hash tables, each protected by the LWLocks of its partitions:
 * the shared lock suffices to read an entry, and the exclusive lock is needed
 * to write, add or remove one.  Callers get copies, and never an entry, with
 * the exceptions named here.  Beyond that:
 *
 *	elections	An entry for each known election, with its term, if one runs,
 *				and its statistics.  Any backend may add one.
 *				A term is written and removed only by a backend that holds the
 *				election's lock in the lock manager, before it releases that
 *				lock.  So a backend that acquires the lock and finds a token
 *				has found a term whose lock was released without the
 *				extension's knowledge, or a lease.  It may overwrite the
 *				former; the latter only once the lease has ended.  A backend
 *				that removes a term names its token, so that it never removes a
 *				successor's term.
 *				There are two exceptions.  Leases that are loaded after a
 *				restart are written by the backend that loads them, before any
 *				backend can hold a lock.  A backend that loads the leases of an
 *				extension that was created anew removes those of the previous
 *				one, which can neither be renewed nor taken any more.
 *				A lease is renewed and ended by any backend that has its token.
 *				Its deadline and renewals are atomic: the shared lock suffices
 *				to renew it, and the exclusive lock is needed to end it or to
 *				change its ttl.  A backend that finds a lease expired marks its
 *				deadline under the shared lock, so that it is not renewed any
 *				more, and may mark it as over under the exclusive lock.  That
 *				its row is void is recorded by a backend that holds the guard
 *				lock.
 *				The number of releases is atomic, and raised under the shared
 *				lock.  Candidates for many read it without an LWLock.
 *				A term whose lock was seen free is marked as lost, by any
 *				backend, under the exclusive lock.  It stays recorded until it
 *				is removed as above.
 *				The deadline of a session's term with a heartbeat is extended
 *				in the same way.  A session that finds a deadline passed, and
 *				holds the shared lock or pins the entry, marks the deadline:
 *				see registry/expiry.c.  A session that holds the shared lock
 *				marks the term as silent.  The session that runs the term reads
 *				its entry without an LWLock, and in a signal handler: token and
 *				deadline, which may be slightly out of date.
 *				An entry without a term may be removed (evicted) by any
 *				backend, unless it is pinned.
 *				A session pins an entry (LePin) under the exclusive lock, so
 *				that it stays in place.  The session then uses its address, and
 *				without an LWLock sleeps on its condition variable and takes
 *				the pin away.
 *				In the same way, the entry of an uncommitted lease stays in
 *				place for the transaction that took it, which holds the
 *				election's lock and sets deadline and ttl without an LWLock.
 *				The entry of a lease also stays in place for the first
 *				candidate in line.
 *				Denials, the time of the last one and the longest wait are
 *				atomic, and written under the shared lock.  The identity of the
 *				last denied bid is written under the exclusive lock, but read
 *				first: programs that poll mostly find their own.
 *	candidates	An entry is written and removed by its own backend only.
 *	databases	One entry per database, removed after the database was dropped,
 *				together with the entries of its elections.  See token.c,
 *				lease.c and wakeup.c for what they keep there.  The number of
 *				terms is atomic, and changed only by sessions of the database,
 *				or while it has none: see le_registry_forget_databases.
 *	roles		One entry per role for which elections count.  It points to a
 *				counter, which is atomic, and is raised under the shared lock.
 *				What it counts points there, too, and decreases it without
 *				that lock.  An entry whose counter is 0 may be removed by any
 *				backend: see limits.c.
 *
 * Lock order: a lock of the lock manager is acquired before a partition lock,
 * never after it.  While a partition lock is held, no other lock but the
 * area's own is acquired.  Under a partition lock there is no catalog access,
 * no allocation in private memory, and no ereport.
 *
 * Every function that other files call may raise an error, unless its comment
 * says that it never does, and none may be called with an LWLock held. The
 * errors come from dshash, when it runs out of memory or cannot map a segment
 * that another backend has added. It has changed nothing then, and the LWLock
 * is released before the error is told (le_run_released). At the end of a
 * transaction, where the server cannot handle an error, callers catch it
 * (le_run_safely). A term that then stays recorded without a lock does no
 * harm.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/twophase.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"

#include "registry/internal.h"

/*
 * The version of the registry: increase it with every change of its content,
 * or of what protects it
 */
#ifndef LE_REGISTRY_VERSION
#define LE_REGISTRY_VERSION 1
#endif

/*
 * The layout of the registry as the library that created it knows it
 *
 * The sizes reveal a change for which the version was not increased.
 */
typedef struct LeLayout
{
	uint32		version;
	uint32		control_size;
	uint32		entry_sizes[LE_REGISTRY_TABLES];
} LeLayout;

/* The struct through which the registry is found */
typedef struct LeControl
{
	LeLayout	layout;			/* of whatever version; must be first */

	/* written once, under AddinShmemInitLock */
	bool		ready;			/* do the tables exist? */
	int			tranche_id;		/* 0: not set up yet */
	dsa_handle	area;
	dshash_table_handle tables[LE_REGISTRY_TABLES];

	pg_atomic_uint64 primary_since; /* see le_registry_primary_since */
	pg_atomic_uint32 has_guards;	/* see le_registry_has_guards */
	LeCounters	counters;
} LeControl;

/* LeControl has the same size in every version */
#define LE_CONTROL_SIZE 512

StaticAssertDecl(sizeof(LeControl) <= LE_CONTROL_SIZE, "LeControl must not outgrow its place");

/* This backend's access to the registry, once it is attached */
static bool attached = false;
static LeControl *control = NULL;
static dsa_area *area;
static dshash_table *tables[LE_REGISTRY_TABLES];

/* The layout that this library uses */
static const LeLayout my_layout = {
	.version = LE_REGISTRY_VERSION,
	.control_size = sizeof(LeControl),
	.entry_sizes = {
		[LE_ELECTION_TABLE] = sizeof(LeElectionEntry),
		[LE_CANDIDATE_TABLE] = sizeof(LeCandidate),
		[LE_DATABASE_TABLE] = sizeof(LeDatabase),
		[LE_ROLE_TABLE] = sizeof(LeRole)
	}
};

static const size_t key_sizes[] = {
	[LE_ELECTION_TABLE] = sizeof(LeElectionKey),
	[LE_CANDIDATE_TABLE] = sizeof(int),
	[LE_DATABASE_TABLE] = sizeof(Oid),
	[LE_ROLE_TABLE] = sizeof(Oid)
};

static dshash_parameters
table_parameters(int table)
{
	return dshash_parameters_compat(key_sizes[table], my_layout.entry_sizes[table],
									control->tranche_id);
}

/*
 * Create the tables, and publish them once all exist
 *
 * If this fails half-way, the area is freed with the failed transaction.
 */
static void
create_tables(void)
{
	area = dsa_create(control->tranche_id);
	for (int i = 0; i < LE_REGISTRY_TABLES; i++)
	{
		dshash_parameters params = table_parameters(i);

		tables[i] = dshash_create(area, &params, NULL);
		control->tables[i] = dshash_get_hash_table_handle(tables[i]);
	}
	dsa_pin(area);
	dsa_pin_mapping(area);
	control->area = dsa_get_handle(area);
	control->ready = true;
}

static void
attach_tables(void)
{
	area = dsa_attach(control->area);
	for (int i = 0; i < LE_REGISTRY_TABLES; i++)
	{
		dshash_parameters params = table_parameters(i);

		tables[i] = dshash_attach(area, &params, control->tables[i], NULL);
	}
	dsa_pin_mapping(area);
}

static void
init_control(void *memory)
{
	LeControl  *new = memory;
	LeCounters *counters = &new->counters;

	memset(new, 0, LE_CONTROL_SIZE);
	new->layout = my_layout;
	pg_atomic_init_u64(&new->primary_since, 0);
	pg_atomic_init_u32(&new->has_guards, max_prepared_xacts > 0);
	pg_atomic_init_u32(&counters->elections, 0);
	pg_atomic_init_u32(&counters->terms, 0);
	pg_atomic_init_u32(&counters->pinned, 0);
	pg_atomic_init_u32(&counters->many, 0);
	pg_atomic_init_u32(&counters->roles_added, 0);
	pg_atomic_init_u64(&counters->evictions, 0);
	pg_atomic_init_u64(&counters->leases_over, 0);
}

/*
 * Raise an error if a library of another version has created the registry
 *
 * That happens if the library was replaced while the server runs.  Sessions
 * that have loaded the old one continue to use it.  Two registries would know
 * nothing of each other's leases.
 */
static void
check_layout(const LeLayout *layout)
{
	if (memcmp(layout, &my_layout, sizeof(LeLayout)) == 0)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the registry of elections was made by another version of leader_election"),
			 errdetail("The registry has version %u, and this session's library uses version %u.",
					   layout->version, my_layout.version),
			 errhint("Restart the server, so that all sessions use the same library.")));
}

/*
 * Attach to the registry, creating it if it does not exist, under the lock for
 * that
 */
static void
attach_locked(void)
{
	MemoryContext caller;

	control = GetNamedMemoryCompat("leader_election", LE_CONTROL_SIZE, init_control);
	check_layout(&control->layout);
	if (control->tranche_id == 0)
		control->tranche_id = LWLockNewTrancheIdCompat("leader_election");
	LWLockRegisterTrancheCompat(control->tranche_id, "leader_election");

	/* memory that is allocated here must last as long as the session */
	caller = MemoryContextSwitchTo(TopMemoryContext);
	if (control->ready)
		attach_tables();
	else
		create_tables();
	MemoryContextSwitchTo(caller);
}

static void
attach(void)
{
	if (likely(attached))
		return;
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	attach_locked();
	LWLockRelease(AddinShmemInitLock);
	attached = true;
}

dshash_table *
le_registry_table(LeRegistryTable table)
{
	if (unlikely(!attached))
		attach();
	return tables[table];
}

/*
 * Return the entry with this key, which is added if there is none, with its
 * partition locked
 */
void *
le_registry_insert(LeRegistryTable table, const void *key, bool *found)
{
	attach();
	return dshash_find_or_insert(tables[table], key, found);
}

/*
 * Allocate memory in the area.  Return an invalid pointer, or raise an error,
 * if there is none.
 */
dsa_pointer
le_registry_allocate(size_t size)
{
	attach();
	return dsa_allocate_extended(area, size, DSA_ALLOC_NO_OOM | DSA_ALLOC_HUGE);
}

/*
 * Return the election's entry with its partition locked, or NULL if there is
 * none
 */
LeElectionEntry *
le_registry_lock_entry(const LeElectionKey *key, bool exclusive)
{
	return dshash_find(le_registry_table(LE_ELECTION_TABLE), key, exclusive);
}

void
le_registry_unlock_entry(LeElectionEntry *entry)
{
	dshash_release_lock(le_registry_table(LE_ELECTION_TABLE), entry);
}

/*
 * Return the entry likewise if its term has the given token, else NULL
 */
LeElectionEntry *
le_registry_lock_term(const LeElectionKey *key, int64 token, bool exclusive)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, exclusive);

	if (entry == NULL || entry->token == token)
		return entry;
	le_registry_unlock_entry(entry);
	return NULL;
}

/*
 * Return the area that contains the tables
 */
dsa_area *
le_registry_area(void)
{
	attach();
	return area;
}

/*
 * Return the counters
 */
LeCounters *
le_registry_counters(void)
{
	if (unlikely(!attached))
		attach();
	return &control->counters;
}

/*
 * Raise an error because there is no shared memory left
 */
void
le_raise_registry_full(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OUT_OF_MEMORY),
			 errmsg("out of shared memory"),
			 errdetail("The registry of elections has no room left.")));
}

/*
 * Return when the registry was first used by a server that is not a standby,
 * in any database, by le_monotonic_us
 *
 * The server was started or promoted before that.  No clock that cannot be set
 * tells when.
 */
uint64
le_registry_primary_since(void)
{
	uint64		since = 0;
	uint64		now = le_monotonic_us();

	Assert(!RecoveryInProgress());
	attach();
	if (pg_atomic_compare_exchange_u64(&control->primary_since, &since, now))
		return now;
	return since;
}

/*
 * Record that a transaction is about to be guarded
 */
void
le_registry_mark_guarded(void)
{
	attach();
	if (pg_atomic_read_u32(&control->has_guards) == 0)
		pg_atomic_write_u32(&control->has_guards, 1);
	pg_memory_barrier();
}

/*
 * Check whether a transaction may have been guarded since the server started.
 * If transactions can be prepared, one from before the start may still exist,
 * so the answer is always true.
 */
bool
le_registry_has_guards(void)
{
	attach();
	pg_memory_barrier();
	return pg_atomic_read_u32(&control->has_guards) != 0;
}

/*
 * Copy a string to shared memory.  Return false if there is no memory left.
 */
bool
le_registry_store_string(const char *string, dsa_pointer *stored)
{
	size_t		size = strlen(string) + 1;

	*stored = le_registry_allocate(size);
	if (!DsaPointerIsValid(*stored))
		return false;
	memcpy(dsa_get_address(area, *stored), string, size);
	return true;
}

/*
 * Return a string in shared memory, or an empty string for none
 */
const char *
le_registry_string(dsa_pointer stored)
{
	return DsaPointerIsValid(stored) ? dsa_get_address(area, stored) : "";
}

/*
 * Free something in shared memory, if there is any, and invalidate the pointer
 */
void
le_registry_free(dsa_pointer *stored)
{
	if (DsaPointerIsValid(*stored))
		dsa_free(area, *stored);
	*stored = InvalidDsaPointer;
}

/*
 * Return rows that are made of a table's entries, in palloc'd memory
 *
 * The function returns whether the entry is among them, and fills in the row,
 * unless that is NULL.  It is called while the table is locked, so the memory
 * must be allocated before that.  As the table may grow in between, look again
 * until the memory suffices.
 */
void *
le_registry_list(dshash_table *table, size_t row_size, bool (*copy) (void *entry, void *row),
				 int *count)
{
	int			capacity = 8;

	for (;;)
	{
		char	   *rows = MemoryContextAllocHuge(CurrentMemoryContext, capacity * row_size);
		dshash_seq_status status;
		void	   *entry;

		*count = 0;
		dshash_seq_init(&status, table, false);
		while ((entry = dshash_seq_next(&status)) != NULL)
		{
			if (copy(entry, *count < capacity ? rows + *count * row_size : NULL))
				(*count)++;
		}
		dshash_seq_term(&status);
		if (*count <= capacity)
			return rows;
		pfree(rows);
		capacity = *count + *count / 4;
	}
}
