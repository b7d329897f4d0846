/*-------------------------------------------------------------------------
 *
 * bid/campaign.c
 *	  The algorithm of an election.
 *
 * A candidate acquires the election's lock in the lock manager's own queue,
 * which is first come, first served, visible to the deadlock detector, and
 * subject to lock_timeout and cancellation.  If a lease runs, the candidate
 * waits for its end while it holds the lock, and so keeps the first place in
 * line (lease.c).  Then it waits for the transactions that are guarded by the
 * last term (guard.c), and for as long as the election must stay vacant
 * (succession.c).  If its client is still there then, it draws a token
 * (token.c) and is elected: term.c records the term.
 *
 * What a new term relies on must be durable on the synchronous standbys before
 * the term begins: the end of the last lease, and the block that the token
 * comes from.  The candidate waits for that here, while it holds the
 * election's lock and no other.  A timeout, a lock_timeout or a cancel ends
 * the wait, and no term begins.  A bid that does not wait gives the standbys
 * LE_TRY_WAITS_US in all, and is denied after that.  The next bid continues
 * from there.
 *
 * Order of locks: the election's lock, then its guard lock, then the lock on
 * the tokens' sequence and those on le_leases and le_declarations, then the
 * registry's LWLocks.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"

#include "lock/lock.h"
#include "lease/lease.h"
#include "lead/lead.h"
#include "bid/bid.h"

/*
 * Raise an error if the recorded term is of another election with the same key
 *
 * For a bid that was just denied: that term may be about to end, but not to
 * make room for this election.
 */
static void
refuse_other_name(const LeElection *election)
{
	LeTerm		term;

	if (le_registry_read(&election->key, &term))
		le_refuse_collision(election, term.name);
}

/*
 * Raise the error that the server raises after lock_timeout
 */
void
le_raise_lock_timeout(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("canceling statement due to lock timeout")));
}

/* A wait of a bid, and how long it may last in total */
typedef struct LeTurn
{
	LeBid	   *bid;
	uint64		deadline;		/* by le_monotonic_us; 0: none */
	int			lock_timeout;	/* the user's setting, for each wait */
	bool		ours;			/* is the deadline due before that? */
} LeTurn;

/*
 * Limit the duration of the next wait
 *
 * This sets the server's own lock_timeout, until the end of the
 * subtransaction that wait_for_turn_until begins.
 */
static void
limit_wait(LeTurn *turn)
{
	uint64		now = le_monotonic_us();
	uint64		left_ms = 1;
	char		timeout[16];

	if (turn->deadline == 0)
		return;
	if (turn->deadline > now)
		left_ms = (turn->deadline - now + 999) / 1000;
	turn->ours = turn->lock_timeout == 0 || left_ms < (uint64) turn->lock_timeout;
	snprintf(timeout, sizeof(timeout), "%d", turn->ours ? (int) left_ms : turn->lock_timeout);
	le_set_locally("lock_timeout", timeout);
}

/*
 * When a candidate that need not check for deadlocks does: after one to two
 * hours, so that a long line does not do so at once
 */
#define LE_LATE_CHECK_MS	(60 * 60 * 1000)

/*
 * Check whether no session can wait for this one, as long as it does nothing
 * but wait for the election's lock
 *
 * It holds no lock, has no transaction ID, and has no snapshot, so that CREATE
 * INDEX CONCURRENTLY and the like do not wait for its virtual transaction ID.
 */
static bool
blocks_nothing(void)
{
	InvalidateCatalogSnapshotConditionally();
	return !TransactionIdIsValid(GetTopTransactionIdIfAny()) &&
		!TransactionIdIsValid(MyProc->xmin) && HoldsNoLockCompat();
}

