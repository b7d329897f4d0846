/*-------------------------------------------------------------------------
 *
 * sql/arguments.c
 *	  What a function or procedure checks before it does anything: its
 *	  arguments, with a clear error for each invalid one, and the context in
 *	  which it was called.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>
#include <math.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "lease/lease.h"
#include "sql/sql.h"

/*
 * Raise an error because an argument is null that must not be
 */
void
le_raise_null(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("%s must not be null", what)));
}

/*
 * Raise an error unless the text has from min, which is 0 or 1, to max bytes
 */
static void
check_length(const text *value, const char *what, int min, int max)
{
	int			length = VARSIZE_ANY_EXHDR(value);

	if (length < min)
		ereport(ERROR,
				(errcode(ERRCODE_ZERO_LENGTH_CHARACTER_STRING),
				 errmsg("%s must not be empty", what)));
	if (length > max)
		ereport(ERROR,
				(errcode(ERRCODE_STRING_DATA_RIGHT_TRUNCATION),
				 errmsg("%s is too long: %d bytes, at most %d", what, length, max)));
}

/*
 * Raise an error unless this can be the name of an election, which NULL cannot
 *
 * Nor can what a driver makes of an array without a type.  Such a name would
 * be another election than the caller means, and exclude no other caller from
 * that one.
 */
void
le_check_name(const text *name)
{
	const char *bytes;

	if (name == NULL)
		le_raise_null("election name");
	check_length(name, "election name", 1, LE_TEXT_MAX);

	bytes = VARDATA_ANY(name);
	if (bytes[0] == '{' && bytes[VARSIZE_ANY_EXHDR(name) - 1] == '}')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("election name must not be enclosed in braces: \"%s\"",
						le_escape_line(text_to_cstring(name))),
				 errhint("Pass an array of names as $1::text[].")));
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
 * Return the text from the given argument, of min to max bytes, or NULL for
 * none
 */
text *
le_arg_text(FunctionCallInfo fcinfo, int argument, const char *what, int min, int max)
{
	text	   *value;

	if (PG_ARGISNULL(argument))
		return NULL;
	value = PG_GETARG_TEXT_PP(argument);
	check_length(value, what, min, max);
	return value;
}

/*
 * Return the identity from the given argument, NULL for the default one
 */
text *
le_arg_identity(FunctionCallInfo fcinfo, int argument)
{
	return le_arg_text(fcinfo, argument, "identity", 1, LE_TEXT_MAX);
}

/*
 * Return the reason for a deposition from the given argument, NULL for none
 */
char *
le_arg_reason(FunctionCallInfo fcinfo, int argument)
{
	text	   *reason = le_arg_text(fcinfo, argument, "reason", 1, LE_TEXT_MAX);

	return reason == NULL ? NULL : text_to_cstring(reason);
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
	if (PG_ARGISNULL(argument))
		le_raise_null("ttl");
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
 * Raise an error if the function is called by code that the session's user has
 * not asked for, such as an index expression in the ANALYZE of another user's
 * table
 *
 * What it would begin or end belongs to the session, and would outlive the
 * command.
 */
void
le_refuse_restricted(FunctionCallInfo fcinfo)
{
	if (likely(!InSecurityRestrictedOperation()))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("cannot execute %s() within security-restricted operation",
					get_func_name(fcinfo->flinfo->fn_oid))));
}

/*
 * Prepare for a function that begins, ends or guards something, or deposes a
 * leader
 */
void
le_prepare(FunctionCallInfo fcinfo)
{
	le_refuse_restricted(fcinfo);
	le_register_callbacks();
}

/*
 * Do the same, and fill in the election from argument 0, which is its name
 */
void
le_prepare_for_name(FunctionCallInfo fcinfo, LeElection *election)
{
	le_prepare(fcinfo);
	le_election_by_name(election, le_arg_name(fcinfo));
}

/*
 * Prepare to return rows, into the result's tuplestore
 *
 * Each row is an array of so many values.  If the result type has more
 * columns, rows would be read past that array.  CREATE OR REPLACE VIEW can add
 * columns to a view whose row type a function returns.
 */
ReturnSetInfo *
le_begin_rows(FunctionCallInfo fcinfo, int columns)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	if (rsinfo->setDesc->natts != columns)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("result type of function %s() has been altered",
						get_func_name(fcinfo->flinfo->fn_oid)),
				 errdetail("It has %d columns instead of %d.",
						   rsinfo->setDesc->natts, columns)));
	return rsinfo;
}

/*
 * Prepare for a function that only reads leases, or renews one
 *
 * The first session that reads them after a start of the server, or with a new
 * extension, may have to announce that leases have ended, and needs callbacks
 * for that.  Other readers have none, so that they do not fail if no timer is
 * left.
 */
void
le_prepare_to_look(void)
{
	if (likely(le_leases_are_loaded()))
		return;
	le_register_callbacks();
	(void) le_leases_ready(false);
}
