/*-------------------------------------------------------------------------
 *
 * functions.c
 *	  What SQL can call: check the arguments, call the rest.
 *
 * The functions are not strict: a NULL name must be an error, not a NULL result
 * that a client takes for false.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>
#include <math.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "leader_election.h"

#define LE_MIN_TTL_US	(100 * INT64CONST(1000))
#define LE_MAX_TTL_US	USECS_PER_DAY

/* How an election is called in SQL */
typedef enum LeCalledBy
{
	LE_BY_NAME,
	LE_BY_KEY
} LeCalledBy;

/*
 * Throw unless the text is 1 to 255 bytes long
 */
static void
check_text(const text *value, const char *what)
{
	int			length = VARSIZE_ANY_EXHDR(value);

	if (length == 0)
		ereport(ERROR,
				(errcode(ERRCODE_ZERO_LENGTH_CHARACTER_STRING),
				 errmsg("%s must not be empty", what)));
	if (length > LE_TEXT_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_STRING_DATA_RIGHT_TRUNCATION),
				 errmsg("%s is too long", what),
				 errdetail("It has %d bytes; at most %d are allowed.",
						   length, LE_TEXT_MAX)));
}

static text *
get_name(FunctionCallInfo fcinfo)
{
	text	   *name;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("election name must not be null")));
	name = PG_GETARG_TEXT_PP(0);
	check_text(name, "election name");
	return name;
}

/*
 * Fill in the election that argument 0 calls by name or key
 */
static void
get_election(FunctionCallInfo fcinfo, LeCalledBy called_by, LeElection *election)
{
	if (called_by == LE_BY_NAME)
		le_election_by_name(election, get_name(fcinfo));
	else if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("election key must not be null")));
	else
		le_election_by_key(election, PG_GETARG_INT64(0));
}

/*
 * Return the identity in that argument, NULL for the default one
 */
static text *
get_identity(FunctionCallInfo fcinfo, int argument)
{
	text	   *identity;

	if (PG_ARGISNULL(argument))
		return NULL;
	identity = PG_GETARG_TEXT_PP(argument);
	check_text(identity, "identity");
	return identity;
}

/*
 * Return the timeout in that argument, in milliseconds, rounded up
 */
static int64
get_timeout(FunctionCallInfo fcinfo, int argument)
{
	Interval   *timeout;
	double		us;

	if (PG_ARGISNULL(argument))
		return LE_WAIT_FOREVER;

	timeout = PG_GETARG_INTERVAL_P(argument);
	if (IntervalIsPlusInfinityCompat(timeout))
		return LE_WAIT_FOREVER;

	us = ((double) timeout->month * DAYS_PER_MONTH + timeout->day) *
		USECS_PER_DAY + timeout->time;
	if (us < 0 || IntervalIsMinusInfinityCompat(timeout))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("timeout must not be negative")));
	if (us > INT_MAX * 1000.0)
		ereport(ERROR,
				(errcode(ERRCODE_INTERVAL_FIELD_OVERFLOW),
				 errmsg("timeout is too long"),
				 errdetail("At most %d milliseconds, or about 24 days, are allowed.",
						   INT_MAX),
				 errhint("Leave it out, or pass NULL, to wait forever.")));
	return (int64) ceil(us / 1000);
}

/*
 * Return the ttl in that argument, in microseconds
 *
 * A month has no fixed length, and so cannot be one.
 */
static int64
get_ttl(FunctionCallInfo fcinfo, int argument)
{
	double		us = 0;

	if (!PG_ARGISNULL(argument))
	{
		Interval   *ttl = PG_GETARG_INTERVAL_P(argument);

		if (ttl->month == 0)
			us = (double) ttl->day * USECS_PER_DAY + ttl->time;
	}
	if (us < LE_MIN_TTL_US || us > LE_MAX_TTL_US)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 PG_ARGISNULL(argument) ? errmsg("ttl must not be null") :
				 errmsg("ttl is out of range"),
				 errdetail("It must be from 100 milliseconds to 1 day, and without months.")));
	return (int64) us;
}

/*
 * Return the token in that argument
 */
static int64
get_token(FunctionCallInfo fcinfo, int argument)
{
	if (PG_ARGISNULL(argument))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("token must not be null")));
	return PG_GETARG_INT64(argument);
}

/*
 * Bid for leadership: (election, identity), or (election, timeout, identity) for
 * the functions that wait
 */
