/*-------------------------------------------------------------------------
 *
 * term/origin.c
 *	  The origin of tokens and leases: detection of promotion, restore and
 *	  copying.
 *
 * A server that restarts finds all that it has recorded.  A server that was
 * promoted may not, since the last writes of its primary may not have arrived.
 * The same holds for a server that was recovered from a backup, and for a
 * database that was restored from a dump.  Such a server recognizes its state
 * by the origin: the system identifier and the timeline.  If one of these has
 * changed, the server does not rely on what it finds.  (A copy of the files
 * that is started without recovery has the origin of its original.)
 *
 *	tokens		The next block of tokens (token.c) begins by the clock.  As a
 *				database may be copied, its OID is part of the origin.  A
 *				sequence that is new, restored or set back has no origin, so
 *				its next block begins by the clock, too.
 *	leases		A lease may have been granted that did not arrive.  None is
 *				granted until such a lease must have expired, that is, for the
 *				longest possible ttl.  Leases that have arrived continue to
 *				run, and can be renewed.  A copy of a database on the same
 *				server does not have to wait.
 *
 * The origin of tokens is a mark in their sequence.  That of leases is the
 * value of a sequence of its own, because a sequence can be written regardless
 * of the transaction's outcome, is part of a dump, and survives a crash.  That
 * tokens were drawn does not mean that the wait has ended, and a restart must
 * not cut it short.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/time.h>

#include "access/xlog.h"
#include "common/hashfn.h"
#include "datatype/timestamp.h"
#include "miscadmin.h"

#include "term/term.h"

#define LE_TIMELINE_BITS	32

/*
 * A token by the clock: seconds since the beginning of 2025, and microseconds
 */
#define LE_TOKENS_PER_USEC		4
#define LE_TOKENS_PER_SECOND	(INT64CONST(1) << 22)
#define LE_CLOCK_EPOCH			INT64CONST(1735689600)

/* the clock ends in 2092, which leaves room for 8192 leaps */
#define LE_CLOCK_MAX			INT64CONST(0x7f000000)

/* How many tokens to skip where the clock does not help */
#define LE_TOKEN_LEAP			(INT64CONST(1) << 33)

/*
 * Return the origin of what this server writes, of the tokens of a database,
 * or, with InvalidOid, of leases: a hash of the place in the upper half,
 * without its sign bit, and the timeline in the lower half
 *
 * Raises an error on a standby.
 */
int64
le_origin_now(Oid database)
{
	uint64		place[2] = {GetSystemIdentifier(), database};
	uint64		hash;

	le_require_primary();
	hash = hash_bytes_extended((unsigned char *) place, sizeof(place), 0);
	return (int64) (hash >> 33 << LE_TIMELINE_BITS | GetWALInsertionTimeLine());
}

/*
 * Return how many servers may have drawn tokens that this one does not know,
 * including this one
 *
 * Each promotion begins a timeline.  If both origins are of the same server,
 * this counts all promotions between them, even those from which nothing else
 * has arrived here.
 */
static int64
origins_between(int64 then, int64 now)
{
	if (then == now)
		return 0;
	if (then >> LE_TIMELINE_BITS == now >> LE_TIMELINE_BITS && now > then)
		return now - then;
	return 1;
}

/*
 * Return the token for the given time, or 0 before 2025
 *
 * A promotion that is known only by its timeline counts a day, which allows
 * for a difference of that much between the clocks.
 */
static int64
token_by_clock(const struct timeval *clock, int64 origins)
{
	int64		seconds = clock->tv_sec - LE_CLOCK_EPOCH + (origins - 1) * SECS_PER_DAY;

	if (seconds < 0)
		return 0;
	return Min(seconds, LE_CLOCK_MAX) * LE_TOKENS_PER_SECOND +
		clock->tv_usec * LE_TOKENS_PER_USEC;
}

/*
 * Return how many tokens to skip, but no more than half of the remaining ones
 */
static int64
token_leap(int64 last, int64 origins)
{
	int64		left = Max(LE_TOKEN_MAX - last, 0);

	return Min(Min(origins, LE_TOKEN_MAX / LE_TOKEN_LEAP) * LE_TOKEN_LEAP, left / 2);
}

/*
 * Return the first token to be handed out after the last known one
 *
 * If the origin has changed, this is the token for the current time.  No
 * database hands out four million tokens in a second.  So if the clocks are
 * right, all tokens that were ever handed out are behind the clock, known or
 * not, and the last one need not be known.  Two servers that do not know of
 * each other's promotion may choose the same timeline, and two restores of one
 * dump have the same origin: the later one then has the greater tokens.  If a
 * server was isolated and continues, its tokens remain lower than those of the
 * next server, until it has handed out four million tokens for each second
 * between its own first draw and that of the next server.
 *
 * If the last token is not behind the clock, the clock is or was wrong, or a
 * promotion has counted a day.  Then only what has arrived here is known, and
 * 2^33 tokens are skipped for each origin, as is always done if there is more
 * than one.  The server of the previous origin may have received more than
 * this one.  What did not arrive here and what that server has handed out must
 * be less than that, together.
 *
 * No tokens are skipped if the clock is ahead by less than that.  Skipping
 * would put the tokens ahead of the clock for half an hour, in which the clock
 * could distinguish neither two promotions nor a new sequence from the
 * previous one.
 */
int64
le_first_token(int64 last, int64 then, int64 now, const struct timeval *clock)
{
	int64		origins = origins_between(then, now);
	int64		by_clock;

	if (origins == 0)
		return last + 1;
	by_clock = token_by_clock(clock, origins);
	if (by_clock > last && origins == 1)
		return by_clock + 1;
	return Max(by_clock, last + token_leap(last, origins)) + 1;
}

/*
 * Return when leases are granted, by le_monotonic_us, or 0 if they already are
 *
 * When the wait has ended, this is written to this server's disk only: a
 * standby that is promoted has another origin, and begins a wait of its own,
 * so no standby is waited for.  May raise an error.  The caller must not hold
 * an LWLock.
 */
uint64
le_grants_from(void)
{
	static Oid	granting = InvalidOid;
	Oid			sequence = le_sequence_oid(LE_LEASE_ORIGIN);
	int64		now;
	int64		mark;
	uint64		from;

	if (likely(sequence == granting))
		return 0;

	now = le_origin_now(InvalidOid);
	if (le_sequence_read(LE_LEASE_ORIGIN, &mark) != now)
	{
		from = le_registry_primary_since() + le_max_ttl * INT64CONST(1000);
		if (from > le_monotonic_us())
			return from;
		XLogFlush(le_sequence_set(LE_LEASE_ORIGIN, now, 0));
	}
	granting = sequence;
	return 0;
}

/*
 * Raise an error because leases are granted only from the given time on
 */
void
le_raise_not_yet(const LeElection *election, uint64 grants_from)
{
	uint64		now = le_monotonic_us();

	ereport(ERROR,
			(errcode(ERRCODE_LE_NOT_YET),
			 errmsg("cannot grant a lease of election %s yet", le_label(election)),
			 errdetail("This server was promoted or restored, and a lease that it does not know of may still run."),
			 errhint("Retry in " UINT64_FORMAT " ms.",
					 (Max(grants_from, now) - now + 999) / 1000)));
}
