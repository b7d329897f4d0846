/*-------------------------------------------------------------------------
 *
 * pg/compat.h
 *	  Every difference between the supported server versions, so that no call
 *	  site needs an #if.
 *
 *	  When a new major version is supported, this file is changed first.  The
 *	  compiler reports signatures that have changed.  It does not report what
 *	  follows: properties of the server that the extension relies on and that
 *	  are no API.  Each entry names the file that relies on the property, the
 *	  property, and after the arrow the test that fails if it changes.
 *
 *	  Locks
 *	  - lock/lock.c: GetLockConflicts() leaves out holders that are in
 *	    no transaction, and this session; LockWaiterCount() counts holders, too
 *	    -> sql/guard, sql/views
 *	  - bid/campaign.c: MyProc's fpLockBits and myProcLocks are all locks
 *	    that this session holds; only sessions with a lock, a transaction ID or
 *	    xmin are waited for; a wait for a lock begins with DeadlockTimeout ->
 *	    specs/deadlock_found_whoever_comes_last, t/211_crowd.pl
 *	  - election/key.c: a tag of an advisory lock may have any fourth
 *	    field, and only 1 and 2 can be reached from SQL ->
 *	    specs/names_do_not_collide_with_advisory_keys
 *	  - registry/eviction.c: a session that begins locks its database's OID,
 *	    and is counted by CountDBBackends() before it releases that lock
 *	    (postinit.c) -> t/412_windows.pl
 *
 *	  Ends of transactions and sessions
 *	  - sql/module.c: XACT_EVENT_COMMIT and _ABORT come just before the
 *	    transaction's locks are released ->
 *	    specs/end_of_transaction_lets_the_candidate_in,
 *	    t/408_end_of_transaction.pl
 *	  - sql/module.c: a callback of before_shmem_exit() that registers
 *	    itself is called again -> t/006_half_ended.pl
 *	  - lead/guard.c: InNoForceRLSOperation() is true in cascades of foreign
 *	    keys, and nowhere else where triggers run -> sql/guard_trigger
 *
 *	  WAL and tables
 *	  - lease/table.c: heap_inplace_lock() and
 *	    heap_inplace_update_and_unlock() work on tables that are no catalogs;
 *	    XactLastRecEnd is the end of their record; the buffer of a scan's row
 *	    is in its slot -> t/107_lease_table.pl, t/401_crash.pl
 *	  - pg/relation.c: a sequence is one page with one row; its
 *	    log_cnt is negative only if the extension has written that, and
 *	    whatever else writes its last_value, also nextval() then, writes WAL
 *	    and 0 or more there -> t/405_restore.pl, t/404_failover.pl
 *	  - pg/durability.c: WalSndCtl (walsender_private.h): see
 *	    SyncStandbysDefinedCompat -> t/403_standby_gone.pl
 *
 *	  Shared memory, settings, clients
 *	  - registry/registry.c: named memory can be allocated after the start of
 *	    the server (before 17: ShmemInitStruct) -> t/001_installation.pl
 *	  - registry/: a dshash entry stays in place until it is deleted ->
 *	    t/105_lease_many.pl
 *	  - pg/settings.c: config_generic.reset_source, reset_scontext and
 *	    reset_srole, srole and the stack's roles tell how, and by which role,
 *	    a setting was made before the library was loaded -> sql/security
 *	  - pg/liveness.c: ClientConnectionLost with InterruptPending ends the
 *	    session; debug_query_string is NULL between statements; errors stop
 *	    all timers -> t/407_dead_peer.pl
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_COMPAT_H
#define LE_COMPAT_H

/*
 * These minor releases brought a safe way to overwrite a row: see
 * lease/table.c
 */
#if PG_VERSION_NUM < 150009
#error "leader_election requires PostgreSQL 15.9 or newer"
#elif PG_VERSION_NUM >= 160000 && PG_VERSION_NUM < 160005
#error "leader_election requires PostgreSQL 16.5 or newer"
#elif PG_VERSION_NUM >= 170000 && PG_VERSION_NUM < 170001
#error "leader_election requires PostgreSQL 17.1 or newer"
#endif

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_extension.h"
#include "commands/extension.h"
#include "commands/sequence.h"
#include "lib/dshash.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "replication/walsender_private.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/shmem.h"
#if PG_VERSION_NUM < 170000
#include "storage/sinvaladt.h"
#endif
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"
#include "utils/rel.h"
#include "utils/wait_event.h"
#if PG_VERSION_NUM >= 160000
#include "utils/guc_hooks.h"
#endif
#if PG_VERSION_NUM >= 170000
#include "storage/dsm_registry.h"
#endif

