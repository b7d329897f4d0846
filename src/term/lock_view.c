/*-------------------------------------------------------------------------
 *
 * term/lock_view.c
 *	  To see which processes hold an election's lock and which wait for it, without touching
 *	  the lock.
 *
 * The server tells of all locks at once (GetLockStatusData), which takes time in proportion
 * to how many there are, and keeps all of them from changing meanwhile.  So this looks into
 * the server's table of locks itself, for one lock, under that lock's partition only.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/proc.h"

#include "term/term.h"

/* What there is room for at first */
#define LE_LOCK_USERS	8

static HTAB *lock_table = NULL;

/*
 * Return the lock, whose partition is locked; NULL if no process holds it or waits for it
 */
static LOCK *
find_lock(const LOCKTAG *tag, uint32 hash)
{
	return hash_search_with_hash_value(lock_table, tag, hash, HASH_FIND, NULL);
}

/*
 * Raise an error unless this is the server's table of locks: it has locks, or this session
 * finds one that it takes
 *
 * Where a server keeps its locks elsewhere, that must not be taken for a vacancy.  The lock
 * is that of a guard, in a mode that is in nobody's way.
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
 * See to it that this session can look into the table of locks
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
copy_user(LeLockUser *user, LOCK *lock, PGPROC *process, LOCKMASK held)
{
	bool		waits = process->waitLock == lock;

	user->process = process;
	user->pid = process->pid;
	user->held = held;
	user->awaited = waits ? process->waitLockMode : NoLock;
	user->waits_since = waits ? pg_atomic_read_u64(&process->waitStart) : 0;
}

/*
 * Copy the processes that hold the lock, then those that wait for it, in the order of its
 * queue; return how many there are, which may be more than there is room for
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
 * Make room for so many users; the memory stays in the context of the first call
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
 * See which processes hold the election's lock, and which wait for it
 *
 * The view is all zero before the first call, and can be used again for other elections.
 * No memory is allocated while the partition is locked.
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
 * Return the election's lock, which this session holds, and which stays where it is meanwhile;
 * NULL if it has none
 *
 * Does not throw once le_attach_lock_table was called.
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
 * Check whether a process waits for that lock of the election, as far as can be seen without
 * its partition's lock
 *
 * For signal handlers.  If this session has lost the lock, its place may be another's.
 */
bool
le_lock_seems_wanted(const LOCK *lock, const LeElection *election)
{
	return memcmp(&lock->tag, &election->tag, sizeof(LOCKTAG)) == 0 &&
		lock->nRequested > lock->nGranted;
}

/*
 * Return the process that holds the lock as leaders do; NULL if it does not
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
 * Check whether that process holds the election's lock as leaders do
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
 * Count the candidates that stand in line for the election whose lock was seen so: what
 * waits for the lock, and the first candidate, which may hold it.  The leader is none
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