static Datum
bid(FunctionCallInfo fcinfo, LeCalledBy called_by, LeScope scope, bool waits)
{
	LeBid		bid;
	int			argument = 1;

	get_election(fcinfo, called_by, &bid.election);
	bid.scope = scope;
	bid.wait_ms = waits ? get_timeout(fcinfo, argument++) : LE_WAIT_NOT;
	bid.ttl_us = 0;
	bid.identity = get_identity(fcinfo, argument);
	PG_RETURN_BOOL(le_elect(&bid) != 0);
}

static Datum
am_leader(FunctionCallInfo fcinfo, LeCalledBy called_by)
{
	LeElection	election;

	get_election(fcinfo, called_by, &election);
	PG_RETURN_BOOL(le_held_term(&election) != NULL);
}

static Datum
token(FunctionCallInfo fcinfo, LeCalledBy called_by)
{
	LeElection	election;
	LeHeldTerm *held;

	get_election(fcinfo, called_by, &election);
	held = le_held_term(&election);
	if (held == NULL)
		PG_RETURN_NULL();
	PG_RETURN_INT64(held->token);
}

static Datum
resign(FunctionCallInfo fcinfo, LeCalledBy called_by)
{
	LeElection	election;

	get_election(fcinfo, called_by, &election);
	PG_RETURN_BOOL(le_resign_term(&election));
}

static Datum
key(FunctionCallInfo fcinfo, LeCalledBy called_by)
{
	LeElection	election;

	get_election(fcinfo, called_by, &election);
	PG_RETURN_INT64(election.key.key);
}

PG_FUNCTION_INFO_V1(le_try_become_leader);
PG_FUNCTION_INFO_V1(le_try_become_leader_key);
PG_FUNCTION_INFO_V1(le_try_become_leader_xact);
PG_FUNCTION_INFO_V1(le_try_become_leader_xact_key);
PG_FUNCTION_INFO_V1(le_become_leader);
PG_FUNCTION_INFO_V1(le_become_leader_key);
PG_FUNCTION_INFO_V1(le_become_leader_xact);
PG_FUNCTION_INFO_V1(le_become_leader_xact_key);
PG_FUNCTION_INFO_V1(le_am_leader);
PG_FUNCTION_INFO_V1(le_am_leader_key);
PG_FUNCTION_INFO_V1(le_token);
PG_FUNCTION_INFO_V1(le_token_key);
PG_FUNCTION_INFO_V1(le_resign);
PG_FUNCTION_INFO_V1(le_resign_key);
PG_FUNCTION_INFO_V1(le_resign_all);
PG_FUNCTION_INFO_V1(le_lease);
PG_FUNCTION_INFO_V1(le_renew);
PG_FUNCTION_INFO_V1(le_campaign);
PG_FUNCTION_INFO_V1(le_am_leader_token);
PG_FUNCTION_INFO_V1(le_resign_token);
PG_FUNCTION_INFO_V1(le_key);
PG_FUNCTION_INFO_V1(le_key_key);

Datum
le_try_become_leader(PG_FUNCTION_ARGS)
{
	return bid(fcinfo, LE_BY_NAME, LE_SCOPE_SESSION, false);
}

Datum
le_try_become_leader_key(PG_FUNCTION_ARGS)
{
	return bid(fcinfo, LE_BY_KEY, LE_SCOPE_SESSION, false);
}

Datum
le_try_become_leader_xact(PG_FUNCTION_ARGS)
{
	return bid(fcinfo, LE_BY_NAME, LE_SCOPE_TRANSACTION, false);
}

Datum
le_try_become_leader_xact_key(PG_FUNCTION_ARGS)
{
	return bid(fcinfo, LE_BY_KEY, LE_SCOPE_TRANSACTION, false);
}

Datum
le_become_leader(PG_FUNCTION_ARGS)
{
	return bid(fcinfo, LE_BY_NAME, LE_SCOPE_SESSION, true);
}

Datum
le_become_leader_key(PG_FUNCTION_ARGS)
{
	return bid(fcinfo, LE_BY_KEY, LE_SCOPE_SESSION, true);
}

Datum
le_become_leader_xact(PG_FUNCTION_ARGS)
{
	return bid(fcinfo, LE_BY_NAME, LE_SCOPE_TRANSACTION, true);
}

Datum
le_become_leader_xact_key(PG_FUNCTION_ARGS)
{
	return bid(fcinfo, LE_BY_KEY, LE_SCOPE_TRANSACTION, true);
}

Datum
le_am_leader(PG_FUNCTION_ARGS)
{
	return am_leader(fcinfo, LE_BY_NAME);
}

Datum
le_am_leader_key(PG_FUNCTION_ARGS)
{
	return am_leader(fcinfo, LE_BY_KEY);
}

Datum
le_token(PG_FUNCTION_ARGS)
{
	return token(fcinfo, LE_BY_NAME);
}

