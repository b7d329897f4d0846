/*-------------------------------------------------------------------------
 *
 * succession.c
 *	  What is to be done about a term that is over, by whoever comes next.
 *
 * A lease that runs out does so by itself, and nobody is there to write it down.
 * The next one who wants to lead the election does that, holding the election's lock:
 * first it takes the guard lock, and so waits for those who are guarded by the lease
 * (guard.c); then it marks the lease as over in the registry, then it makes the row in
 * le_leases void, durably, and only then may be elected.  Leases in which nobody is
 * interested any more are cleared away by those who take other ones.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"

#include "leader_election.h"

/*
 * Leases that are over are looked for after at least so many new ones, or this share
 * of all there are, and cleared away in batches of so many
 */
#define LE_SWEEP		16
#define LE_SWEEP_SHARE	64
#define LE_SWEEP_BATCH	8

/* And so many of them where there is no room for more */
#define LE_SWEEP_FOR_ROOM	10000

/*
 * Take the guard lock, to let all those through who have it now
 *
 * A lock_timeout may strike just after it was granted: then it must be heard before
 * anything is made of the lock.
 */
static bool
take_guard(const LeElection *election, bool dont_wait)
{
	if (le_acquire_guard(election, ExclusiveLock, true))
		return true;
	if (dont_wait)
		return false;
	le_note_wait(LE_WAITS_FOR_GUARD);
	(void) le_acquire_guard(election, ExclusiveLock, false);
	CHECK_FOR_INTERRUPTS();
	return true;
}

/*
 * See whether the lease on record is over, and write down that it is; false if it
 * runs, or, with dont_wait, if somebody has the guard lock
 *
 * *written is set to where the WAL must be made durable before anybody is elected.
 * To be called with the election's lock, which keeps others from it until then.
 */
static bool
write_off(const LeElection *election, const LeTerm *term, bool dont_wait,
		  XLogRecPtr *written)
{
	LeElection	ended = *election;
	bool		expired;

	*written = InvalidXLogRecPtr;
	if (le_lease_runs(term))
		return false;

	/* the same but for its name, if that is another one with the same key */
	strcpy(ended.name, term->name);

	if (!take_guard(election, dont_wait))
		return false;

	/* while we waited, the extension may have gone */
	AcceptInvalidationMessages();
	if (!le_is_lease_table(term->lease_table))
	{
		le_release_guard(election, ExclusiveLock);
		return false;
	}
	le_lease_lock_table();
	if (!le_registry_close_lease(&election->key, term->token, &expired))
	{
		le_lease_unlock_table();
		le_release_guard(election, ExclusiveLock);
		return false;
	}
	if (expired)
		le_tell_end(term, LE_END_EXPIRED);
	*written = le_lease_overwrite_ttl(&ended, term->token, 0);
	le_release_guard(election, ExclusiveLock);
	return true;
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
	if (!take_guard(election, dont_wait))
		return false;
	le_release_guard(election, ExclusiveLock);
	return true;
}

/*
 * Delete the void rows of an election whose lease is over; true if they are gone
 *
 * That they are void does not depend on what becomes of the transaction.
 */
static bool
delete_rows(const LeElection *election, const LeTerm *term)
{
	LeElection	ended = *election;

	strcpy(ended.name, term->name);
	return !le_lease_delete_void(&ended);
}

/*
 * Why has this term on record ended, of which nothing else is left?  Its lock went away
 * behind its back, or it is a lease that has run out, or went with the extension
 */
static LeEndReason
why_stale(const LeTerm *term)
{
	if (term->scope != LE_SCOPE_LEASE)
		return LE_END_LOCK_RELEASED;
	return term->deadline <= le_monotonic_us() ? LE_END_EXPIRED : LE_END_EXTENSION_DROPPED;
}

/*
 * Take such a term off the record, and tell of it unless that was done, or it never began
 */
static void
end_stale(const LeTerm *term)
{
	LeEndReason reason = why_stale(term);
	LeTerm		ended;

	if (le_registry_end_term(&term->election, term->token, reason, &ended) &&
		(ended.scope != LE_SCOPE_LEASE || ended.deadline > LE_DEADLINE_OVER))
		le_tell_end(&ended, reason);
}

/*
 * End this database's leases that are written down in any other table than this one, which
 * has been committed: the extension that they were of was dropped
 */
