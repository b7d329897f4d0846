/*-------------------------------------------------------------------------
 *
 * sql/work.c
 *	  SQL functions that a leader calls while it works.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "lease/lease.h"
#include "lead/lead.h"
#include "sql/sql.h"

PG_FUNCTION_INFO_V1(le_heartbeat);
PG_FUNCTION_INFO_V1(le_once);
PG_FUNCTION_INFO_V1(le_renew_many);

/*
 * (name, token)
 */
Datum
le_heartbeat(PG_FUNCTION_ARGS)
{
	LeElection	election;
	LeHeldTerm *held;

	le_refuse_restricted(fcinfo);
	le_election_by_name(&election, le_arg_name(fcinfo));
	le_require_primary();
	if (!PG_ARGISNULL(1))
		PG_RETURN_BOOL(le_beat_by_token(&election, PG_GETARG_INT64(1)));
	held = le_held_term(&election);
	if (held == NULL)
		PG_RETURN_BOOL(false);
	le_require_own_term(&election);
	PG_RETURN_BOOL(le_beat(held));
}

/*
 * (name, due, token)
 */
Datum
le_once(PG_FUNCTION_ARGS)
{
	LeElection	election;
	int64		token;

	le_prepare_for_name(fcinfo, &election);
	if (PG_ARGISNULL(1))
		le_raise_null("the time for which a job is due");
	token = PG_ARGISNULL(2) ? le_own_token(&election) : PG_GETARG_INT64(2);
	PG_RETURN_BOOL(le_do_once(&election, PG_GETARG_TIMESTAMPTZ(1), token));
}

/*
 * (names, tokens): renew leases, and return which of them run
 */
Datum
le_renew_many(PG_FUNCTION_ARGS)
{
	ArrayType  *name_array = le_arg_array(fcinfo, 0, "election names");
	ArrayType  *token_array = le_arg_array(fcinfo, 1, "tokens");
	Datum	   *names;
	Datum	   *tokens;
	Datum	   *renewed;
	int			count;
	int			token_count;

	deconstruct_array(name_array, TEXTOID, -1, false, TYPALIGN_INT, &names, NULL, &count);
	deconstruct_array(token_array, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE,
					  &tokens, NULL, &token_count);
	if (count != token_count)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("there must be as many tokens as election names: %d, not %d",
						count, token_count)));
	le_require_primary();
	le_prepare_to_look();
	renewed = palloc_array(Datum, count);
	for (int i = 0; i < count; i++)
	{
		text	   *name = DatumGetTextPP(names[i]);
		LeElection	election;

		CHECK_FOR_INTERRUPTS();
		le_check_name(name);
		le_election_by_name(&election, name);
		renewed[i] = BoolGetDatum(le_lease_renew(&election, DatumGetInt64(tokens[i]), 0));
	}
	PG_RETURN_ARRAYTYPE_P(construct_array(renewed, count, BOOLOID, sizeof(bool), true,
										  TYPALIGN_CHAR));
}
