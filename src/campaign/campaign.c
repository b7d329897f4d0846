/*-------------------------------------------------------------------------
 *
 * campaign/campaign.c
 *	  The one algorithm of being elected.
 *
 * A candidate takes the election's lock, in the lock manager's own queue, where
 * it is first come, first served, seen by the deadlock detector and subject to
 * lock_timeout and cancels.  If a lease runs, it waits for its end, holding the lock
 * and so the first place in line (lease.c).  Then it waits for the transactions that are
 * guarded by the last term (guard.c), and as long as the election is to stay vacant
 * (vacancy.c).  Whoever has the lock then, and
 * whose client is still there, draws a token (token.c) and is elected: term.c writes the
 * term down.
 *
 * What a new term relies on must be durable on the synchronous standbys before it begins:
 * the end of the last lease, and the block that the token comes from.  For that the
 * candidate waits here, with the election's lock and no other; a timeout, a lock_timeout or
 * a cancel ends the wait, and no term begins.  A bid that does not wait lets the
 * standbys answer for LE_PATIENCE_US in all, and is denied then.  The next bid
 * goes on where it has stopped.
 *
 * Order of locks: the election's lock, then its guard lock, then the lock on the
 * tokens' sequence and those on le_leases and le_declarations, then the registry's
 * LWLocks.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "announce/announce.h"
#include "lease/lease.h"
#include "leader/leader.h"
#include "campaign/campaign.h"

/*
 * Throw if what is on record is of another election that has the same key
 *
 * For whoever was just denied: it may be about to end, but not to make room for us.
 */
static void
refuse_other_name(const LeElection *election)
{
	LeTerm		term;

	if (le_registry_read(&election->key, &term))
		le_refuse_collision(election, term.name);
}

/*
 * Throw what the server throws after lock_timeout
 */
void
le_throw_lock_timeout(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("canceling statement due to lock timeout")));
}

/* How long a candidate waits in all */
typedef struct LeWaitLimit
{
	uint64		deadline;		/* by le_monotonic_us; 0: none */
	int			lock_timeout;	/* the user's own, for each wait */
	bool		ours;			/* is the deadline due before that? */
} LeWaitLimit;

/*
 * Let the next wait end in time
 *
 * The server's own lock timeout does the work.
 */
static void
limit_wait(volatile LeWaitLimit *limit)
{
	uint64		now = le_monotonic_us();
	uint64		left_ms = 1;

	if (limit->deadline == 0)
		return;
	if (limit->deadline > now)
		left_ms = (limit->deadline - now + 999) / 1000;
	limit->ours = limit->lock_timeout == 0 || left_ms < (uint64) limit->lock_timeout;
	LockTimeout = limit->ours ? (int) left_ms : limit->lock_timeout;
}

/*
 * Wait in line for the election's lock, until it is our turn
 *
 * A lock_timeout may strike just after the lock was granted: then it must be heard
 * before anything is made of the lock.
 */
static void
wait_in_line(const LeElection *election, volatile LeWaitLimit *limit)
{
	do
	{
		/* from now on a leader that falls silent sees that it is wanted */
		(void) le_end_silent(election, 0);
		limit_wait(limit);
		le_show_wait(LE_WAITS_FOR_LEADER);
		(void) le_acquire_for_xact(election, false);
		CHECK_FOR_INTERRUPTS();
	} while (!le_take_turn(election));
}

/*
 * Draw the token of a bid whose turn has come, unless its client has died; false if that
 * takes until that time
 */
static bool
draw_token_in_line(LeBid *bid, uint64 until)
{
	le_require_client();
	bid->token = le_next_token(0);
	if (bid->token == 0)
	{
		le_show_wait(LE_WAITS_FOR_STANDBY);
		bid->token = le_next_token(until);
	}
	return bid->token != 0;
}

/*
 * Wait for what is in the way, or until that time; but maybe not as long
 */
static void
wait_for_obstacle(const LeElection *election, const LeDecision *decision, uint64 until)
{
	switch (decision->obstacle)
	{
		case LE_NOT_DURABLE:
			le_show_wait(LE_WAITS_FOR_STANDBY);
			(void) le_await_durable(decision->undurable, until);
			break;
		case LE_GRACE:
		case LE_PROMOTION:
			le_wait_vacant(Min(decision->until, until), decision->obstacle);
			break;
		case LE_MAY_LEAD:		/* only its token was missing */
		case LE_GUARDED:		/* the record has changed */
			break;
		default:
			le_show_wait(LE_WAITS_FOR_LEADER);
			le_lease_wait(election, until);
			break;
	}
}

/*
 * Check whether nobody leads any more, and nothing of the last term is on record
 */
static bool
nobody_leads(const LeDecision *decision)
{
	return decision->obstacle == LE_MAY_LEAD || decision->obstacle == LE_GRACE ||
		decision->obstacle == LE_PROMOTION;
}

/*
 * Wait for the election's lock, and then until nothing is in the way of a new term
 *
 * What comes after the lock was granted counts as one more lock.  The bid has its token
 * then.
 */
