/*-------------------------------------------------------------------------
 *
 * sql/candidates.c
 *	  Sessions that wait to be elected: the rows of the view le_candidates.
 *
 * A session that stands in line is in the queue of the election's lock, or
 * holds that lock and waits for something else, such as the end of a lease.
 * The registry has its identity.  A session that waits for the lock of a bare
 * key may not use the extension at all.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "lib/qunique.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "announce/announce.h"
#include "lease/lease.h"
#include "term/term.h"
#include "sql/sql.h"

PG_FUNCTION_INFO_V1(le_standing);

/* The columns of le_candidates */
enum
{
	LE_CANDIDATES_NAME,
	LE_CANDIDATES_KEY,
	LE_CANDIDATES_POSITION,
	LE_CANDIDATES_IDENTITY,
	LE_CANDIDATES_PID,
	LE_CANDIDATES_SESSION,
	LE_CANDIDATES_SINCE = LE_CANDIDATES_SESSION + LE_SESSION_COLUMNS,
	LE_CANDIDATES_WAITS_FOR,
	LE_CANDIDATES_BLOCKED_BY,
	LE_CANDIDATES_COLUMNS
};

/* A row of le_candidates */
typedef struct LeStanding
{
	const LeLockUser *user;
	const LeCandidate *candidate;	/* NULL: not through the extension */
	int			position;
	Datum		blocked_by;		/* an array */
} LeStanding;

/*
 * Fill in what the registry knows of the candidate
 */
static void
fill_candidate(const LeCandidate *candidate, const char *name, Datum *values, bool *nulls)
{
	if (name[0] != '\0')
	{
		values[LE_CANDIDATES_NAME] = CStringGetTextDatum(name);
		nulls[LE_CANDIDATES_NAME] = false;
	}
	values[LE_CANDIDATES_IDENTITY] =
		CStringGetTextDatum(le_identity_shown(&candidate->identity, candidate->role));
	values[LE_CANDIDATES_SINCE] = TimestampTzGetDatum(candidate->since);
	nulls[LE_CANDIDATES_IDENTITY] = false;
	nulls[LE_CANDIDATES_SINCE] = false;
}

/*
 * Fill in what is known of every session that waits
 */
static void
fill_process(PGPROC *process, int pid, const LeElectionKey *key, Datum *values, bool *nulls)
{
	values[LE_CANDIDATES_KEY] = Int64GetDatum(key->key);
	nulls[LE_CANDIDATES_KEY] = false;
	values[LE_CANDIDATES_PID] = Int32GetDatum(pid);
	nulls[LE_CANDIDATES_PID] = false;
	le_fill_session(process, pid, &values[LE_CANDIDATES_SESSION],
					&nulls[LE_CANDIDATES_SESSION]);
}

/*
 * Return a row for a session that stands in line
 */