/*
 * Acquire the election's lock for the current subtransaction, without a check
 * for deadlocks by this session if it need not be the one to find them
 *
 * Each candidate in a line would check the whole line, deadlock_timeout after
 * it has lined up, and stop all users of locks meanwhile.  A session for which
 * none can wait needs no check, though those behind it in line do wait for it.
 * All requests for the lock conflict, so these also wait for its holder, and
 * for those ahead of this session.  A cycle through this session is one
 * without it, too, all of whose members check.
 *
 * There is one gap: a session that lists the snapshots to wait for just before
 * this one gave up its last snapshot waits for its virtual transaction ID, and
 * so does one that waits for all users of le_leases.  Its own check finds the
 * deadlock, unless this session takes longer than that session's
 * deadlock_timeout to line up.  Therefore, this session checks in the end.
 */
static void
acquire_with_late_check(const LeElection *election)
{
	int			late_ms = LE_LATE_CHECK_MS + MyProcPid % 3600 * 1000;
	int			nest_level;

	if (DeadlockTimeout >= late_ms || !blocks_nothing())
	{
		(void) le_acquire_for_xact(election, false);
		return;
	}
	/* an error ends the nest level, too */
	nest_level = NewGUCNestLevel();
	le_set_locally("deadlock_timeout", psprintf("%d", late_ms));
	(void) le_acquire_for_xact(election, false);
	AtEOXact_GUC(false, nest_level);
}

/*
 * Wait in line for the election's lock, until it is this session's turn
 *
 * A lock_timeout may occur just after the lock was granted, so interrupts must
 * be checked before the lock is used.
 */
static void
wait_in_line(LeTurn *turn)
{
	limit_wait(turn);
	le_show_wait(LE_WAITS_FOR_LEADER);
	acquire_with_late_check(&turn->bid->election);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Draw the token of a bid whose turn has come.  Ends the session if its client
 * is gone.  Return false if that takes longer than until the given time.
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
 * Wait for the obstacle, or until the given time.  May return earlier.
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
		case LE_GUARDED:		/* the recorded term has changed */
			break;
		default:
			le_show_wait(LE_WAITS_FOR_LEADER);
			le_lease_wait(election, until);
			break;
	}
}

/*
 * Wait for the election's lock, and then until no obstacle to a new term is
 * left
 *
 * What follows after the lock was granted counts as one more lock for
 * lock_timeout.  The bid has its token then.
 */
static void
wait_for_turn(void *argument)
{
	LeTurn	   *turn = argument;
	LeBid	   *bid = turn->bid;
	const LeElection *election = &bid->election;
	uint64		give_up_at = 0;
	bool		ours = false;

	/*
	 * no snapshot is needed during the wait, so none should hold back vacuum
	 */
	InvalidateCatalogSnapshotConditionally();

	wait_in_line(turn);
	for (;;)
	{
		LeDecision	decision;

		limit_wait(turn);

		/* the extension may have been replaced meanwhile */
		AcceptInvalidationMessages();
		(void) le_leases_ready(true);

		/* and the rules; a wait for guards needs no snapshot */
		le_require_candidate(bid);
		InvalidateCatalogSnapshotConditionally();
		decision = le_clear_record(bid, false);
		le_require_candidate(bid);
		if (decision.obstacle == LE_MAY_LEAD && draw_token_in_line(bid, give_up_at))
			return;
		if (decision.obstacle == LE_LEASE_RUNS)
			refuse_other_name(election);

		if (give_up_at == 0)
		{
			limit_wait(turn);
			ours = turn->ours;
			give_up_at = LockTimeout > 0 ?
				le_monotonic_us() + LockTimeout * INT64CONST(1000) : PG_UINT64_MAX;
		}
		if (le_monotonic_us() >= give_up_at)
		{
			turn->ours = ours;
			le_raise_lock_timeout();
		}
		InvalidateCatalogSnapshotConditionally();
		wait_for_obstacle(election, &decision, give_up_at);
	}
}

/*
 * Do the same, but not beyond the deadline, unless that is 0.  Return false if
 * the wait has ended without success, which may be before the deadline.
 *
 * The server's timer follows the wall clock, and fires early if that is set
 * forward.  If it is set back, the timer fires late, as all of the server's
 * timeouts do.
 *
 * This runs in a subtransaction, so that it can recover from the error that
 * ends the wait.  If the user's lock_timeout is due earlier, that raises an
 * error, as usual.  Any other error also rolls the subtransaction back: the
 * lock must not be held until the client has read the error, as the rules may
 * have changed so that this session is no candidate any more.
 */
