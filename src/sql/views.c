/*-------------------------------------------------------------------------
 *
 * sql/views.c
 *	  Rows of le_leader(), and of the internal functions that list the
 *	  registry, which the views read.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "lock/lock.h"
#include "tell/tell.h"
#include "term/term.h"
#include "lease/lease.h"
#include "lead/lead.h"
#include "sql/sql.h"

LE_FUNCTION(le_leader);
LE_FUNCTION(le_registry_terms);
LE_FUNCTION(le_registry_candidates);
LE_FUNCTION(le_registry_statistics);
LE_FUNCTION(le_registry_info);
LE_FUNCTION(le_list_declarations);
LE_FUNCTION(le_list_once_done);
LE_FUNCTION(pg_stat_leader_election_reset);

/* key and name */
#define LE_ELECTION_COLUMNS	2

/*
 * Fill in which election this is
 */
static void
fill_election(const LeElectionKey *election, const char *name, Datum *values)
{
	values[0] = Int64GetDatum(election->key);
	values[1] = CStringGetTextDatum(name);
}

static Datum
interval_datum(int64 us)
{
	Interval   *interval = palloc0_object(Interval);

	interval->time = us;
	return IntervalPGetDatum(interval);
}

/* The columns that le_leader and le_registry_terms have in common */
enum
{
	LE_TERM_SCOPE,
	LE_TERM_IDENTITY,
	LE_TERM_TOKEN,
	LE_TERM_PID,
	LE_TERM_SINCE,
	LE_TERM_CANDIDATES,
	LE_TERM_TTL,
	LE_TERM_HEARTBEAT,
	LE_TERM_RENEWED_AT,
	LE_TERM_RENEWALS,
	LE_TERM_EXPIRES_IN,
	LE_TERM_VALUE,
	LE_TERM_COLUMNS
};

/*
 * Fill in the columns that only leases and terms with a heartbeat have
 *
 * Renewals are not replicated, so a standby knows none.
 */
static void
fill_expiry(const LeTerm *term, Datum *values, bool *nulls)
{
	bool		is_lease = term->scope == LE_SCOPE_LEASE;
	int			lasts = is_lease ? LE_TERM_TTL : LE_TERM_HEARTBEAT;
	int64		left_us = (int64) (term->deadline - le_monotonic_us());

	if (term->lasts_us == 0)
		return;
	values[lasts] = interval_datum(term->lasts_us);
	nulls[lasts] = false;
	if (!le_deadline_is_committed(term->deadline))
		return;
	values[LE_TERM_EXPIRES_IN] = interval_datum(Max(left_us, 0));
	nulls[LE_TERM_EXPIRES_IN] = false;
	if (!is_lease)
		return;
	values[LE_TERM_RENEWED_AT] =
		TimestampTzGetDatum(GetCurrentTimestamp() + left_us - term->lasts_us);
	values[LE_TERM_RENEWALS] = Int64GetDatum((int64) term->renewals);
	nulls[LE_TERM_RENEWED_AT] = nulls[LE_TERM_RENEWALS] = false;
}

/*
 * Fill in the value, if the current user may observe the election
 */
static void
fill_value(const LeTerm *term, Datum *values, bool *nulls)
{
	char		value[LE_VALUE_SIZE];

	/* in this order, as the value can become private between the two */
	if (!term->has_value ||
		!le_registry_copy_value(&term->election, term->token, value) ||
		!le_may_observe(&term->election))
		return;
	values[LE_TERM_VALUE] = CStringGetTextDatum(value);
	nulls[LE_TERM_VALUE] = false;
}

static void
fill_term(const LeTerm *term, Datum *values, bool *nulls)
{
	values[LE_TERM_SCOPE] = CStringGetTextDatum(le_scope_name(term->scope));
	values[LE_TERM_IDENTITY] =
		CStringGetTextDatum(le_identity_shown(&term->identity, term->role));
	values[LE_TERM_TOKEN] = Int64GetDatum(term->token);
	values[LE_TERM_PID] = Int32GetDatum(term->pid);
	values[LE_TERM_SINCE] = TimestampTzGetDatum(term->since);
	values[LE_TERM_CANDIDATES] = Int64GetDatum(term->candidates);
	memset(nulls + LE_TERM_TTL, true, LE_TERM_COLUMNS - LE_TERM_TTL);
	nulls[LE_TERM_PID] = term->scope == LE_SCOPE_LEASE;
	fill_expiry(term, values, nulls);
	fill_value(term, values, nulls);
}

