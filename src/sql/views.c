/*-------------------------------------------------------------------------
 *
 * sql/views.c
 *	  Rows of the statistics views, and of the internal functions that show the
 *	  registry.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "announce/announce.h"
#include "lease/lease.h"
#include "leader/leader.h"
#include "term/term.h"
#include "sql/sql.h"
#include "leader_election.h"

PG_FUNCTION_INFO_V1(le_registry_terms);
PG_FUNCTION_INFO_V1(le_registry_candidates);
PG_FUNCTION_INFO_V1(le_registry_statistics);
PG_FUNCTION_INFO_V1(le_registry_info);
PG_FUNCTION_INFO_V1(pg_stat_leader_election_reset);

/*
 * Check whether a view's function has returned as many rows as its second
 * argument asks for
 */
bool
le_has_rows_enough(FunctionCallInfo fcinfo)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	return !PG_ARGISNULL(1) &&
		tuplestore_tuple_count(rsinfo->setResult) >= PG_GETARG_INT64(1);
}

/*
 * Fill in the columns that terms and candidates have in common: the lock, and
 * the name, NULL for a bare key
 */
static void
fill_election(const LeElectionKey *election, const char *name,
			  Datum *values, bool *nulls)
{
	values[0] = Int32GetDatum((int32) election->lock_class);
	values[1] = Int64GetDatum(election->key);
	if (name[0] == '\0')
		nulls[2] = true;
	else
		values[2] = CStringGetTextDatum(name);
}

static Datum
interval_datum(int64 us)
{
	Interval   *interval = palloc0_object(Interval);

	interval->time = us;
	return IntervalPGetDatum(interval);
}

/* The columns of le_registry_terms */
enum
{
	LE_TERMS_SCOPE = 3,
	LE_TERMS_IDENTITY,
	LE_TERMS_TOKEN,
	LE_TERMS_PID,
	LE_TERMS_SINCE,
	LE_TERMS_ROLE,
	LE_TERMS_EXPIRY,
	LE_TERMS_VALUE = LE_TERMS_EXPIRY + LE_EXPIRY_COLUMNS,
	LE_TERMS_FOLLOWERS,
	LE_TERMS_COLUMNS
};

/*
 * Fill in the columns that only leases and terms with a heartbeat have
 *
 * Renewals are not replicated, so a standby knows none.
 */
void
le_fill_expiry(const LeTerm *term, Datum *values, bool *nulls)
{
	bool		is_lease = term->scope == LE_SCOPE_LEASE;
	int64		left_us = (int64) (term->deadline - le_monotonic_us());

	memset(nulls, true, LE_EXPIRY_COLUMNS);
	if (term->lasts_us == 0)
		return;
	values[is_lease ? 0 : 1] = interval_datum(term->lasts_us);
	nulls[is_lease ? 0 : 1] = false;
	if (!le_deadline_is_committed(term->deadline))
		return;
	values[4] = interval_datum(Max(left_us, 0));
	nulls[4] = false;
	if (!is_lease)
		return;
	values[2] = TimestampTzGetDatum(GetCurrentTimestamp() + left_us - term->lasts_us);
	values[3] = Int64GetDatum((int64) term->renewals);
	nulls[2] = nulls[3] = false;
}

/*
 * Fill in the columns about the bid that was denied last
 */
void
le_fill_denial(const LeDenial *denial, Datum *values, bool *nulls)
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

/*
 * Fill in the value that the leader publishes, if the current user may see it
 */
void
le_fill_value(const LeTerm *term, Datum *value_datum, bool *is_null)
{
	char		value[LE_VALUE_SIZE];

	*is_null = !term->has_value || !le_may_observe(term->name) ||
		!le_registry_copy_value(&term->election, term->token, value);
	if (!*is_null)
		*value_datum = CStringGetTextDatum(value);
}

