/*-------------------------------------------------------------------------
 *
 * pg/liveness.c
 *	  The clock by which terms and waits expire, detection of vanished clients,
 *	  and sleeping without missing that.
 *
 * A client whose host has vanished sends nothing, and by default TCP takes
 * hours to give up.  So while a session leads or waits, its socket is set to
 * probe the peer and to give up in time.  The server notices that in an idle
 * session, but not in one that runs a statement, for which there is a timer.
 * The server's own settings for this (tcp_keepalives_idle and the like,
 * client_connection_check_interval) are not changed: a setting is undone when
 * its transaction is rolled back, and a session's term is not.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <poll.h>
#include <time.h>

#include "datatype/timestamp.h"
#include "libpq/libpq-be.h"
#include "libpq/libpq.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "pg/pg.h"

/*
 * Return the time in microseconds on a clock that cannot be set
 *
 * The clock is the same in all processes.  Its values are only good for
 * comparison.  Never raises an error.
 */
uint64
le_monotonic_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64) now.tv_sec * USECS_PER_SEC + now.tv_nsec / 1000;
}

/*
 * End this session if its client is gone
 *
 * A backend in a lock queue does not look at its socket, so a candidate's
 * client may have died long before the candidate acquires the lock.
 * Background workers have no client, and are not ended.
 */
void
le_require_client(void)
{
	if (MyProcPort == NULL || pq_check_connection())
		return;

	/* the server's own way to end a session that has lost its client */
	ClientConnectionLost = true;
	InterruptPending = true;
	CHECK_FOR_INTERRUPTS();
}

/*
 * Intervals at which the client is checked while a statement runs
 *
 * A leader's client must be found gone soon, as others wait for that.  A
 * candidate whose client is gone holds up no other one, since it is not
 * elected when its turn comes.  There may be thousands of candidates.
 */
#define LE_CHECK_MS			500
#define LE_CHECK_WAITING_MS	5000

static bool watched = false;
static bool socket_is_set = false;	/* not as the server's settings say */
static TimeoutId check_timeout;
static int	check_ms;			/* the interval of the timer */

#ifndef POLLRDHUP
#define POLLRDHUP 0
#endif

/*
 * Check whether the client is gone.  Called by the timer, in a signal handler.
 *
 * Between statements the server notices that itself, after it has processed
 * what the client sent before.
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
 * Register the timer that watches the client.  Called once in a session that
 * may lead or wait.  If the server has no timer left, it ends the session, in
 * which nothing has begun yet.
 *
 * le_watch_client and le_unwatch_client are called at the end of transactions,
 * when it is too late to fail for lack of a timer.
 */
void
le_register_liveness(void)
{
	check_timeout = RegisterTimeout(USER_TIMEOUT, check_client);
}

/* The most keepalive probes that Linux allows */
#define LE_KEEPALIVES_MAX	127

/*
 * Return the shorter of the two times, or the first one if the second is not
 * set
 */
static int
shorter(int ours, int set)
{
	return set > 0 ? Min(ours, set) : ours;
}

/*
 * Set the socket so that a peer that has vanished for the given time is
 * detected; 0: by the server's settings
 *
 * The peer is probed each second, so that the last sign of it is at most a
 * second old.  The connection is given up at the first probe after the user
 * timeout: not before the peer has been gone for the given time, and at most
 * two seconds later.  Unix-domain sockets have no such options.
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
	socket_is_set = seconds > 0;
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
 * Return the interval at which the client is to be checked
 *
 * A short leader_election.dead_peer_timeout shortens that of a candidate: that
 * its host has vanished is found by the check only.
 */
static int
check_interval(bool leads)
{
	return leads ? LE_CHECK_MS :
		Min(LE_CHECK_WAITING_MS, le_dead_peer_timeout * 1000 / 3);
}

/*
 * Ensure that a client that vanishes from now on is detected in time
 *
 * "leads" is false for a session that only waits.  This must be called
 * repeatedly: the settings may change, and a change of the server's own TCP
 * settings resets the socket's options.  Never raises an error.
 */
void
le_watch_client(bool leads)
{
	int			interval = check_interval(leads);

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
	if (get_timeout_active(check_timeout) && check_ms == interval)
		return;
	check_ms = interval;
	enable_timeout_every(check_timeout,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(), interval),
						 interval);
}

/*
 * Watch the client no longer.  Called at the end of each transaction of a
 * session that neither leads nor waits.  Never raises an error.
 *
 * The first call stops the timer, and the second one applies the server's own
 * settings to the socket.  A session that resigns in one transaction and leads
 * again in the next one is thus spared eight system calls.  A pool's session
 * has the server's settings after the first transaction of its next user.
 */
void
le_unwatch_client(void)
{
	if (watched)
		disable_timeout(check_timeout, false);
	else if (socket_is_set)
		set_socket(0);
	watched = false;
}

/* The longest uninterrupted sleep */
#define LE_LOOK_UP_MS	LE_CHECK_WAITING_MS

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

	/* as a commit that waits for standbys */
	if (what == LE_SLEEP_STANDBY)
		return WAIT_EVENT_SYNC_REP;
	if (events[what] == 0)
		events[what] = WaitEventExtensionCompat(names[what]);
	return events[what];
}

/*
 * Sleep on the condition variable, if any, until the given time, by
 * le_monotonic_us
 *
 * May return earlier, because nothing wakes a session whose client or
 * extension is gone.  The server's sleep counts in milliseconds, so the last
 * fraction is slept separately.  The caller must have prepared to sleep, and
 * must check its condition afterwards.  Ends the session if its client is
 * gone.
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
		/* a wakeup may have been consumed by another wait since */
		SetLatch(MyLatch);
		(void) ConditionVariableTimedSleep(condition,
										   Min(left_us / 1000, LE_LOOK_UP_MS),
										   wait_event(what));
	}
	le_require_client();
}
