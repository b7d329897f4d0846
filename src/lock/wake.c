/*-------------------------------------------------------------------------
 *
 * lock/wake.c
 *	  Following many elections: notice that one of them may have become free,
 *	  and try it.
 *
 * A candidate for one election waits in the queue of its lock.  A candidate
 * for any of ten thousand cannot, since a session waits for one lock at a
 * time.  It follows them instead: each is marked in the registry as followed.
 * So a follower here is a candidate for many elections.  In the documents and
 * the client libraries, a follower does not bid.
 * When the lock of a followed election has been released, or its lease has
 * ended or may end earlier than before, the session that did so writes the
 * election's key into a ring in the database's entry, and wakes all followers.
 * The ring keeps the last LE_RELEASES keys.  A follower that has slept too
 * long to find all new keys in it tries all its elections.
 *
 * No release is missed: a follower marks all elections and reads its place in
 * the ring before it tries them.  A session that releases a lock looks for the
 * mark after the release.  So either the follower sees the lock free, or the
 * other session sees the mark.
 *
 * A lock that was acquired at transaction level is released with the
 * (sub)transaction, without a call to the extension.  So the keys of such
 * locks, guard locks included, are remembered, and reported after the server
 * has released the transaction's locks.
 *
 * The ring is protected by the lock of the database's entry.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "utils/resowner.h"

#include "pg/compat.h"
#include "lock/lock.h"

/*
 * An election whose lock this transaction has acquired, at least at
 * transaction level
 */
typedef struct LeTakenLock
{
	LeElectionKey election;
	int64		guarded_by;		/* if it is the guard lock: token of the term
								 * it was acquired for; 0: the election's own
								 * lock */
} LeTakenLock;

static LeTakenLock *taken = NULL;
static int	taken_count = 0;
static int	taken_size = 0;

/* does the server call at_release, and does the transaction need that? */
static bool is_called = false;
static bool is_needed = false;

static void
wake_followers(void *argument)
{
	const LeTakenLock *lock = argument;
	const LeElectionKey *key = &lock->election;
	LeRecord	record;
	LeDatabase *database;
	ConditionVariable *release;

	(void) le_registry_read_record(key, &record);
	if (record.term.followers == 0 ||
		le_record_is_led(&record, lock->guarded_by))
		return;
	database = le_registry_lock_database(true);
	database->released[database->release_count++ % LE_RELEASES] = key->key;
	release = &database->release;
	le_registry_unlock_database(database);

	/*
	 * after unlocking, as the woken backends need that lock; the entry of a
	 * database with sessions stays
	 */
	ConditionVariableBroadcast(release);
}

static void
wake_if_followed(LeTakenLock *lock)
{
	if (pg_atomic_read_u32(&le_registry_counters()->followers) > 0)
		le_run_safely(wake_followers, lock);
}

/*
 * Notify followers that the election may be free, or may become free earlier
 * than before
 *
 * Call this after that has happened.  Never raises an error.
 */
void
le_wake_followers(const LeElectionKey *key)
{
	LeTakenLock lock = {.election = *key};

	wake_if_followed(&lock);
}

/*
 * Check whether this session still holds the lock that was remembered
 */
static bool
is_held(const LeTakenLock *lock)
{
	LOCKTAG		tag;

	if (lock->guarded_by == 0)
		return le_has_lock(&lock->election);
	le_election_tag(&lock->election, &tag);
	tag.locktag_field4 = LE_CLASS_GUARD;
	return LockHeldByMeCompat(&tag, RowShareLock);
}

/*
 * Notify followers that locks have been released
 *
 * Called by the server for the resources of each statement, transaction and
 * subtransaction, and after a commit, where nothing may raise an error.  The
 * current resource owner is being released, so a memory segment that is mapped
 * now must not belong to it.
 */
static void
at_release(ResourceReleasePhase phase, bool is_commit, bool is_top_level,
		   void *arg pg_attribute_unused())
{
	int			kept = 0;
	ResourceOwner owner;

	if (phase != RESOURCE_RELEASE_AFTER_LOCKS || (is_commit && !is_top_level))
		return;
	owner = CurrentResourceOwner;
	CurrentResourceOwner = NULL;
	for (int i = 0; i < taken_count; i++)
	{
		if (is_held(&taken[i]))
			taken[kept++] = taken[i];
		else if (!le_has_lock(&taken[i].election))
			wake_if_followed(&taken[i]);
	}
	CurrentResourceOwner = owner;
	taken_count = is_top_level ? 0 : kept;
}

/*
 * Remember a lock that is about to be acquired at transaction level.  With a
 * token, it is the guard lock, which matters only once that term has ended.
 */
void
le_track_lock(const LeElection *election, int64 guarded_by)
{
	if (!is_called)
	{
		RegisterResourceReleaseCallback(at_release, NULL);
		is_called = true;
		le_other_pending++;
	}
	is_needed = true;
	if (taken == NULL)
	{
		taken_size = 8;
		taken = MemoryContextAlloc(TopMemoryContext, taken_size * sizeof(LeTakenLock));
	}
	else if (taken_count == taken_size)
	{
		taken = repalloc_huge(taken, 2 * taken_size * sizeof(LeTakenLock));
		taken_size *= 2;
	}
	taken[taken_count].election = election->key;
	taken[taken_count++].guarded_by = guarded_by;
}

/*
 * Forget a lock that was not acquired, or was released at transaction level.
 * Never raises an error.
 *
 * If others were remembered after it, it stays, which does no harm.
 */
void
le_untrack_lock(const LeElection *election)
{
	LeTakenLock *last;

	if (taken_count == 0)
		return;
	last = &taken[taken_count - 1];
	if (last->guarded_by == 0 &&
		memcmp(&last->election, &election->key, sizeof(LeElectionKey)) == 0)
		taken_count--;
}

/*
 * Have the server call at_release no longer, if the current transaction, which
 * ends, has acquired no lock.  Never raises an error.
 *
 * A session that acquires one in each transaction keeps the callback, which
 * can also not be removed while the server calls it.
 */
void
le_rest_tracking(void)
{
	if (is_called && !is_needed)
	{
		UnregisterResourceReleaseCallback(at_release, NULL);
		is_called = false;
		le_other_pending--;
	}
	is_needed = false;
}

/*
 * Set *place to the current place in the ring, and return its condition
 * variable, which stays in place
 */
ConditionVariable *
le_follow_from(uint64 *place)
{
	LeDatabase *database = le_registry_lock_database(false);
	ConditionVariable *release = &database->release;

	*place = database->release_count;
	le_registry_unlock_database(database);
	return release;
}

/*
 * Copy the keys that were written into the ring since *place, and advance
 * *place.  Return their number, or -1 if there were too many.
 */
int
le_releases_since(uint64 *place, int64 *keys)
{
	LeDatabase *database = le_registry_lock_database(false);
	int			copied = 0;

	if (database->release_count - *place > LE_RELEASES)
		copied = -1;
	else
	{
		for (uint64 i = *place; i < database->release_count; i++)
			keys[copied++] = database->released[i % LE_RELEASES];
	}
	*place = database->release_count;
	le_registry_unlock_database(database);
	return copied;
}