Datum
le_token_key(PG_FUNCTION_ARGS)
{
	return token(fcinfo, LE_BY_KEY);
}

Datum
le_resign(PG_FUNCTION_ARGS)
{
	return resign(fcinfo, LE_BY_NAME);
}

Datum
le_resign_key(PG_FUNCTION_ARGS)
{
	return resign(fcinfo, LE_BY_KEY);
}

Datum
le_resign_all(PG_FUNCTION_ARGS pg_attribute_unused())
{
	PG_RETURN_INT32(le_let_go_all_for_session());
}

/*
 * (name, ttl, identity, token): be or stay leader
 */
Datum
le_lease(PG_FUNCTION_ARGS)
{
	LeBid		bid;
	int64		token;

	le_election_by_name(&bid.election, get_name(fcinfo));
	bid.scope = LE_SCOPE_LEASE;
	bid.wait_ms = LE_WAIT_NOT;
	bid.ttl_us = get_ttl(fcinfo, 1);
	bid.identity = get_identity(fcinfo, 2);

	if (!PG_ARGISNULL(3))
	{
		le_require_primary();
		if (le_lease_renew(&bid.election, PG_GETARG_INT64(3), bid.ttl_us))
			PG_RETURN_INT64(PG_GETARG_INT64(3));
	}
	token = le_elect(&bid);
	if (token == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

/*
 * (name, token, ttl)
 */
Datum
le_renew(PG_FUNCTION_ARGS)
{
	LeElection	election;
	int64		token;
	int64		ttl_us;

	le_election_by_name(&election, get_name(fcinfo));
	token = get_token(fcinfo, 1);
	ttl_us = PG_ARGISNULL(2) ? 0 : get_ttl(fcinfo, 2);
	le_require_primary();
	PG_RETURN_BOOL(le_lease_renew(&election, token, ttl_us));
}

/*
 * End the transaction that the procedure was called in, and with it the snapshot
 * that the caller holds, if the caller allows that
 *
 * In a transaction block, in a function and in an exception block it does not.
 */
static void
let_go_of_snapshot(FunctionCallInfo fcinfo)
{
	CallContext *call = (CallContext *) fcinfo->context;

	if (call == NULL || !IsA(call, CallContext) || call->atomic ||
		IsSubTransaction())
		return;

	SPI_connect_ext(SPI_OPT_NONATOMIC);
	SPI_commit();
	SPI_finish();
}

/*
 * Return the one output parameter of a procedure
 */
static Datum
output_token(int64 token)
{
	TupleDesc	desc = CreateTemplateTupleDesc(1);
	Datum		value = Int64GetDatum(token);
	bool		is_null = token == 0;

	TupleDescInitEntry(desc, 1, "token", INT8OID, -1, 0);
	desc = BlessTupleDesc(desc);
	return HeapTupleGetDatum(heap_form_tuple(desc, &value, &is_null));
}

/*
 * (name, timeout, identity, ttl, INOUT token): wait to be elected
 */
Datum
le_campaign(PG_FUNCTION_ARGS)
{
	LeBid		bid;

	le_election_by_name(&bid.election, get_name(fcinfo));
	bid.wait_ms = get_timeout(fcinfo, 1);
	bid.identity = get_identity(fcinfo, 2);
	bid.scope = PG_ARGISNULL(3) ? LE_SCOPE_SESSION : LE_SCOPE_LEASE;
	bid.ttl_us = PG_ARGISNULL(3) ? 0 : get_ttl(fcinfo, 3);
	le_require_primary();

	if (bid.scope == LE_SCOPE_LEASE && !PG_ARGISNULL(4) &&
		le_lease_renew(&bid.election, PG_GETARG_INT64(4), bid.ttl_us))
		return output_token(PG_GETARG_INT64(4));

	let_go_of_snapshot(fcinfo);
	return output_token(le_elect(&bid));
}

Datum
le_am_leader_token(PG_FUNCTION_ARGS)
{
	LeElection	election;
	int64		token;

	le_election_by_name(&election, get_name(fcinfo));
	token = get_token(fcinfo, 1);
	le_require_primary();
	PG_RETURN_BOOL(le_lease_is_led(&election, token));
}

Datum
le_resign_token(PG_FUNCTION_ARGS)
{
	LeElection	election;

	le_election_by_name(&election, get_name(fcinfo));
	PG_RETURN_BOOL(le_resign_by_token(&election, get_token(fcinfo, 1)));
}

Datum
le_key(PG_FUNCTION_ARGS)
{
	return key(fcinfo, LE_BY_NAME);
}

Datum
le_key_key(PG_FUNCTION_ARGS)
{
	return key(fcinfo, LE_BY_KEY);
}
