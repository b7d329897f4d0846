/*-------------------------------------------------------------------------
 *
 * term/election_lock.c
 *	  An election's lock in the lock manager: to take it, to let it go, to see
 *	  whether it is still there.
 *
 * The lock is a PostgreSQL advisory lock, and a leader's is exclusive.  A session may hold
 * it at transaction level, at session level, or both.  It may go away without a
 * call from here: when the transaction ends, and when the application releases
 * it by pg_advisory_unlock_all and the like.
 *
 * Beside it there is the election's guard lock.  It is held, in RowShareLock, by the
 * transactions that are guarded by the running term (guard.c), and by whoever changes
 * what is written down of that term, until that is durable; one at a time, in
 * ShareUpdateExclusiveLock.  Whoever is about to be elected takes it exclusively
 * while holding the election's lock, and so waits for all of these.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/resowner.h"

#include "announce/announce.h"
#include "term/term.h"

/*
 * Take the election's lock for the current subtransaction
 *
 * The lock belongs to the subtransaction itself, not to the portal that runs the
 * statement, so that it can be released, and ends, with the subtransaction.  On
 * error, the server's own abort sets the resource owner anew.  The lock is marked
 * for le_lock_unbroken to know it again.
 */
bool
le_acquire_for_xact(const LeElection *election, bool dont_wait)
{
	ResourceOwner portal = CurrentResourceOwner;
	LOCALLOCK  *local;

	/* before: we may be granted the lock, and fail without getting to know it */
	le_track_lock(election, 0);
	CurrentResourceOwner = CurTransactionResourceOwner;
	(void) LockAcquireExtendedCompat(&election->tag, ExclusiveLock, false,
									 dont_wait, &local);
	CurrentResourceOwner = portal;

	if (local == NULL)
	{
		le_untrack_lock(election);
		return false;
	}
	MarkLockClear(local);
	return true;
}

/*
 * Release the lock that le_acquire_for_xact took in this subtransaction, to no avail
 *
 * Followers are not told.  A candidate that was refused meanwhile looks again by itself,
 * see look_again_at.
 */
void
le_release_in_vain(const LeElection *election)
{
	ResourceOwner portal = CurrentResourceOwner;

	CurrentResourceOwner = CurTransactionResourceOwner;
	(void) LockRelease(&election->tag, ExclusiveLock, false);
	CurrentResourceOwner = portal;
	le_untrack_lock(election);
}

/*
 * Release the lock that le_acquire_for_xact took in this subtransaction
 */
void
le_release_for_xact(const LeElection *election)
{
	le_release_in_vain(election);
	if (!le_has_lock(&election->key))
		le_wake_followers(&election->key);
}

/*
 * Take the election's lock, which this session holds already, for the session
 */
void
le_acquire_for_session(const LeElection *election)
{
	(void) LockAcquire(&election->tag, ExclusiveLock, true, true);
}

/*
 * Release the election's lock for the session, and let the first candidate in
 * unless the transaction holds it, too
 */
void
le_release_for_session(const LeElection *election)
{
	(void) LockRelease(&election->tag, ExclusiveLock, true);
	if (!le_has_lock(&election->key))
		le_wake_followers(&election->key);
}

/*
 * Move that process, which waits for the election's lock, to the front of the lock's
 * queue; false if it does not wait for it
 *
 * As the deadlock detector does to solve a soft deadlock, and protected as there, by the
 * lock's partition.  A process waits for one lock at a time.
 */
bool
le_move_to_front(const LeElection *election, int pid)
{
	LWLock	   *partition = LockHashPartitionLock(LockTagHashCode(&election->tag));
	PGPROC	   *process = BackendPidGetProc(pid);
	LOCK	   *lock;
	bool		waits;

	if (process == NULL)
		return false;
	LWLockAcquire(partition, LW_EXCLUSIVE);

	/* if it waits for a lock of another partition, that may change as we look */
	lock = *(LOCK *volatile *) &process->waitLock;
	waits = process->pid == pid && lock != NULL &&
		memcmp(&lock->tag, &election->tag, sizeof(LOCKTAG)) == 0 &&
		process->waitStatus == PROC_WAIT_STATUS_WAITING;
	if (waits)
		LockQueueMoveToFrontCompat(lock, process);
	LWLockRelease(partition);
	return waits;
}

/*
 * Is the lock still the one that the term began with, and is it held at session
 * level, too?
 *
 * The backend's own record of a lock lasts as long as the lock is held at any
 * level, and le_acquire_for_xact has marked it.  The mark is lockCleared, which
 * the server uses for relations only.  The way to the record is to take the lock
 * once more, and let it go: that stays within this backend.
 */