static bool
wait_for_turn_until(LeBid *bid, uint64 deadline)
{
	LeTurn		turn = {
		.bid = bid,
		.deadline = deadline,
		.lock_timeout = LockTimeout
	};
	ErrorData  *error = le_try_in_subtransaction(wait_for_turn, &turn);

	if (error == NULL)
		return true;
	if (!turn.ours || error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(error);
	FreeErrorData(error);
	return false;
}

/*
 * Return until when, by le_monotonic_us, a bid that does not wait gives the
 * standbys time
 *
 * That time begins when they are first waited for.
 */
static uint64
lose_patience_at(LeBid *bid)
{
	if (bid->patience_until == LE_PATIENCE_UNSET)
		bid->patience_until = le_monotonic_us() + LE_TRY_WAITS_US;
	return bid->patience_until;
}

/*
 * Call le_clear_record without waiting, except for standbys within the bid's
 * patience
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
 * Draw the bid's token likewise.  Return false if there is none.
 */
static bool
draw_token_now(LeBid *bid)
{
	bid->token = le_next_token(0);
	if (bid->token == 0)
		bid->token = le_next_token(lose_patience_at(bid));
	return bid->token != 0;
}

/* How often to check whether a sweep is done, which takes no longer */
#define LE_SWEPT_LOOK_US	100

/*
 * Acquire the election's lock for the current subtransaction once no sweep
 * holds it, unless the bid loses its patience before, or a leader holds it
 *
 * A sweep may have released the lock between the try and the look, so there is
 * one more try.
 */
static bool
take_swept_lock(LeBid *bid)
{
	const LeElection *election = &bid->election;

	for (int denied = 0; denied < 2;)
	{
		if (le_acquire_for_xact(election, true))
			return true;
		if (!le_is_swept(election))
			denied++;
		else if (le_monotonic_us() >= lose_patience_at(bid))
			return false;
		else
		{
			CHECK_FOR_INTERRUPTS();
			pg_usleep(LE_SWEPT_LOOK_US);
		}
	}
	return false;
}

/*
 * Acquire the election's lock for the current subtransaction if it is free, or
 * becomes free soon because the recorded leader is silent, or another session
 * just clears away the last lease
 */
static bool
take_lock_now(LeBid *bid, const LeTerm *term)
{
	const LeElection *election = &bid->election;

	if (term == NULL || term->scope == LE_SCOPE_LEASE)
		return take_swept_lock(bid);
	if (le_acquire_for_xact(election, true))
		return true;
	if (!term->silent)
		return false;
	le_await_silent(election, term, lose_patience_at(bid));
	return le_acquire_for_xact(election, true);
}

/*
 * Acquire the election's lock for the current subtransaction, and a token, if
 * the lock is free and there is no other obstacle to a new term
 *
 * The record is read first, so that bids which are denied because of a lease
 * need not try the lock.  Raises an error if the only obstacle is that leases
 * are not granted yet, and the bid does not wait.
 */
static bool
acquire_now(LeBid *bid)
{
	const LeElection *election = &bid->election;
	LeTerm		term;
	bool		on_record;
	LeDecision	decision;

	le_require_candidate(bid);
	on_record = le_registry_read(&election->key, &term);
	if ((on_record && le_copied_lease_runs(&term)) ||
		!take_lock_now(bid, on_record ? &term : NULL))
	{
		if (on_record)
			le_refuse_collision(election, term.name);
		return false;
	}

	decision = clear_record_now(bid);
	if (decision.obstacle == LE_MAY_LEAD && draw_token_now(bid))
		return true;
	le_release_unused(election);
	if (decision.obstacle == LE_PROMOTION && bid->wait_ms == LE_NO_WAIT)
		le_raise_not_yet(election, decision.until);
	refuse_other_name(election);
	return false;
}

/*
 * Wait in line for the election's lock, as a visible candidate, and acquire it
 * for the current subtransaction.  Return false if that takes longer than the
 * bid waits.
 *
 * A candidate whose timer has fired early loses its place in line.
 */
static bool
acquire_in_line(LeBid *bid, const LeIdentity *identity)
{
	uint64		deadline = bid->wait_ms == LE_WAIT_FOREVER ? 0 :
		le_monotonic_us() + bid->wait_ms * 1000;
	bool		acquired;

	do
	{
		le_enter_line(&bid->election, identity);
		acquired = wait_for_turn_until(bid, deadline);
		le_withdraw();
	} while (!acquired && le_monotonic_us() < deadline);
	return acquired;
}

/*
 * Deny a bid because this session itself leads the election.  Raises an error
 * if the bid would wait.
 *
 * The lock that the session holds does not exclude the session itself.  "how"
 * describes how the session leads.
 */
static void
deny_own(const LeBid *bid, int sqlstate, const char *how, const char *hint)
{
	if (bid->wait_ms != LE_NO_WAIT)
		ereport(ERROR,
				(errcode(sqlstate),
				 errmsg("cannot wait to lead election %s, which this session leads already",
						le_label(&bid->election)),
				 errdetail("The session leads it %s.", how),
				 hint != NULL ? errhint("%s", hint) : 0));
}

/*
 * Deny a bid for an election that this session leads under another identity
 * than that of the bid, which then comes from another client.  Return false if
 * that is not so.
 *
 * Raises an error if the bid would wait.
 */
bool
le_deny_other_client(const LeBid *bid)
{
	LeHeldTerm *held;
	LeIdentity	identity;
	const char *as;

	if (bid->identity == NULL)
		return false;
	held = le_held_term(&bid->election);
	if (held == NULL || le_is_led_as(&held->election, held->token, bid->identity, &as))
		return false;
	deny_own(bid, ERRCODE_LE_SHARED_SESSION, as, LE_HINT_SHARED_SESSION);
	le_warn_held_as(&bid->election, as);
	le_identity_fill(&identity, bid->identity);
	le_registry_count_denial(&bid->election, &identity);
	return true;
}

/*
 * Raise an error if the bid is for the rest of the session, and is made by
 * code of a role other than the session's, which is the one that the session
 * has chosen by SET ROLE or when it began
 *
 * Functions that are SECURITY DEFINER, and triggers, can run as such a role.
 * A term of the session would outlive that code, could end the session by its
 * heartbeat, and counts toward the limit of the session.  So the code's role
 * needs the privileges of the session's, as for pg_terminate_backend().  That
 * the session's role is a member of the code's is no consent: memberships are
 * given by others.
 */
static void
refuse_code_of_another_role(const LeBid *bid)
{
	if (bid->scope != LE_SCOPE_SESSION || has_privs_of_role(GetUserId(), GetOuterUserId()))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied to bid for election %s on behalf of role \"%s\"",
					le_label(&bid->election),
					GetUserNameFromId(GetOuterUserId(), false)),
			 errdetail("Code that runs as role \"%s\" would lead for the rest of the session, and does not have the privileges of that role.",
					   GetUserNameFromId(GetUserId(), false)),
			 errhint("Lead until the end of the transaction, or by a lease.")));
}

