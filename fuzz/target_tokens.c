/*-------------------------------------------------------------------------
 *
 * target_tokens.c
 *	  Tokens: they only grow, from whatever origin to whatever other, by whatever clock,
 *	  and are less than 2^53.  And those that are handed in, as a setting.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/time.h>

#include "utils/guc.h"

#include "fuzz.h"

#define SECOND			(INT64CONST(1) << 22)
#define LEAP			(INT64CONST(1) << 33)

/* The year 2025 begins, and ends in 2092 */
#define YEAR_BEGINS		INT64CONST(1735689600)
#define CLOCK_ENDS		(YEAR_BEGINS + 0x7f000000)

/*
 * Two servers that do not know of each other go on from the same origin, the second one
 * so much later, with whatever it has received: the clock tells
 */
static void
check_rivals(LeFuzzInput *input, int64 first, int64 then, int64 now, struct timeval clock)
{
	int64		usec = le_fuzz_int64(input) & 0xffffffff;
	int64		received = le_fuzz_int64(input) & (first / 2);

	clock.tv_sec += (clock.tv_usec + usec) / 1000000;
	clock.tv_usec = (clock.tv_usec + usec) % 1000000;
	if (clock.tv_sec < CLOCK_ENDS)
		LE_FUZZ_CHECK(le_first_token(received, then, now, &clock) >= first + 4 * usec);
}

/*
 * Where the clock does not help, the second one has the next timeline, and has not
 * received all that the first one had, nor what that has handed out: up to a leap
 */
static void
check_successor(LeFuzzInput *input, int64 last, int64 then, int64 now)
{
	struct timeval clock = {0};
	int64		lost = le_fuzz_int64(input) & (LEAP - 1);
	int64		more = (le_fuzz_int64(input) & (LEAP - 1)) % (LEAP - lost);

	if (then >> 32 == (now + 1) >> 32 && now > then && now - then < 0x4000 &&
		last < LE_TOKEN_MAX / 2)
		LE_FUZZ_CHECK(le_first_token(last, then, now + 1, &clock) >
					  le_first_token(last + lost, then, now, &clock) + more - 1);
}

/*
 * Tokens are drawn here, and then there
 */
void
le_fuzz_tokens(LeFuzzInput *input)
{
	int64		last = le_fuzz_int64(input) & PG_INT64_MAX;
	int64		then = le_fuzz_int64(input) & PG_INT64_MAX;
	int64		now = le_fuzz_int64(input) & PG_INT64_MAX;
	uint64		time = (uint64) le_fuzz_int64(input);
	struct timeval clock = {.tv_sec = time % (INT64CONST(1) << 40),.tv_usec = (time >> 40) % 1000000};
	int64		first;

	/* the same server, promoted so often */
	if (time >> 63)
		now = then + le_fuzz_byte(input) * 256 + le_fuzz_byte(input);
	if (time >> 62 & 1)
		clock.tv_sec = YEAR_BEGINS + clock.tv_sec % INT64CONST(0x80000000);

	/* tokens that the sequence allows, and those that an administrator may set beyond */
	if (le_fuzz_byte(input) & 1)
		last &= LE_TOKEN_MAX;
	if (last == PG_INT64_MAX)
		return;

	first = le_first_token(last, then, now, &clock);
	LE_FUZZ_CHECK(first > last);
	if (last < LE_TOKEN_MAX)
		LE_FUZZ_CHECK(first <= LE_TOKEN_MAX);
	if (then == now || last >= LE_TOKEN_MAX)
	{
		LE_FUZZ_CHECK(first == last + 1);
		return;
	}

	/* always room for as much again */
	LE_FUZZ_CHECK(LE_TOKEN_MAX - first >= (LE_TOKEN_MAX - last) / 2 - 1 || first / SECOND <= 0x7f000000);

	/* by the clock, or far from what is known */
	if (clock.tv_sec >= YEAR_BEGINS && clock.tv_sec < CLOCK_ENDS)
		LE_FUZZ_CHECK(first > (clock.tv_sec - YEAR_BEGINS) * SECOND);
	if (last >= (clock.tv_sec - YEAR_BEGINS + 1) * SECOND && (then >> 32 != now >> 32 || now < then))
		LE_FUZZ_CHECK(first > last + Min(LEAP, (LE_TOKEN_MAX - last) / 2));

	/* a copy of this that is found elsewhere, at the same time, goes on from here */
	LE_FUZZ_CHECK(le_first_token(first, now, now ^ (INT64CONST(1) << 32), &clock) > first);

	check_successor(input, last, then, now);
	if (clock.tv_sec >= YEAR_BEGINS && clock.tv_sec < CLOCK_ENDS &&
		last < (clock.tv_sec - YEAR_BEGINS) * SECOND && (then >> 32 != now >> 32 || now < then))
		check_rivals(input, first, then, now, clock);
}

static int64 token_seen;

static void
set_token(void *value)
{
	(void) set_config_option("leader_election.token", value, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, ERROR, false);
	token_seen = le_session_token.token;
}

/*
 * leader_election.token is a positive bigint in decimal digits, or empty
 */
void
le_fuzz_setting(LeFuzzInput *input)
{
	char	   *value = le_fuzz_string(input);
	uint64		expected = 0;
	bool		good = true;
	int			code;

	for (const char *digit = value; *digit != '\0'; digit++)
	{
		if (*digit < '0' || *digit > '9' || expected > PG_INT64_MAX / 10)
		{
			good = false;
			break;
		}
		expected = expected * 10 + (*digit - '0');
	}
	if (value[0] != '\0' && (expected == 0 || expected > PG_INT64_MAX))
		good = false;
	token_seen = -1;
	code = le_fuzz_try(set_token, value);
	LE_FUZZ_CHECK(code == (good ? 0 : ERRCODE_INVALID_PARAMETER_VALUE));
	if (good)
		LE_FUZZ_CHECK(token_seen == (int64) expected);

	/* what was set ends with the subtransaction */
	LE_FUZZ_CHECK(le_session_token.token == 0);
}
