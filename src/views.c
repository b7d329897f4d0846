/*-------------------------------------------------------------------------
 *
 * views.c
 *	  The registry as rows, for the views to join with pg_locks.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "utils/builtins.h"

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

/*
 * Return the terms on record, and the bare keys that somebody asked for
 */
Datum
le_registry_terms(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			count;
	LeTerm	   *terms;

	InitMaterializedSRF(fcinfo, 0);
	terms = le_registry_list_terms(&count);
	for (int i = 0; i < count; i++)
	{
		LeTerm	   *term = &terms[i];
		Datum		values[8] = {0};
		bool		nulls[8] = {0};

		fill_election(&term->election, term->name, values, nulls);
		if (term->token == 0)
			memset(nulls + 3, true, 5);
		else
		{
			values[3] = CStringGetTextDatum(le_scope_name(term->scope));
			values[4] = CStringGetTextDatum(le_identity_shown(&term->identity,
															  term->role));
			values[5] = Int64GetDatum(term->token);
			values[6] = Int32GetDatum(term->pid);
			values[7] = TimestampTzGetDatum(term->since);
		}
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
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
		Datum		values[5] = {0};
		bool		nulls[5] = {0};

		fill_election(&candidate->election, candidate->name, values, nulls);
		values[3] = CStringGetTextDatum(le_identity_shown(&candidate->identity,
														  candidate->role));
		values[4] = Int32GetDatum(candidate->pid);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
