/*-------------------------------------------------------------------------
 *
 * term/lock_view.c
 *	  Functions to see which processes hold an election's lock and which wait
 *	  for it, without acquiring the lock.
 *
 * The server reports all locks at once (GetLockStatusData), which takes time
 * in proportion to their number, and keeps all of them from changing
 * meanwhile.  So these functions read the server's table of locks directly,
 * for one lock, under that lock's partition lock only.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/proc.h"

#include "term/term.h"

/* The initial capacity of a view */
#define LE_LOCK_USERS	8

static HTAB *lock_table = NULL;

/*
 * Return the lock, or NULL if no process holds it or waits for it.  The caller
 * must hold its partition lock.
 */
static LOCK *
find_lock(const LOCKTAG *tag, uint32 hash)
{
	return hash_search_with_hash_value(lock_table, tag, hash, HASH_FIND, NULL);
}

/*
 * Raise an error unless this is the server's table of locks: it has locks, or
 * this session finds one there that it acquires
 *
 * If a server keeps its locks elsewhere, an empty table must not be mistaken
 * for vacant elections.  The lock used here is a guard lock, in a mode that
 * conflicts with nothing that guards use.
 */
static void
check_lock_table(void)
{
	const LeElectionKey key = {
		.key = MyProcPid,
		.database = MyDatabaseId,
		.lock_class = LE_CLASS_GUARD
	};
	LOCKTAG		tag;
	uint32		hash;
	LWLock	   *partition;
	bool		found;

	if (hash_get_num_entries(lock_table) > 0)
		return;
	le_election_tag(&key, &tag);
	hash = LockTagHashCode(&tag);
	partition = LockHashPartitionLock(hash);
	(void) LockAcquire(&tag, AccessShareLock, true, true);
	LWLockAcquire(partition, LW_SHARED);
	found = find_lock(&tag, hash) != NULL;
	LWLockRelease(partition);
	(void) LockRelease(&tag, AccessShareLock, true);
	if (!found)
	{
		lock_table = NULL;
		elog(ERROR, "could not find the server's table of locks");
	}
}

/*
 * Ensure that this session can read the table of locks
 */
void
le_attach_lock_table(void)
{
	if (likely(lock_table != NULL))
		return;
	lock_table = AttachLockTableCompat();
	check_lock_table();
}

static void
copy_user(LeLockUser *user, const LOCK *lock, PGPROC *process, LOCKMASK held)
{
	bool		waits = process->waitLock == lock;

	user->process = process;
	user->pid = process->pid;
	user->held = held;
	user->awaited = waits ? process->waitLockMode : NoLock;
	user->waits_since = waits ? pg_atomic_read_u64(&process->waitStart) : 0;
}

/*
 * Copy the processes that hold the lock, then those that wait for it, in the
 * order of its queue.  Return how many there are, which may exceed the
 * capacity.
 */
static int
copy_users(LeLockView *view, LOCK *lock)
{
	PROCLOCK   *hold = NULL;
	PGPROC	   *waiter = NULL;
	int			count = 0;

	while ((hold = LockNextHoldCompat(lock, hold)) != NULL)
	{
		if (hold->holdMask == 0)
			continue;
		if (count < view->capacity)
			copy_user(&view->users[count], lock, hold->tag.myProc, hold->holdMask);
		count++;
	}
	view->holders = count;
	while ((waiter = LockNextWaiterCompat(lock, waiter)) != NULL)
	{
		if (count < view->capacity)
			copy_user(&view->users[count], lock, waiter, waiter->heldLocks);
		count++;
	}
	return count;
}

/*
 * Set the capacity.  The memory stays in the context of the first call.
 */
static void
set_capacity(LeLockView *view, int capacity)
{
	if (view->users == NULL)
		view->users = palloc_array(LeLockUser, capacity);
	else
		view->users = repalloc_array(view->users, LeLockUser, capacity);
	view->capacity = capacity;
}

/*
 * Copy which processes hold the election's lock, and which wait for it
 *
 * The view must be all zero before the first call, and can be used again for
 * other elections.  No memory is allocated while the partition is locked.
 */
void
le_view_lock(const LeElectionKey *key, LeLockView *view)
{
	uint32		hash;
	LWLock	   *partition;

	le_attach_lock_table();
	if (view->users == NULL)
		set_capacity(view, LE_LOCK_USERS);
	le_election_tag(key, &view->tag);
	hash = LockTagHashCode(&view->tag);
	partition = LockHashPartitionLock(hash);
	for (;;)
	{
		LOCK	   *lock;

		view->holders = 0;
		view->count = 0;
		LWLockAcquire(partition, LW_SHARED);
		lock = find_lock(&view->tag, hash);
		if (lock != NULL)
			view->count = copy_users(view, lock);
		LWLockRelease(partition);
		if (view->count <= view->capacity)
			return;
		set_capacity(view, view->count + view->count / 4);
	}
}

/*
 * Return the election's lock, or NULL if there is none.  If this session holds
 * the lock, it stays in place.
 *
 * Never raises an error once le_attach_lock_table was called.
 */
const LOCK *
le_own_lock(const LeElection *election)
{
	uint32		hash = LockTagHashCode(&election->tag);
	LWLock	   *partition = LockHashPartitionLock(hash);
	const LOCK *lock;

	LWLockAcquire(partition, LW_SHARED);
	lock = find_lock(&election->tag, hash);
	LWLockRelease(partition);
	return lock;
}

/*
 * Check whether a process waits for the given lock of the election, as far as
 * this can be seen without its partition lock
 *
 * For signal handlers.  If this session has lost the lock, its memory may be
 * that of another lock.
 */
bool
le_lock_seems_wanted(const LOCK *lock, const LeElection *election)
{
	return memcmp(&lock->tag, &election->tag, sizeof(LOCKTAG)) == 0 &&
		lock->nRequested > lock->nGranted;
}

/*
 * Return the process with this PID if it holds the lock in the mode that
 * leaders use, else NULL
 */
const LeLockUser *
le_find_leader_in(const LeLockView *view, int pid)
{
	for (int i = 0; i < view->holders; i++)
	{
		if (view->users[i].pid == pid && (view->users[i].held & LOCKBIT_ON(ExclusiveLock)) != 0)
			return &view->users[i];
	}
	return NULL;
}

/*
 * Check whether the process holds the election's lock in the mode that leaders
 * use
 */
bool
le_holds_lock(const LeElection *election, int pid)
{
	LeLockView	view = {0};
	bool		holds;

	le_view_lock(&election->key, &view);
	holds = le_find_leader_in(&view, pid) != NULL;
	pfree(view.users);
	return holds;
}

/*
 * Count the candidates in line for the election whose lock is in the view:
 * those that wait for the lock, and the first candidate, which may hold it.
 * The leader is not counted.
 */
int
le_count_standing(const LeElectionKey *key, const LeLockView *view, int leader)
{
	int			count = view->count - view->holders;
	LeCandidate candidate;

	for (int i = 0; i < view->holders; i++)
	{
		const LeLockUser *holder = &view->users[i];

		if (holder->pid != 0 && holder->pid != leader && holder->awaited == NoLock &&
			le_registry_read_candidate(holder->pid, key, &candidate))
			count++;
	}
	return count;
}