/*
 * Raise an error if this session leads the election in another scope than that
 * of the bid
 *
 * A term in session scope can be resigned within the transaction, one in
 * transaction scope lasts until its end: no term can do both.
 */
static void
refuse_two_scopes(const LeBid *bid, const LeHeldTerm *held)
{
	if (held->for_session == (bid->scope == LE_SCOPE_SESSION))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("cannot lead election %s in two scopes at a time",
					le_label(&bid->election)),
			 held->for_session ?
			 errdetail("This session leads it in session scope.") :
			 errdetail("This transaction leads it until its end."),
			 held->for_session ?
			 errhint("Resign first, or go on in session scope.") :
			 errhint("Commit first, or bid in session scope from the beginning.")));
}

/*
 * Prepare this session to make the bid.  Raises an error if that is not
 * possible.
 */
void
le_prepare_to_bid(const LeBid *bid)
{
	le_require_primary();
	PreventCommandIfParallelMode("a bid for leadership");
	refuse_code_of_another_role(bid);
	if (bid->scope == LE_SCOPE_SESSION && bid->lasts_us != 0)
		le_prepare_heartbeat();
	(void) le_leases_ready(true);
	le_registry_bound_elections(0);
}

/*
 * Warn, once per transaction, that a lease which was just taken in a
 * transaction block begins at commit
 */