/* last_denied_at and last_denied_identity */
#define LE_DENIAL_COLUMNS	2

static void
fill_denial(const LeDenial *denial, Datum *values, bool *nulls)
{
	const LeIdentity *identity = &denial->identity;

	memset(nulls, true, LE_DENIAL_COLUMNS);
	if (denial->at == 0)
		return;
	values[0] = TimestampTzGetDatum(denial->at);
	nulls[0] = false;
	if (identity->string[0] == '\0')
		return;
	values[1] = CStringGetTextDatum(le_identity_shown(identity, denial->role));
	nulls[1] = false;
}

/* The columns of le_leader */
enum
{
	LE_LEADER_NAME,
	LE_LEADER_KEY,
	LE_LEADER_TERM,
	LE_LEADER_COLUMNS = LE_LEADER_TERM + LE_TERM_COLUMNS
};

static void
put_leader(ReturnSetInfo *rsinfo, const LeTerm *term)
{
	Datum		values[LE_LEADER_COLUMNS] = {0};
	bool		nulls[LE_LEADER_COLUMNS] = {0};

	values[LE_LEADER_NAME] = CStringGetTextDatum(term->name);
	values[LE_LEADER_KEY] = Int64GetDatum(term->election.key);
	fill_term(term, &values[LE_LEADER_TERM], &nulls[LE_LEADER_TERM]);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * Return the row of a leader that is known on a standby: of a lease
 */
static void
put_replicated(ReturnSetInfo *rsinfo, const LeElection *election)
{
	int			count;
	LeTerm	   *terms = le_lease_list(election, &count);

	for (int i = 0; i < count; i++)
		put_leader(rsinfo, &terms[i]);
}

/*
 * Return the election's leader, or no row
 *
 * If no session holds the election's lock or waits for it, the lock of the
 * recorded term was released without the extension's knowledge.  The lock is
 * looked at first: a term that is recorded after that was led in between.
 */
static Datum
le_leader_body(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = le_begin_rows(fcinfo, LE_LEADER_COLUMNS);
	LeElection	election;
	LeTerm		term;
	bool		is_held;

	le_election_by_name(&election, le_arg_name(fcinfo));
	le_prepare_to_look();
	if (RecoveryInProgress())
	{
		put_replicated(rsinfo, &election);
		return (Datum) 0;
	}
	is_held = le_lock_is_busy(&election);
	if (!le_registry_read(&election.key, &term) || strcmp(term.name, election.name) != 0)
		return (Datum) 0;
	if (term.scope == LE_SCOPE_LEASE ? le_copied_lease_runs(&term) : is_held && !term.silent)
		put_leader(rsinfo, &term);
	return (Datum) 0;
}

/* The columns of le_registry_terms, after those that fill_election fills in */
enum
{
	LE_TERMS_TERM = LE_ELECTION_COLUMNS,
	LE_TERMS_ROLE = LE_TERMS_TERM + LE_TERM_COLUMNS,
	LE_TERMS_DENIAL,
	LE_TERMS_COLUMNS = LE_TERMS_DENIAL + LE_DENIAL_COLUMNS
};

/*
 * Return the row of a term
 */
static void
put_term_row(ReturnSetInfo *rsinfo, const LeTerm *term)
{
	Datum		values[LE_TERMS_COLUMNS] = {0};
	bool		nulls[LE_TERMS_COLUMNS] = {0};

	fill_election(&term->election, term->name, values);
	fill_term(term, &values[LE_TERMS_TERM], &nulls[LE_TERMS_TERM]);
	values[LE_TERMS_ROLE] = ObjectIdGetDatum(term->role);
	fill_denial(&term->last_denied, &values[LE_TERMS_DENIAL], &nulls[LE_TERMS_DENIAL]);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * Return the recorded terms that run
 *
 * A standby has no registry entries, but the leases that were replicated.
 */
static Datum
le_registry_terms_body(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = le_begin_rows(fcinfo, LE_TERMS_COLUMNS);
	bool		on_standby = RecoveryInProgress();
	LeTerm	   *terms;
	int			count;

	le_prepare_to_look();
	terms = on_standby ? le_lease_list(NULL, &count) : le_registry_list_terms(&count);
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (on_standby || (terms[i].scope == LE_SCOPE_LEASE ?
						   le_copied_lease_runs(&terms[i]) : !terms[i].silent))
			put_term_row(rsinfo, &terms[i]);
	}
	return (Datum) 0;
}

static const char *const wait_names[] = {
	[LE_WAITS_FOR_LEADER] = "leader",
	[LE_WAITS_FOR_GUARD] = "guard",
	[LE_WAITS_FOR_GRACE] = "grace",
	[LE_WAITS_AFTER_PROMOTION] = "promotion",
	[LE_WAITS_FOR_STANDBY] = "standby",
};

/* The number of columns of le_registry_candidates */
#define LE_RECORD_COLUMNS	7

/*
 * Return a row for a candidate, for one of its elections
 */
static void
put_record(ReturnSetInfo *rsinfo, const LeCandidate *candidate,
		   const LeElectionKey *election, const char *name)
{
	const char *identity = le_identity_shown(&candidate->identity, candidate->role);
	Datum		values[LE_RECORD_COLUMNS] = {0};
	bool		nulls[LE_RECORD_COLUMNS] = {0};

	fill_election(election, name, values);
	values[2] = CStringGetTextDatum(identity);
	values[3] = Int32GetDatum(candidate->pid);
	values[4] = TimestampTzGetDatum(candidate->since);
	values[5] = BoolGetDatum(candidate->key_count == 0);
	values[6] = CStringGetTextDatum(wait_names[candidate->waits_for]);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);

	/* there may be millions */
	pfree(DatumGetPointer(values[1]));
	pfree(DatumGetPointer(values[2]));
	pfree(DatumGetPointer(values[6]));
}

