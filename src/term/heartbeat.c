/*-------------------------------------------------------------------------
 *
 * term/heartbeat.c
 *	  Terms of this session that end unless their leader gives a heartbeat in
 *	  time.
 *
 * A term in session scope ends with the session.  One that has a heartbeat
 * also ends when its leader has given none for that long.  The registry has
 * the deadline, which a heartbeat extends (registry/heartbeats.c).  From the
 * deadline on, the term has ended for all sessions that look, but its session
 * still holds the election's lock.  So that the lock is released, the session
 * is ended:
 *
 * - by itself, at the deadline, if a candidate waits at that time.  A timer
 *   wakes it.  If other sessions wait for a bare key in pg_advisory_lock(), or
 *   begin to do so later, it sees that in the lock itself.
 * - by the first bid that comes later (leader/silence.c).
 *
 * Alternatively, the session's own next call that asks about the election ends
 * the term and only releases the lock.  If the transaction holds the lock,
 * too, the lock and the recorded term stay until the transaction ends.
 *
 * The timer is the operating system's, not the server's.  The server's timer
 * follows the wall clock and stops at each error, even where the extension is
 * not notified, as in a transaction block that has failed.  Its signal is
 * directed at the thread that runs the backend: only that thread changes what
 * the handler reads, and other libraries may have threads that do not block
 * the signal.  The signal handler reads the entries of these terms, which are
 * watched and so stay in place.  It marks nothing in them, as it holds no
 * lock: another term may take the place of this one.  The list of the terms
 * is changed only while the signal is blocked.
 *
 * The operating system limits the number of timers of all processes of a user,
 * so a session has one only while it leads with a heartbeat, or bids so.  The
 * signal stays the session's: one that is pending when the timer is deleted
 * may still come, and finds nothing to do.
 *
 * A background worker ends its session as it likes, and not always when it
 * gets SIGTERM.  So it cannot lead with a heartbeat.
 *
 * A session that is to end gets SIGTERM, which the server handles when it can.
 * A hook for log messages replaces the server's message by the reason.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>
#include <time.h>

#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "utils/elog.h"

#include "term/term.h"

static dlist_head beating = DLIST_STATIC_INIT(beating);
static emit_log_hook_type previous_log_hook = NULL;

/* a term that has ended since this session began to end itself for it */
static LeHeldTerm ended;
static bool has_ended = false;

/* the timer's signal, which is blocked while the list changes; 0: none yet */
static int	signal_number = 0;
static sigset_t timer_signal;

static volatile sig_atomic_t has_timer = false;

static LeHeldTerm *
of_node(dlist_node *node)
{
	return dlist_container(LeHeldTerm, beat_node, node);
}

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
 * A signal that is blocked may be one that a library waits for.
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
}

