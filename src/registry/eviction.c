/*-------------------------------------------------------------------------
 *
 * registry/eviction.c
 *	  Eviction from the registry: entries of vacant elections, and what is left
 *	  of databases that were dropped.
 *
 * A lease that has expired is removed by sessions of its own database, which
 * make its row void: see le_lease_sweep in bid/sweep.c.  Others must not
 * remove it: the row would come back with the next start of the server, and by
 * then its role could have filled another database.  registry.c says which
 * locks protect what.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "registry/internal.h"

/*
 * Return the number of entries without a term
 *
 * The result is approximate, since the two counters are not read at the same
 * time.
 */
static uint32
count_idle(LeCounters *counters)
{
	uint32		running = pg_atomic_read_u32(&counters->terms);
	uint32		all = pg_atomic_read_u32(&counters->elections);

	return all > running ? all - running : 0;
}

/* An entry that may be evicted */
typedef struct LeIdleElection
{
	LeElectionKey key;
	uint64		changed_at;
	uint64		grace_from;
	bool		declared;
} LeIdleElection;

/*
 * Declared elections come last, so that others make room for them
 */
static int
compare_idle(const void *a, const void *b)
{
	const LeIdleElection *first = a;
	const LeIdleElection *second = b;

	if (first->declared != second->declared)
		return first->declared ? 1 : -1;
	return first->changed_at < second->changed_at ? -1 :
		first->changed_at > second->changed_at ? 1 : 0;
}

/*
 * Copy up to capacity entries that may be evicted, and count those that may
 * not
 */
static int
copy_idle(LeIdleElection *array, int capacity, uint32 *pinned)
{
	dshash_seq_status status;
	LeElectionEntry *entry;
	int			count = 0;

	*pinned = 0;
	dshash_seq_init(&status, le_registry_table(LE_ELECTION_TABLE), false);
	while ((entry = dshash_seq_next(&status)) != NULL)
	{
		if (entry->token != 0)
			continue;
		if (le_entry_is_pinned(entry))
			(*pinned)++;
		else if (count < capacity)
		{
			array[count].key = entry->election;
			array[count].grace_from = entry->grace_from;
			array[count].declared = entry->declared;
			array[count++].changed_at = entry->tally.changed_at;
		}
	}
	dshash_seq_term(&status);
	return count;
}

/*
 * Evict an entry.  Return false if it is in use.
 *
 * If the last term was lost, the database's entry gets that time before this
 * one is deleted, so that the time is known at every moment.
 */
static bool
evict(const LeIdleElection *idle)
{
	LeElectionEntry *entry;

	if (idle->grace_from != 0)
		le_registry_forget_end(idle->key.database, idle->grace_from);
	entry = le_registry_lock_entry(&idle->key, true);
	if (entry == NULL)
		return true;
	if (entry->token != 0 || entry->grace_from > idle->grace_from ||
		le_entry_is_pinned(entry))
	{
		le_registry_unlock_entry(entry);
		return false;
	}
	le_empty_entry(entry);
	dshash_delete_entry(le_registry_table(LE_ELECTION_TABLE), entry);
	pg_atomic_fetch_add_u64(&le_registry_counters()->evictions, 1);
	return true;
}

/*
 * Return how many entries without a term there may be if room is to be kept
 * for the given number of additional elections
 */
static uint32
max_idle(LeCounters *counters, int more)
{
	int64		room = (int64) le_max_elections - more - pg_atomic_read_u32(&counters->terms);

	return (uint32) Max(Min(room, le_max_tracked), 0);
}

/*
 * Keep the number of elections that the registry remembers without a term
 * within leader_election.max_tracked, and make room for the given number of
 * additional ones
 *
 * Evicts the elections that have not changed for longest, declared ones last,
 * a tenth of the limit at a time.  The caller must not hold a lock that other
 * sessions need.
 */
void
le_registry_bound_elections(int more)
{
	LeCounters *counters = le_registry_counters();
	uint32		pinned = pg_atomic_read_u32(&counters->pinned);
	uint32		idle = count_idle(counters);
	int64		limit = max_idle(counters, more);
	int64		excess;
	LeIdleElection *array;
	int			count;

	/*
	 * entries that could not be evicted last time are tolerated, unless room
	 * is needed now
	 */
	if (likely(idle <= limit + (more > 0 ? 0 : pinned)))
		return;

	/*
	 * If several sessions come here at the same time, one of them evicts: the
	 * one that counts all that are idle as pinned meanwhile.  If that one
	 * fails, they are counted so until room is needed, or there are more.
	 */
	array = MemoryContextAllocHuge(CurrentMemoryContext, idle * sizeof(LeIdleElection));
	if (!pg_atomic_compare_exchange_u32(&counters->pinned, &pinned, idle))
	{
		pfree(array);
		return;
	}

	count = copy_idle(array, idle, &pinned);
	qsort(array, count, sizeof(LeIdleElection), compare_idle);
	excess = Max(count - limit, 0) + limit / 10;
	for (int i = 0; i < count && excess > 0; i++)
	{
		if (evict(&array[i]))
			excess--;
		else
			pinned++;
	}
	pg_atomic_write_u32(&counters->pinned, pinned);
	pfree(array);
}

