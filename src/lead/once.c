/*-------------------------------------------------------------------------
 *
 * lead/once.c
 *	  Jobs that are due at points in time, each of which is done once.
 *
 * A leader's transaction that does a job records the time for which the job
 * was due.  The guard of that transaction (guard.c) keeps that of a former
 * leader from committing beside it.  The row is part of the transaction, as
 * the rest of the job is.  After the commit, both exist on each server that
 * has the transaction.  After a rollback neither does, so that the next leader
 * does the job.
 *
 * A second transaction of the same leader waits for the first one, and then
 * finds that the job is done.  One with an older snapshot gets a serialization
 * failure.  What they wait for is the election's job lock (lock.c),
 * since the row may not exist yet.  So no other such transaction is open when
 * the row is read.
 *
 * The row is then read as it is now.  An administrator may be changing it by
 * SQL, so it is locked before it is updated.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "lock/lock.h"
#include "lead/lead.h"

/* The columns of le_once_done; none may be null */
#define Anum_le_once_done_name	1
#define Anum_le_once_done_due	2
#define Anum_le_once_done_token	3
#define Anum_le_once_done_role	4
#define Natts_le_once_done		4

/*
 * How far in the future a job may be due, as the clocks of programs differ.
 * The limit matters, since a recorded time keeps all earlier jobs from being
 * done.
 */
#define LE_DUE_AHEAD_US		USECS_PER_HOUR

static void
require_sane_due(TimestampTz due)
{
	if (TIMESTAMP_NOT_FINITE(due))
		ereport(ERROR,
				(errcode(ERRCODE_DATETIME_FIELD_OVERFLOW),
				 errmsg("the time for which a job is due must be finite")));
	if (due > GetCurrentTimestamp() + LE_DUE_AHEAD_US)
		ereport(ERROR,
				(errcode(ERRCODE_DATETIME_FIELD_OVERFLOW),
				 errmsg("the time for which a job is due must be at most one hour from now")));
}

/*
 * Raise an error if the current user has recorded jobs of more elections than
 * it may, with the row that was just written
 *
 * Rows of transactions that still run count, so that of several sessions which
 * insert at the same time none overlooks the others.
 */
static void
require_few_rows(Relation table)
{
	Oid			role = GetUserId();
	SnapshotData dirty;
	ScanKeyData key;
	SysScanDesc scan;
	int			count = 0;

	if (superuser())
		return;
	ScanKeyInit(&key, Anum_le_once_done_role, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(role));
	InitDirtySnapshot(dirty);
	scan = systable_beginscan(table, InvalidOid, false, &dirty, 1, &key);
	while (count <= le_max_elections_per_role && HeapTupleIsValid(systable_getnext(scan)))
		count++;
	systable_endscan(scan);
	if (count > le_max_elections_per_role)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many elections with jobs that role \"%s\" has done: at most %d",
						GetUserNameFromId(role, false), le_max_elections_per_role),
				 errhint("Ask an administrator to delete rows of \"%s\", or to raise \"%s\".",
						 "le_once_done", "leader_election.max_elections_per_role")));
}

static void
raise_concurrent(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access due to concurrent update")));
}

/* A row as the snapshot of the transaction shows it */
typedef struct LeShownJob
{
	Relation	table;
	ItemPointer place;
	TupleTableSlot *slot;
	bool		shown;
} LeShownJob;

static void
fetch_shown(void *argument)
{
	LeShownJob *job = argument;

	job->shown = table_tuple_fetch_row_version(job->table, job->place,
											   GetTransactionSnapshot(), job->slot);
	ExecClearTuple(job->slot);
}

/*
 * Check whether the snapshot of the transaction shows the row
 *
 * At SERIALIZABLE, this may raise an error with the page locked, as
 * le_write_row may.
 */
static bool
is_shown(Relation table, ItemPointer place, TupleTableSlot *slot)
{
	LeShownJob	job = {.table = table,.place = place,.slot = slot};

	le_in_subtransaction(fetch_shown, &job);
	return job.shown;
}

/*
 * Lock the row that the snapshot shows of the election, and put it into the
 * slot as it is now.  *found is set to false if there is none.  Return false
 * if the row has been changed meanwhile.
 */