/* Precedes the declaration of a function that does not return */
#if PG_VERSION_NUM < 180000
#define pg_noreturn pg_attribute_noreturn()
#endif

/* The library's description of itself */
#if PG_VERSION_NUM < 180000
#define PG_MODULE_MAGIC_EXT(...) PG_MODULE_MAGIC
#endif

/* Check whether this session holds the lock in exactly this mode */
#if PG_VERSION_NUM >= 170000
#define LockHeldByMeCompat(tag, mode) LockHeldByMe(tag, mode, false)
#else
#define LockHeldByMeCompat(tag, mode) LockHeldByMe(tag, mode)
#endif

/*
 * Check whether this session holds no lock, but for that of its virtual
 * transaction ID as long as none has waited for it
 *
 * Other sessions only move its locks from the fast path to the lists, and hold
 * fpInfoLock meanwhile.
 */
static inline bool
HoldsNoLockCompat(void)
{
	bool		fast_path = false;

	LWLockAcquire(&MyProc->fpInfoLock, LW_SHARED);
#if PG_VERSION_NUM >= 180000
	for (int i = 0; i < FastPathLockGroupsPerBackend; i++)
		fast_path = fast_path || MyProc->fpLockBits[i] != 0;
#else
	fast_path = MyProc->fpLockBits != 0;
#endif
	LWLockRelease(&MyProc->fpInfoLock);
	if (fast_path)
		return false;
	for (int i = 0; i < NUM_LOCK_PARTITIONS; i++)
	{
#if PG_VERSION_NUM >= 160000
		if (!dlist_is_empty(&MyProc->myProcLocks[i]))
			return false;
#else
		if (!SHMQueueEmpty(&MyProc->myProcLocks[i]))
			return false;
#endif
	}
	return true;
}

/* Return the process of a transaction, or NULL if it has ended */
static inline PGPROC *
VirtualTransactionProcCompat(VirtualTransactionId transaction)
{
#if PG_VERSION_NUM >= 170000
	return ProcNumberGetProc(transaction.procNumber);
#else
	return BackendIdGetProc(transaction.backendId);
#endif
}

/*
 * Check whether the current transaction has created the relation, or given it
 * a new file
 */
static inline bool
RelationIsNewCompat(Relation rel)
{
#if PG_VERSION_NUM >= 160000
	return rel->rd_createSubid != InvalidSubTransactionId ||
		rel->rd_firstRelfilelocatorSubid != InvalidSubTransactionId;
#else
	return rel->rd_createSubid != InvalidSubTransactionId ||
		rel->rd_firstRelfilenodeSubid != InvalidSubTransactionId;
#endif
}

/*
 * Check whether the server has synchronous standbys
 *
 * This relies on memory that the server shares among its own processes
 * (walsender_private.h): here on the checkpointer's view of
 * synchronous_standby_names, and in durability.c on the progress of the
 * standbys, WalSndCtl->lsn[], which is maintained even if no commit waits.
 * Minor releases of May 2025 have changed the meaning of the former, in the
 * same byte.  A library may run on another minor release than the one that it
 * was built for, so the running server's version decides.
 */
static inline bool
SyncStandbysDefinedCompat(void)
{
	/* SYNC_STANDBY_INIT and SYNC_STANDBY_DEFINED, which older headers lack */
	const uint8 init = 1 << 0;
	const uint8 defined = 1 << 1;
	static int	has_flags = -1;
	uint8		status;

#ifdef SYNC_STANDBY_DEFINED
	status = *(volatile uint8 *) &WalSndCtl->sync_standbys_status;
#else
	status = *(volatile uint8 *) &WalSndCtl->sync_standbys_defined;
#endif
	if (unlikely(has_flags < 0))
	{
		int			version = atoi(GetConfigOption("server_version_num", false, false));

		has_flags = version >= (version < 160000 ? 150013 : version < 170000 ? 160009 : 170005);
	}
	if (!has_flags)
		return status != 0;
	return (status & init) != 0 ? (status & defined) != 0 :
		SyncRepStandbyNames != NULL && SyncRepStandbyNames[0] != '\0';
}

/*
 * Return the index of the relation's primary key, or InvalidOid if it has none
 */
static inline Oid
RelationGetPrimaryKeyIndexCompat(Relation rel)
{
#if PG_VERSION_NUM >= 180000
	return RelationGetPrimaryKeyIndex(rel, false);
#else
	return RelationGetPrimaryKeyIndex(rel);
#endif
}

/* Return the wait event of the extension with the given name */
static inline uint32
WaitEventExtensionCompat(const char *name pg_attribute_unused())
{
#if PG_VERSION_NUM >= 170000
	return WaitEventExtensionNew(name);
#else
	return PG_WAIT_EXTENSION;
#endif
}