static void
wait_for_turn(LeBid *bid, volatile LeWaitLimit *limit)
{
	const LeElection *election = &bid->election;
	uint64		give_up_at = 0;
	bool		ours = false;

	/* we look at nothing while we wait, and nothing is to be kept for us */
	InvalidateCatalogSnapshotConditionally();

	wait_in_line(election, limit);
	for (;;)
	{
		LeDecision	decision;

		limit_wait(limit);

		/* the extension may have been replaced meanwhile */
		AcceptInvalidationMessages();
		le_leases_ready(true);
		decision = le_clear_record(bid, false);
		le_require_candidate(bid);
		if (nobody_leads(&decision) && !le_take_turn(election))
		{
			wait_in_line(election, limit);
			give_up_at = 0;
			continue;
		}
		if (decision.obstacle == LE_MAY_LEAD && draw_token_in_line(bid, give_up_at))
			return;
		if (decision.obstacle == LE_LEASE_RUNS)
			refuse_other_name(election);

		if (give_up_at == 0)
		{
			limit_wait(limit);
			ours = limit->ours;
			give_up_at = LockTimeout > 0 ?
				le_monotonic_us() + LockTimeout * INT64CONST(1000) : PG_UINT64_MAX;
		}
		if (le_monotonic_us() >= give_up_at)
		{
			limit->ours = ours;
			le_throw_lock_timeout();
		}
		InvalidateCatalogSnapshotConditionally();
		wait_for_obstacle(election, &decision, give_up_at);
	}
}

/*
 * The same, for as long as the bid waits; false if that was too short
 *
 * In a subtransaction, so that we can come back from the error that says so.  A
 * lock_timeout of the user's that is due earlier is an error, as it always is.
 */
static bool
wait_for_turn_within(LeBid *bid)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile LeWaitLimit limit;
	volatile bool acquired = true;

	limit.deadline = le_monotonic_us() + bid->wait_ms * 1000;
	limit.lock_timeout = LockTimeout;
	limit.ours = false;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);

	PG_TRY();
	{
		wait_for_turn(bid, &limit);
		LockTimeout = limit.lock_timeout;

		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		LockTimeout = limit.lock_timeout;
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;

		if (!limit.ours || error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
			ReThrowError(error);
		FreeErrorData(error);
		acquired = false;
	}
	PG_END_TRY();

	return acquired;
}

/*
 * Return until when, by le_monotonic_us, a bid that does not wait lets standbys answer
 *
 * That begins when it first has to.
 */
static uint64
lose_patience_at(LeBid *bid)
{
	if (bid->patience_until == 0)
		bid->patience_until = le_monotonic_us() + LE_PATIENCE_US;
	return bid->patience_until;
}

/*
 * Call le_clear_record without waiting, except for standbys as long as there is patience
 */
static LeDecision
clear_record_now(LeBid *bid)
{
	LeDecision	decision = le_clear_record(bid, true);

	if (decision.obstacle == LE_NOT_DURABLE &&
		le_await_durable(decision.undurable, lose_patience_at(bid)))
		decision = le_clear_record(bid, true);
	return decision;
}

/*
 * Draw the bid's token likewise; false if there is none
 */
static bool
draw_token_now(LeBid *bid)
{
	bid->token = le_next_token(0);
	if (bid->token == 0)
		bid->token = le_next_token(lose_patience_at(bid));
	return bid->token != 0;
}

/*
 * Take the election's lock for the current subtransaction if it is free, or soon is, as the
 * leader on record is silent and its session is terminated
 */
static bool
take_lock_now(LeBid *bid, const LeTerm *term)
{
	const LeElection *election = &bid->election;

	if (le_acquire_for_xact(election, true))
		return true;
	return term != NULL && term->silent &&
		le_end_silent(election, lose_patience_at(bid)) &&
		le_acquire_for_xact(election, true);
}

/*
 * Take the election's lock for the current subtransaction, and a token, if it is free and
 * nothing else is in the way of a new term
 *
 * To look at the record first saves those who are denied by a lease the way to the
 * lock.  Throws if all that is in the way is that leases are not granted yet, and the
 * bid does not wait.
 */
bool
le_acquire_now(LeBid *bid)
{
	const LeElection *election = &bid->election;
	LeTerm		term;
	bool		on_record;
	LeDecision	decision;

	le_require_candidate(bid);
	on_record = le_registry_read(&election->key, &term);
	if ((on_record && le_lease_runs(&term)) ||
		!take_lock_now(bid, on_record ? &term : NULL))
	{
		if (on_record)
			le_refuse_collision(election, term.name);
		return false;
	}

	decision = clear_record_now(bid);
	if (decision.obstacle == LE_MAY_LEAD && draw_token_now(bid))
		return true;
	if (decision.obstacle == LE_PROMOTION && bid->wait_ms == LE_NO_WAIT)
		le_throw_not_yet(election, decision.until);
	le_release_in_vain(election);
	refuse_other_name(election);
	return false;
}