static void
put_term_row(ReturnSetInfo *rsinfo, const LeTerm *term)
{
	Datum		values[LE_TERMS_COLUMNS] = {0};
	bool		nulls[LE_TERMS_COLUMNS] = {0};

	fill_election(&term->election, term->name, values, nulls);
	if (term->token == 0)
		memset(nulls + LE_TERMS_SCOPE, true, LE_TERMS_COLUMNS - LE_TERMS_SCOPE);
	else
	{
		values[LE_TERMS_SCOPE] = CStringGetTextDatum(le_scope_name(term->scope));
		values[LE_TERMS_IDENTITY] =
			CStringGetTextDatum(le_identity_shown(&term->identity, term->role));
		values[LE_TERMS_TOKEN] = Int64GetDatum(term->token);
		values[LE_TERMS_PID] = Int32GetDatum(term->pid);
		values[LE_TERMS_SINCE] = TimestampTzGetDatum(term->since);
		values[LE_TERMS_ROLE] = ObjectIdGetDatum(term->role);
		nulls[LE_TERMS_PID] = term->scope == LE_SCOPE_LEASE;
		le_fill_expiry(term, &values[LE_TERMS_EXPIRY], &nulls[LE_TERMS_EXPIRY]);
		le_fill_value(term, &values[LE_TERMS_VALUE], &nulls[LE_TERMS_VALUE]);
		values[LE_TERMS_FOLLOWERS] = Int32GetDatum(term->followers);
	}
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * Return the recorded terms, or with a key that of one election.  *count is
 * set to their number.
 *
 * A standby has no registry entries, but the leases that were replicated.
 */
static LeTerm *
list_shown_terms(bool on_standby, const LeElectionKey *only, int *count)
{
	LeTerm	   *terms;

	if (on_standby)
		return le_lease_list(NULL, count);
	if (only == NULL)
		return le_registry_list_terms(count);
	terms = palloc_object(LeTerm);
	*count = le_registry_read(only, terms) ? 1 : 0;
	return terms;
}

static bool
is_shown_term(bool on_standby, const LeTerm *term, const LeElectionKey *only)
{
	if (only != NULL && memcmp(&term->election, only, sizeof(LeElectionKey)) != 0)
		return false;
	return term->scope != LE_SCOPE_LEASE || on_standby || le_copied_lease_runs(term);
}

/*
 * Return the recorded terms, and the bare keys that a session has bid for;
 * with a lock class and key, only what is recorded of that election
 */
Datum
le_registry_terms(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = le_begin_rows(fcinfo, LE_TERMS_COLUMNS);
	MemoryContext row_context;
	bool		on_standby = RecoveryInProgress();
	LeElectionKey key = {.database = MyDatabaseId};
	const LeElectionKey *only = NULL;
	LeTerm	   *terms;
	int			count = 0;

	le_prepare_to_look();
	if (!PG_ARGISNULL(0) && !PG_ARGISNULL(1))
	{
		key.lock_class = PG_GETARG_INT32(0);
		key.key = PG_GETARG_INT64(1);
		only = &key;
	}
	terms = list_shown_terms(on_standby, only, &count);

	row_context = AllocSetContextCreate(CurrentMemoryContext, "leader_election row",
										ALLOCSET_SMALL_SIZES);
	for (int i = 0; i < count; i++)
	{
		MemoryContext caller = MemoryContextSwitchTo(row_context);

		if (is_shown_term(on_standby, &terms[i], only))
			put_term_row(rsinfo, &terms[i]);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(row_context);
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

/*
 * Return the name in the views of what a candidate waits for
 */
const char *
le_wait_name(LeWait waits_for)
{
	return wait_names[waits_for];
}

/* The number of columns of le_registry_candidates */
#define LE_RECORD_COLUMNS	8

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

	fill_election(election, name, values, nulls);
	values[3] = CStringGetTextDatum(identity);
	values[4] = Int32GetDatum(candidate->pid);
	values[5] = TimestampTzGetDatum(candidate->since);
	values[6] = BoolGetDatum(candidate->key_count == 0);
	values[7] = CStringGetTextDatum(le_wait_name(candidate->waits_for));
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);

	/* there may be millions */
	pfree(DatumGetPointer(values[3]));
	pfree(DatumGetPointer(values[7]));
	if (!nulls[2])
		pfree(DatumGetPointer(values[2]));
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
	LeRecord	record;
	int			count = 0;

	if (le_registry_copy_keys(candidate, keys))
		count = candidate->key_count;
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		election.key = keys[i];
		(void) le_registry_read_record(&election, &record);
		if (record.term.name[0] != '\0')
			put_record(rsinfo, candidate, &election, record.term.name);
	}
	pfree(keys);
}

/*
 * Return the recorded candidates; with true, only those that stand in line
 */
Datum
le_registry_candidates(PG_FUNCTION_ARGS)
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