/*
 * Return rows for a candidate for many elections, one for each
 */
static void
put_record_for_many(ReturnSetInfo *rsinfo, const LeCandidate *candidate)
{
	int64	   *keys = MemoryContextAllocHuge(CurrentMemoryContext,
											  candidate->key_count * sizeof(int64));
	LeElectionKey election = candidate->election;
	LeTerm		known;
	int			count = 0;

	if (le_registry_copy_keys(candidate, keys))
		count = candidate->key_count;
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		election.key = keys[i];
		(void) le_registry_read(&election, &known);
		if (known.name[0] != '\0')
			put_record(rsinfo, candidate, &election, known.name);
	}
	pfree(keys);
}

/*
 * Return the recorded candidates; with true, only those that wait in line
 */
static Datum
le_registry_candidates_body(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = le_begin_rows(fcinfo, LE_RECORD_COLUMNS);
	bool		only_in_line = !PG_ARGISNULL(0) && PG_GETARG_BOOL(0);
	int			count;
	LeCandidate *candidates;

	candidates = le_registry_list_candidates(&count);
	for (int i = 0; i < count; i++)
	{
		if (candidates[i].key_count == 0)
			put_record(rsinfo, &candidates[i], &candidates[i].election,
					   candidates[i].name);
		else if (!only_in_line)
			put_record_for_many(rsinfo, &candidates[i]);
	}
	return (Datum) 0;
}

/*
 * Return the numbers of ended terms, by LeEndReason
 */
static Datum
ended_datum(const LeStatistics *row)
{
	Datum		counts[LE_END_REASONS];

	for (int reason = 0; reason < LE_END_REASONS; reason++)
		counts[reason] = Int64GetDatum(row->ended[reason]);
	return PointerGetDatum(construct_array(counts, LE_END_REASONS, INT8OID,
										   sizeof(int64), FLOAT8PASSBYVAL,
										   TYPALIGN_DOUBLE));
}

/* The columns of le_registry_statistics, likewise */
enum
{
	LE_STATISTICS_TERMS = LE_ELECTION_COLUMNS,
	LE_STATISTICS_ENDED,
	LE_STATISTICS_DENIED,
	LE_STATISTICS_DENIAL,
	LE_STATISTICS_ROLLED_BACK = LE_STATISTICS_DENIAL + LE_DENIAL_COLUMNS,
	LE_STATISTICS_TIME_VACANT,
	LE_STATISTICS_TIME_LED,
	LE_STATISTICS_LONGEST_WAIT,
	LE_STATISTICS_VACANT_SINCE,
	LE_STATISTICS_CANDIDATES,
	LE_STATISTICS_COLUMNS
};

