/*-------------------------------------------------------------------------
 *
 * lease/table.c
 *	  The rows of le_leases, by which leases survive a restart.
 *
 * A lease's row is inserted by the transaction that takes the lease, and so
 * exists once that has committed.  What happens to the lease later cannot wait
 * for a commit: it may happen in a transaction that is rolled back, or that
 * stays open for an hour.  So the one column that changes in a row, its ttl,
 * is overwritten in place, as the server does with its own statistics in
 * pg_class.  A ttl of zero makes the row void: that lease has ended for good.
 * Void rows are deleted by later bids.  (If a rollback leaves one behind and
 * no lease follows, it is found after the next start.)
 *
 * Rules:
 *
 * - A row is inserted by a backend that holds the election's lock.
 * - It is overwritten by a backend that holds the election's guard lock, so
 *   that only one does so at a time, or by the transaction that has inserted
 *   it, before it commits.
 * - It is deleted by a backend that holds the election's lock, and only when
 *   it is durably void, also on the synchronous standbys.  So no transaction
 *   is deleting a row that is not void, and overwriting it waits for none.
 *   And a row that is gone need not be made void, since no failover brings it
 *   back.
 *
 * All reads on a primary use SnapshotSelf, which sees what is committed now,
 * at every isolation level, and takes part in no serialization conflict.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "storage/bufmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "lease/lease.h"

/* The columns of le_leases that have a fixed size; none may be null */
typedef struct LeLeaseRow
{
	int64		token;
	Interval	ttl;			/* zero: void */
	TimestampTz since;
	Oid			database;		/* a copied database has the rows of the
								 * original, too */
	Oid			role;
	bool		identity_has_client;
} LeLeaseRow;

/* All columns */
#define Anum_le_leases_token				1
#define Anum_le_leases_ttl					2
#define Anum_le_leases_since				3
#define Anum_le_leases_database				4
#define Anum_le_leases_role					5
#define Anum_le_leases_identity_has_client	6
#define Anum_le_leases_name					7
#define Anum_le_leases_identity				8
#define Natts_le_leases						8

/*
 * Open the table, and keep it locked to the end of the transaction
 *
 * If this transaction has rewritten the table, a rollback discards the new
 * file, so an overwritten row would not last.  Raises an error then.
 */
static Relation
open_lease_table(void)
{
	Relation	table = le_open_table(LE_LEASES, RowExclusiveLock);

	if (RelationIsNewCompat(table))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot begin or end a lease in the transaction that created or changed table \"%s\"",
						RelationGetRelationName(table)),
				 errhint("Commit the transaction first.")));
	return table;
}

/*
 * Lock the table, so that a change can be recorded in it
 *
 * Call this before making a change that must be recorded.  May wait for DDL on
 * the table.
 */
void
le_lease_lock_table(void)
{
	table_close(open_lease_table(), NoLock);
}

/*
 * Unlock the table again, if nothing is to be recorded after all
 *
 * A wait may follow, which must not block DDL on the table.
 */
void
le_lease_unlock_table(void)
{
	UnlockRelationOid(le_lease_table(), RowExclusiveLock);
}

/*
 * Find the election's row with this token, or with "later", also all with
 * greater tokens
 *
 * The keys are those of the primary key, where names compare as bytes.
 */
static SysScanDesc
begin_scan(Relation table, const LeElection *election, int64 token, bool later,
		   Snapshot snapshot)
{
	ScanKeyData keys[2];

	ScanKeyInit(&keys[0], Anum_le_leases_name, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(election->name));
	ScanKeyInit(&keys[1], Anum_le_leases_token,
				later ? BTGreaterEqualStrategyNumber : BTEqualStrategyNumber,
				later ? F_INT8GE : F_INT8EQ, Int64GetDatum(token));
	return systable_beginscan(table, RelationGetPrimaryKeyIndexCompat(table), true,
							  snapshot, 2, keys);
}

static LeLeaseRow *
get_row(HeapTuple tuple)
{
	return (LeLeaseRow *) GETSTRUCT(tuple);
}

static bool
is_void(HeapTuple tuple)
{
	return get_row(tuple)->ttl.time == 0;
}

/*
 * Ensure that there is a snapshot, which is needed to write rows.  Return true
 * if it must be popped.
 *
 * A session that waits without a snapshot may have none.
 */
static bool
push_snapshot(void)
{
	if (ActiveSnapshotSet())
		return false;
	PushActiveSnapshot(GetTransactionSnapshot());
	return true;
}

/*
 * Record a lease in the table.  It takes effect at commit.
 */