/* The columns of le_registry_statistics */
enum
{
	LE_STATISTICS_NAME,
	LE_STATISTICS_KEY,
	LE_STATISTICS_TERMS,
	LE_STATISTICS_ENDED,
	LE_STATISTICS_DENIED,
	LE_STATISTICS_LAST_DENIED,
	LE_STATISTICS_ROLLED_BACK = LE_STATISTICS_LAST_DENIED + LE_DENIAL_COLUMNS,
	LE_STATISTICS_TIME_VACANT,
	LE_STATISTICS_TIME_LED,
	LE_STATISTICS_LONGEST_WAIT,
	LE_STATISTICS_CANDIDATES,
	LE_STATISTICS_VACANT_SINCE,
	LE_STATISTICS_COLUMNS
};

static void
put_statistics(ReturnSetInfo *rsinfo, const LeStatistics *row, LeLockView *view)
{
	Datum		values[LE_STATISTICS_COLUMNS] = {0};
	bool		nulls[LE_STATISTICS_COLUMNS] = {0};
	int			standing;

	le_view_lock(&row->election, view);
	standing = le_count_standing(&row->election, view, 0);
	nulls[LE_STATISTICS_NAME] = row->name[0] == '\0';
	if (!nulls[LE_STATISTICS_NAME])
		values[LE_STATISTICS_NAME] = CStringGetTextDatum(row->name);
	values[LE_STATISTICS_KEY] = Int64GetDatum(row->election.key);
	values[LE_STATISTICS_TERMS] = Int64GetDatum(row->terms);
	values[LE_STATISTICS_ENDED] = ended_datum(row);
	values[LE_STATISTICS_DENIED] = Int64GetDatum((int64) row->denied);
	le_fill_denial(&row->last_denied, &values[LE_STATISTICS_LAST_DENIED],
				   &nulls[LE_STATISTICS_LAST_DENIED]);
	values[LE_STATISTICS_ROLLED_BACK] = Int64GetDatum((int64) row->rolled_back);
	values[LE_STATISTICS_TIME_VACANT] = interval_datum((int64) row->vacant_us);
	values[LE_STATISTICS_TIME_LED] = interval_datum((int64) row->led_us);
	values[LE_STATISTICS_LONGEST_WAIT] = interval_datum((int64) row->longest_wait_us);
	values[LE_STATISTICS_CANDIDATES] = Int64GetDatum(standing + row->followers);
	values[LE_STATISTICS_VACANT_SINCE] =
		TimestampTzGetDatum(GetCurrentTimestamp() - row->vacant_for_us);
	nulls[LE_STATISTICS_VACANT_SINCE] = !row->is_vacant;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

static void
put_all_statistics(FunctionCallInfo fcinfo)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			count;
	LeStatistics *rows = le_registry_list_statistics(&count);
	LeLockView	view = {0};
	MemoryContext row_context = AllocSetContextCreate(CurrentMemoryContext,
													  "leader_election row",
													  ALLOCSET_SMALL_SIZES);

	if (count > 0)
		le_view_lock(&rows[0].election, &view); /* so that its memory stays */
	for (int i = 0; i < count && !le_has_rows_enough(fcinfo); i++)
	{
		MemoryContext caller = MemoryContextSwitchTo(row_context);

		CHECK_FOR_INTERRUPTS();
		put_statistics(rsinfo, &rows[i], &view);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(row_context);
	}
}

/*
 * Return the statistics of each election, or of one if it is given
 */
Datum
le_registry_statistics(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = le_begin_rows(fcinfo, LE_STATISTICS_COLUMNS);
	LeElection	election;
	LeStatistics row;
	LeLockView	view = {0};

	le_prepare_to_look();
	if (PG_ARGISNULL(0))
		put_all_statistics(fcinfo);
	else if (le_arg_any_name(fcinfo, &election) &&
			 le_registry_read_statistics(&election.key, &row))
		put_statistics(rsinfo, &row, &view);
	return (Datum) 0;
}

/*
 * Return the numbers of elections and evictions, and when the statistics were
 * reset
 */
Datum
le_registry_info(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	TimestampTz reset = le_registry_stats_reset();
	LeCounters *counters = le_registry_counters();
	Datum		values[3];
	bool		nulls[3] = {false, false, reset == 0};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE ||
		desc->natts != lengthof(values))
		elog(ERROR, "function does not return a row of %d columns", (int) lengthof(values));
	values[0] = Int64GetDatum((int64) pg_atomic_read_u32(&counters->elections));
	values[1] = Int64GetDatum((int64) pg_atomic_read_u64(&counters->evictions));
	values[2] = TimestampTzGetDatum(reset);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
}

Datum
pg_stat_leader_election_reset(PG_FUNCTION_ARGS)
{
	le_refuse_restricted(fcinfo);
	le_register_callbacks();
	le_reset_statistics();
	PG_RETURN_VOID();
}
