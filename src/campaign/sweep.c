/*-------------------------------------------------------------------------
 *
 * campaign/sweep.c
 *	  To clear away leases that are over and whose elections have no candidate.
 *
 * Sessions that take other leases do that.  A sweep holds the lock of one other election at a
 * time, waits for nothing while it does, and does not wait for that lock either.  What is not
 * durable is left to a later sweep.  succession.c has the rules.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "lease/lease.h"
#include "campaign/campaign.h"

/*
 * Leases that are over are looked for after at least so many new ones, or this share
 * of all there are
 */
#define LE_SWEEP		16
#define LE_SWEEP_SHARE	64

/*
 * So many times as many are looked at: a lease is made void, deleted, and taken off the
 * record by up to three sweeps, and some cannot be cleared away for now
 */
#define LE_SWEEP_VISITS	4

/* And so many of them where there is no room for more */
#define LE_SWEEP_FOR_ROOM	10000

/*
 * Is it time to clear leases away?  Counts one more that has begun
 *
 * *after is set to how many have begun since the last time.
 */
static bool
sweep_is_due(uint32 *after)
{
	LeDatabase *database = le_registry_lock_database(false);
	uint32		begun = pg_atomic_add_fetch_u32(&database->leases_begun, 1);
	bool		due;

	*after = Max(pg_atomic_read_u32(&database->sweep_after), LE_SWEEP);
	due = begun >= *after &&
		pg_atomic_compare_exchange_u32(&database->leases_begun, &begun, 0);
	le_registry_unlock_database(database);
	return due;
}

static void
set_sweep_after(uint32 count)
{
	LeDatabase *database = le_registry_lock_database(false);

	pg_atomic_write_u32(&database->sweep_after, count);
	le_registry_unlock_database(database);
}

/* What a sweep may do */
typedef struct LeSweep
{
	bool		has_deleted;	/* may rows be gone by this very transaction? */
	bool		for_room;
	XLogRecPtr	undurable;		/* what was put off waits for that */
} LeSweep;

/*
 * Clear the lease away whose row is void, as far as can be done; false if the void row is
 * not durable yet
 *
 * A lease stays on record until a later transaction sees that its row is gone, as the
 * deletion may be rolled back; unless it is for_room: then a void row may be left, to be
 * found after the next start, and is left if only its deletion would have the commit wait
 * for standbys.  To be called with the election's lock.
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
 * Clear a lease away that is over and that has no candidate; false if that is to be tried
 * again when more is durable
 *
 * It is left alone if a session has the election's lock or a successor is lining up.
 */
static bool
clear_away(const LeTerm *ended, LeSweep *sweep)
{
	LeElection	election;
	LeRecord	record;
	bool		done = true;

	le_election_by_name(&election, cstring_to_text(ended->name));
	if (le_find_grant(&election) != NULL || !le_acquire_for_xact(&election, true))
		return true;

	/* it may have been succeeded since it was listed */
	if (le_registry_read_record(&election.key, &record) &&
		record.term.token == ended->token &&
		!le_successor_waits(&election, record.successor))
	{
		if (!le_is_lease_table(record.term.lease_table))
			le_end_stale(&record.term);
		else if (le_write_off(&election, &record.term, true))
			done = clear_void(&election, &record.term, sweep);
	}
	le_release_for_xact(&election);
	return done;
}

/*
 * Clear these leases away; those that were put off are moved to the front, return how many
 */
static int
clear_all_away(LeTerm *ended, int count, LeSweep *sweep)
{
	int			put_off = 0;

	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!clear_away(&ended[i], sweep))
			ended[put_off++] = ended[i];
	}
	return put_off;
}

/*
 * Once in a while, clear away leases that are over and whose election nobody has
 * asked for since
 *
 * To be called for each new lease.  The more leases there are to look at, the rarer
 * that is done, and the more of them are cleared away then: so one new lease costs
 * the same however many there are, and never many more are over than run.  Or, for_room,
 * now, because there is no room for more.
 */
void
le_lease_sweep(bool for_room)
{
	/* the transaction by which this backend was last to sweep */
	static TransactionId sweeping = InvalidTransactionId;
	LeSweep		sweep = {.for_room = for_room};
	LeTerm	   *ended;
	uint32		capacity;
	uint32		leases;
	int			count;

	if (!sweep_is_due(&capacity) && !for_room)
		return;

	/* a lease that is about to be taken needs one anyway */
	if (!for_room)
		(void) GetTopTransactionId();
	sweep.has_deleted = TransactionIdEquals(sweeping, GetTopTransactionIdIfAny());

	capacity = for_room ? LE_SWEEP_FOR_ROOM : capacity * LE_SWEEP_VISITS;
	ended = MemoryContextAllocHuge(CurrentMemoryContext, capacity * sizeof(LeTerm));
	count = le_registry_list_ended_leases(ended, capacity, &leases);
	count = clear_all_away(ended, count, &sweep);

	/* no lock is held that matters to others; standbys are not waited for */
	if (count > 0)
	{
		XLogFlush(sweep.undurable);
		(void) clear_all_away(ended, count, &sweep);
	}
	sweeping = GetTopTransactionIdIfAny();
	set_sweep_after(leases / LE_SWEEP_SHARE);
	pfree(ended);
}
