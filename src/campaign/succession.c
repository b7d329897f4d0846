/*-------------------------------------------------------------------------
 *
 * campaign/succession.c
 *	  What is to be done about a term that is over, by whoever comes next.
 *
 * A lease that runs out does so by itself, and nobody is there to write it down.
 * The next one who wants to lead the election does that, holding the election's lock:
 * it marks the lease as over in the registry, makes the row in le_leases void, and waits
 * for the transactions that are guarded by the lease (guard.c).  It may be elected when
 * that row is durable.  Leases whose elections have no candidate any more are cleared away
 * by sessions that take other leases.
 *
 * Rules:
 *
 *	A lease is marked and its row overwritten under the guard lock, in a mode that
 *	conflicts with itself.  Guarded transactions are no reason to put that off: a lease that
 *	has been found over must not come back after a crash.
 *	A lease's entry comes off the record, and its row is deleted, only when the void row is
 *	durable on the synchronous standbys, too (voided_at says where in the WAL it is).  Else
 *	a failover might bring the lease back beside a successor.
 *	Nothing here waits for standbys.  A bid does, in campaign.c; a sweep leaves what is not
 *	durable to a later one.
 *
 * Order of locks: as campaign.c has it.  A sweep holds the lock of one other election at a
 * time, waits for nothing while it does, and does not wait for that lock either.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"

#include "announce/announce.h"
#include "lease/lease.h"
#include "campaign/campaign.h"

/*
 * Take the guard lock: exclusively, to let all those through who have it now
 *
 * A lock_timeout may strike just after it was granted: then it must be heard before
 * anything is made of the lock.
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
 * Write down that the lease on record is over, unless that was done; false if it runs, or
 * has gone with the extension
 *
 * Sets voided_at.  To be called with the guard lock.
 */
static bool
void_lease(const LeElection *election, LeTerm *term)
{
	LeElection	ended = *election;
	LeNews		news;
	bool		expired;
	bool		over;

	Assert(le_has_guard(election));
	/* while we waited, the extension may have gone */
	AcceptInvalidationMessages();
	if (!le_is_lease_table(term->lease_table))
		return false;
	if (!XLogRecPtrIsInvalid(term->voided_at))
		return true;

	/* the same but for its name, if that is another one with the same key */
	strcpy(ended.name, term->name);

	le_lease_lock_table();
	over = le_registry_close_lease(&election->key, term->token, &expired, &news);
	if (expired)
		le_log_end(term, LE_END_EXPIRED);
	if (over)
		le_announce_news(&news, expired ? LE_DUTY_OWN : LE_DUTY_SHARED, false);
	if (over)
	{
		term->voided_at = le_lease_overwrite_ttl(&ended, term->token, 0);
		le_registry_set_voided(&election->key, term->token, term->voided_at);
	}
	le_lease_unlock_table();
	return over;
}

/*
 * See whether the lease on record is over, write down that it is, and let all those
 * through who have the guard lock; false if it runs, or, with dont_wait, if any session
 * has that lock
 *
 * If guarded transactions are in the way, that it is over is on this server's disk before
 * they are waited for.  Sets voided_at.  To be called with the election's lock.
 */
bool
le_write_off(const LeElection *election, LeTerm *term, bool dont_wait)
{
	bool		passed;
	bool		over;

	Assert(le_has_lock(&election->key));
	if (le_lease_runs(term))
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
 * Let all those through who have the guard lock; false, with dont_wait, if anybody does
 *
 * No term is on record.  Nobody guards bare keys, which plain advisory locks share.
 */
static bool
pass_guard(const LeElection *election, bool dont_wait)
{
	if (election->key.lock_class == LE_CLASS_BARE_KEY || !le_registry_has_guards())
		return true;
	if (!take_guard(election, ExclusiveLock, dont_wait))
		return false;
	le_release_guard(election, ExclusiveLock);
	return true;
}

/*
 * Delete the void rows of an election whose lease is over; true if they are gone
 *
 * That they are void does not depend on what becomes of the transaction.
 */
bool
le_delete_rows(const LeElection *election, const LeTerm *term)
{
	LeElection	ended = *election;

	strcpy(ended.name, term->name);
	return !le_lease_delete_void(&ended);
}

/*
 * Would the commit wait for synchronous standbys only because rows were deleted?
 */
bool
le_deletion_delays_commit(void)
{
	return le_has_synchronous_standbys() &&
		!TransactionIdIsValid(GetTopTransactionIdIfAny());
}

/*
 * Look at the election, whose lock the bid has, and that no term of this session's own is of
 *
 * What is on record may be of another election with the same key.
 */
static void
look_with_lock(const LeBid *bid, bool dont_wait, LeSituation *situation)
{
	const LeElection *election = &bid->election;
	LeRecord   *record = &situation->record;
	bool		on_record;

	memset((char *) situation + sizeof(LeRecord), 0, sizeof(LeSituation) - sizeof(LeRecord));
	situation->has_lock = true;
	on_record = le_read_record(election, record);
	situation->successor_waits = dont_wait && le_successor_waits(election, record->successor);
	if (!on_record)
		le_look_at_vacancy(bid, situation);
	else if (record->term.scope == LE_SCOPE_LEASE)
		situation->lease_counts = le_is_lease_table(record->term.lease_table);
	situation->now = le_monotonic_us();
}

/*
 * Take a lease that is over off the record; if that cannot be done yet, return what is in
 * the way
 */
static LeDecision
clear_lease(const LeElection *election, LeTerm *term, bool dont_wait)
{
	LeDecision	decision = {.obstacle = LE_MAY_LEAD};

	if (!le_write_off(election, term, dont_wait))
		decision.obstacle = le_lease_runs(term) ? LE_LEASE_RUNS : LE_GUARDED;
	else if (!le_await_durable(term->voided_at, 0))
	{
		decision.obstacle = LE_NOT_DURABLE;
		decision.undurable = term->voided_at;
	}
	else
	{
		/* else that is left to the next lease of the election */
		if (!le_deletion_delays_commit())
			(void) le_delete_rows(election, term);
		(void) le_registry_end_term(&election->key, term->token, LE_END_EXPIRED, NULL);
	}
	return decision;
}

/*
 * Take what is over off the record, wait for the transactions that are guarded by it, and
 * return whether the bid may be elected then, or what is in its way
 *
 * With dont_wait, transactions that are guarded are not waited for, and a named successor
 * that still waits is in the way.  The caller must hold the election's lock, where no term
 * is this session's own.  The order is what guard.c counts on: first nothing is left on
 * record that it takes for a running term, as it would not take a lease that has expired,
 * then the guard lock.
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
		look_with_lock(bid, dont_wait, &situation);
		decision = le_decide(&situation);
		if (decision.obstacle == LE_STALE_TERM)
			le_end_stale(&situation.record.term);
		else if (decision.obstacle == LE_LEASE_OVER)
		{
			decision = clear_lease(election, &situation.record.term, dont_wait);
			if (decision.obstacle != LE_MAY_LEAD)
				return decision;
			passed_guard = true;
		}
		else
			break;
	}
	if (situation.record.term.token == 0 && !passed_guard && !situation.successor_waits &&
		!pass_guard(election, dont_wait))
		decision.obstacle = LE_GUARDED;
	return decision;
}
