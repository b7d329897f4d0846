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

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "leader_election.h"

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
 * Bid for leadership: (election, identity), or (election, timeout, identity) for
 * the functions that wait
 */
static Datum
bid(FunctionCallInfo fcinfo, LeCalledBy called_by, LeScope scope, bool waits)
{
	LeElection	election;
	int64		wait_ms = LE_WAIT_NOT;
	int			argument = 1;

	get_election(fcinfo, called_by, &election);
	if (waits)
		wait_ms = get_timeout(fcinfo, argument++);
	PG_RETURN_BOOL(le_elect(&election, scope, wait_ms,
							get_identity(fcinfo, argument)));
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
