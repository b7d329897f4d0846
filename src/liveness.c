/*-------------------------------------------------------------------------
 *
 * liveness.c
 *	  Is the client behind this session still there?  And how to sleep without
 *	  forgetting it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "libpq/libpq.h"
#include "miscadmin.h"
#include "storage/latch.h"

#include "leader_election.h"

/*
 * End this session if its client has gone
 *
 * A backend in a lock queue does not look at its socket, so that a candidate may
 * have died long ago when the lock comes to it.  Background workers have no
 * client and pass.
 */
void
le_require_client(void)
{
	if (MyProcPort == NULL || pq_check_connection())
		return;

	/* the server's own way to end a session that lost its client */
	ClientConnectionLost = true;
	InterruptPending = true;
	CHECK_FOR_INTERRUPTS();
}

/* How long we sleep at a time */
#define LE_LOOK_UP_MS	5000

static uint32
wait_event(LeSleep what)
{
	static const char *const names[] = {
		[LE_SLEEP_LEASE] = "LeaderElectionLease",
		[LE_SLEEP_PROMOTION] = "LeaderElectionPromotion",
		[LE_SLEEP_OBSERVE] = "LeaderElectionObserve",
		[LE_SLEEP_CAMPAIGN] = "LeaderElectionCampaign",
	};
	static uint32 events[lengthof(names)];

	if (events[what] == 0)
		events[what] = WaitEventExtensionCompat(names[what]);
	return events[what];
}

/*
 * Sleep on the condition variable, if any, until that time, by le_monotonic_us
 *
 * But maybe not as long: nobody tells us that our client has gone, or that the
 * extension has.  And the server's sleep counts in milliseconds; so the last one is
 * slept as a whole.  The caller has prepared to sleep, and looks again after it.  Ends
 * the session of a client that has gone.
 */
void
le_sleep(ConditionVariable *condition, uint64 until, LeSleep what)
{
	uint64		now = le_monotonic_us();
	uint64		left_us = until > now ? until - now : 0;

	if (left_us < 1000)
		pg_usleep(left_us);
	else if (condition == NULL)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min(left_us / 1000, LE_LOOK_UP_MS), wait_event(what));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	else
	{
		/* we may have been woken, and waited for something else since */
		SetLatch(MyLatch);
		(void) ConditionVariableTimedSleep(condition,
										   Min(left_us / 1000, LE_LOOK_UP_MS),
										   wait_event(what));
	}
	le_require_client();
}
