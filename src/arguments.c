/*-------------------------------------------------------------------------
 *
 * arguments.c
 *	  The arguments of functions and procedures: to check them, with a clear error
 *	  for each that is bad.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>
#include <math.h>

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "leader_election.h"

/*
 * Throw if the text is longer than that many bytes
 */
static void
check_length(const text *value, const char *what, int max)
{
	int			length = VARSIZE_ANY_EXHDR(value);

	if (length > max)
		ereport(ERROR,
				(errcode(ERRCODE_STRING_DATA_RIGHT_TRUNCATION),
				 errmsg("%s is too long", what),
				 errdetail("It has %d bytes; at most %d are allowed.", length, max)));
}

/*
 * Throw unless the text is 1 to 255 bytes long
 */
static void
check_text(const text *value, const char *what)
{
	if (VARSIZE_ANY_EXHDR(value) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_ZERO_LENGTH_CHARACTER_STRING),
				 errmsg("%s must not be empty", what)));
	check_length(value, what, LE_TEXT_MAX);
}

/*
 * Throw unless this can be the name of an election; NULL cannot
 */
void
le_check_name(const text *name)
{
	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("election name must not be null")));
	check_text(name, "election name");
}

/*
 * Return the name of an election in argument 0
 */
text *
le_arg_name(FunctionCallInfo fcinfo)
{
	text	   *name = PG_ARGISNULL(0) ? NULL : PG_GETARG_TEXT_PP(0);

	le_check_name(name);
	return name;
}

/*
 * Return the identity in that argument, NULL for the default one
 */
text *
le_arg_identity(FunctionCallInfo fcinfo, int argument)
{
	text	   *identity;

	if (PG_ARGISNULL(argument))
		return NULL;
	identity = PG_GETARG_TEXT_PP(argument);
	check_text(identity, "identity");
	return identity;
}

/*
 * Return the reason for a deposition in that argument, NULL for none
 */
char *
le_arg_reason(FunctionCallInfo fcinfo, int argument)
{
	text	   *reason;

	if (PG_ARGISNULL(argument))
		return NULL;
	reason = PG_GETARG_TEXT_PP(argument);
	check_text(reason, "reason");
	return text_to_cstring(reason);
}

/*
 * Return the value to be published in that argument, NULL for none
 */
text *
le_arg_value(FunctionCallInfo fcinfo, int argument)
{
	text	   *value;

	if (PG_ARGISNULL(argument))
		return NULL;
	value = PG_GETARG_TEXT_PP(argument);
	check_length(value, "value", LE_VALUE_MAX);
	return value;
}

/*
 * Return the timeout in that argument, in milliseconds, rounded up
 */
int64
le_arg_timeout(FunctionCallInfo fcinfo, int argument)
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
 * Return how long that is, in microseconds; -1 if it has months
 *
 * A month has no fixed length.
 */
static double
fixed_length(const Interval *interval)
{
	if (interval->month != 0)
		return -1;
	return (double) interval->day * USECS_PER_DAY + interval->time;
}

/*
 * Return the ttl in that argument, in microseconds
 */
int64
le_arg_ttl(FunctionCallInfo fcinfo, int argument)
{
	double		us = PG_ARGISNULL(argument) ? -1 :
		fixed_length(PG_GETARG_INTERVAL_P(argument));

	if (us < LE_MIN_TTL_MS * 1000.0 || us > le_max_ttl * 1000.0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 PG_ARGISNULL(argument) ? errmsg("ttl must not be null") :
				 errmsg("ttl is out of range"),
				 errdetail("It must be from %dms to %s, and without months.", LE_MIN_TTL_MS,
						   GetConfigOptionByName("leader_election.max_ttl", NULL, false)),
				 us > le_max_ttl * 1000.0 && us <= LE_MAX_TTL_MS * 1000.0 ?
				 errhint("An administrator can raise \"%s\".",
						 "leader_election.max_ttl") : 0));
	return (int64) us;
}

/*
 * Return the time in that argument that an election is to be declared with, NULL for none
 */
const Interval *
le_arg_limit(FunctionCallInfo fcinfo, int argument, const char *what, int min_ms)
{
	Interval   *limit;
	double		us;

	if (PG_ARGISNULL(argument))
		return NULL;
	limit = PG_GETARG_INTERVAL_P(argument);
	us = fixed_length(limit);
	if (us < min_ms * 1000.0 || us > LE_MAX_TTL_MS * 1000.0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is out of range", what),
				 errdetail("It must be from %dms to %s, and without months.", min_ms, "1d")));
	return limit;
}

/*
 * Return the name of the role in that argument, NULL for none; throw if it does not exist
 */
Name
le_arg_role(FunctionCallInfo fcinfo, int argument)
{
	Name		name;

	if (PG_ARGISNULL(argument))
		return NULL;
	name = palloc_object(NameData);
	namestrcpy(name, GetUserNameFromId(PG_GETARG_OID(argument), false));
	return name;
}

/*
 * Return the token in that argument
 */
int64
le_arg_token(FunctionCallInfo fcinfo, int argument)
{
	if (PG_ARGISNULL(argument))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("token must not be null")));
	return PG_GETARG_INT64(argument);
}
