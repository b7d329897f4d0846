/*-------------------------------------------------------------------------
 *
 * lock/lock.c
 *	  An election's lock in the lock manager: acquire it, release it, and check
 *	  whether it is still held.
 *
 * The lock is a PostgreSQL advisory lock, which a leader holds exclusively, at
 * transaction level or at session level.  It may be released without a call
 * from here: when the transaction ends, and when the application releases it
 * by pg_advisory_unlock_all and the like.
 *
 * Each election also has a guard lock.  The transactions that are guarded by
 * the running term hold it in RowShareLock (guard.c).  A backend that changes
 * what is recorded of that term in le_leases holds it in
 * ShareUpdateExclusiveLock, until the change is durable, so only one does so
 * at a time.  A candidate that is about to be elected acquires it exclusively
 * while it holds the election's lock, and so waits for all of these.
 *
 * The third lock of an election is the job lock.  Transactions that do a job
 * of the leader (lead/once.c) hold it exclusively, and so take turns.
 *
 * The fourth one is the sweep lock.  A session that holds the election's lock
 * for a moment to clear away an ended lease, and not to lead, holds it beside,
 * from before to after that.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/resowner.h"

#include "lock/lock.h"

/*
 * Return the tag of the election's lock of the given class
 */
static LOCKTAG
tag_of(const LeElection *election, LeLockClass lock_class)
{
	LOCKTAG		tag = election->tag;

	tag.locktag_field4 = lock_class;
	return tag;
}

/*
 * Acquire a lock of the election for the current subtransaction.  Return false
 * if it is not available and dont_wait is set.
 *
 * The lock belongs to the subtransaction itself, not to the portal that runs
 * the statement, so that it can be released by, and ends with, the
 * subtransaction.  On error, the server's own abort resets the resource owner.
 */