static bool
try_lock_job(Relation table, const LeElection *election, Snapshot snapshot,
			 TupleTableSlot *slot, bool *found)
{
	HeapTuple	row = le_find_row(table, election->name, snapshot);
	TM_FailureData failure;

	*found = row != NULL;
	if (row == NULL)
		return true;
	if (IsolationUsesXactSnapshot() && !is_shown(table, &row->t_self, slot))
		raise_concurrent();
	return table_tuple_lock(table, &row->t_self, snapshot, slot, GetCurrentCommandId(false),
							LockTupleNoKeyExclusive, LockWaitBlock, 0, &failure) == TM_Ok;
}

/*
 * Lock the election's row, and put it into the slot as it is now.  Return
 * false if there is none.
 *
 * At READ COMMITTED, each try takes a new snapshot.  It also keeps the row's
 * place from being used for another row between the scan and the lock.  If the
 * transaction has one snapshot, the row is read as it is now, without a
 * predicate lock on rows that do not exist, and must be what that snapshot
 * shows.  Otherwise, raises an error.
 */
static bool
lock_job(Relation table, const LeElection *election, TupleTableSlot *slot)
{
	bool		found;

	Assert(ActiveSnapshotSet());
	if (IsolationUsesXactSnapshot())
	{
		if (!try_lock_job(table, election, SnapshotSelf, slot, &found))
			raise_concurrent();
		return found;
	}
	for (;;)
	{
		Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
		bool		locked = try_lock_job(table, election, snapshot, slot, &found);

		UnregisterSnapshot(snapshot);
		if (locked)
			return found;
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Write the row in place of the old one, or as a new one (NULL)
 *
 * Between the last check of the table and the write, no invalidation may be
 * accepted, as by a look at a catalog.
 */
static void
write_job(Relation table, ItemPointer old, HeapTuple row)
{
	if (old != NULL)
		CheckCmdReplicaIdentity(table, CMD_UPDATE);
	le_require_unaltered(table, LE_ONCE);
	le_write_row(table, old, row);
}

/*
 * Record the job.  Return false if that job, or a later one, is done already.
 *
 * Raises an error if the election has no row yet, and the current user has as
 * many as it may have.  May wait for another transaction that does the same.
 */
static bool
record_job(const LeElection *election, TimestampTz due, int64 token)
{
	Relation	table = le_open_table(LE_ONCE, RowExclusiveLock);
	TupleTableSlot *slot = table_slot_create(table, NULL);
	Datum		values[Natts_le_once_done];
	bool		nulls[Natts_le_once_done] = {0};
	bool		is_null;
	bool		first = true;
	HeapTuple	row;

	values[Anum_le_once_done_name - 1] = CStringGetTextDatum(election->name);
	values[Anum_le_once_done_due - 1] = TimestampTzGetDatum(due);
	values[Anum_le_once_done_token - 1] = Int64GetDatum(token);
	values[Anum_le_once_done_role - 1] = ObjectIdGetDatum(GetUserId());
	row = heap_form_tuple(RelationGetDescr(table), values, nulls);

	le_acquire_job(election);

	/* so that a row that the statement itself has written is seen */
	CommandCounterIncrement();
	if (!lock_job(table, election, slot))
	{
		write_job(table, NULL, row);
		require_few_rows(table);
	}
	else
	{
		first = DatumGetTimestampTz(slot_getattr(slot, Anum_le_once_done_due, &is_null)) < due;
		if (first)
		{
			Datum		role = slot_getattr(slot, Anum_le_once_done_role, &is_null);

			write_job(table, &slot->tts_tid, row);
			if (DatumGetObjectId(role) != GetUserId())
				require_few_rows(table);
		}
	}
	ExecDropSingleTupleTableSlot(slot);
	heap_freetuple(row);
	table_close(table, NoLock);

	/* so that this transaction sees it */
	CommandCounterIncrement();
	return first;
}

/*
 * Record that the job for the given time is done, by this transaction, which
 * is guarded by the term with the given token.  Return false if that job, or a
 * later one, is done already.
 *
 * Raises an error if the term does not run or belongs to another role, or if
 * the snapshot of the transaction is too old.  May wait, for the guard and for
 * another transaction that does the same.
 */
bool
le_do_once(const LeElection *election, TimestampTz due, int64 token)
{
	LeHeldTerm *held = le_held_term(election);

	PreventCommandIfReadOnly("le_once()");
	PreventCommandIfParallelMode("le_once()");
	require_sane_due(due);
	if (held != NULL && held->token == token)
		le_require_own_term(election);
	if (!le_guard_transaction(election, token, false))
		le_raise_not_leader(election, token == 0 ? NULL : &token);
	return record_job(election, due, token);
}
