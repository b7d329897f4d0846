/*-------------------------------------------------------------------------
 *
 * sql/arguments.c
 *	  Arguments of functions and procedures: check them, with a clear error for
 *	  each invalid one.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "sql/sql.h"

/*
 * Raise an error if an argument is null that must not be
 */
void
le_refuse_null(bool is_null, const char *what)
{
	if (is_null)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", what)));
}

/*
 * Raise an error if the text is longer than the given number of bytes
 */
static void
check_length(const text *value, const char *what, int max)
{
	int			length = VARSIZE_ANY_EXHDR(value);

	if (length > max)
		ereport(ERROR,
				(errcode(ERRCODE_STRING_DATA_RIGHT_TRUNCATION),
				 errmsg("%s is too long: %d bytes, at most %d", what, length, max)));
}

/*
 * Raise an error unless the text is 1 to 255 bytes long
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
 * Check whether the text consists of digits, with a sign or without
 */
static bool
is_number(const char *bytes, int length)
{
	int			start = bytes[0] == '-' || bytes[0] == '+' ? 1 : 0;

	for (int i = start; i < length; i++)
	{
		if (!isdigit((unsigned char) bytes[i]))
			return false;
	}
	return length > start;
}

/*
 * Raise an error if the name is what a driver makes of a key or an array
 * without a type
 *
 * Such a name would be another election than the caller means, and exclude no
 * other caller from that one.
 */
static void
refuse_untyped(const text *name)
{
	const char *bytes = VARDATA_ANY(name);
	int			length = VARSIZE_ANY_EXHDR(name);

	if (is_number(bytes, length))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("election name must not be a number: \"%s\"",
						text_to_cstring(name)),
				 errhint("Pass a key as $1::bigint, or put a letter into the name.")));
	if (length > 1 && bytes[0] == '{' && bytes[length - 1] == '}')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("election name must not be enclosed in braces: \"%s\"",
						le_escape_line(text_to_cstring(name))),
				 errhint("Pass an array of names as $1::text[].")));
}

/*
 * Raise an error unless this can be the name of an election, which NULL cannot
 */
void
le_check_name(const text *name)
{
	le_refuse_null(name == NULL, "election name");
	check_text(name, "election name");
	refuse_untyped(name);
}

/*
 * Return the name of an election from argument 0
 */
text *
le_arg_name(FunctionCallInfo fcinfo)
{
	text	   *name = PG_ARGISNULL(0) ? NULL : PG_GETARG_TEXT_PP(0);

	le_check_name(name);
	return name;
}

/*
 * Fill in the election from argument 0, which is its name or key
 */
void
le_arg_election(FunctionCallInfo fcinfo, LeCalledBy called_by, LeElection *election)
{
	if (called_by == LE_BY_NAME)
	{
		le_election_by_name(election, le_arg_name(fcinfo));
		return;
	}
	le_refuse_null(PG_ARGISNULL(0), "election key");
	le_election_by_key(election, PG_GETARG_INT64(0));
}

static text *
optional_text(FunctionCallInfo fcinfo, int argument)
{
	return PG_ARGISNULL(argument) ? NULL : PG_GETARG_TEXT_PP(argument);
}

/*
 * Return the identity from the given argument, NULL for the default one
 */
text *
le_arg_identity(FunctionCallInfo fcinfo, int argument)
{
	text	   *identity = optional_text(fcinfo, argument);

	if (identity != NULL)
		check_text(identity, "identity");
	return identity;
}

/*
 * Return the reason for a deposition from the given argument, NULL for none
 */
char *
le_arg_reason(FunctionCallInfo fcinfo, int argument)
{
	text	   *reason = optional_text(fcinfo, argument);

	if (reason == NULL)
		return NULL;
	check_text(reason, "reason");
	return text_to_cstring(reason);
}

/*
 * Return the value to be published from the given argument, NULL for none
 */
text *
le_arg_value(FunctionCallInfo fcinfo, int argument)
{
	text	   *value = optional_text(fcinfo, argument);

	if (value != NULL)
		check_length(value, "value", LE_VALUE_MAX);
	return value;
}

/*
 * Return the timeout from the given argument, in milliseconds, rounded up
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
				 errmsg("timeout must be at most %d ms, which is about 24 days", INT_MAX),
				 errhint("Leave it out, or pass NULL, to wait forever.")));
	return (int64) ceil(us / 1000);
}

/*
 * Return the length of the interval in microseconds.  Raises an error if it is
 * out of range, or contains months, which have no fixed length.
 *
 * setting, unless NULL, is the setting by which an administrator can raise the
 * maximum, up to LE_MAX_TTL_MS.
 */
static double
get_duration(const Interval *interval, const char *what, int min_ms, int max_ms,
			 const char *setting)
{
	double		us = (double) interval->day * USECS_PER_DAY + interval->time;
	bool		months = interval->month != 0;

	if (months || us < min_ms * 1000.0 || us > max_ms * 1000.0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg(months ? "%s must be from %d ms to %d ms, and without months" :
						"%s must be from %d ms to %d ms", what, min_ms, max_ms),
				 setting != NULL && !months && us > max_ms * 1000.0 &&
				 us <= LE_MAX_TTL_MS * 1000.0 ?
				 errhint("An administrator can raise \"%s\".", setting) : 0));
	return us;
}

/*
 * Return the ttl from the given argument, in microseconds
 */
int64
le_arg_ttl(FunctionCallInfo fcinfo, int argument)
{
	le_refuse_null(PG_ARGISNULL(argument), "ttl");
	return (int64) get_duration(PG_GETARG_INTERVAL_P(argument), "ttl", LE_MIN_TTL_MS,
								le_max_ttl, "leader_election.max_ttl");
}

/*
 * Return the heartbeat from the given argument, in microseconds, or 0 for none
 */
int64
le_arg_heartbeat(FunctionCallInfo fcinfo, int argument)
{
	if (PG_ARGISNULL(argument))
		return 0;
	return (int64) get_duration(PG_GETARG_INTERVAL_P(argument), "heartbeat",
								LE_MIN_TTL_MS, LE_MAX_TTL_MS, NULL);
}

/*
 * Return the interval from the given argument that an election is to be
 * declared with, NULL for none
 */
const Interval *
le_arg_limit(FunctionCallInfo fcinfo, int argument, const char *what, int min_ms)
{
	Interval   *limit;

	if (PG_ARGISNULL(argument))
		return NULL;
	limit = PG_GETARG_INTERVAL_P(argument);
	(void) get_duration(limit, what, min_ms, LE_MAX_TTL_MS, NULL);
	return limit;
}

/*
 * Return the name of the role from the given argument, NULL for none.  Raises
 * an error if the role does not exist.
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
 * Return the token from the given argument
 */
int64
le_arg_token(FunctionCallInfo fcinfo, int argument)
{
	le_refuse_null(PG_ARGISNULL(argument), "token");
	return PG_GETARG_INT64(argument);
}
