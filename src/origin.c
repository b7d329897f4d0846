/*-------------------------------------------------------------------------
 *
 * origin.c
 *	  Is this still the server that has written what we find?
 *
 * A server that restarts finds all that it has promised.  One that was promoted may
 * not: what its primary has written last may not have arrived.  Nor may one that was
 * recovered from a backup, or a database that was restored from a dump.  Such a server is
 * told by its origin: the system identifier and the timeline.  When one of them is
 * another than it was, the server distrusts what it finds.  (A copy of the files that is
 * started as if nothing had happened has the origin of its original.)
 *
 *	tokens	The generation, a token's upper half, grows before the next block of
 *			tokens is drawn (token.c).  As a database may be restored beside or over
 *			itself, its OID and that of the sequence are part of their origin.
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

#include "leader_election.h"

#define LE_TIMELINE_BITS	32

#define LE_TOKENS_PER_GENERATION	(INT64CONST(1) << 32)

/* A generation by the clock: seconds since the year 2025, for the next 68 years */
#define LE_GENERATION_EPOCH			INT64CONST(1735689600)
#define LE_GENERATION_BY_CLOCK_MAX	(INT64CONST(0x7fff0000))

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
 * How many generations of tokens may have been begun that we do not know of, with the
 * one that we begin now?
 *
 * Each promotion begins a timeline, and a generation.  If they are of the same server,
 * those promotions count, too, of which nothing else has arrived here.
 */
static int64
generations_between(int64 then, int64 now)
{
	if (then == now)
		return 0;
	if (then >> LE_TIMELINE_BITS == now >> LE_TIMELINE_BITS && now > then)
		return now - then;
	return 1;
}

/*
 * Return the first token to be handed out after the last one that we know of
 *
 * Another server may have handed out more of the last one's generation.  We may count
 * on less than half a generation: so who has half of it behind him leaves one out.
 *
 * Two servers that do not know of each other's promotion have chosen the same timeline,
 * as two restores of one dump have the same origin.  There the clock tells the later one,
 * to the microsecond: a generation begins with some of it, in less than a quarter of its
 * numbers.  Those promotions that are known by their timeline only count a day each: so
 * much the clocks may differ there.
 */
int64
le_first_token(int64 last, int64 then, int64 now, const struct timeval *clock)
{
	int64		generations = generations_between(then, now);
	int64		generation;
	int64		by_clock = clock->tv_sec - LE_GENERATION_EPOCH;

	if (generations == 0)
		return last + 1;
	by_clock += (generations - 1) * SECS_PER_DAY;
	by_clock = Min(by_clock, LE_GENERATION_BY_CLOCK_MAX);
	generation = (last + LE_TOKENS_PER_GENERATION / 2) / LE_TOKENS_PER_GENERATION +
		generations;
	if (generation >= by_clock)
		return generation * LE_TOKENS_PER_GENERATION + 1;
	return by_clock * LE_TOKENS_PER_GENERATION + clock->tv_usec * INT64CONST(1024) + 1;
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
