/*-------------------------------------------------------------------------
 *
 * target_intervals.c
 *	  Timeouts, ttls and the limits of declarations, against exact arithmetic.
 *
 * The extension reckons in double precision.  Where parts of an interval are beyond what
 * that is exact for, and all but cancel each other, it may be off by two milliseconds.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "fuzz.h"

#define EXACT_IN_DOUBLE		(INT64CONST(1) << 53)
#define OFF_BY_US			2048

static Datum
get_timeout(PG_FUNCTION_ARGS)
{
	return Int64GetDatum(le_arg_timeout(fcinfo, 0));
}

static Datum
get_ttl(PG_FUNCTION_ARGS)
{
	return Int64GetDatum(le_arg_ttl(fcinfo, 0));
}

static Datum
get_grace(PG_FUNCTION_ARGS)
{
	return PointerGetDatum(le_arg_limit(fcinfo, 0, "grace", 0));
}

static Datum
get_max_ttl(PG_FUNCTION_ARGS)
{
	return PointerGetDatum(le_arg_limit(fcinfo, 0, "max_ttl", LE_MIN_TTL_MS));
}

/*
 * Take an interval as the server keeps it, or as text; NULL if that is none
 */
static Interval *
take_interval(LeFuzzInput *input, bool as_text)
{
	LOCAL_FCINFO(fcinfo, 3);
	Interval   *interval = le_fuzz_alloc(sizeof(Interval));
	Datum		parsed;

	if (!as_text)
	{
		int64		days;

		interval->time = le_fuzz_int64(input);
		days = le_fuzz_int64(input);
		interval->day = (int32) days;
		interval->month = (int32) (days >> 32);
		return interval;
	}
	InitFunctionCallInfoData(*fcinfo, NULL, 3, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = CStringGetDatum(le_fuzz_string(input));
	fcinfo->args[1].value = ObjectIdGetDatum(InvalidOid);
	fcinfo->args[2].value = Int32GetDatum(-1);
	fcinfo->args[0].isnull = fcinfo->args[1].isnull = fcinfo->args[2].isnull = false;
	if (le_fuzz_call(interval_in, fcinfo, &parsed) != 0)
		return NULL;
	*interval = *DatumGetIntervalP(parsed);
	return interval;
}

/*
 * Is that from one to the other, give or take the slack?
 */
static bool
may_be(int128 us, int128 from, int128 to, int slack)
{
	return us >= from - slack && us <= to + slack;
}

static void
check_timeout(FunctionCallInfo fcinfo, const Interval *interval pg_attribute_unused(),
			  int128 us, int slack)
{
	Datum		result = 0;
	int			code = le_fuzz_call(get_timeout, fcinfo, &result);
	int64		ms = DatumGetInt64(result);
	int128		limit = (int128) INT_MAX * 1000;

	if (IntervalIsPlusInfinityCompat(interval))
		LE_FUZZ_CHECK(code == 0 && ms == LE_WAIT_FOREVER);
	else if (code == ERRCODE_INVALID_PARAMETER_VALUE)
		LE_FUZZ_CHECK(us < slack || IntervalIsMinusInfinityCompat(interval));
	else if (code == ERRCODE_INTERVAL_FIELD_OVERFLOW)
		LE_FUZZ_CHECK(us > limit - slack);
	else
	{
		LE_FUZZ_CHECK(code == 0 && may_be(us, 0, limit, slack));
		LE_FUZZ_CHECK(ms >= 0 && ms <= INT_MAX);
		LE_FUZZ_CHECK(may_be((int128) ms * 1000, us, us + 999, slack));
	}
}

static void
check_ttl(FunctionCallInfo fcinfo, const Interval *interval, int128 us, int slack)
{
	Datum		result = 0;
	int			code = le_fuzz_call(get_ttl, fcinfo, &result);
	int64		ttl_us = DatumGetInt64(result);
	int128		shortest = LE_MIN_TTL_MS * 1000;
	int128		longest = (int128) le_max_ttl * 1000;

	if (code == ERRCODE_INVALID_PARAMETER_VALUE)
		LE_FUZZ_CHECK(interval->month != 0 || !may_be(us, shortest, longest, -slack));
	else
	{
		LE_FUZZ_CHECK(code == 0 && interval->month == 0);
		LE_FUZZ_CHECK(ttl_us >= shortest && ttl_us <= longest);
		LE_FUZZ_CHECK(may_be(ttl_us, us, us, slack));
	}
}

static void
check_limit(FunctionCallInfo fcinfo, PGFunction function, int min_ms,
			const Interval *interval, int128 us, int slack)
{
	Datum		result = 0;
	int			code = le_fuzz_call(function, fcinfo, &result);
	int128		shortest = (int128) min_ms * 1000;
	int128		longest = (int128) LE_MAX_TTL_MS * 1000;

	if (code == ERRCODE_INVALID_PARAMETER_VALUE)
		LE_FUZZ_CHECK(interval->month != 0 || !may_be(us, shortest, longest, -slack));
	else
	{
		LE_FUZZ_CHECK(code == 0 && interval->month == 0);
		LE_FUZZ_CHECK(may_be(us, shortest, longest, slack));
		LE_FUZZ_CHECK(DatumGetIntervalP(result) == interval);
	}
}

void
le_fuzz_intervals(LeFuzzInput *input)
{
	LOCAL_FCINFO(fcinfo, 1);
	uint8		flags = le_fuzz_byte(input);
	int			max_ttl = (int) (le_fuzz_int64(input) & PG_INT32_MAX);
	Interval   *interval = take_interval(input, flags & 1);
	int128		days;
	int128		us;
	int			slack = 0;

	if (interval == NULL)
		return;
	le_max_ttl = LE_MIN_TTL_MS + max_ttl % (LE_MAX_TTL_MS - LE_MIN_TTL_MS + 1);
	days = (int128) interval->month * DAYS_PER_MONTH + interval->day;
	us = days * USECS_PER_DAY + interval->time;
	if (interval->time > EXACT_IN_DOUBLE || interval->time < -EXACT_IN_DOUBLE)
		slack = OFF_BY_US;

	InitFunctionCallInfoData(*fcinfo, NULL, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = IntervalPGetDatum(interval);
	fcinfo->args[0].isnull = false;
	check_timeout(fcinfo, interval, us, slack);
	check_ttl(fcinfo, interval, us, slack);
	check_limit(fcinfo, get_grace, 0, interval, us, slack);
	check_limit(fcinfo, get_max_ttl, LE_MIN_TTL_MS, interval, us, slack);
}