static bool
acquire(const LeElection *election, LeLockClass lock_class, LOCKMODE mode, bool dont_wait)
{
	ResourceOwner portal = CurrentResourceOwner;
	LOCKTAG		tag = tag_of(election, lock_class);
	LockAcquireResult result;

	CurrentResourceOwner = CurTransactionResourceOwner;
	result = LockAcquire(&tag, mode, false, dont_wait);
	CurrentResourceOwner = portal;
	return result != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Release a lock that was acquired so in this subtransaction
 */
static void
release(const LeElection *election, LeLockClass lock_class, LOCKMODE mode)
{
	ResourceOwner portal = CurrentResourceOwner;
	LOCKTAG		tag = tag_of(election, lock_class);

	CurrentResourceOwner = CurTransactionResourceOwner;
	(void) LockRelease(&tag, mode, false);
	CurrentResourceOwner = portal;
}

/*
 * Check whether more than the given number of sessions hold the election's
 * lock of the given class or wait for it
 *
 * This does not acquire the lock, so it causes no bid to be denied.
 */
static bool
is_used_by_more(const LeElection *election, LeLockClass lock_class, int count)
{
	LOCKTAG		tag = tag_of(election, lock_class);

	return LockWaiterCount(&tag) > count;
}

/*
 * Acquire the election's lock for the current subtransaction.  Return false if
 * it is not available and dont_wait is set.
 */
bool
le_acquire_for_xact(const LeElection *election, bool dont_wait)
{
	return acquire(election, LE_CLASS_ELECTION, ExclusiveLock, dont_wait);
}

/*
 * Release the lock that le_acquire_for_xact acquired in this subtransaction
 * and that was not used
 *
 * Candidates for many elections are not woken.  One that was refused meanwhile
 * looks again by itself: see look_again.
 */
void
le_release_unused(const LeElection *election)
{
	release(election, LE_CLASS_ELECTION, ExclusiveLock);
}

/*
 * Release the lock that le_acquire_for_xact acquired in this subtransaction
 */
void
le_release_for_xact(const LeElection *election)
{
	le_release_unused(election);
	if (!le_has_lock(&election->key))
		le_wake_many(&election->key);
}

/*
 * Acquire the election's lock, which this session holds already, at session
 * level
 */
void
le_acquire_for_session(const LeElection *election)
{
	(void) LockAcquire(&election->tag, ExclusiveLock, true, true);
}

/*
 * Release the election's lock at session level.  This lets the first candidate
 * in.
 */
void
le_release_for_session(const LeElection *election)
{
	(void) LockRelease(&election->tag, ExclusiveLock, true);
	le_wake_many(&election->key);
}

/*
 * Check whether any session holds the election's lock or waits for it
 */
bool
le_lock_is_busy(const LeElection *election)
{
	return is_used_by_more(election, LE_CLASS_ELECTION, 0);
}

/*
 * Acquire the election's job lock for the current subtransaction
 */
void
le_acquire_job(const LeElection *election)
{
	(void) acquire(election, LE_CLASS_JOB, ExclusiveLock, false);
}

/*
 * Acquire the election's lock for a moment, to clear away an ended lease.
 * Return false if it is not available.
 */
bool
le_acquire_to_sweep(const LeElection *election)
{
	if (!acquire(election, LE_CLASS_SWEEP, ExclusiveLock, true))
		return false;
	if (le_acquire_for_xact(election, true))
		return true;
	release(election, LE_CLASS_SWEEP, ExclusiveLock);
	return false;
}

/*
 * Release the lock that le_acquire_to_sweep acquired
 */
void
le_release_swept(const LeElection *election)
{
	le_release_for_xact(election);
	release(election, LE_CLASS_SWEEP, ExclusiveLock);
}

/*
 * Check whether a session holds the election's lock only to clear away an
 * ended lease.  If not, and the lock was held so before, it has been released.
 */
bool
le_is_swept(const LeElection *election)
{
	return is_used_by_more(election, LE_CLASS_SWEEP, 0);
}

/*
 * Check whether this session holds the guard lock in a mode that permits
 * changing the term.  Never raises an error.
 */
bool
le_has_guard(const LeElection *election)
{
	LOCKTAG		tag = tag_of(election, LE_CLASS_GUARD);

	return LockHeldByMeCompat(&tag, ShareUpdateExclusiveLock) ||
		LockHeldByMeCompat(&tag, ExclusiveLock);
}

/*
 * Acquire the election's guard lock for the current subtransaction.  Return
 * false if it is not available and dont_wait is set.
 */
bool
le_acquire_guard(const LeElection *election, LOCKMODE mode, bool dont_wait)
{
	return acquire(election, LE_CLASS_GUARD, mode, dont_wait);
}

/*
 * Release the lock that le_acquire_guard acquired in this subtransaction
 */
void
le_release_guard(const LeElection *election, LOCKMODE mode)
{
	release(election, LE_CLASS_GUARD, mode);
}

/*
 * Return the process IDs of the holders of the lock in one of these modes,
 * with 0 for a prepared transaction
 *
 * Looks at all locks of the server, as pg_locks does.
 */
static int *
list_holders(const LOCKTAG *tag, LOCKMASK modes, int *count)
{
	LockData   *data = GetLockStatusData();
	int		   *pids = palloc_array(int, data->nelements + 1);

	*count = 0;
	for (int i = 0; i < data->nelements; i++)
	{
		const LockInstanceData *lock = &data->locks[i];

		if ((lock->holdMask & modes) != 0 &&
			memcmp(&lock->locktag, tag, sizeof(LOCKTAG)) == 0)
			pids[(*count)++] = lock->pid;
	}
	pfree(data->locks);
	pfree(data);
	return pids;
}

/*
 * Return the process IDs of the holders of the election's lock; see
 * list_holders
 */
int *
le_list_holders(const LeElection *election, int *count)
{
	return list_holders(&election->tag, LOCKBIT_ON(ExclusiveLock), count);
}

/*
 * Return the process IDs of sessions whose transactions are guarded in the
 * election; see list_holders
 */
int *
le_list_guarded(const LeElection *election, int *count)
{
	LOCKTAG		tag = tag_of(election, LE_CLASS_GUARD);

	return list_holders(&tag, LOCKBIT_ON(RowShareLock), count);
}

/*
 * Check whether another session holds the election's guard lock, which this
 * session holds, or waits for it
 */
bool
le_guard_is_contended(const LeElection *election)
{
	return is_used_by_more(election, LE_CLASS_GUARD, 1);
}

/*
 * Find the holder of the election's lock.  Return false if there is none.
 */
bool
le_find_holder(const LeElection *election, int *pid)
{
	int			count;
	int		   *pids = le_list_holders(election, &count);

	if (count > 0)
		*pid = pids[0];
	return count > 0;
}

/*
 * Return the process ID of the holder of the election's lock, LE_IDLE_HOLDER
 * if it is not in a transaction, or LE_NO_HOLDER if there is none
 *
 * Unlike le_find_holder, this looks at one lock only.  A session acquires the
 * lock in a transaction, and records its term before it can hold the lock
 * outside one.  So if the holder is idle, it is the leader that is recorded
 * then.  Call this before the record is read.  This session must not hold the
 * lock.
 */
int
le_probe_holder(const LeElection *election)
{
	VirtualTransactionId *holders;
	int			count;
	int			pid = LE_IDLE_HOLDER;

	if (!le_lock_is_busy(election))
		return LE_NO_HOLDER;
	holders = GetLockConflicts(&election->tag, RowShareLock, &count);
	if (count > 0)
	{
		const PGPROC *process = VirtualTransactionProcCompat(holders[0]);

		pid = process != NULL ? process->pid : LE_NO_HOLDER;
	}
	pfree(holders);
	return pid;
}

/*
 * Check whether the process, of which another session's term is recorded,
 * still holds the election's lock
 */
bool
le_holds_lock(const LeElection *election, int pid)
{
	int			holder = le_probe_holder(election);

	return holder == pid || holder == LE_IDLE_HOLDER;
}
