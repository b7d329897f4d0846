/*-------------------------------------------------------------------------
 *
 * registry/wakeup.c
 *	  Wake-ups of candidates for many elections.
 *
 * A candidate for one election waits in the queue of its lock.  A candidate
 * for any of ten thousand cannot, since a session waits for one lock at a
 * time.  It counts itself into the entries of all these elections instead, as
 * LE_MANY, and sleeps on the condition variable of the database.  A session
 * that has released the lock of such an election, or by which its lease has
 * ended or ends earlier than before, counts that in the entry, as a release,
 * and wakes all candidates for many of the database.  Each of them then bids
 * for those of its elections that were released since it looked last.
 *
 * No wake-up is lost: a candidate prepares to sleep, counts itself in and
 * reads the number of releases before it bids.  A session that releases a lock
 * looks for candidates after that.  So either the candidate finds the lock
 * free, or the other session finds the candidate.
 *
 * There is one exception.  The server releases a lock that is held at
 * transaction level with the (sub)transaction, after the last call of the
 * extension, which wakes the candidates.  So a candidate that was woken may
 * find the lock still held, and tries again in a moment: see look_again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "registry/internal.h"

/*
 * Return the condition variable that this database's candidates for many
 * elections sleep on
 *
 * It stays in place while a session is connected to the database.
 */
ConditionVariable *
le_registry_wakeup(void)
{
	static ConditionVariable *wakeup = NULL;

	if (wakeup == NULL)
	{
		LeDatabase *database = le_registry_lock_database(false);

		wakeup = &database->wakeup;
		le_registry_unlock_database(database);
	}
	return wakeup;
}

static void
count_release(void *key)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, false);
	bool		has_candidates;

	if (entry == NULL)
		return;
	has_candidates = pg_atomic_read_u32(&entry->pins[LE_MANY]) > 0;
	if (has_candidates)
		pg_atomic_fetch_add_u32(&entry->releases, 1);
	le_registry_unlock_entry(entry);

	/* after unlocking, as the woken backends need that lock */
	if (has_candidates)
		ConditionVariableBroadcast(le_registry_wakeup());
}

/*
 * Wake the candidates for many elections, if this election is one of them
 *
 * Call this after the election's lock was released, or just before the server
 * does so, and after its lease has ended, or may end earlier than before.
 * Never raises an error.
 */
void
le_wake_many(const LeElectionKey *key)
{
	if (pg_atomic_read_u32(&le_registry_counters()->many) > 0)
		le_run_safely(count_release, unconstify(LeElectionKey *, key));
}
