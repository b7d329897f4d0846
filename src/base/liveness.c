/*-------------------------------------------------------------------------
 *
 * base/liveness.c
 *	  Is the client behind this session still there?  And how to sleep without
 *	  forgetting it.
 *
 * A client whose host has gone says nothing, and by default TCP believes in it for
 * hours.  So while a session leads or waits, its socket is told to probe the peer and
 * to give up on it in time.  A session that is idle hears of that by itself, one that
 * runs a statement does not look: for that it has a timer.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <poll.h>

#include "libpq/libpq.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "base/base.h"

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

/* How often the client is looked at while a statement runs */
#define LE_CHECK_MS		500

static bool watched = false;
static TimeoutId check_timeout;

#ifndef POLLRDHUP
#define POLLRDHUP 0
#endif

/*
 * Note it if the client has gone; called by the timer, in a signal handler
 *
 * Between statements the server finds out by itself, and hears what the client has said
 * before it went.
 */
static void
check_client(void)
{
	struct pollfd client = {.fd = MyProcPort->sock,.events = POLLRDHUP};
	int			saved_errno = errno;

	if (debug_query_string != NULL && poll(&client, 1, 0) > 0 &&
		(client.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
	{
		ClientConnectionLost = true;
		InterruptPending = true;
		SetLatch(MyLatch);
	}
	errno = saved_errno;
}

/*
 * Make ready to watch the client; once in a session that may lead or wait
 *
 * What watches and does not is called at the end of transactions, when it is too late to
 * find that there is no timer.
 */
void
le_register_liveness(void)
{
	check_timeout = RegisterTimeout(USER_TIMEOUT, check_client);
}

/* The most keepalive probes that Linux allows */
#define LE_KEEPALIVES_MAX	127

/*
 * Return the shorter of our time and that which is set, if any is
 */
static int
shorter(int ours, int set)
{
	return set > 0 ? Min(ours, set) : ours;
}

/*
 * Have a peer found that has vanished for that long; 0: as the server's settings say
 *
 * It is probed each second, so that what it has said last is a second old at most, and
 * given up at the first probe after the user timeout: not before it has been gone for that
 * time, and two seconds later at the latest.  Sockets of the local machine have no such
 * options.
 */
static void
set_socket(int seconds)
{
	int			idle = tcp_keepalives_idle;
	int			interval = tcp_keepalives_interval;
	int			count = tcp_keepalives_count;
	int			user_timeout = tcp_user_timeout;

	if (MyProcPort->laddr.addr.ss_family == AF_UNIX)
		return;
	if (seconds > 0)
	{
		idle = 1;
		interval = 1;
		count = shorter(Min(seconds, LE_KEEPALIVES_MAX), count);
		user_timeout = shorter((seconds + 1) * 1000, user_timeout);
	}

	HOLD_INTERRUPTS();
	(void) pq_setkeepalivesidle(idle, MyProcPort);
	(void) pq_setkeepalivesinterval(interval, MyProcPort);
	(void) pq_setkeepalivescount(count, MyProcPort);
#ifdef TCP_USER_TIMEOUT
	(void) pq_settcpusertimeout(user_timeout, MyProcPort);
#endif
	RESUME_INTERRUPTS();
}

/*
 * See to it that a client which vanishes is found in time, from now on
 *
 * To be called again and again: the settings may have changed, and whoever has changed
 * those of the server has set the socket anew.  Does not throw.
 */
void
le_watch_client(void)
{
	if (MyProcPort == NULL)
		return;
	if (le_dead_peer_timeout == 0)
	{
		le_unwatch_client();
		return;
	}
	watched = true;
	set_socket(le_dead_peer_timeout);

	/* each error stops all timers */
	if (!get_timeout_active(check_timeout))
		enable_timeout_every(check_timeout,
							 TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
														 LE_CHECK_MS),
							 LE_CHECK_MS);
}

/*
 * Leave the client to the server's settings again.  Does not throw
 */
void
le_unwatch_client(void)
{
	if (!watched)
		return;
	watched = false;
	disable_timeout(check_timeout, false);
	set_socket(0);
}

/* How long we sleep at a time */
#define LE_LOOK_UP_MS	5000

static uint32
wait_event(LeSleep what)
{
	static const char *const names[] = {
		[LE_SLEEP_LEASE] = "LeaderElectionLease",
		[LE_SLEEP_GRACE] = "LeaderElectionGrace",
		[LE_SLEEP_PROMOTION] = "LeaderElectionPromotion",
		[LE_SLEEP_DEPOSE] = "LeaderElectionDepose",
		[LE_SLEEP_OBSERVE] = "LeaderElectionObserve",
		[LE_SLEEP_CAMPAIGN] = "LeaderElectionCampaign",
	};
	static uint32 events[lengthof(names)];

	/* as a commit that waits for them */
	if (what == LE_SLEEP_STANDBY)
		return WAIT_EVENT_SYNC_REP;
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
