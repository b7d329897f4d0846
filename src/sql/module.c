/*-------------------------------------------------------------------------
 *
 * sql/module.c
 *	  Module load, and the callbacks at the end of transactions and sessions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"

#include "tell/tell.h"
#include "lease/lease.h"
#include "lead/lead.h"
#include "bid/bid.h"
#include "sql/sql.h"

PG_MODULE_MAGIC_EXT(
					.name = "leader_election",
					.version = LE_LIBRARY_VERSION
);

void		_PG_init(void);

/*
 * Define the settings
 *
 * The server warns of a value that it cannot take over, and then checks for
 * interrupts.  A cancel in the middle would leave a session that can neither
 * use the library nor load it again.
 */
void
_PG_init(void)
{
	HOLD_INTERRUPTS();
	le_define_settings();
	RESUME_INTERRUPTS();
}

/*
 * Clean up after a wait that has failed.  Never raises an error.
 */
static void
stop_waiting(void)
{
	le_withdraw();
	le_leave_many();
	le_stop_observing();
}

/*
 * Watch the client if the session leads or waits, and otherwise stop watching
 * it.  Never raises an error.
 */
static void
update_watch(void)
{
	if (le_leads_for_session() || le_is_candidate())
		le_watch_client(le_leads_for_session());
	else
		le_unwatch_client();
}

static void
do_before_prepare(void *argument pg_attribute_unused())
{
	le_terms_before_prepare();
	le_grants_before_prepare();
	le_verify_terms(NULL);
	le_guards_before_commit();
}

static void
do_before_commit(void *argument pg_attribute_unused())
{
	le_verify_terms(NULL);
	if (!le_has_pending())
		return;
	if (le_xact_has_items())
	{
		le_guards_before_commit();
		le_run_safely(le_grants_before_commit, NULL);
	}
	le_announcements_before_commit();
}

/*
 * Do what is to be done at a commit, for all but the session's terms.  Never
 * raises an error.
 */
static void
finish_at_commit(void)
{
	le_announcements_at_xact_end(true);
	if (le_xact_has_items())
	{
		le_terms_at_xact_end();
		le_grants_at_commit();
		le_guards_at_xact_end();
	}
	le_release_timer();
}

/*
 * Keep this session's terms in step with the end of its transactions
 *
 * At XACT_EVENT_COMMIT and XACT_EVENT_ABORT the transaction's locks are still
 * held: see term.c for why that matters.  Before a commit, an error may still
 * be raised; after it, after a prepare, and in an abort, it may not.  What is
 * called there allocates nothing, looks up nothing in a catalog, and registers
 * nothing, except within le_run_safely.  Timers and sockets may be set, since
 * the timers were registered before the callbacks.
 */
static void
at_xact_event(XactEvent event, void *arg pg_attribute_unused())
{
	switch (event)
	{
		case XACT_EVENT_PRE_PREPARE:
			le_run_released(do_before_prepare, NULL);
			break;
		case XACT_EVENT_PREPARE:
			le_guards_at_xact_end();
			le_release_timer();
			update_watch();
			break;
		case XACT_EVENT_PRE_COMMIT:
			le_run_released(do_before_commit, NULL);
			break;
		case XACT_EVENT_COMMIT:
			if (le_has_pending())
				finish_at_commit();
			update_watch();
			break;
		case XACT_EVENT_ABORT:
			stop_waiting();
			le_run_safely(le_verify_terms, NULL);
			le_announcements_at_xact_end(false);
			le_xact_lists_at_abort();
			le_release_timer();
			update_watch();
			break;
		default:
			break;
	}
}

/*
 * Keep this session's terms in step with the end of its subtransactions
 *
 * An error in an abort would recur: see at_xact_event.
 */
static void
at_subxact_event(SubXactEvent event, SubTransactionId mine,
				 SubTransactionId parent, void *arg pg_attribute_unused())
{
	switch (event)
	{
		case SUBXACT_EVENT_COMMIT_SUB:
			le_xact_lists_at_subxact_commit(mine, parent);
			break;
		case SUBXACT_EVENT_ABORT_SUB:
			stop_waiting();
			le_run_safely(le_verify_terms, NULL);
			le_xact_lists_at_subxact_abort(mine);

			/* the error has stopped all timers */
			if (le_leads_for_session())
				le_watch_client(true);
			break;
		default:
			break;
	}
}

/*
 * End this session's terms before the server releases its locks
 *
 * A FATAL error can lead here from within a transaction, with LWLocks held.
 * Abort it first, as the server is about to do anyway.
 *
 * Every error is fatal here, even within le_run_safely.  The server then
 * continues with the next callback, which is this one again, for the remaining
 * terms.  The abort is tried once, and each call after that ends at least one
 * term.
 */
static void
before_exit(int code pg_attribute_unused(), Datum arg pg_attribute_unused())
{
	static bool aborted = false;

	if (le_leads_for_session())
		before_shmem_exit(before_exit, (Datum) 0);
	if (!aborted)
	{
		aborted = true;
		AbortOutOfAnyTransaction();
	}
	LWLockReleaseAll();
	le_terms_at_exit();
}

/*
 * Register the callbacks, once
 *
 * Called by each SQL function that may begin, end, guard or announce
 * something, before it does.  A backend that never calls the extension, or
 * only reads (le_prepare_to_look), has no callbacks.
 */
void
le_register_callbacks(void)
{
	static bool registered = false;

	if (likely(registered))
		return;
	le_register_liveness();

	/* memory may have run out after this, the last time */
	UnregisterXactCallback(at_xact_event, NULL);
	RegisterXactCallback(at_xact_event, NULL);
	RegisterSubXactCallback(at_subxact_event, NULL);
	before_shmem_exit(before_exit, (Datum) 0);
	registered = true;
}
