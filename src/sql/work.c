/*-------------------------------------------------------------------------
 *
 * sql/work.c
 *	  SQL functions that a leader calls while it works.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "leader/leader.h"
#include "sql/sql.h"
#include "leader_election.h"

PG_FUNCTION_INFO_V1(le_heartbeat);
PG_FUNCTION_INFO_V1(le_heartbeat_key);
PG_FUNCTION_INFO_V1(le_once);
PG_FUNCTION_INFO_V1(le_seats);

/* The largest number of seats */
#define LE_MAX_SEATS	10000

/*
 * (election, token)
 */
static Datum
give_heartbeat(FunctionCallInfo fcinfo, LeCalledBy called_by)
{
	LeElection	election;
	LeHeldTerm *held;

	le_refuse_restricted(fcinfo);
	le_arg_election(fcinfo, called_by, &election);
	le_require_primary();
	if (!PG_ARGISNULL(1))
		PG_RETURN_BOOL(le_beat_by_token(&election, PG_GETARG_INT64(1)));
	held = le_held_term(&election);
	if (held == NULL)
		PG_RETURN_BOOL(false);
	le_require_own_term(&election);
	PG_RETURN_BOOL(le_beat(held));
}

Datum
le_heartbeat(PG_FUNCTION_ARGS)
{
	return give_heartbeat(fcinfo, LE_BY_NAME);
}

Datum
le_heartbeat_key(PG_FUNCTION_ARGS)
{
	return give_heartbeat(fcinfo, LE_BY_KEY);
}

/*
 * (name, due, token)
 */
Datum
le_once(PG_FUNCTION_ARGS)
{
	LeElection	election;
	int64		token;

	le_refuse_restricted(fcinfo);
	le_register_callbacks();
	le_election_by_name(&election, le_arg_name(fcinfo));
	if (PG_ARGISNULL(1))
		le_raise_null("the time for which a job is due");
	token = PG_ARGISNULL(2) ? le_own_token(&election) : PG_GETARG_INT64(2);
	PG_RETURN_BOOL(le_do_once(&election, PG_GETARG_TIMESTAMPTZ(1), token));
}

/*
 * (name, n): return the names of n elections
 */
Datum
le_seats(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(le_arg_name(fcinfo));
	int			count;
	Datum	   *seats;

	if (PG_ARGISNULL(1))
		le_raise_null("number of seats");
	count = PG_GETARG_INT32(1);
	if (count < 1 || count > LE_MAX_SEATS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("number of seats must be from 1 to %d", LE_MAX_SEATS)));
	seats = palloc_array(Datum, count);
	for (int i = 0; i < count; i++)
	{
		text	   *seat = cstring_to_text(psprintf("%s/%d", name, i + 1));

		le_check_name(seat);
		seats[i] = PointerGetDatum(seat);
	}
	PG_RETURN_ARRAYTYPE_P(construct_array(seats, count, TEXTOID, -1, false, TYPALIGN_INT));
}
