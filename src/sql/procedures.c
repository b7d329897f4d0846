/*-------------------------------------------------------------------------
 *
 * sql/procedures.c
 *	  SQL procedures: calls that can wait, without holding a snapshot.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "lead/lead.h"
#include "bid/bid.h"
#include "sql/sql.h"

LE_FUNCTION(le_campaign);
LE_FUNCTION(le_campaign_names);
LE_FUNCTION(le_observe);

/*
 * End the transaction that the procedure was called in, and with it the
 * snapshot that the caller holds, if the caller allows that
 *
 * In a transaction block, in a function and in an exception block it does not.
 * Raises an error if the commit undoes SET LOCAL ROLE, as the caller would
 * continue as another role.
 */
static void
commit_to_drop_snapshot(FunctionCallInfo fcinfo)
{
	CallContext *call = (CallContext *) fcinfo->context;
	Oid			role = GetUserId();
	Oid			session_role = GetSessionUserId();

	if (call == NULL || !IsA(call, CallContext) || call->atomic ||
		IsSubTransaction())
		return;

	SPI_connect_ext(SPI_OPT_NONATOMIC);
	SPI_commit();
	SPI_finish();
	if (GetUserId() != role || GetSessionUserId() != session_role)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_TERMINATION),
				 errmsg("role \"%s\" was set only until the commit in this procedure",
						GetUserNameFromId(role, false)),
				 errdetail("After the commit, the role is \"%s\", and that of the session \"%s\".",
						   GetUserNameFromId(GetUserId(), false),
						   GetUserNameFromId(GetSessionUserId(), false)),
				 errhint("Use SET ROLE instead of SET LOCAL ROLE.")));
}

/*
 * Return the row type of the output parameters
 *
 * Call this before the procedure waits, since it may be dropped meanwhile.
 */
static TupleDesc
output_row_type(FunctionCallInfo fcinfo)
{
	TupleDesc	type;

	if (get_call_result_type(fcinfo, NULL, &type) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "procedure does not return a row");
	return BlessTupleDesc(type);
}

static Datum
output_token(TupleDesc type, int64 token)
{
	Datum		value = Int64GetDatum(token);
	bool		is_null = token == 0;

	return HeapTupleGetDatum(heap_form_tuple(type, &value, &is_null));
}

/*
 * Fill in the bid from the arguments that both procedures have: (..., timeout,
 * ttl, heartbeat, identity)
 */
static void
get_bid(FunctionCallInfo fcinfo, LeBid *bid)
{
	bid->wait_ms = le_arg_timeout(fcinfo, 1);
	bid->scope = PG_ARGISNULL(2) ? LE_SCOPE_SESSION : LE_SCOPE_LEASE;
	if (!PG_ARGISNULL(2) && !PG_ARGISNULL(3))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("ttl and heartbeat must not both be given"),
				 errdetail("A ttl is for a lease, and a heartbeat for a term in session scope.")));
	bid->lasts_us = PG_ARGISNULL(2) ? le_arg_heartbeat(fcinfo, 3) : le_arg_ttl(fcinfo, 2);
	bid->identity = le_arg_identity(fcinfo, 4);
	le_require_primary();
	le_register_callbacks();
}

/*
 * (name, timeout, ttl, heartbeat, identity, INOUT token): wait to be elected
 */
static Datum
le_campaign_body(PG_FUNCTION_ARGS)
{
	TupleDesc	type = output_row_type(fcinfo);
	LeBid		bid;

	le_refuse_restricted(fcinfo);
	le_election_by_name(&bid.election, le_arg_name(fcinfo));
	get_bid(fcinfo, &bid);

	if (bid.scope == LE_SCOPE_LEASE && !PG_ARGISNULL(5) &&
		le_renew_by_bid(&bid, PG_GETARG_INT64(5)))
		return output_token(type, PG_GETARG_INT64(5));

	le_make_room_to_wait(1, 1);
	commit_to_drop_snapshot(fcinfo);
	return output_token(type, le_elect(&bid));
}