/* How many databases to check at a time */
#define LE_DATABASES_AT_ONCE	64

/*
 * Check whether the catalog has the database, as of now
 *
 * A cache, or a snapshot that was taken before the database was listed, may
 * not know it yet.
 */
static bool
database_exists(Relation catalog, Oid database)
{
	ScanKeyData key;
	SysScanDesc scan;
	bool		exists;

	InvalidateCatalogSnapshot();
	ScanKeyInit(&key, Anum_pg_database_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(database));
	scan = systable_beginscan(catalog, DatabaseOidIndexId, true, NULL, 1, &key);
	exists = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	return exists;
}

/* A database that was dropped.  Its OID is locked until it is forgotten. */
typedef struct LeDroppedDatabase
{
	Oid			database;		/* first, for oid_cmp */
	pg_atomic_uint32 *terms;	/* their counter */
} LeDroppedDatabase;

/*
 * Check whether the database was dropped, and if so, lock its OID
 *
 * To be wrong here would remove the terms of running sessions.  Therefore, a
 * database that has sessions is not dropped, whatever the catalog says.  The
 * OID of a dropped one can be that of a new database meanwhile.
 */
static bool
lock_if_dropped(Relation catalog, Oid oid)
{
	LOCKTAG		tag;

	if (CountDBBackends(oid) > 0 || database_exists(catalog, oid))
		return false;
	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, oid, 0);
	if (LockAcquire(&tag, ShareLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return false;
	if (!database_exists(catalog, oid) && CountDBBackends(oid) == 0)
		return true;
	LockRelease(&tag, ShareLock, false);
	return false;
}

/*
 * Remove all entries of the databases
 */
static void
remove_elections(LeDroppedDatabase *databases, int count)
{
	dshash_seq_status status;
	LeElectionEntry *entry;

	dshash_seq_init(&status, le_registry_table(LE_ELECTION_TABLE), true);
	while ((entry = dshash_seq_next(&status)) != NULL)
	{
		LeDroppedDatabase *database = bsearch(&entry->election.database, databases, count,
											  sizeof(LeDroppedDatabase), oid_cmp);

		if (database == NULL)
			continue;
		if (entry->token != 0)
			le_remove_term(entry, LE_END_EXTENSION_DROPPED, database->terms);
		le_empty_entry(entry);
		dshash_delete_current(&status);
	}
	dshash_seq_term(&status);
}

/*
 * Forget those of these databases that were dropped
 */
static void
forget_among(Relation catalog, const Oid *oids, int count)
{
	LeDroppedDatabase databases[LE_DATABASES_AT_ONCE];
	int			found = 0;

	for (int i = 0; i < count; i++)
	{
		if (!lock_if_dropped(catalog, oids[i]))
			continue;
		databases[found].database = oids[i];
		databases[found++].terms = le_registry_terms_of(oids[i]);
	}
	if (found == 0)
		return;
	qsort(databases, found, sizeof(LeDroppedDatabase), oid_cmp);
	remove_elections(databases, found);
	for (int i = 0; i < found; i++)
	{
		LOCKTAG		tag;

		le_registry_forget_database(databases[i].database);
		SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, databases[i].database, 0);
		LockRelease(&tag, ShareLock, false);
	}
}

/*
 * Forget the databases that were dropped, with all their elections
 *
 * A dropped database has no session and no prepared transaction.  May raise an
 * error.  The caller must not hold a lock that other sessions need.
 */
void
le_registry_forget_databases(void)
{
	int			count;
	Oid		   *oids;
	Relation	catalog;

	oids = le_registry_list_databases(&count);
	catalog = table_open(DatabaseRelationId, AccessShareLock);

	/* not all at once, as each takes a lock */
	for (int first = 0; first < count; first += LE_DATABASES_AT_ONCE)
	{
		CHECK_FOR_INTERRUPTS();
		forget_among(catalog, oids + first, Min(count - first, LE_DATABASES_AT_ONCE));
	}
	table_close(catalog, AccessShareLock);
	pfree(oids);
}
