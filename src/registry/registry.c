/*-------------------------------------------------------------------------
 *
 * registry/registry.c
 *	  The registry: what the server's shared memory remembers of terms,
 *	  candidates and databases.
 *
 * A lock of the lock manager says who leads; the registry holds what a lock
 * cannot hold: names, identities, tokens, and leases, which have no lock.  It lives
 * in dynamic shared memory, found through a small struct of a well-known name, both
 * made on first use, and is empty after a restart.  A library of another version that
 * finds it leaves it alone.
 *
 * Four hash tables, each guarded by the LWLocks of its partitions: shared to
 * read an entry, exclusive to write, add or remove one.  Callers get copies, and
 * never an entry, with the exceptions named here.  Beyond that:
 *
 *	elections	An entry for each election that was heard of, with its term, if one
 *				runs, and what is counted of it.  Anybody may add one.
 *				A term is written and removed only by a backend that holds the
 *				election's lock in the lock manager, before it lets go of it.  So
 *				whoever comes to hold the lock and finds a token has found a term
 *				whose lock went away behind its back, or a lease; the former it may
 *				overwrite, the latter only when it is over.  Whoever removes a term
 *				names its token, so that it never removes a successor's.
 *				(Leases that are loaded after a restart are written by whoever
 *				loads them, before anybody can hold a lock.  And whoever loads
 *				those of an extension that was created anew removes those of the
 *				one before, which nobody can renew or take any more.)
 *				A lease is renewed and ended by whoever has its token.  Its
 *				deadline and renewals are atomic: to renew it, the shared lock
 *				is enough; to end it or to change its ttl takes the exclusive
 *				one.  Who renews has read the clock under the shared lock; so a
 *				lease that has run out is over only when it has been marked as
 *				over, under the exclusive one.  Nothing revives it then.  Anybody
 *				may mark it who finds that it has run out.  That its row is void is noted
 *				by a backend that holds the guard lock.
 *				A term whose lock was seen free is marked as lost, by any backend, under
 *				the exclusive lock; it stays on record until it is removed as above.
 *				The deadline of a session's term with a heartbeat is put off in the same way.
 *				Any session that finds it passed, with the shared lock, or with an entry that it
 *				watches, marks the term as silent, see registry/heartbeats.c.  The session
 *				that runs the term looks at its entry without an LWLock, and in a signal
 *				handler: at token, deadline, and watchers, which may be a moment old then.
 *				An entry without a term may be removed by anybody (evicted), unless
 *				it is watched, or its election is declared.  So may,
 *				from other databases, the entry of a lease whose deadline has passed
 *				(see below).  Watchers (LeWatcher) count themselves in and out
 *				under the exclusive lock, so that it stays where it is, and sleep on
 *				its condition variable without an LWLock.  In the same way the entry
 *				of an uncommitted lease stays where it is for the transaction that
 *				took it and holds the election's lock, and sets deadline and ttl
 *				without an LWLock; and that of a lease for the first candidate in line.
 *				A vacant entry that is forgotten on demand is hidden if it tells of a
 *				grace period, and shown again by le_registry_lock_or_add.
 *				Denials and the longest wait are atomic and counted under the shared
 *				lock.
 *	candidates	An entry is written and removed by its own backend only.
 *	databases	One entry a database, removed when the database was dropped, and with
 *				it the entries of its elections.  token.c, lease.c and follow.c
 *				say what they keep there.
 *	roles		One entry a role that has ever been counted, never removed.  It leads to
 *				a counter, which is atomic.  The entry of a lease has a pointer to
 *				the counter that it is counted in.
 *
 * Leases that are evicted.  Once a database's leases have been loaded, each lease whose row
 * is committed and not void durably has an entry with its token (lease.c).  An election
 * without one is free.  Eviction breaks that: the entry goes, and the row may not be void,
 * or a failover may bring it back.  So
 * the database is marked before (leases_evicted), and a session that is about to lead and
 * finds no term looks for new marks, after it has looked for the term.  The first that finds
 * one reads the table again, and puts what is missing on record, as over.  Then the row
 * is made void, durably, before anybody leads.  A mark is good until a session begins to read a table
 * again: which entries that session has seen already, nobody knows.  So it counts up
 * (reloads), then looks for entries; and an entry is removed only if nothing was
 * counted since the mark, which is checked under the entry's exclusive lock.
 * Whoever waits for the end of a lease has the election's lock, and keeps the entry:
 * the lock manager is asked for that under the entry's lock, too.
 *
 * Order: a lock of the lock manager is taken before a partition lock, never
 * after, and no lock but the area's own is taken while one is held; but to evict an
 * entry, the lock manager is asked whether its lock is free, which never waits for
 * one of these.  Under a partition lock there is no catalog access, no allocation in private memory and
 * no ereport.
 *
 * Every function that other files call may throw, unless it says that it does not,
 * and none may be called with an LWLock held.  What throws is dshash itself, when
 * it runs out of memory or cannot map a segment that another backend has added.
 * It has changed nothing then, and the server releases the LWLock on abort.  Where
 * the server cannot bear an error, at the end of a transaction, callers catch it
 * (le_run_safely): a term that stays on record without a lock misleads nobody.
 *
 * registry/entry.c has what is done with one entry of an election, registry/elections.c how
 * entries come and stay, registry/eviction.c how they go, registry/databases.c what is kept
 * for each database, registry/terms.c and registry/leases.c what is done with their terms,
 * registry/news.c what is not announced of them yet, registry/candidates.c what is
 * done with candidates, and registry/stats.c what is counted.
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
 * The version of the registry: to be counted up with every change of what is in it,
 * and of what protects it
 */