/*
 * Return the elections from the array of names in argument 0
 */
static LeElection *
get_elections(FunctionCallInfo fcinfo, int *count)
{
	ArrayType  *array = PG_ARGISNULL(0) ? NULL : PG_GETARG_ARRAYTYPE_P(0);
	Datum	   *names;
	LeElection *elections;

	if (array == NULL || array_contains_nulls(array))
		le_raise_null("election names");
	if (ARR_NDIM(array) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("election names must be a one-dimensional array, and not empty")));
	le_require_countable(ARR_DIMS(array)[0]);
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &names, NULL, count);
	elections = MemoryContextAllocHuge(CurrentMemoryContext,
									   *count * sizeof(LeElection));
	for (int i = 0; i < *count; i++)
	{
		text	   *name = DatumGetTextPP(names[i]);

		CHECK_FOR_INTERRUPTS();
		le_check_name(name);
		le_election_by_name(&elections[i], name);
	}
	return elections;
}

/*
 * Warn if this session leads any of the elections under another identity than
 * that of the bid.  Raises an error if the bid would wait.
 *
 * These elections are skipped, as are all that this session leads.
 */
static void
deny_other_client(LeBid *bid, const LeElection *elections, int count)
{
	for (int i = 0; i < count && bid->identity != NULL; i++)
	{
		CHECK_FOR_INTERRUPTS();
		bid->election = elections[i];
		if (le_deny_other_client(bid))
			return;
	}
}

/*
 * (names, timeout, ttl, heartbeat, identity, INOUT token, INOUT name): wait to
 * be elected in any
 */
static Datum
le_campaign_names_body(PG_FUNCTION_ARGS)
{
	TupleDesc	type = output_row_type(fcinfo);
	LeBid		bid;
	LeElection *elections;
	const LeElection *won;
	int			count;
	int64		token = 0;
	Datum		values[2] = {0};
	bool		nulls[2] = {true, true};

	le_refuse_restricted(fcinfo);
	elections = get_elections(fcinfo, &count);
	get_bid(fcinfo, &bid);
	le_make_room_to_wait(count, count);
	commit_to_drop_snapshot(fcinfo);
	deny_other_client(&bid, elections, count);

	won = le_elect_any(&bid, elections, count, &token);
	if (won != NULL)
	{
		values[0] = Int64GetDatum(token);
		values[1] = CStringGetTextDatum(won->name);
		nulls[0] = nulls[1] = false;
	}
	return HeapTupleGetDatum(heap_form_tuple(type, values, nulls));
}

/*
 * (name, INOUT version, timeout, INOUT token, INOUT identity, INOUT value):
 * wait until the state of the election has another version; return the leader,
 * if there is one, and what it publishes
 */
static Datum
le_observe_body(PG_FUNCTION_ARGS)
{
	TupleDesc	type = output_row_type(fcinfo);
	LeElection	election;
	LeTerm		leader;
	char		value[LE_VALUE_SIZE];
	int64		known = PG_ARGISNULL(1) ? 0 : PG_GETARG_INT64(1);
	int64		wait_ms;
	Datum		values[4] = {0};
	bool		nulls[4] = {false, true, true, true};

	le_election_by_name(&election, le_arg_name(fcinfo));
	wait_ms = le_arg_timeout(fcinfo, 2);
	le_require_primary();
	PreventCommandIfParallelMode("le_observe()");
	le_register_callbacks();

	le_make_room_to_observe();
	commit_to_drop_snapshot(fcinfo);
	values[0] = Int64GetDatum(le_observe_election(&election, known, wait_ms, &leader, value));

	if (leader.token != 0)
	{
		values[1] = Int64GetDatum(leader.token);
		values[2] = CStringGetTextDatum(le_identity_shown(&leader.identity, leader.role));
		nulls[1] = nulls[2] = false;
	}
	if (leader.has_value)
	{
		values[3] = CStringGetTextDatum(value);
		nulls[3] = false;
	}
	return HeapTupleGetDatum(heap_form_tuple(type, values, nulls));
}