void
le_lease_insert(const LeTerm *term)
{
	Relation	table = open_lease_table();
	Interval	ttl = {.time = term->lasts_us};
	Datum		values[Natts_le_leases];
	bool		nulls[Natts_le_leases] = {0};
	bool		pushed = push_snapshot();
	HeapTuple	tuple;

	values[Anum_le_leases_token - 1] = Int64GetDatum(term->token);
	values[Anum_le_leases_ttl - 1] = IntervalPGetDatum(&ttl);
	values[Anum_le_leases_since - 1] = TimestampTzGetDatum(term->since);
	values[Anum_le_leases_database - 1] = ObjectIdGetDatum(MyDatabaseId);
	values[Anum_le_leases_role - 1] = ObjectIdGetDatum(term->role);
	values[Anum_le_leases_identity_has_client - 1] =
		BoolGetDatum(term->identity.has_client);
	values[Anum_le_leases_name - 1] = CStringGetTextDatum(term->name);
	values[Anum_le_leases_identity - 1] =
		CStringGetTextDatum(term->identity.string);

	tuple = heap_form_tuple(RelationGetDescr(table), values, nulls);
	le_write_row(table, NULL, tuple);
	heap_freetuple(tuple);
	table_close(table, NoLock);

	if (pushed)
		PopActiveSnapshot();

	/* so that this transaction can overwrite or delete it */
	CommandCounterIncrement();
}

/*
 * Return the buffer of the row that the scan has found
 */
static Buffer
get_buffer(SysScanDesc scan)
{
	return ((BufferHeapTupleTableSlot *) scan->slot)->buffer;
}

static void
end_scan(void *scan)
{
	systable_endscan(scan);
}

/*
 * Lock that buffer.  Return false if another backend was faster, and the scan
 * has been ended.
 */
static bool
lock_row(SysScanDesc scan, HeapTuple *tuple)
{
	*tuple = ((BufferHeapTupleTableSlot *) scan->slot)->base.tuple;
	return heap_inplace_lock(scan->heap_rel, *tuple, get_buffer(scan),
							 end_scan, scan);
}

/*
 * Overwrite the ttl in the lease's row, with zero to make it void.  Does
 * nothing if it is void or does not exist.
 *
 * Takes effect at once, however the transaction ends.  Returns up to where the
 * WAL must be made durable before the change is used, or an invalid LSN if
 * there is no row.  The caller must hold the election's guard lock, or have
 * inserted the row in this transaction.  Does not keep the table locked, since
 * the change is effective already.
 */
XLogRecPtr
le_lease_overwrite_ttl(const LeElection *election, int64 token, int64 ttl_us)
{
	Relation	table = open_lease_table();
	XLogRecPtr	written = InvalidXLogRecPtr;

	for (;;)
	{
		SysScanDesc scan = begin_scan(table, election, token, false, SnapshotSelf);
		HeapTuple	tuple = systable_getnext(scan);
		HeapTuple	changed;

		if (!HeapTupleIsValid(tuple))
		{
			systable_endscan(scan);
			break;
		}
		if (is_void(tuple))
		{
			/* by a backend that may have failed before making it durable */
			written = BufferGetLSNAtomic(get_buffer(scan));
			systable_endscan(scan);
			break;
		}

		/*
		 * nothing but the ttl ever changes: copy the row before it is locked
		 */
		changed = heap_copytuple(tuple);
		get_row(changed)->ttl.time = ttl_us;
		if (lock_row(scan, &tuple))
		{
			heap_inplace_update_and_unlock(table, tuple, changed,
										   get_buffer(scan));
			systable_endscan(scan);
			written = XactLastRecEnd;
			break;
		}
	}

	table_close(table, RowExclusiveLock);
	return written;
}

/*
 * Delete the void rows of the election.  Return true if there are rows whose
 * deletion is not committed yet.
 *
 * A row that another transaction is deleting is left to it.  If that
 * transaction is rolled back, the row stays until the next time.  The caller
 * must hold the election's lock.
 *
 * Beside an old snapshot, vacuum keeps the rows of all leases since then, so
 * the scan begins at the first row that was there the last time.  That does
 * not advance to a row that this transaction has inserted: it may have deleted
 * earlier ones, which a rollback brings back.
 */