#ifndef LE_REGISTRY_VERSION
#define LE_REGISTRY_VERSION 1
#endif

/*
 * How the library that has made the registry lays it out
 *
 * Sizes tell of a change for which nobody has counted up the version.
 */
typedef struct LeLayout
{
	uint32		version;
	uint32		control_size;
	uint32		election_size;
	uint32		candidate_size;
	uint32		database_size;
	uint32		role_size;
} LeLayout;

/* The struct by which the registry is found */
typedef struct LeControl
{
	LeLayout	layout;			/* of whatever version this is; must be first */

	/* written once, under AddinShmemInitLock */
	bool		ready;			/* are the tables there? */
	int			tranche_id;		/* 0 until first set up */
	dsa_handle	area;
	dshash_table_handle elections;
	dshash_table_handle candidates;
	dshash_table_handle databases;
	dshash_table_handle roles;

	pg_atomic_uint64 lease_evictions;	/* marks that leases were evicted */
	pg_atomic_uint64 reloads;	/* of tables whose leases were evicted */
	pg_atomic_uint64 primary_since; /* see le_registry_primary_since */
	pg_atomic_uint32 has_guards;	/* see le_registry_has_guards */
	LeCounters	counters;
} LeControl;

/* It has the same size in every version */
#define LE_CONTROL_SIZE 512

StaticAssertDecl(sizeof(LeControl) <= LE_CONTROL_SIZE, "LeControl must not outgrow its place");

/* This backend's way to the registry; NULL until first used */
static LeControl *control = NULL;
static dsa_area *area;
static dshash_table *elections;
static dshash_table *candidates;
static dshash_table *databases;
static dshash_table *roles;