static void
warn_not_begun(const LeElection *election)
{
	if (le_grant_count() > 1 || !IsTransactionBlock())
		return;
	ereport(WARNING,
			(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
			 errmsg("the lease of election %s begins when this transaction commits",
					le_label(election)),
			 errdetail("Until then no program leads, and after a rollback none does."),
			 errhint("Commit before acting as the leader, or take leases outside of transaction blocks.")));
}

/*
 * Begin the term, or take the lease, that the bid asks for, and return its
 * token
 *
 * This subtransaction must just have acquired the election's lock, and no
 * lease may run.
 */
static int64
begin_elected(const LeBid *bid, const LeIdentity *identity)
{
	int64		token;

	if (bid->scope != LE_SCOPE_LEASE)
		return le_begin_term(bid, identity);

	/* in an old transaction, a new extension may not have been noticed yet */
	AcceptInvalidationMessages();
	(void) le_leases_ready(true);
	le_lease_sweep(false);
	token = le_take_lease(bid, identity);
	warn_not_begun(&bid->election);
	return token;
}

/*
 * Begin the term, or take the lease, if there is no obstacle, at once or, with
 * in_line, after a wait.  Return the token, or 0.
 *
 * This session must not lead the election.  An error is told when the
 * election's lock is released: a client need not read it.  But the transaction
 * keeps the lock of a lease that it has given up.
 */
int64
le_run_bid(LeBid *bid, const LeIdentity *identity, bool in_line)
{
	MemoryContext context = CurrentMemoryContext;
	volatile int64 token = 0;
	bool		had_lock = le_has_lock(&bid->election.key);

	PG_TRY();
	{
		if (acquire_now(bid) || (in_line && acquire_in_line(bid, identity)))
			token = begin_elected(bid, identity);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		LWLockReleaseAll();
		LockErrorCleanup();
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		if (!had_lock && le_find_grant(&bid->election) == NULL)
			le_abandon_term(&bid->election);
		ReThrowError(error);
	}
	PG_END_TRY();
	return token;
}

/*
 * Make this session the leader of the election, or take its lease, as the bid
 * asks.  Return the token of the term, or 0 if there is another leader after
 * wait_ms.
 *
 * If the session leads already, it continues to do so and nothing changes.
 * But a lease is renewed by its token only, and a bid with another identity is
 * that of another candidate.  May wait, raise an error, and end the session if
 * its client is gone.
 */
int64
le_elect(LeBid *bid)
{
	const LeElection *election = &bid->election;
	LeHeldTerm *held;
	LeIdentity	identity;
	int64		token;

	le_prepare_to_bid(bid);

	if (le_deny_other_client(bid))
		return 0;
	held = le_held_term(election);
	if (held != NULL && bid->scope != LE_SCOPE_LEASE)
	{
		le_require_own_term(election);
		refuse_two_scopes(bid, held);
		if (bid->scope == LE_SCOPE_SESSION)
			le_set_heartbeat(held, bid->lasts_us);
		return held->token;
	}
	if (held != NULL || le_find_grant(election) != NULL)
	{
		deny_own(bid, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
				 held != NULL ? "without a lease" : "by a lease that this transaction has taken",
				 NULL);
		return 0;
	}
	le_make_room(1, 1);

	/* the first try of a bid that waits leaves waiting to its place in line */
	bid->patience_until = bid->wait_ms == LE_NO_WAIT ? LE_PATIENCE_UNSET : LE_NO_PATIENCE;
	le_identity_fill(&identity, bid->identity);
	token = le_run_bid(bid, &identity, bid->wait_ms != LE_NO_WAIT);
	if (token == 0)
		le_registry_count_denial(election, &identity);
	return token;
}