void
le_end_dropped_leases(Oid lease_table)
{
	int			count;
	LeTerm	   *terms = le_registry_list_terms(&count);

	/* whoever only looks has to tell what he finds, too */
	le_register_callbacks();
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (terms[i].token != 0 && terms[i].scope == LE_SCOPE_LEASE &&
			terms[i].lease_table != lease_table)
			end_stale(&terms[i]);
	}
}

/*
 * Take what is over off the record, wait for the transactions that are guarded by it,
 * and the election is free; false if a lease runs, or, with dont_wait, if somebody has
 * the guard lock
 *
 * To be called with the election's lock, where no term is this session's own.  What is
 * on record may be of another election with the same key.  The order is what guard.c
 * counts on: first nothing is left on record that it takes for a running term, as it
 * would not take a lease that has run out, then the guard lock.
 */
bool
le_clear_record(const LeElection *election, bool dont_wait)
{
	LeTerm		term;
	XLogRecPtr	written;

	Assert(le_find_grant(election) == NULL);
	if (!le_registry_read(&election->key, &term))
		return pass_guard(election, dont_wait);
	if (term.scope != LE_SCOPE_LEASE || !le_is_lease_table(term.lease_table))
	{
		end_stale(&term);
		return pass_guard(election, dont_wait);
	}
	if (!write_off(election, &term, dont_wait, &written))
		return false;
	le_make_durable(written);
	(void) delete_rows(election, &term);
	(void) le_registry_end_term(&election->key, term.token, LE_END_EXPIRED, &term);
	return true;
}

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

/*
 * Write off a lease that nobody bids for; false if that cannot be done now, or nothing
 * more is to be done
 */
static bool
sweep_one(const LeElection *election, const LeTerm *term, XLogRecPtr *written)
{
	if (le_is_lease_table(term->lease_table))
		return write_off(election, term, true, written);
	end_stale(term);
	return false;
}

/*
 * Clear some leases away that are over
 *
 * Those whose lock somebody has are left to him.  A lease stays on record until a
 * later transaction sees that its row is gone, as the deletion may be rolled back; unless
 * it is for_room: then a void row may be left, to be found after the next start.
 */
static void
clear_away(const LeTerm *ended, int count, bool has_deleted, bool for_room)
{
	LeElection *elections = palloc_array(LeElection, count);
	bool	   *ours = palloc0_array(bool, count);
	XLogRecPtr	all_written = InvalidXLogRecPtr;
	LeTerm		cleared;

	for (int i = 0; i < count; i++)
	{
		XLogRecPtr	written;
		LeTerm		term;

		le_election_by_name(&elections[i], cstring_to_text(ended[i].name));
		if (le_find_grant(&elections[i]) != NULL ||
			!le_acquire_for_xact(&elections[i], true))
			continue;

		/* it may have been succeeded since it was listed */
		ours[i] = le_registry_read(&elections[i].key, &term) &&
			term.token == ended[i].token && sweep_one(&elections[i], &term, &written);
		if (!ours[i])
			le_release_for_xact(&elections[i]);
		else if (written > all_written)
			all_written = written;
	}
	le_make_durable(all_written);

	for (int i = 0; i < count; i++)
	{
		if (!ours[i])
			continue;
		if ((delete_rows(&elections[i], &ended[i]) && !has_deleted) || for_room)
			(void) le_registry_end_term(&elections[i].key, ended[i].token,
										LE_END_EXPIRED, &cleared);
		le_release_for_xact(&elections[i]);
	}
	pfree(elections);
	pfree(ours);
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
	TransactionId ours;
	LeTerm	   *ended;
	uint32		capacity;
	uint32		leases;
	int			count;

	if (!sweep_is_due(&capacity) && !for_room)
		return;

	/* the lease that we are about to take needs one anyway */
	ours = GetTopTransactionId();

	capacity = for_room ? LE_SWEEP_FOR_ROOM : capacity * 3;
	ended = MemoryContextAllocHuge(CurrentMemoryContext, capacity * sizeof(LeTerm));
	count = le_registry_list_ended_leases(ended, capacity, &leases);
	for (int i = 0; i < count; i += LE_SWEEP_BATCH)
	{
		CHECK_FOR_INTERRUPTS();
		clear_away(&ended[i], Min(count - i, LE_SWEEP_BATCH),
				   TransactionIdEquals(sweeping, ours), for_room);
	}
	sweeping = ours;
	set_sweep_after(leases / LE_SWEEP_SHARE);
	pfree(ended);
}