bool
le_lock_unbroken(const LeElection *election, bool *session_level)
{
	const LOCKTAG *tag = &election->tag;
	LOCALLOCK  *local;
	bool		unbroken;

	*session_level = false;
	if (!le_has_lock(&election->key))
		return false;

	(void) LockAcquireExtendedCompat(tag, ExclusiveLock, true, true, &local);
	unbroken = local->lockCleared;
	for (int i = 0; i < local->numLockOwners; i++)
	{
		if (local->lockOwners[i].owner == NULL)
			*session_level = local->lockOwners[i].nLocks > 1;
	}
	(void) LockRelease(tag, ExclusiveLock, true);
	return unbroken;
}

/*
 * Does any session hold the election's lock, or wait for it?
 *
 * This does not touch the lock, so no bid is denied by it.
 */
bool
le_lock_is_busy(const LeElection *election)
{
	return LockWaiterCount(&election->tag) > 0;
}

static void
guard_tag(const LeElection *election, LOCKTAG *tag)
{
	*tag = election->tag;
	tag->locktag_field4 = LE_CLASS_GUARD;
}

/*
 * Check whether this session has the guard lock as a session that changes the term does
 *
 * Never raises an error.
 */
bool
le_has_guard(const LeElection *election)
{
	LOCKTAG		tag;

	guard_tag(election, &tag);
	return LockHeldByMeCompat(&tag, ShareUpdateExclusiveLock) ||
		LockHeldByMeCompat(&tag, ExclusiveLock);
}

/*
 * Take the election's guard lock for the current subtransaction; false if it is
 * held and that is not to be waited for
 */
bool
le_acquire_guard(const LeElection *election, LOCKMODE mode, bool dont_wait)
{
	ResourceOwner portal = CurrentResourceOwner;
	LOCKTAG		tag;
	LockAcquireResult result;

	guard_tag(election, &tag);
	CurrentResourceOwner = CurTransactionResourceOwner;
	result = LockAcquire(&tag, mode, false, dont_wait);
	CurrentResourceOwner = portal;
	return result != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Release the lock that le_acquire_guard took in this subtransaction
 */
void
le_release_guard(const LeElection *election, LOCKMODE mode)
{
	ResourceOwner portal = CurrentResourceOwner;
	LOCKTAG		tag;

	guard_tag(election, &tag);
	CurrentResourceOwner = CurTransactionResourceOwner;
	(void) LockRelease(&tag, mode, false);
	CurrentResourceOwner = portal;
}

/*
 * Return the process IDs of what holds the lock in one of these modes, 0 for a prepared
 * transaction
 */
static int *
list_holders(const LeElectionKey *key, LOCKMASK modes, int *count)
{
	LeLockView	view = {0};
	int		   *pids;

	le_view_lock(key, &view);
	pids = palloc_array(int, view.holders + 1);
	*count = 0;
	for (int i = 0; i < view.holders; i++)
	{
		if ((view.users[i].held & modes) != 0)
			pids[(*count)++] = view.users[i].pid;
	}
	pfree(view.users);
	return pids;
}

/*
 * Return the process IDs of what holds the election's lock as leaders do, or, of a bare key,
 * in whatever way; see list_holders
 */
int *
le_list_holders(const LeElection *election, int *count)
{
	return list_holders(&election->key,
						election->key.lock_class == LE_CLASS_BARE_KEY ?
						~0 : LOCKBIT_ON(ExclusiveLock), count);
}

/*
 * Return the process IDs of sessions whose transactions are guarded in the election; see
 * list_holders
 */
int *
le_list_guarded(const LeElection *election, int *count)
{
	LeElectionKey guard = election->key;

	guard.lock_class = LE_CLASS_GUARD;
	return list_holders(&guard, LOCKBIT_ON(RowShareLock), count);
}

/*
 * Does any other session have the election's guard lock, which this one has, or wait for it?
 */
bool
le_guard_is_contended(const LeElection *election)
{
	LOCKTAG		tag;

	guard_tag(election, &tag);
	return LockWaiterCount(&tag) > 1;
}

/*
 * Find a holder of the election's lock, preferably this session; false if there
 * is none
 */
bool
le_find_holder(const LeElection *election, int *pid)
{
	int			count;
	int		   *pids = le_list_holders(election, &count);

	for (int i = 0; i < count; i++)
	{
		if (i == 0 || pids[i] == MyProcPid)
			*pid = pids[i];
	}
	return count > 0;
}