static void
put_standing(ReturnSetInfo *rsinfo, const LeElectionKey *key, const LeStanding *standing)
{
	const LeLockUser *user = standing->user;
	const LeCandidate *candidate = standing->candidate;
	LeWait		waits_for = candidate != NULL ? candidate->waits_for : LE_WAITS_FOR_LEADER;
	Datum		values[LE_CANDIDATES_COLUMNS] = {0};
	bool		nulls[LE_CANDIDATES_COLUMNS];

	memset(nulls, true, sizeof(nulls));
	fill_process(user->process, user->pid, key, values, nulls);
	if (candidate != NULL)
		fill_candidate(candidate, candidate->name, values, nulls);
	else if (user->waits_since != 0)
	{
		values[LE_CANDIDATES_SINCE] = TimestampTzGetDatum(user->waits_since);
		nulls[LE_CANDIDATES_SINCE] = false;
	}
	values[LE_CANDIDATES_POSITION] = Int64GetDatum(standing->position);
	values[LE_CANDIDATES_WAITS_FOR] = CStringGetTextDatum(le_wait_name(waits_for));
	values[LE_CANDIDATES_BLOCKED_BY] = standing->blocked_by;
	nulls[LE_CANDIDATES_POSITION] = false;
	nulls[LE_CANDIDATES_WAITS_FOR] = false;
	nulls[LE_CANDIDATES_BLOCKED_BY] = false;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * Return the processes that a holder of the election's lock waits for, as
 * pg_blocking_pids does: those that hold the guard lock, or none
 */
static Datum
blockers_of_holder(const LeLockUser *holder)
{
	if (*(LOCK *volatile *) &holder->process->waitLock == NULL)
		return PointerGetDatum(construct_empty_array(INT4OID));
	return DirectFunctionCall1(pg_blocking_pids, Int32GetDatum(holder->pid));
}

/*
 * Check whether another lock user blocks a waiting one: by a lock that it
 * holds, or because it is ahead in line
 *
 * pg_blocking_pids uses the same rule.
 */
static bool
is_in_the_way(const LeLockView *view, int other, int waiter)
{
	const LeLockUser *user = &view->users[other];
	LOCKMODE	awaited = view->users[waiter].awaited;
	LOCKMASK	conflicts = GetLockTagsMethodTable(&view->tag)->conflictTab[awaited];

	if (user->process == view->users[waiter].process)
		return false;
	if (other < view->holders)
		return (user->held & conflicts) != 0;

	/* a waiter that blocks by a lock that it holds was counted as a holder */
	return other < waiter && (user->held & conflicts) == 0 &&
		(LOCKBIT_ON(user->awaited) & conflicts) != 0;
}

/*
 * Set the processes that the waiting one waits for, and its place in line
 * among the candidates
 *
 * pids must have room for all lock users.
 */
static void
find_blockers(LeStanding *standing, const LeLockView *view, const bool *stands, int waiter,
			  Datum *pids)
{
	int			count = 0;

	standing->position = 1;
	for (int i = 0; i < view->count; i++)
	{
		if (!is_in_the_way(view, i, waiter))
			continue;
		pids[count++] = Int32GetDatum(view->users[i].pid);
		if (stands[i])
			standing->position++;
	}
	standing->blocked_by = PointerGetDatum(construct_array(pids, count, INT4OID,
														   sizeof(int32), true,
														   TYPALIGN_INT));
}

/*
 * Return rows for all that stand in line for the election: those that wait for
 * its lock, if the registry knows them or this is a bare key that a session
 * has bid for, and a first candidate that holds it
 */
static void
put_line(ReturnSetInfo *rsinfo, const LeElectionKey *key, LeLockView *view)
{
	bool	   *stands;
	bool	   *known;
	Datum	   *pids;
	LeCandidate *candidates;

	le_view_lock(key, view);
	if (view->count == 0)
		return;
	stands = palloc_array(bool, view->count);
	known = palloc_array(bool, view->count);
	pids = palloc_array(Datum, view->count);
	candidates = palloc_array(LeCandidate, view->count);
	for (int i = 0; i < view->count; i++)
	{
		known[i] = view->users[i].pid != 0 &&
			le_registry_read_candidate(view->users[i].pid, key, &candidates[i]);
		stands[i] = known[i] || view->users[i].awaited != NoLock;
	}

	for (int i = 0; i < view->count; i++)
	{
		LeStanding	standing = {
			.user = &view->users[i],
			.candidate = known[i] ? &candidates[i] : NULL,
			.position = 1
		};

		CHECK_FOR_INTERRUPTS();

		/* a holder that waits is also among the waiters */
		if (!stands[i] || (i < view->holders && view->users[i].awaited != NoLock) ||
			(!known[i] && key->lock_class != LE_CLASS_BARE_KEY))
			continue;
		if (i < view->holders)
			standing.blocked_by = blockers_of_holder(standing.user);
		else
			find_blockers(&standing, view, stands, i, pids);
		put_standing(rsinfo, key, &standing);
	}
}

/*
 * Return rows for a candidate for many elections, one for each, or only that
 * of the given election
 */
static void
put_candidate_for_many(ReturnSetInfo *rsinfo, const LeCandidate *candidate,
					   const LeElection *only)
{
	int64	   *keys = MemoryContextAllocHuge(CurrentMemoryContext,
											  candidate->key_count * sizeof(int64));
	PGPROC	   *process = BackendPidGetProc(candidate->pid);
	LeElectionKey key = candidate->election;
	Datum		values[LE_CANDIDATES_COLUMNS] = {0};
	bool		nulls[LE_CANDIDATES_COLUMNS];
	LeRecord	record;

	if (process == NULL || !le_registry_copy_keys(candidate, keys))
		return;
	memset(nulls, true, sizeof(nulls));
	fill_process(process, candidate->pid, &key, values, nulls);
	fill_candidate(candidate, "", values, nulls);
	nulls[LE_CANDIDATES_NAME] = false;
	for (int i = 0; i < candidate->key_count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		key.key = keys[i];
		if (only != NULL && key.key != only->key.key)
			continue;
		(void) le_registry_read_record(&key, &record);
		if (record.term.name[0] == '\0')
			continue;
		values[LE_CANDIDATES_KEY] = Int64GetDatum(key.key);
		values[LE_CANDIDATES_NAME] = CStringGetTextDatum(record.term.name);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);

		/* there may be millions */
		pfree(DatumGetPointer(values[LE_CANDIDATES_NAME]));
	}
	pfree(keys);
}

