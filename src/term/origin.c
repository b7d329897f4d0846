/*-------------------------------------------------------------------------
 *
 * term/origin.c
 *	  Is this still the server that has written what we find?
 *
 * A server that restarts finds all that it has promised.  One that was promoted may
 * not: what its primary has written last may not have arrived.  Nor may one that was
 * recovered from a backup, or a database that was restored from a dump.  Such a server is
 * told by its origin: the system identifier and the timeline.  When one of them is
 * another than it was, the server distrusts what it finds.  (A copy of the files that is
 * started as if nothing had happened has the origin of its original.)
 *
 *	tokens	The next block of tokens (token.c) begins by the clock.  As a database may
 *			be restored beside or over itself, its OID and that of the sequence are
 *			part of their origin.  A new sequence begins by the clock, too: its
 *			origin is one timeline before that of CREATE EXTENSION.
 *	leases	A lease may have been granted that did not arrive.  None is granted until
 *			it must have run out, that is, for the longest ttl there can be.  Leases
 *			that have arrived run on, and those who have them renew them.  A copy of a
 *			database on the same server has none to wait for.
 *
 * An origin is kept as the value of a sequence, because a sequence can be written
 * whatever becomes of the transaction, comes back with a dump, and outlives a crash.
 * There is one for the tokens and one for the leases: that tokens were drawn does not
 * mean that the wait is over, and a restart must not cut it short.
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

/* A token by the clock: seconds since the year 2025 begins, and microseconds */
#define LE_TOKENS_PER_USEC		4
#define LE_TOKENS_PER_SECOND	(INT64CONST(1) << 22)
#define LE_CLOCK_EPOCH			INT64CONST(1735689600)

/* In 2092 the clock comes to an end, and leaves room for 8192 leaps */
#define LE_CLOCK_MAX			INT64CONST(0x7f000000)

/* What is left out where the clock does not help */
#define LE_TOKEN_LEAP			(INT64CONST(1) << 33)

/*
 * Throw if this is no place to lead
 */
void
le_require_primary(void)
{
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot elect a leader during recovery"),
				 errhint("Connect to the primary server.")));
}

/*
 * Return the origin of what this server writes, of tokens or of leases: a hash of the
 * place in the upper half, without its sign bit, and the timeline in the lower
 *
 * Throws on a standby.
 */
int64
le_origin_now(bool of_tokens)
{
	uint64		place[3] = {GetSystemIdentifier()};
	uint64		hash;

	le_require_primary();
	if (of_tokens)
	{
		place[1] = MyDatabaseId;
		place[2] = le_sequence_oid(LE_TOKENS);
	}
	hash = hash_bytes_extended((unsigned char *) place, sizeof(place), 0);
	return (int64) (hash >> 33 << LE_TIMELINE_BITS | GetWALInsertionTimeLine());
}

/*
 * How many servers may have drawn tokens that we do not know of, with us?
 *
 * Each promotion begins a timeline.  If they are of the same server, those promotions
 * count, too, of which nothing else has arrived here.
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
 * Return the token of that time; 0 before 2025
 *
 * Promotions that are known by their timeline only count a day each: so much the clocks
 * may differ there.
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
 * Return how many tokens to leave out, but no more than half of those that are left
 */
static int64
token_leap(int64 last, int64 origins)
{
	int64		left = Max(LE_TOKEN_MAX - last, 0);

	return Min(Min(origins, LE_TOKEN_MAX / LE_TOKEN_LEAP) * LE_TOKEN_LEAP, left / 2);
}

/*
 * Return the first token to be handed out after the last one that we know of
 *
 * Where the origin is another one, that is the token of this time.  No database hands
 * out four million tokens in a second.  So where the clocks are right, all tokens that
 * were ever handed out are behind the clock, whether or not we know of them, and this
 * needs not know the last one.  Two servers that do not know of each other's promotion
 * have chosen the same timeline, as two restores of one dump have the same origin: the
 * later one has the greater tokens.  A server that was cut off and goes on stays
 * below, until it has handed out four million for each second that it had drawn
 * tokens when the next one began.
 *
 * Where the last token is not behind the clock, the clock is wrong or was, or a promotion
 * has counted a day.  Then we know only what has arrived here, and leave out 2^33
 * tokens for each origin, as we do in any case where there is more than one.  The
 * server of the origin before ours may have received more than we have: what did not
 * arrive here and what that server has handed out must be less than that, together.
 *
 * There is no such leap where the clock is ahead by less: it would put the tokens ahead
 * of the clock for half an hour.  For so long the clock could tell neither two promotions
 * from each other nor a new sequence from the one before.
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
 * Return when leases are granted, by le_monotonic_us; 0 if they are
 *
 * May throw.  When the wait is over, it is written to this server's disk.  A standby that
 * is promoted is another origin, and begins a wait of its own: so none is waited for.  No
 * LWLock may be held.
 */
uint64
le_grants_from(void)
{
	static Oid	granting = InvalidOid;
	Oid			sequence = le_sequence_oid(LE_LEASE_ORIGIN);
	int64		now;
	uint64		from;

	if (likely(sequence == granting))
		return 0;

	now = le_origin_now(false);
	if (le_sequence_read(LE_LEASE_ORIGIN) != now)
	{
		from = le_registry_primary_since() + le_max_ttl * INT64CONST(1000);
		if (from > le_monotonic_us())
			return from;
		XLogFlush(le_sequence_set(LE_LEASE_ORIGIN, now));
	}
	granting = sequence;
	return 0;
}

/*
 * Throw because leases are not granted before that time
 */
void
le_throw_not_yet(const LeElection *election, uint64 grants_from)
{
	uint64		now = le_monotonic_us();

	ereport(ERROR,
			(errcode(ERRCODE_LE_NOT_YET),
			 errmsg("cannot grant a lease of election %s yet",
					le_election_label(&election->key, election->name)),
			 errdetail("This server was promoted or restored, and a lease that it does not know of may still run."),
			 errhint("Leases are granted in " UINT64_FORMAT " ms.",
					 (Max(grants_from, now) - now + 999) / 1000)));
}