/*
 * Wait in line for the election's lock, shown as a candidate, and take it for the
 * current subtransaction; false if that takes longer than the bid waits
 */
static bool
acquire_in_line(LeBid *bid, const LeIdentity *identity)
{
	volatile LeWaitLimit forever = {0};
	bool		acquired = true;

	le_stand_in_line(&bid->election, identity);
	if (bid->wait_ms == LE_WAIT_FOREVER)
		wait_for_turn(bid, &forever);
	else
		acquired = wait_for_turn_within(bid);
	le_withdraw();
	return acquired;
}

/*
 * Make a session that leads the election already hold it in the bid's scope, too
 */
static void
add_hold(LeHeldTerm *held, LeScope scope, int64 heartbeat_us)
{
	if (scope == LE_SCOPE_SESSION)
		le_hold_for_session(held, heartbeat_us);
	else
		le_hold_for_transaction(held);
}

/*
 * Deny a bid that this very session stands in the way of; throw if it would wait
 *
 * The lock that the session holds would not keep it from itself.  "how" says how the
 * session leads.
 */
static void
deny_own(const LeBid *bid, const char *how, const char *hint)
{
	if (bid->wait_ms != LE_NO_WAIT)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot wait to lead election %s, which this session leads %s",
						le_election_label(&bid->election.key, bid->election.name), how),
				 hint != NULL ? errhint("%s", hint) : 0));
}

/*
 * Deny a bid for an election that this session leads under another identity than that of
 * the bid: it is another client's.  False if it is not
 *
 * Throws if it would wait.
 */
bool
le_deny_other_client(const LeBid *bid)
{
	LeHeldTerm *held;
	const char *as;

	if (bid->identity == NULL)
		return false;
	held = le_held_term(&bid->election);
	if (held == NULL || le_is_held_as(held, bid->identity, &as))
		return false;
	deny_own(bid, as, LE_HINT_SHARED_SESSION);
	le_warn_held_as(&bid->election, as);
	le_registry_count_denial(&bid->election);
	return true;
}

/*
 * Throw if this session cannot bid, and see to it that it can
 */
void
le_prepare_to_bid(void)
{
	le_require_primary();
	PreventCommandIfParallelMode("a bid for leadership");
	le_leases_ready(true);
	le_registry_bound_elections(0);
}

/*
 * Tell the client, once a transaction, that a lease which it has just taken in a
 * transaction block counts from the commit
 */
static void
notice_not_begun(const LeElection *election)
{
	if (le_grant_count() > 1 || !IsTransactionBlock())
		return;
	ereport(NOTICE,
			(errmsg("the lease of election %s begins when this transaction commits",
					le_election_label(&election->key, election->name))));
}

/*
 * Begin the term, or take the lease, that the bid asks for; its token
 *
 * This subtransaction has just been granted the election's lock, and no lease runs.
 */
int64
le_begin_elected(const LeBid *bid, const LeIdentity *identity)
{
	int64		token;

	if (bid->scope != LE_SCOPE_LEASE)
		return le_begin_term(bid, identity);

	/* in an old transaction, we may not have heard of a new extension */
	AcceptInvalidationMessages();
	le_leases_ready(true);
	le_lease_sweep(false);
	token = le_grant_lease(bid, identity);
	notice_not_begun(&bid->election);
	return token;
}

/*
 * Make this session the leader of the election, or take its lease, as the bid asks
 *
 * Returns the token of the term; 0 if somebody else still leads after wait_ms.  A
 * session that leads when asked again goes on to do so, and nothing changes; but a
 * lease is renewed by its token only, and another identity is another candidate's.
 * May wait, throw, and end the session of a client that has gone.
 */
int64
le_elect(LeBid *bid)
{
	const LeElection *election = &bid->election;
	LeHeldTerm *held;
	LeIdentity	identity;
	bool		acquired;

	le_prepare_to_bid();

	if (le_deny_other_client(bid))
		return 0;
	held = le_held_term(election);
	if (held != NULL && bid->scope != LE_SCOPE_LEASE)
	{
		add_hold(held, bid->scope, bid->ttl_us);
		return held->token;
	}
	if (held != NULL)
	{
		deny_own(bid, "without a lease", NULL);
		return 0;
	}
	le_refuse_silent_hold(election);
	if (le_find_grant(election) != NULL)
	{
		deny_own(bid, "by a lease that this transaction has taken", NULL);
		return 0;
	}
	le_require_room(election, 1, bid->scope == LE_SCOPE_LEASE ? 1 : 0);

	/* a candidate in line has all the time that it takes there */
	bid->patience_until = bid->wait_ms == LE_NO_WAIT ? 0 : 1;
	acquired = le_acquire_now(bid);
	if (acquired || bid->wait_ms != LE_NO_WAIT)
		le_identity_fill(&identity, bid->identity);
	if (!acquired && bid->wait_ms != LE_NO_WAIT)
		acquired = acquire_in_line(bid, &identity);
	if (!acquired)
	{
		le_registry_count_denial(election);
		return 0;
	}
	return le_begin_elected(bid, &identity);
}
