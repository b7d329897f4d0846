/*-------------------------------------------------------------------------
 *
 * bid/sweep.c
 *	  Sweeps: clearing away leases that have ended and whose elections have no
 *	  candidate.
 *
 * Sessions that take other leases do that.  A sweep holds the lock of one
 * other election at a time, waits for nothing while it does, and does not wait
 * for that lock either.  A bid for that election waits for the sweep, which it
 * knows by the sweep lock.  What is not durable is left to a later sweep.
 * succession.c has the rules.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "lock/lock.h"
#include "lease/lease.h"
#include "bid/bid.h"

/*
 * A sweep is due after this many new leases, or this share of all elections
 * that the server knows, whichever is more: it looks at all of these
 */
#define LE_SWEEP		16
#define LE_SWEEP_SHARE	64

/*
 * For each new lease since the last sweep, a sweep looks at this many leases
 * that have ended: up to three sweeps are needed to make a lease void, delete
 * its row and remove it, and some leases cannot be cleared away for now
 */
#define LE_SWEEP_VISITS	4

/* How many leases a sweep looks at if there is no room for more */
#define LE_SWEEP_FOR_ROOM	10000

/*
 * Count one more lease that has begun, and check whether a sweep is due
 *
 * *after is set to the number of new leases after which one is.
 */
static bool
sweep_is_due(uint32 *after)
{
	LeDatabase *database = le_registry_lock_database(false);
	uint32		begun = pg_atomic_add_fetch_u32(&database->leases_begun, 1);
	bool		due;

	*after = Max(pg_atomic_read_u32(&le_registry_counters()->elections) / LE_SWEEP_SHARE,
				 LE_SWEEP);
	due = begun >= *after &&
		pg_atomic_compare_exchange_u32(&database->leases_begun, &begun, 0);
	le_registry_unlock_database(database);
	return due;
}

/* What a sweep may do */
typedef struct LeSweep
{
	bool		has_deleted;	/* may rows have been deleted by this
								 * transaction? */
	bool		for_room;
	XLogRecPtr	undurable;		/* what was put off waits for this WAL */
	LeTerm	   *ended;			/* leases to be cleared away */
	int			count;
} LeSweep;

/*
 * Clear away the lease whose row is void, as far as possible.  Return false if
 * the void row is not durable yet.
 *
 * A lease stays recorded until a later transaction sees that its row is gone,
 * since the deletion may be rolled back.  With for_room, it is removed anyway:
 * a void row may then remain, to be found after the next start, and is left if
 * only its deletion would make the commit wait for standbys.  The caller must
 * hold the election's lock.
 */
static bool
clear_void(const LeElection *election, const LeTerm *term, LeSweep *sweep)
{
	bool		gone;

	Assert(le_has_lock(&election->key));
	if (!le_is_durable(term->voided_at))
	{
		sweep->undurable = Max(sweep->undurable, term->voided_at);
		return false;
	}
	gone = !(sweep->for_room && le_deletion_delays_commit()) && le_delete_rows(election, term);
	if ((gone && !sweep->has_deleted) || sweep->for_room)
		(void) le_registry_end_term(&election->key, term->token, LE_END_EXPIRED, NULL);
	return true;
}

/*
 * Clear away a lease that has ended and has no candidate.  Return false if
 * this should be tried again when more WAL is durable.
 *
 * It is left alone if a session holds the election's lock or waits for it.
 */
static bool
clear_away(const LeTerm *ended, LeSweep *sweep)
{
	LeElection	election;
	LeTerm		term;
	bool		done = true;

	le_election_by_name(&election, cstring_to_text(ended->name));
	if (le_find_grant(&election) != NULL || !le_acquire_to_sweep(&election))
		return true;

	/* it may have been succeeded since it was listed */
	if (le_registry_read(&election.key, &term) && term.token == ended->token)
	{
		if (!le_is_lease_table(term.lease_table))
			le_end_stale(&term);
		else if (le_write_off(&election, &term, true))
			done = clear_void(&election, &term, sweep);
	}
	le_release_swept(&election);
	return done;
}

/*
 * Clear away these leases, and leave those that were put off
 */
static void
clear_all_away(LeSweep *sweep)
{
	int			put_off = 0;

	for (int i = 0; i < sweep->count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!clear_away(&sweep->ended[i], sweep))
			sweep->ended[put_off++] = sweep->ended[i];
	}
	sweep->count = put_off;
}

static void
run_sweep(void *argument)
{
	LeSweep    *sweep = argument;

	clear_all_away(sweep);

	/* no lock is held that others need; does not wait for standbys */
	if (sweep->count > 0)
	{
		XLogFlush(sweep->undurable);
		clear_all_away(sweep);
	}
}

/*
 * From time to time, clear away leases that have ended and whose elections had
 * no bid since
 *
 * Called for each new lease.  The more leases there are, the more rarely this
 * happens, and the more of them are cleared away then.  So the cost of a new
 * lease does not depend on their number, and the number of ended leases stays
 * in proportion to that of running ones.  With for_room, sweeps now, because
 * there is no room for more.
 */
void
le_lease_sweep(bool for_room)
{
	/* this backend's last transaction that made a sweep */
	static TransactionId sweeping = InvalidTransactionId;
	LeSweep		sweep = {.for_room = for_room};
	uint32		capacity;

	if (!sweep_is_due(&capacity) && !for_room)
		return;

	/* a lease that is about to be taken needs an ID anyway */
	if (!for_room)
		(void) GetTopTransactionId();
	sweep.has_deleted = TransactionIdEquals(sweeping, GetTopTransactionIdIfAny());

	capacity = for_room ? LE_SWEEP_FOR_ROOM : capacity * LE_SWEEP_VISITS;
	sweep.ended = MemoryContextAllocHuge(CurrentMemoryContext, capacity * sizeof(LeTerm));
	sweep.count = le_registry_list_ended_leases(sweep.ended, capacity);

	/* the elections may be those of other roles */
	if (sweep.count > 0)
		le_in_subtransaction(run_sweep, &sweep);
	sweeping = GetTopTransactionIdIfAny();
	pfree(sweep.ended);
}