static void
put_statistics(ReturnSetInfo *rsinfo, const LeStatistics *row)
{
	Datum		values[LE_STATISTICS_COLUMNS] = {0};
	bool		nulls[LE_STATISTICS_COLUMNS] = {0};

	fill_election(&row->election, row->name, values);
	values[LE_STATISTICS_TERMS] = Int64GetDatum(row->terms);
	values[LE_STATISTICS_ENDED] = ended_datum(row);
	values[LE_STATISTICS_DENIED] = Int64GetDatum((int64) row->denied);
	fill_denial(&row->last_denied, &values[LE_STATISTICS_DENIAL],
				&nulls[LE_STATISTICS_DENIAL]);
	values[LE_STATISTICS_ROLLED_BACK] = Int64GetDatum((int64) row->rolled_back);
	values[LE_STATISTICS_TIME_VACANT] = interval_datum((int64) row->vacant_us);
	values[LE_STATISTICS_TIME_LED] = interval_datum((int64) row->led_us);
	values[LE_STATISTICS_LONGEST_WAIT] = interval_datum((int64) row->longest_wait_us);
	values[LE_STATISTICS_VACANT_SINCE] =
		TimestampTzGetDatum(GetCurrentTimestamp() - row->vacant_for_us);
	nulls[LE_STATISTICS_VACANT_SINCE] = !row->is_vacant;
	values[LE_STATISTICS_CANDIDATES] = Int64GetDatum(row->candidates);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * Return the statistics of each election
 */
static Datum
le_registry_statistics_body(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = le_begin_rows(fcinfo, LE_STATISTICS_COLUMNS);
	LeStatistics *rows;
	int			count;

	le_prepare_to_look();
	rows = le_registry_list_statistics(&count);
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		put_statistics(rsinfo, &rows[i]);
	}
	return (Datum) 0;
}

/*
 * Return the numbers of elections and evictions, and when the statistics were
 * reset
 */
static Datum
le_registry_info_body(PG_FUNCTION_ARGS)
{
	Datum		values[3];
	bool		nulls[3] = {0};
	ReturnSetInfo *rsinfo = le_begin_rows(fcinfo, lengthof(values));
	TimestampTz reset = le_registry_stats_reset();
	LeCounters *counters = le_registry_counters();

	values[0] = Int64GetDatum((int64) pg_atomic_read_u32(&counters->elections));
	values[1] = Int64GetDatum((int64) pg_atomic_read_u64(&counters->evictions));
	values[2] = TimestampTzGetDatum(reset);
	nulls[2] = reset == 0;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	return (Datum) 0;
}

static Datum
pg_stat_leader_election_reset_body(PG_FUNCTION_ARGS)
{
	le_prepare(fcinfo);
	le_registry_reset_statistics();
	PG_RETURN_VOID();
}

/*
 * Return the rows of a table, as of now
 *
 * The scan sees all versions of the rows, each of which is then checked for
 * visibility, and so takes part in no serialization conflict.  The server
 * raises the error of such a conflict with the page locked.
 */
static Datum
list_rows(FunctionCallInfo fcinfo, LeRelationId which)
{
	Relation	table = le_open_table(which, AccessShareLock);
	ReturnSetInfo *rsinfo = le_begin_rows(fcinfo, RelationGetNumberOfAttributes(table));
	Snapshot	now = RegisterSnapshot(GetCatalogSnapshot(RelationGetRelid(table)));
	SysScanDesc scan = systable_beginscan(table, InvalidOid, false, SnapshotAny, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		if (table_tuple_satisfies_snapshot(table, scan->slot, now))
			tuplestore_puttuple(rsinfo->setResult, tuple);
	systable_endscan(scan);
	UnregisterSnapshot(now);
	table_close(table, AccessShareLock);
	return (Datum) 0;
}

static Datum
le_list_declarations_body(PG_FUNCTION_ARGS)
{
	return list_rows(fcinfo, LE_DECLARATIONS);
}

static Datum
le_list_once_done_body(PG_FUNCTION_ARGS)
{
	return list_rows(fcinfo, LE_ONCE);
}
