/*-------------------------------------------------------------------------
 *
 * registry/expiry.c
 *	  Deadlines of terms in the registry: extend them, and detect that they
 *	  have passed.
 *
 * Leases, and terms with a heartbeat, have a deadline.  It is extended under
 * the shared lock of the partition, by a compare-and-swap.
 *
 * A session may read the clock just before the deadline, and be about to
 * extend it when the deadline passes.  Therefore, a session that finds the
 * deadline passed first sets its last bit, also by a compare-and-swap.  The
 * late heartbeat or renewal then fails, reads the clock again, and finds that
 * it is late: once one session has been told that the term has ended, all are
 * told so.  This needs no lock if the entry stays in place, and it is done in
 * a signal handler as well.
 *
 * registry.c says which locks protect what.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "registry/internal.h"

/*
 * Check whether the deadline has passed, and if so, ensure that it is not
 * extended any more.  An uncommitted lease has not expired.
 *
 * The caller must hold the partition lock, or watch the entry.  Never raises
 * an error.  Called in a signal handler as well.
 */
bool
le_has_expired(LeExpiry *expiry)
{
	uint64		deadline = pg_atomic_read_u64(&expiry->deadline);

	do
	{
		if (!le_deadline_is_over(deadline, le_monotonic_us()))
			return false;
	} while ((deadline & LE_DEADLINE_SEEN) == 0 &&
			 !pg_atomic_compare_exchange_u64(&expiry->deadline, &deadline,
											 deadline | LE_DEADLINE_SEEN));
	return true;
}

/*
 * Has any session found that the deadline has passed?  Never raises an error.
 */
bool
le_found_expired(LeExpiry *expiry)
{
	uint64		deadline = pg_atomic_read_u64(&expiry->deadline);

	return le_deadline_is_time(deadline) && deadline != le_deadline_time(deadline);
}

/*
 * Extend the deadline to one ttl from now.  Return false if it has passed.
 *
 * Other sessions may do the same at the same time; the latest deadline stays.
 * The caller must hold the partition lock.  Never raises an error.
 */
bool
le_put_off_deadline(LeExpiry *expiry)
{
	uint64		deadline = pg_atomic_read_u64(&expiry->deadline);

	while (le_deadline_is_committed(deadline))
	{
		uint64		now = le_monotonic_us();
		uint64		later = le_deadline_after(now, expiry->lasts_us);

		if (le_deadline_time(deadline) > now)
		{
			if (deadline >= later ||
				pg_atomic_compare_exchange_u64(&expiry->deadline, &deadline, later))
				return true;
		}
		else if (le_has_expired(expiry))
			return false;
		else
			deadline = pg_atomic_read_u64(&expiry->deadline);
	}
	return false;
}
