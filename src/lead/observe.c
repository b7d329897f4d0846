/*-------------------------------------------------------------------------
 *
 * lead/observe.c
 *	  Observation of an election's leader, and of the value that it publishes.
 *
 * An observer compares the version of what it sees with the one that its
 * client knows, and sleeps until the two differ.  It sleeps on the condition
 * variable of the election's entry, on which every session broadcasts that
 * changes the entry.  It keeps the entry in place meanwhile, and prepares to
 * sleep before it looks, so that it misses nothing.  An expiry is not
 * broadcast, so the observer sleeps no longer than until the deadline.  Nor is
 * it broadcast if the leader's lock was lost in the middle of a transaction,
 * by pg_advisory_unlock_all().  So while a session or transaction leads, an
 * observer checks each second whether the lock is held.
 *
 * A term is recorded only while its lock is held, unless the lock was lost.
 * So if the lock is free and the term still recorded after that, it has ended
 * for good, although it may stay recorded for hours.  The registry notes that,
 * so that all observers see the same, and what they see does not change when
 * the recorded term is removed.
 *
 * A version is a hash of what is seen: the leader's token and published value,
 * or else the last term's token, so that one vacancy can be distinguished from
 * the next.  Therefore all sessions have the same version for the same state,
 * also after a restart, and none has to be stored.  Versions are opaque, and
 * only compared for equality.  Two states have the same one by chance with a
 * probability of 2^-52.  Only the leader itself could bring that about, by
 * constructing a value; it would hide nothing but what it publishes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"

#include "lock/lock.h"
#include "lease/lease.h"
#include "lead/lead.h"

/* the entry that this session keeps in place; NULL: none */
static LeElectionEntry *pinned = NULL;

/*
 * Stop observing; also called if observing fails.  Never raises an error.
 */
void
le_stop_observing(void)
{
	if (pinned != NULL)
		le_registry_unpin(pinned, LE_OBSERVER);
	pinned = NULL;
	le_registry_uncharge();
}

/*
 * Check whether the recorded term leads
 *
 * A lease also ends with the extension that it was taken from.
 */
static bool
is_seen_to_lead(const LeElection *election, const LeTerm *term)
{
	if (term->token == 0)
		return false;
	if (term->scope == LE_SCOPE_LEASE)
		return le_copied_lease_runs(term);
	return !term->lock_gone && !term->silent &&
		(le_lock_is_busy(election) || !le_registry_mark_lost(&election->key, term->token));
}

/*
 * Read the leader, and the value that it publishes.  If the election is
 * vacant, the token is 0.
 */
static void
look_at_election(const LeElection *election, LeTerm *leader, char *value)
{
	do
	{
		do
		{
			(void) le_leases_ready(false);
			(void) le_registry_read(&election->key, leader);
			le_refuse_collision(election, leader->name);
		} while (leader->expired && !le_close_lease(election));

		if (!is_seen_to_lead(election, leader))
		{
			leader->token = 0;
			leader->has_value = false;
		}
	} while (leader->has_value &&
			 !le_registry_copy_value(&election->key, leader->token, value));
}

/*
 * Return the version of what is seen: of the leader, or of the vacancy after
 * the last term
 *
 * It has 53 bits, so that clients whose numbers are all double precision can
 * pass it back.  The first bit is set, so that no version is 0.
 */
static int64
version_of(const LeTerm *leader, const char *value)
{
	bool		led = leader->token != 0;
	int64		token = led ? leader->token : leader->begun_token;
	uint64		hash = hash_bytes_extended((const unsigned char *) &token, sizeof(token), led);

	if (leader->has_value)
		hash = hash_bytes_extended((const unsigned char *) value, strlen(value), hash);
	return UINT64CONST(1) << 52 | hash >> 12;
}

/*
 * Wait until the state of the election has another version than the known one;
 * for at most wait_ms
 *
 * *leader and value are set to what is seen then, as by look_at_election.
 * Returns its version.  If known is 0, returns at once.  May raise an error,
 * and ends the session if its client is gone.
 */
int64
le_observe_election(LeElection *election, int64 known, int64 wait_ms,
					LeTerm *leader, char *value)
{
	int64		version;
	uint64		give_up_at = PG_UINT64_MAX;

	le_require_primary();
	le_require_observer(election);
	le_registry_bound_elections(0);
	if (wait_ms != LE_WAIT_FOREVER)
		give_up_at = le_monotonic_us() + wait_ms * 1000;

	le_registry_charge(1);
	pinned = le_registry_pin(election, LE_OBSERVER);
	ConditionVariablePrepareToSleep(&pinned->changed);
	for (;;)
	{
		uint64		until = give_up_at;

		/* in this order, as a value can become private between the two */
		look_at_election(election, leader, value);
		le_require_observer(election);
		version = version_of(leader, value);
		if (version != known || le_monotonic_us() >= give_up_at)
			break;
		if (leader->token != 0 && leader->lasts_us != 0)
			until = Min(until, leader->deadline);
		if (leader->token != 0 && leader->scope != LE_SCOPE_LEASE)
			until = Min(until, le_monotonic_us() + LE_LOCK_LOOK_US);
		InvalidateCatalogSnapshotConditionally();
		le_sleep(&pinned->changed, until, LE_SLEEP_OBSERVE);
		AcceptInvalidationMessages();
	}
	ConditionVariableCancelSleep();
	le_stop_observing();
	return version;
}
