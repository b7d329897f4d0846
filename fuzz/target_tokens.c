/*-------------------------------------------------------------------------
 *
 * target_tokens.c
 *	  Tokens: they only grow, from whatever origin to whatever other, by whatever clock.
 *	  And those that are handed in, as a setting.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/time.h>

#include "utils/guc.h"

#include "fuzz.h"

#define GENERATION			(INT64CONST(1) << 32)

/* What a server can reach in its life: generations, and promotions at a time */
#define GENERATION_MAX		INT64CONST(0x7ffe0000)
#define PROMOTIONS_MAX		0xffff

/* The year 2025 begins, and ends */
#define YEAR_BEGINS			INT64CONST(1735689600)
#define YEAR_ENDS			INT64CONST(1767225600)

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
	if (last / GENERATION > GENERATION_MAX)
		last %= GENERATION_MAX * GENERATION;
	if (then >> 32 == now >> 32 && now - then > PROMOTIONS_MAX)
		return;

	first = le_first_token(last, then, now, &clock);
	LE_FUZZ_CHECK(first > last);
	LE_FUZZ_CHECK(first <= PG_INT64_MAX - GENERATION / 2);
	if (then == now)
	{
		LE_FUZZ_CHECK(first == last + 1);
		return;
	}

	/* of another generation, and with all but a quarter of it to go */
	LE_FUZZ_CHECK(first / GENERATION > last / GENERATION);
	LE_FUZZ_CHECK(first % GENERATION > 0 && first % GENERATION <= GENERATION / 4);

	/* greater than what another server may draw, up to half a generation */
	LE_FUZZ_CHECK(first > last + GENERATION / 2);

	/* a copy of this that is found elsewhere, at the same time, goes on from here */
	LE_FUZZ_CHECK(le_first_token(first, now, now ^ GENERATION, &clock) > first);
	if (clock.tv_sec >= YEAR_BEGINS && clock.tv_sec < YEAR_ENDS &&
		(then >> 32 != now >> 32 || now < then))
		LE_FUZZ_CHECK(first / GENERATION >= clock.tv_sec - YEAR_BEGINS);
}

static int64 token_seen;

static void
set_token(void *value)
{
	(void) set_config_option("leader_election.token", value, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, ERROR, false);
	token_seen = le_session_token;
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
	LE_FUZZ_CHECK(le_session_token == 0);
}
