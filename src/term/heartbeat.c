/*-------------------------------------------------------------------------
 *
 * term/heartbeat.c
 *	  Terms of this session that end unless their leader gives a heartbeat in
 *	  time.
 *
 * A term in session scope ends with the session.  One that has a heartbeat
 * also ends when its leader has given none for that long.  The registry has
 * the deadline, which a heartbeat extends (registry/expiry.c).  From the
 * deadline on, the term has ended for all sessions that look, but its session
 * still holds the election's lock.  So that the lock is released, a timer ends
 * the session at the deadline, as pg_terminate_backend() does, whether or not
 * a candidate waits.  If the session itself asks about the election before
 * that, the call ends it.
 *
 * The timer is the operating system's, not the server's.  The server's timer
 * follows the wall clock and stops at each error, even where the extension is
 * not notified, as in a transaction block that has failed.  Its signal is
 * directed at the thread that runs the backend: only that thread changes what
 * the handler reads, and other libraries may have threads that do not block
 * the signal.  The signal handler reads the entries of these terms, which are
 * pinned and so stay in place.  It only marks a deadline as passed, by a
 * compare-and-swap, so that no heartbeat succeeds after it.  The list of the
 * terms is changed only while the signal is blocked.
 *
 * The operating system limits the number of timers of all processes of a user,
 * so a session has one only while it leads with a heartbeat, or bids so.  The
 * signal stays the session's: one that is pending when the timer is deleted
 * may still come, and finds nothing to do.
 *
 * A background worker ends its session as it likes, and not always when it
 * gets SIGTERM.  So it cannot lead with a heartbeat.
 *
 * The handler sends SIGTERM, on which the server ends the session when it can.
 * The client gets the server's message for that, and the log the reason.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>
#include <sys/socket.h>
#include <time.h>

#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"

#include "term/term.h"

static dlist_head beating = DLIST_STATIC_INIT(beating);

/* the timer's signal, which is blocked while the list changes; 0: none yet */
static int	signal_number = 0;
static sigset_t timer_signal;

static volatile sig_atomic_t has_timer = false;

/* simulated atomics use a lock, for which the handler must not wait */
#if defined(SIGEV_THREAD_ID) && !defined(PG_HAVE_ATOMIC_U64_SIMULATION)

/* older C libraries have no name for this field */
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

static timer_t timer;

/*
 * Install the handler for a real-time signal that is not in use, and return
 * the signal's number, or 0 if none is left
 *
 * A signal that is blocked may be one that a library waits for.  A library
 * that takes a signal later, without looking, would take it from any other
 * user as well.
 */
static int
take_signal(void (*handler) (int number))
{
	struct sigaction action = {.sa_handler = handler,.sa_flags = SA_RESTART};
	struct sigaction present;
	sigset_t	blocked;

	sigfillset(&action.sa_mask);
	pthread_sigmask(SIG_BLOCK, NULL, &blocked);
	for (int number = SIGRTMAX; number >= SIGRTMIN; number--)
	{
		if (!sigismember(&blocked, number) &&
			sigaction(number, NULL, &present) == 0 && present.sa_handler == SIG_DFL &&
			sigaction(number, &action, NULL) == 0)
			return number;
	}
	return 0;
}

/*
 * Create the timer, whose signal has the given handler.  Raises an error if
 * that is not possible.
 */
static void
create_timer(void (*handler) (int number))
{
	struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID};

	if (signal_number == 0)
		signal_number = take_signal(handler);
	if (signal_number == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("no real-time signal is left for heartbeats")));
	sigemptyset(&timer_signal);
	sigaddset(&timer_signal, signal_number);

	/* a backend is the first thread of its process, which has the same ID */
	event.sigev_notify_thread_id = MyProcPid;
	event.sigev_signo = signal_number;
	if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0)
	{
		bool		is_limit = errno == EAGAIN;

		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("could not create a timer for heartbeats: %m"),
				 !is_limit ? 0 :
				 errhint("Raise the limit of pending signals (RLIMIT_SIGPENDING) of the operating-system user that runs the server.")));
	}
	has_timer = true;
	le_other_pending++;
}

static void
delete_timer(void)
{
	sigset_t	before;

	pthread_sigmask(SIG_BLOCK, &timer_signal, &before);
	(void) timer_delete(timer);
	has_timer = false;
	le_other_pending--;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/*
 * Set the timer to the given time, by le_monotonic_us.  PG_UINT64_MAX stops
 * it.
 */
static void
set_timer(uint64 at)
{
	struct itimerspec setting = {0};

	if (at != PG_UINT64_MAX)
	{
		setting.it_value.tv_sec = at / USECS_PER_SEC;
		setting.it_value.tv_nsec = at % USECS_PER_SEC * 1000;
	}
	(void) timer_settime(timer, TIMER_ABSTIME, &setting, NULL);
}

#else

static void
create_timer(void (*handler) (int number) pg_attribute_unused())
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("heartbeats are not supported on this operating system")));
}