static int
compare_keys(const void *one, const void *other)
{
	return memcmp(one, other, sizeof(LeElectionKey));
}

/*
 * Return the elections that may have a line, each once: those of the
 * candidates, and the bare keys that the registry remembers
 */
static LeElectionKey *
list_lines(const LeCandidate *candidates, int candidate_count, int *count)
{
	LeElectionKey *keys = le_registry_list_keys(true, count);

	keys = repalloc_huge(keys, (*count + candidate_count + 1) * sizeof(LeElectionKey));
	for (int i = 0; i < candidate_count; i++)
	{
		if (candidates[i].key_count == 0)
			keys[(*count)++] = candidates[i].election;
	}
	qsort(keys, *count, sizeof(LeElectionKey), compare_keys);
	*count = qunique(keys, *count, sizeof(LeElectionKey), compare_keys);
	return keys;
}

static void
put_all_lines(FunctionCallInfo fcinfo, const LeCandidate *candidates, int candidate_count)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			count;
	LeElectionKey *keys = list_lines(candidates, candidate_count, &count);
	LeLockView	view = {0};

	for (int i = 0; i < count && !le_has_rows_enough(fcinfo); i++)
	{
		CHECK_FOR_INTERRUPTS();
		put_line(rsinfo, &keys[i], &view);
	}
}

/*
 * Return the rows of le_candidates, or those of one election if it is given
 */
Datum
le_standing(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = le_begin_rows(fcinfo, LE_CANDIDATES_COLUMNS);
	LeElection	election;
	LeElection *only = PG_ARGISNULL(0) ? NULL : &election;
	LeLockView	view = {0};
	LeCandidate *candidates;
	int			count = 0;

	if (only != NULL && !le_arg_any_name(fcinfo, &election))
		return (Datum) 0;

	/* for one election, the list of candidates is needed only for followers */
	if (only != NULL)
		put_line(rsinfo, &only->key, &view);
	if (only != NULL && pg_atomic_read_u32(&le_registry_counters()->followers) == 0)
		return (Datum) 0;
	candidates = le_registry_list_candidates(&count);
	if (only == NULL)
		put_all_lines(fcinfo, candidates, count);
	for (int i = 0; i < count && !le_has_rows_enough(fcinfo); i++)
	{
		if (candidates[i].key_count > 0)
			put_candidate_for_many(rsinfo, &candidates[i], only);
	}
	return (Datum) 0;
}