bool
le_lease_delete_void(const LeElection *election)
{
	Relation	table = open_lease_table();
	int64		from = le_registry_first_row(&election->key, 0);
	SysScanDesc scan = begin_scan(table, election, from, true, SnapshotSelf);
	bool		pushed = push_snapshot();
	HeapTuple	tuple;
	int64		first = PG_INT64_MAX;
	bool		found = false;

	Assert(le_has_lock(&election->key));
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		found = true;
		if (TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmin(tuple->t_data)))
			first = from;
		first = Min(first, get_row(tuple)->token);
		if (is_void(tuple))
			le_write_row(table, &tuple->t_self, NULL);
	}
	systable_endscan(scan);
	if (found && first > from)
		(void) le_registry_first_row(&election->key, first);
	if (pushed)
		PopActiveSnapshot();
	table_close(table, NoLock);
	return found;
}

/*
 * Read a row.  Return false if the extension cannot have written it.
 */
static bool
read_lease_row(LeTerm *term, Relation table, HeapTuple tuple)
{
	LeLeaseRow *row = get_row(tuple);
	LeElection	election;
	Datum		values[Natts_le_leases];
	bool		nulls[Natts_le_leases];
	text	   *name;

	heap_deform_tuple(tuple, RelationGetDescr(table), values, nulls);
	name = DatumGetTextPP(values[Anum_le_leases_name - 1]);
	if (VARSIZE_ANY_EXHDR(name) == 0 || VARSIZE_ANY_EXHDR(name) > LE_TEXT_MAX ||
		!OidIsValid(row->role) || row->ttl.time < 0 ||
		row->ttl.time > LE_MAX_TTL_MS * INT64CONST(1000))
		return false;
	le_election_by_name(&election, name);

	memset(term, 0, sizeof(LeTerm));
	term->election = election.key;
	term->token = row->token;
	term->scope = LE_SCOPE_LEASE;
	term->role = row->role;
	term->lease_table = RelationGetRelid(table);
	term->since = row->since;
	term->lasts_us = row->ttl.time;
	term->deadline = LE_DEADLINE_OVER;
	if (!is_void(tuple) && row->database == MyDatabaseId)
		term->deadline = LE_DEADLINE_UNCOMMITTED;
	term->identity.has_client = row->identity_has_client;
	text_to_cstring_buffer(DatumGetTextPP(values[Anum_le_leases_identity - 1]),
						   term->identity.string, LE_TEXT_SIZE);
	strcpy(term->name, election.name);
	return true;
}

/*
 * Return the leases in the table, of one election or of all (NULL), for a
 * server that cannot load it: as of the transaction's snapshot, without
 * deadlines
 */
LeTerm *
le_lease_list(const LeElection *election, int *count)
{
	Relation	table = le_open_table(LE_LEASES, AccessShareLock);
	SysScanDesc scan = election != NULL ?
		begin_scan(table, election, 0, true, GetActiveSnapshot()) :
		systable_beginscan(table, InvalidOid, false, GetActiveSnapshot(), 0, NULL);
	LeTerm	   *terms = palloc_object(LeTerm);
	int			capacity = 1;
	HeapTuple	tuple;

	*count = 0;
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		CHECK_FOR_INTERRUPTS();
		if (!read_lease_row(&terms[*count], table, tuple) ||
			terms[*count].deadline == LE_DEADLINE_OVER)
			continue;
		if (++*count == capacity)
		{
			capacity *= 2;
			terms = repalloc_huge(terms, capacity * sizeof(LeTerm));
		}
	}
	systable_endscan(scan);
	table_close(table, AccessShareLock);
	return terms;
}

/*
 * Record all leases of the table, those that still run without a deadline yet.
 *
 * The caller must ensure that no other session reads or writes the table at
 * the same time.
 */
void
le_lease_load(Relation table)
{
	SysScanDesc scan = systable_beginscan(table, InvalidOid, false, SnapshotSelf,
										  0, NULL);
	HeapTuple	tuple;

	le_require_unaltered(table, LE_LEASES);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		LeTerm		term;

		CHECK_FOR_INTERRUPTS();
		if (read_lease_row(&term, table, tuple))
			le_registry_load_lease(&term);
	}
	systable_endscan(scan);
}

/*
 * Check whether leases are recorded in this table
 *
 * If it seems not, this session may just not have noticed yet that the
 * extension was replaced.
 */
bool
le_is_lease_table(Oid table)
{
	if (likely(table == le_lease_table()))
		return true;
	AcceptInvalidationMessages();
	return table == le_lease_table();
}

/*
 * Check whether the lease, as copied from the registry, ran when it was copied
 */
bool
le_copied_lease_runs(const LeTerm *term)
{
	return term->token != 0 && term->scope == LE_SCOPE_LEASE &&
		le_deadline_is_committed(term->deadline) && !term->expired &&
		le_is_lease_table(term->lease_table);
}
