/*-------------------------------------------------------------------------
 *
 * announce/follow.c
 *	  To learn that one of many elections may have become free, in order to try it.
 *
 * Who waits for one election stands in the queue of its lock.  Who waits for any
 * of ten thousand cannot: a session waits for one lock at a time.  It follows them:
 * each is marked in the registry as followed, and whenever the lock of one that is
 * followed has been let go, or its lease has ended or may end earlier than it
 * seemed, whoever did that writes the election's key into a ring in the database's
 * entry, and wakes all who follow any.  The ring keeps the last LE_RELEASES keys;
 * who has slept too long to find all that is new in it tries all elections.
 *
 * That nothing is missed: a follower marks all elections and notes the place in
 * the ring before it tries them.  Who lets go of a lock looks for the mark after
 * that.  So either the one sees the lock free, or the other sees the mark.
 *
 * A lock that was taken at transaction level goes with the (sub)transaction, when
 * nobody asks us.  So the keys of such locks, guard locks included, are noted, and told
 * when the server has released the transaction's locks.
 *
 * The ring is protected by the lock of the database's entry.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "announce/announce.h"

/* An election whose lock this transaction has taken at transaction level, at least */
typedef struct LeTakenLock
{
	LeElectionKey election;
	int64		guarded_by;		/* the guard lock, by that term; 0: the
								 * election's own lock */
} LeTakenLock;

static LeTakenLock *taken = NULL;
static int	taken_count = 0;
static int	taken_size = 0;

/*
 * Note a lock that is about to be taken at transaction level; or, with a token, that the
 * guard lock is, which is of no interest as long as that term runs
 */
void
le_track_lock(const LeElection *election, int64 guarded_by)
{
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
 * The lock was not taken, or was released at transaction level.  Does not throw
 *
 * If others were noted after it, it stays: that does no harm.
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
		le_record_is_led(&record, lock->guarded_by, le_monotonic_us()))
		return;
	database = le_registry_lock_database(true);
	database->released[database->release_count++ % LE_RELEASES] = key->key;
	release = &database->release;
	le_registry_unlock_database(database);

	/* the entry stays, and they want its lock */
	ConditionVariableBroadcast(release);
}

static void
wake_if_followed(LeTakenLock *lock)
{
	if (lock->election.lock_class == LE_CLASS_ELECTION &&
		pg_atomic_read_u32(&le_registry_counters()->followers) > 0)
		le_run_safely(wake_followers, lock);
}

/*
 * Tell followers that the election may be free, or free earlier than it seemed
 *
 * To be called after that has become so.  Does not throw.
 */
void
le_wake_followers(const LeElectionKey *key)
{
	LeTakenLock lock = {.election = *key};

	wake_if_followed(&lock);
}

/*
 * The server has released locks of a transaction or subtransaction.  Does not throw
 */
void
le_locks_released(bool is_commit, bool is_top_level)
{
	if (is_commit && !is_top_level)
		return;
	for (int i = 0; i < taken_count; i++)
	{
		if (!le_has_lock(&taken[i].election))
			wake_if_followed(&taken[i]);
	}
	if (is_top_level)
		taken_count = 0;
}

/*
 * Set *place to where the ring is now; return what is slept on, which stays
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
 * Copy the keys that were written into the ring since *place, which is moved on;
 * -1 if there were too many
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
