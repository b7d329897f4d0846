/*-------------------------------------------------------------------------
 *
 * views.c
 *	  The registry as rows, for the views to join with pg_locks.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "leader_election.h"

PG_FUNCTION_INFO_V1(le_registry_terms);
PG_FUNCTION_INFO_V1(le_registry_candidates);

/*
 * Return the columns that terms and candidates have in common: which lock, and
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
	LE_TERMS_TTL,
	LE_TERMS_RENEWED_AT,
	LE_TERMS_RENEWALS,
	LE_TERMS_EXPIRES_IN,
	LE_TERMS_COLUMNS
};

/*
 * Return the columns that only leases have; none of the others' times is on the
 * clock that deadlines are on
 */
static void
fill_lease(const LeTerm *term, Datum *values)
{
	int64		left_us = (int64) (term->deadline - le_monotonic_us());

	values[LE_TERMS_TTL] = interval_datum(term->ttl_us);
	values[LE_TERMS_RENEWED_AT] =
		TimestampTzGetDatum(GetCurrentTimestamp() + left_us - term->ttl_us);
	values[LE_TERMS_RENEWALS] = Int64GetDatum((int64) term->renewals);
	values[LE_TERMS_EXPIRES_IN] = interval_datum(Max(left_us, 0));
}

static void
put_term(ReturnSetInfo *rsinfo, const LeTerm *term)
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
		if (term->scope == LE_SCOPE_LEASE)
			fill_lease(term, values);
		else
			memset(nulls + LE_TERMS_TTL, true, LE_TERMS_COLUMNS - LE_TERMS_TTL);
	}
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * Return the terms on record, and the bare keys that somebody asked for; with a
 * lock class and key, only what is on record of that election
 */
Datum
le_registry_terms(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext row_context;
	LeTerm	   *terms;
	int			count = 0;

	InitMaterializedSRF(fcinfo, 0);
	le_leases_ready(false);

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		terms = le_registry_list_terms(&count);
	else
	{
		LeElectionKey key = {
			.key = PG_GETARG_INT64(1),
			.database = MyDatabaseId,
			.lock_class = PG_GETARG_INT32(0)
		};

		terms = palloc_object(LeTerm);
		count = le_registry_read(&key, terms) ? 1 : 0;
	}

	row_context = AllocSetContextCreate(CurrentMemoryContext, "leader_election row",
										ALLOCSET_SMALL_SIZES);
	for (int i = 0; i < count; i++)
	{
		LeTerm	   *term = &terms[i];
		MemoryContext caller = MemoryContextSwitchTo(row_context);

		if (term->scope != LE_SCOPE_LEASE || le_lease_runs(term))
			put_term(rsinfo, term);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(row_context);
	}
	return (Datum) 0;
}

/*
 * Return the candidates on record
 */
Datum
le_registry_candidates(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			count;
	LeCandidate *candidates;

	InitMaterializedSRF(fcinfo, 0);
	candidates = le_registry_list_candidates(&count);
	for (int i = 0; i < count; i++)
	{
		LeCandidate *candidate = &candidates[i];
		Datum		values[6] = {0};
		bool		nulls[6] = {0};

		fill_election(&candidate->election, candidate->name, values, nulls);
		values[3] = CStringGetTextDatum(le_identity_shown(&candidate->identity,
														  candidate->role));
		values[4] = Int32GetDatum(candidate->pid);
		values[5] = TimestampTzGetDatum(candidate->since);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
