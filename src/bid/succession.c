/*-------------------------------------------------------------------------
 *
 * bid/succession.c
 *	  Succession: what a candidate must do about the previous term, which has
 *	  ended.
 *
 * When a lease expires, that is not recorded by itself.  The next candidate
 * for the election records it, while it holds the election's lock: it marks
 * the lease as over in the registry, makes the row in le_leases void, and
 * waits for the transactions that are guarded by the lease (guard.c).  It may
 * be elected when that row is durable.  Leases whose elections have no
 * candidate any more are cleared away by sessions that take other leases.
 *
 * A vacant election may have to stay vacant for a while.  After a promotion no
 * lease is granted for some time (origin.c).  After a term that ended without
 * resignation, there may be a grace period, in which the former leader can
 * notice and stop.  It counts from the end of the term: of a session's, when
 * the server noticed it; of a lease, when it expired.  If the registry knows
 * no term of an election, its last term may have ended with a crash, or may
 * have been forgotten (see le_registry_forgotten_at).  An end that is not
 * known is fixed when a candidate that holds the election's lock first asks,
 * so that terms which others lose meanwhile do not defer it.  The bidding
 * session's settings and the election's declaration decide.  A candidate waits
 * while it holds the election's lock, and so keeps the first place in line.
 *
 * Rules:
 *
 * - A lease is marked and its row overwritten under the guard lock, in a mode
 *   that conflicts with itself.  Guarded transactions do not delay that: a
 *   lease that was found over must not come back after a crash.
 * - The recorded lease is removed, and its row deleted, only when the void row
 *   is durable, also on the synchronous standbys (voided_at is its place in
 *   the WAL).  Otherwise, a failover might bring the lease back beside a
 *   successor.
 * - Nothing here waits for standbys.  A bid does, in campaign.c; a sweep
 *   leaves what is not durable to a later one.
 *
 * The order of locks is that of campaign.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/inval.h"
#include "utils/memutils.h"

#include "lock/lock.h"
#include "tell/tell.h"
#include "lease/lease.h"
#include "bid/bid.h"

/*
 * Find out when the last term of the election ended, or may have ended,
 * without resignation
 *
 * With the election's lock, the result is final.  Without it, a recorded term
 * may have ended without that being known yet.
 */
static void
complete_record(const LeElection *election, LeSituation *situation)
{
	LeTerm	   *term = &situation->term;

	if (term->end_known)
		return;
	term->grace_from = Max(term->grace_from, le_registry_forgotten_at());
	if (situation->has_lock)
		term->grace_from = le_registry_fix_grace_from(election, term->grace_from);
}

/*
 * Find out how long the election, whose record was read, stays vacant after
 * its last term
 *
 * May raise an error, and may wait as le_grants_from does.  The caller must
 * not hold an LWLock.
 */
void
le_look_at_vacancy(const LeBid *bid, LeSituation *situation)
{
	situation->grace_us = bid->grace_us;
	if (unlikely(situation->grace_us != 0))
		complete_record(&bid->election, situation);
	if (bid->scope == LE_SCOPE_LEASE)
		situation->grants_from = le_grants_from();
}

/*
 * Sleep until the given time.  May return earlier: see le_sleep.
 */
void
le_wait_vacant(uint64 until, LeObstacle why)
{
	bool		is_grace = why == LE_GRACE;

	le_show_wait(is_grace ? LE_WAITS_FOR_GRACE : LE_WAITS_AFTER_PROMOTION);
	le_sleep(NULL, until, is_grace ? LE_SLEEP_GRACE : LE_SLEEP_PROMOTION);
}

/*
 * Acquire the guard lock.  In exclusive mode, this waits for all its holders.
 * Return false if it is held and dont_wait is set.
 *
 * A lock_timeout may occur just after the lock was granted, so interrupts must
 * be checked before the lock is used.
 */
static bool
take_guard(const LeElection *election, LOCKMODE mode, bool dont_wait)
{
	if (le_acquire_guard(election, mode, true))
		return true;
	if (dont_wait)
		return false;
	le_show_wait(LE_WAITS_FOR_GUARD);
	(void) le_acquire_guard(election, mode, false);
	CHECK_FOR_INTERRUPTS();
	return true;
}

/*
 * Record that the lease is over, unless that was done.  Return false if it
 * runs, or was dropped with the extension.
 *
 * Sets voided_at.  The caller must hold the guard lock.
 */
static bool
void_lease(const LeElection *election, LeTerm *term)
{
	LeElection	ended = *election;
	bool		expired;
	bool		over;

	Assert(le_has_guard(election));
	/* the extension may have been dropped during the wait */
	AcceptInvalidationMessages();
	if (!le_is_lease_table(term->lease_table))
		return false;
	if (!XLogRecPtrIsInvalid(term->voided_at))
		return true;

	/* same key, but the recorded name may be that of another election */
	strcpy(ended.name, term->name);

	le_lease_lock_table();
	over = le_registry_close_lease(&election->key, term->token, &expired);
	if (expired)
		le_report_end(term, LE_END_EXPIRED);
	if (over)
	{
		term->voided_at = le_lease_overwrite_ttl(&ended, term->token, 0);
		le_registry_set_voided(&election->key, term->token, term->voided_at);
	}
	le_lease_unlock_table();
	return over;
}

/*
 * Check whether the recorded lease has ended, record its end in the table, and
 * wait for all holders of the guard lock.  Return false if the lease runs, or,
 * with dont_wait, if any session holds that lock.
 *
 * If there are guarded transactions, the end is on this server's disk before
 * they are waited for.  Sets voided_at.  The caller must hold the election's
 * lock.
 */