/*
 * Return the schema of an extension.  Raises an error if the extension does
 * not exist.
 */
static inline Oid
get_extension_schema_compat(Oid extension)
{
#if PG_VERSION_NUM >= 170000
	return get_extension_schema(extension);
#else
	Oid			schema = InvalidOid;
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_extension_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(extension));
	scan = systable_beginscan(rel, ExtensionOidIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		schema = ((Form_pg_extension) GETSTRUCT(tuple))->extnamespace;
	systable_endscan(scan);
	table_close(rel, AccessShareLock);

	if (!OidIsValid(schema))
		elog(ERROR, "could not find tuple for extension %u", extension);
	return schema;
#endif
}

/* Return parameters for a dshash table whose key is plain memory */
static inline dshash_parameters
dshash_parameters_compat(size_t key_size, size_t entry_size, int tranche_id)
{
	dshash_parameters params = {0};

	params.key_size = key_size;
	params.entry_size = entry_size;
	params.compare_function = dshash_memcmp;
	params.hash_function = dshash_memhash;
#if PG_VERSION_NUM >= 170000
	params.copy_function = dshash_memcpy;
#endif
	params.tranche_id = tranche_id;
	return params;
}

/* Allocate a tranche of LWLocks */
static inline int
LWLockNewTrancheIdCompat(const char *name pg_attribute_unused())
{
#if PG_VERSION_NUM >= 190000
	return LWLockNewTrancheId(name);
#else
	return LWLockNewTrancheId();
#endif
}

/* Register the tranche's name in this session */
static inline void
LWLockRegisterTrancheCompat(int tranche_id pg_attribute_unused(),
							const char *name pg_attribute_unused())
{
#if PG_VERSION_NUM < 190000
	LWLockRegisterTranche(tranche_id, name);
#endif
}

#if PG_VERSION_NUM >= 190000
/* For GetNamedMemoryCompat: call the function that the argument points to */
static inline void
initialize_by_argument(void *memory, void *argument)
{
	void		(**initialize) (void *memory) = argument;

	(*initialize) (memory);
}
#endif

/*
 * Return the memory of the given name, which all sessions share and the first
 * session initializes.  All calls must ask for the same size.  The caller must
 * hold AddinShmemInitLock exclusively.
 */
static inline void *
GetNamedMemoryCompat(const char *name, size_t size, void (*initialize) (void *memory))
{
	bool		found;

#if PG_VERSION_NUM >= 190000
	return GetNamedDSMSegment(name, size, initialize_by_argument, &found, &initialize);
#elif PG_VERSION_NUM >= 170000
	return GetNamedDSMSegment(name, size, initialize, &found);
#else
	void	   *memory = ShmemInitStruct(name, size, &found);

	if (!found)
		initialize(memory);
	return memory;
#endif
}

/*
 * Delete a row of the table, unless another transaction is changing it.  Does
 * not wait for that transaction.
 */
static inline void
table_tuple_try_delete_compat(Relation table, ItemPointer tid)
{
	CommandId	command = GetCurrentCommandId(true);
	TM_FailureData failure;

#if PG_VERSION_NUM >= 190000
	(void) table_tuple_delete(table, tid, command, 0, InvalidSnapshot, InvalidSnapshot,
							  false, &failure);
#else
	(void) table_tuple_delete(table, tid, command, InvalidSnapshot, InvalidSnapshot,
							  false, &failure, false);
#endif
}

/* Allocate memory for the extra of a setting */
static inline void *
GucMallocCompat(size_t size)
{
#if PG_VERSION_NUM >= 160000
	return guc_malloc(LOG, size);
#else
	return malloc(size);
#endif
}

/*
 * Return the server's entry for a setting, which may not be defined yet, or
 * NULL if there is none
 */
static inline struct config_generic *
find_option_compat(const char *name)
{
#if PG_VERSION_NUM >= 160000
	return find_option(name, false, true, 0);
#else
	struct config_generic **settings = get_guc_variables();

	for (int i = 0; i < GetNumConfigOptions(); i++)
	{
		if (pg_strcasecmp(settings[i]->name, name) == 0)
			return settings[i];
	}
	return NULL;
#endif
}

/*
 * Check whether the interval is 'infinity' or '-infinity', if the server has
 * these
 */
#if PG_VERSION_NUM >= 170000
#define IntervalIsPlusInfinityCompat(interval) INTERVAL_IS_NOEND(interval)
#define IntervalIsMinusInfinityCompat(interval) INTERVAL_IS_NOBEGIN(interval)
#else
#define IntervalIsPlusInfinityCompat(interval) false
#define IntervalIsMinusInfinityCompat(interval) false
#endif

#endif							/* LE_COMPAT_H */