static dshash_parameters
election_parameters(void)
{
	return dshash_parameters_compat(sizeof(LeElectionKey), sizeof(LeElectionEntry),
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

static dshash_parameters
role_parameters(void)
{
	return dshash_parameters_compat(sizeof(Oid), sizeof(LeRole), control->tranche_id);
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
	params = election_parameters();
	elections = dshash_create(area, &params, NULL);
	params = candidate_parameters();
	candidates = dshash_create(area, &params, NULL);
	params = database_parameters();
	databases = dshash_create(area, &params, NULL);
	params = role_parameters();
	roles = dshash_create(area, &params, NULL);

	dsa_pin(area);
	dsa_pin_mapping(area);
	control->elections = dshash_get_hash_table_handle(elections);
	control->candidates = dshash_get_hash_table_handle(candidates);
	control->databases = dshash_get_hash_table_handle(databases);
	control->roles = dshash_get_hash_table_handle(roles);
	control->area = dsa_get_handle(area);
	control->ready = true;
}

static void
attach_tables(void)
{
	dshash_parameters params;

	area = dsa_attach(control->area);
	params = election_parameters();
	elections = dshash_attach(area, &params, control->elections, NULL);
	params = candidate_parameters();
	candidates = dshash_attach(area, &params, control->candidates, NULL);
	params = database_parameters();
	databases = dshash_attach(area, &params, control->databases, NULL);
	params = role_parameters();
	roles = dshash_attach(area, &params, control->roles, NULL);
	dsa_pin_mapping(area);
}

static void
init_counters(LeCounters *counters)
{
	pg_atomic_init_u32(&counters->elections, 0);
	pg_atomic_init_u32(&counters->terms, 0);
	pg_atomic_init_u32(&counters->pinned, 0);
	pg_atomic_init_u32(&counters->followers, 0);
	pg_atomic_init_u64(&counters->evictions, 0);
}

/* This library's own */
static const LeLayout my_layout = {
	.version = LE_REGISTRY_VERSION,
	.control_size = sizeof(LeControl),
	.election_size = sizeof(LeElectionEntry),
	.candidate_size = sizeof(LeCandidate),
	.database_size = sizeof(LeDatabase),
	.role_size = sizeof(LeRole)
};

static void
init_control(void *memory)
{
	LeControl  *new = memory;

	memset(new, 0, LE_CONTROL_SIZE);
	new->layout = my_layout;
	pg_atomic_init_u64(&new->primary_since, 0);
	pg_atomic_init_u64(&new->lease_evictions, 0);
	pg_atomic_init_u64(&new->reloads, 0);
	pg_atomic_init_u32(&new->has_guards, max_prepared_xacts > 0);
	init_counters(&new->counters);
}

/*
 * Raise an error if a library of another version has made the registry
 *
 * Such a library was replaced while the server runs.  Sessions that have loaded it go on
 * with it.  Two registries would know nothing of each other's leases.
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
 * Find the registry, or make it
 */
static void
attach(void)
{
	static bool attached = false;
	MemoryContext caller;

	if (likely(attached))
		return;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	control = GetNamedMemoryCompat("leader_election", LE_CONTROL_SIZE, init_control);
	check_layout(&control->layout);
	if (control->tranche_id == 0)
		control->tranche_id = LWLockNewTrancheIdCompat("leader_election");
	LWLockRegisterTrancheCompat(control->tranche_id, "leader_election");

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

#ifdef USE_ASSERT_CHECKING
/*
 * Check whether this session has a partition of the registry locked, for assertions
 */
bool
le_registry_is_locked(bool exclusive)
{
	return LWLockOfTrancheHeldCompat(control->tranche_id, exclusive);
}
#endif

/*
 * Return the table of elections, for registry/elections.c and its like
 */
dshash_table *
le_registry_election_table(void)
{
	attach();
	return elections;
}

/*
 * Return the table of candidates, for registry/candidates.c
 */
dshash_table *
le_registry_candidate_table(void)
{
	attach();
	return candidates;
}

/*
 * Return the table of databases, for registry/databases.c
 */
dshash_table *
le_registry_database_table(void)
{
	attach();
	return databases;
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
 * Return the counter of what that role uses up, which stays where it is
 *
 * *place, unless NULL, is set to where it is in shared memory.  May throw.
 */
pg_atomic_uint32 *
le_registry_used_by(Oid role, dsa_pointer *place)
{
	static Oid	last_role = InvalidOid;
	static dsa_pointer last = InvalidDsaPointer;

	attach();
	if (role != last_role)
	{
		bool		found;
		LeRole	   *entry = dshash_find(roles, &role, false);

		if (entry == NULL)
		{
			dsa_pointer used = dsa_allocate(area, sizeof(pg_atomic_uint32));

			pg_atomic_init_u32(dsa_get_address(area, used), 0);
			entry = dshash_find_or_insert(roles, &role, &found);
			if (!found)
				entry->used = used;
			else
				dsa_free(area, used);
		}
		last = entry->used;
		last_role = role;
		dshash_release_lock(roles, entry);
	}
	if (place != NULL)
		*place = last;
	return dsa_get_address(area, last);
}

/*
 * Return the number of marks that leases were evicted, of whatever database
 */
uint64
le_registry_lease_evictions(void)
{
	attach();
	return pg_atomic_read_u64(&control->lease_evictions);
}

/*
 * Count one more mark.  Never throws
 */
void
le_registry_count_lease_eviction(void)
{
	pg_atomic_fetch_add_u64(&control->lease_evictions, 1);
}

/*
 * Return how often a table was read again; count once more before that is done
 */
uint64
le_registry_reloads(bool begin)
{
	attach();
	if (begin)
		return pg_atomic_add_fetch_u64(&control->reloads, 1);
	return pg_atomic_read_u64(&control->reloads);
}

/*
 * Return the counters
 */
LeCounters *
le_registry_counters(void)
{
	attach();
	return &control->counters;
}

/*
 * Throw because there is no shared memory left
 */
void
le_throw_registry_full(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OUT_OF_MEMORY),
			 errmsg("out of shared memory"),
			 errdetail("The registry of elections has no room left.")));
}

/*
 * Return when the registry was first used by a server that is no standby, in whatever
 * database, by le_monotonic_us
 *
 * The server was started or promoted before that; when, no clock tells that nobody sets.
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
 * Write down that a transaction is about to be guarded
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
 * Has a transaction been guarded since the server started, or before, and been prepared?
 */
bool
le_registry_has_guards(void)
{
	attach();
	pg_memory_barrier();
	return pg_atomic_read_u32(&control->has_guards) != 0;
}

/*
 * Put a string into shared memory; false if there is none left
 */
bool
le_registry_store_string(const char *string, dsa_pointer *stored)
{
	size_t		size = strlen(string) + 1;

	attach();
	*stored = dsa_allocate_extended(area, size, DSA_ALLOC_NO_OOM);
	if (!DsaPointerIsValid(*stored))
		return false;
	memcpy(dsa_get_address(area, *stored), string, size);
	return true;
}

/*
 * Return a string in shared memory, or an empty one for none
 */
const char *
le_registry_string(dsa_pointer stored)
{
	return DsaPointerIsValid(stored) ? dsa_get_address(area, stored) : "";
}

/*
 * Free something in shared memory, if it is there, and forget it
 */
void
le_registry_free(dsa_pointer *stored)
{
	if (DsaPointerIsValid(*stored))
		dsa_free(area, *stored);
	*stored = InvalidDsaPointer;
}