static void
delete_timer(void)
{
}

static void
set_timer(uint64 at pg_attribute_unused())
{
}

#endif

/*
 * End this session if the term has ended.  Return when to check again.
 *
 * The server's message for the first signal may wait for a client that does
 * not read.  Another signal ends the session without it.  But no signal ends a
 * session that sends an error, so the connection is closed then.
 */
static uint64
look_at_term(LeHeldTerm *held)
{
	LeElectionEntry *entry = held->entry;
	uint64		deadline = le_deadline_time(pg_atomic_read_u64(&entry->expiry.deadline));
	uint64		now = le_monotonic_us();

	if (entry->token != held->token)
		return PG_UINT64_MAX;
	if (!le_entry_is_silent(entry, held->token))
		return deadline;
	(void) kill(MyProcPid, SIGTERM);
	if (now >= deadline + USECS_PER_SEC && MyProcPort != NULL)
		(void) shutdown(MyProcPort->sock, SHUT_RDWR);
	return now + USECS_PER_SEC;
}

/*
 * Check all terms, and set the timer for the next deadline
 *
 * Called in a signal handler, or with the signal blocked.
 */
static void
look_at_terms(void)
{
	uint64		next = PG_UINT64_MAX;
	dlist_iter	iter;

	if (proc_exit_inprogress)
		return;
	dlist_foreach(iter, &beating)
	{
		uint64		at = look_at_term(dlist_container(LeHeldTerm, beat_node, iter.cur));

		next = Min(next, at);
	}
	if (has_timer)
		set_timer(next);
}

static void
on_timer(int number pg_attribute_unused())
{
	int			saved_errno = errno;

	look_at_terms();
	errno = saved_errno;
}

/*
 * Prepare this session to lead with a heartbeat, until le_release_timer
 *
 * Call this before the bid, since it may raise an error.
 */
void
le_prepare_heartbeat(void)
{
	if (has_timer)
		return;
	if (MyBgworkerEntry != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a background worker cannot lead with a heartbeat"),
				 errhint("Bid without a heartbeat, or by a lease.")));
	create_timer(on_timer);
}

/*
 * Delete the timer, unless a term of this session needs it.  Never raises an
 * error.  No bid may be under way.
 */
void
le_release_timer(void)
{
	if (has_timer && dlist_is_empty(&beating))
		delete_timer();
}

/*
 * End the term unless its leader gives a heartbeat in time
 *
 * LE_BEATING must pin the entry, which has the deadline.  Never raises an
 * error.
 */
void
le_start_heartbeat(LeHeldTerm *held, LeElectionEntry *entry)
{
	sigset_t	before;

	Assert(has_timer);
	pthread_sigmask(SIG_BLOCK, &timer_signal, &before);
	if (held->entry == NULL)
		dlist_push_tail(&beating, &held->beat_node);
	held->entry = entry;
	held->heartbeat_us = entry->expiry.lasts_us;
	look_at_terms();
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/*
 * Remove the term's heartbeat, if it has one.  Never raises an error.
 */
void
le_stop_heartbeat(LeHeldTerm *held)
{
	LeElectionEntry *entry = held->entry;
	sigset_t	before;

	if (entry == NULL)
		return;
	pthread_sigmask(SIG_BLOCK, &timer_signal, &before);
	dlist_delete(&held->beat_node);
	held->entry = NULL;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	le_registry_unpin(entry, LE_BEATING);
}

/*
 * Check whether the term has ended because no heartbeat came in time.  Never
 * raises an error.
 */
bool
le_held_is_silent(const LeHeldTerm *held)
{
	return held->entry != NULL && le_entry_is_silent(held->entry, held->token);
}

/*
 * End this session, because its call finds that the term is silent
 */
void
le_raise_silent(const LeHeldTerm *held)
{
	ereport(FATAL,
			(errcode(ERRCODE_LE_SILENT),
			 errmsg("terminating connection due to missing heartbeat in election %s",
					le_label(&held->election)),
			 errdetail("No heartbeat has come from the leader for " INT64_FORMAT " ms.",
					   held->heartbeat_us / 1000)));
}

/*
 * Log that this session, which is ending, has run a silent term
 */
void
le_log_silence(const LeHeldTerm *held)
{
	le_log("connection terminated due to missing heartbeat in election %s: none has come for " INT64_FORMAT " ms",
		   le_label(&held->election), held->heartbeat_us / 1000);
}

/*
 * Give a heartbeat for a term that this session runs.  Return false if the
 * term has ended.
 */
bool
le_beat(LeHeldTerm *held)
{
	return held->entry == NULL || le_registry_beat(&held->election.key, held->token);
}