static void
delete_timer(void)
{
	sigset_t	before;

	pthread_sigmask(SIG_BLOCK, &timer_signal, &before);
	(void) timer_delete(timer);
	has_timer = false;
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
 * How often a silent leader checks whether other sessions wait for its bare
 * key
 */
#define LE_WANTED_LOOK_US	USECS_PER_SEC

/*
 * Check whether any session waits for the end of the term.  Never raises an
 * error.
 */
static bool
is_wanted(const LeHeldTerm *held)
{
	LeElectionEntry *entry = held->entry;

	return pg_atomic_read_u32(&entry->watchers[LE_IN_LINE]) > 0 ||
		pg_atomic_read_u32(&entry->watchers[LE_MANY]) > 0 ||
		(held->lock != NULL && le_lock_seems_wanted(held->lock, &held->election));
}

/*
 * Check whether the term has ended, and if so, end this session if a candidate
 * waits.  Return when to check again, which is later than now.
 *
 * If no candidate waits, the end of the session is left to the first bid.
 */
static uint64
look_at_term(LeHeldTerm *held)
{
	LeElectionEntry *entry = held->entry;
	uint64		now = le_monotonic_us();
	uint64		deadline;

	if (entry->token != held->token)
		return PG_UINT64_MAX;
	if (le_entry_is_silent(entry, held->token))
	{
		if (held->ends_in_place)
			return PG_UINT64_MAX;
		if (!is_wanted(held))
			return held->lock != NULL ? now + LE_WANTED_LOOK_US : PG_UINT64_MAX;
		held->terminated = true;
		(void) raise(SIGTERM);
		return PG_UINT64_MAX;
	}
	deadline = pg_atomic_read_u64(&entry->expiry.deadline);
	return deadline > now ? deadline : PG_UINT64_MAX;
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
		uint64		at = look_at_term(of_node(iter.cur));

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
 * Return a term for whose silence this session is being terminated, or NULL if
 * there is none
 */
static const LeHeldTerm *
find_terminated(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &beating)
	{
		const LeHeldTerm *held = of_node(iter.cur);

		if (held->terminated ||
			(held->entry->token == held->token && held->entry->terminated))
			return held;
	}
	return has_ended ? &ended : NULL;
}

static char *
why_ended(const LeHeldTerm *held)
{
	return psprintf("terminating connection due to missing heartbeat in election %s",
					le_election_label(&held->election.key, held->election.name));
}

static char *
how_long_silent(const LeHeldTerm *held)
{
	return psprintf("No heartbeat has come from the leader for " INT64_FORMAT " ms.",
					held->heartbeat_us / 1000);
}

/*
 * Report to the client and the log why a session with a silent leader is
 * terminated
 */
static void
explain_end(ErrorData *error)
{
	const LeHeldTerm *held;

	if (error->elevel == FATAL && error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN &&
		(held = find_terminated()) != NULL)
	{
		error->sqlerrcode = ERRCODE_LE_SILENT;
		error->message = why_ended(held);
		error->detail = how_long_silent(held);

		/* since 19, this names the process that has sent the signal */
		error->detail_log = NULL;
	}
	if (previous_log_hook != NULL)
		previous_log_hook(error);
}

/*
 * Prepare this session to lead with a heartbeat, until le_release_timer
 *
 * Call this before the bid, since it may raise an error.
 */
void
le_prepare_heartbeat(void)
{
	static bool explains = false;

	if (has_timer)
		return;
	if (MyBgworkerEntry != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a background worker cannot lead with a heartbeat"),
				 errhint("Bid without a heartbeat, or by a lease.")));
	le_attach_lock_table();
	create_timer(on_timer);
	if (explains)
		return;
	previous_log_hook = emit_log_hook;
	emit_log_hook = explain_end;
	explains = true;
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
 * LE_BEATING must watch the entry, which has the deadline.  Never raises an
 * error.
 */
void
le_start_heartbeat(LeHeldTerm *held, LeElectionEntry *entry)
{
	const LOCK *lock = NULL;
	sigset_t	before;

	Assert(has_timer);
	if (held->election.key.lock_class == LE_CLASS_BARE_KEY)
		lock = le_own_lock(&held->election);
	pthread_sigmask(SIG_BLOCK, &timer_signal, &before);
	if (held->entry == NULL)
		dlist_push_tail(&beating, &held->beat_node);
	held->entry = entry;
	held->heartbeat_us = entry->expiry.lasts_us;
	held->lock = lock;
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
	if (held->terminated)
	{
		ended = *held;
		has_ended = true;
	}
	dlist_delete(&held->beat_node);
	held->entry = NULL;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	le_registry_unwatch(entry, LE_BEATING);
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
 * Ensure that this session may end the silent term itself.  If the session is
 * being terminated for it, end the session instead.
 */
void
le_claim_end(LeHeldTerm *held)
{
	held->ends_in_place = true; /* first, so that the timer sees it */
	if (!held->terminated &&
		le_registry_end_in_place(&held->election.key, held->token))
		return;
	ereport(FATAL,
			(errcode(ERRCODE_LE_SILENT),
			 errmsg_internal("%s", why_ended(held)),
			 errdetail_internal("%s", how_long_silent(held))));
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