bool
le_write_off(const LeElection *election, LeTerm *term, bool dont_wait)
{
	bool		passed;
	bool		over;

	Assert(le_has_lock(&election->key));
	if (le_copied_lease_runs(term))
		return false;
	passed = le_acquire_guard(election, ExclusiveLock, true);
	if (!passed && XLogRecPtrIsInvalid(term->voided_at))
	{
		if (!take_guard(election, ShareUpdateExclusiveLock, dont_wait))
			return false;
		over = void_lease(election, term);
		le_release_guard(election, ShareUpdateExclusiveLock);
		if (!over)
			return false;
		(void) le_await_durable(term->voided_at, 0);
	}
	if (!passed && !take_guard(election, ExclusiveLock, dont_wait))
		return false;
	over = void_lease(election, term);
	le_release_guard(election, ExclusiveLock);
	return over;
}

/*
 * Wait for all holders of the guard lock.  Return false, with dont_wait, if
 * there are any.
 *
 * No term may be recorded.
 */
static bool
pass_guard(const LeElection *election, bool dont_wait)
{
	if (!le_registry_has_guards())
		return true;
	if (!take_guard(election, ExclusiveLock, dont_wait))
		return false;
	le_release_guard(election, ExclusiveLock);
	return true;
}

/*
 * Delete the void rows of an election whose lease has ended.  Return true if
 * they are gone.
 *
 * They stay void even if the transaction is rolled back.
 */
bool
le_delete_rows(const LeElection *election, const LeTerm *term)
{
	LeElection	ended = *election;

	strcpy(ended.name, term->name);
	return !le_lease_delete_void(&ended);
}

/*
 * Check whether the commit would wait for synchronous standbys only because
 * rows were deleted
 */
bool
le_deletion_delays_commit(void)
{
	return le_has_synchronous_standbys() &&
		!TransactionIdIsValid(GetTopTransactionIdIfAny());
}

/*
 * Read the situation of the election.  The bid must hold its lock, and this
 * session must not lead it.
 *
 * The recorded term may be of another election with the same key.
 */
static void
look_with_lock(const LeBid *bid, LeSituation *situation)
{
	const LeElection *election = &bid->election;
	LeTerm	   *term = &situation->term;

	memset((char *) situation + sizeof(LeTerm), 0, sizeof(LeSituation) - sizeof(LeTerm));
	situation->has_lock = true;
	if (!le_registry_read(&election->key, term))
		le_look_at_vacancy(bid, situation);
	else if (term->scope == LE_SCOPE_LEASE)
		situation->lease_counts = le_is_lease_table(term->lease_table);
	situation->now = le_monotonic_us();
}

/*
 * Remove a recorded lease that has ended.  If that cannot be done yet, return
 * the obstacle.
 */
static LeDecision
clear_lease(const LeElection *election, LeTerm *term, bool dont_wait)
{
	LeDecision	decision = {.obstacle = LE_MAY_LEAD};

	if (!le_write_off(election, term, dont_wait))
		decision.obstacle = le_copied_lease_runs(term) ? LE_LEASE_RUNS : LE_GUARDED;
	else if (!le_await_durable(term->voided_at, 0))
	{
		decision.obstacle = LE_NOT_DURABLE;
		decision.undurable = term->voided_at;
	}
	else
		(void) le_registry_end_term(&election->key, term->token, LE_END_EXPIRED, NULL);
	return decision;
}

/*
 * Delete the void rows of the last term, if that was a lease
 *
 * Deleting them takes a transaction ID and keeps the table locked, so a bid
 * that may have to wait leaves them.  A bid for a lease deletes them itself,
 * and what would delay the commit is left to the next one.
 */
static void
delete_last_rows(const LeElection *election, const LeTerm *last)
{
	if (last->scope == LE_SCOPE_LEASE && !le_deletion_delays_commit())
		(void) le_delete_rows(election, last);
}

/*
 * Remove recorded terms that have ended, wait for the transactions that are
 * guarded by them, and return whether the bid may be elected then, or what the
 * obstacle is
 *
 * With dont_wait, guarded transactions are not waited for.  The caller must
 * hold the election's lock, and must not lead the election itself.  The order
 * is what guard.c relies on: first, no term is left recorded that it takes for
 * a running one (it would not take an expired lease), and then the guard lock
 * is passed.
 */
LeDecision
le_clear_record(const LeBid *bid, bool dont_wait)
{
	const LeElection *election = &bid->election;
	LeSituation situation;
	LeDecision	decision;
	bool		passed_guard = false;

	Assert(le_has_lock(&election->key));
	Assert(le_find_grant(election) == NULL);
	for (;;)
	{
		look_with_lock(bid, &situation);
		decision = le_decide(&situation);
		if (decision.obstacle == LE_STALE_TERM)
			le_end_stale(&situation.term);
		else if (decision.obstacle == LE_LEASE_OVER)
		{
			decision = clear_lease(election, &situation.term, dont_wait);
			if (decision.obstacle != LE_MAY_LEAD)
				return decision;
			passed_guard = true;
		}
		else
			break;
	}
	if (situation.term.token == 0 && !passed_guard && !pass_guard(election, dont_wait))
		decision.obstacle = LE_GUARDED;
	if (decision.obstacle == LE_MAY_LEAD && bid->scope != LE_SCOPE_LEASE)
		delete_last_rows(election, &situation.term);
	return decision;
}
