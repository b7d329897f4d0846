/*-------------------------------------------------------------------------
 *
 * leader_election.c
 *	  Module load, settings, and the callbacks at the end of transactions and
 *	  sessions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "utils/guc.h"

#include "leader_election.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

/*
 * An administrator whose applications elect many times a second may want the
 * beginning and end of each term out of the server log.
 */
bool		le_log_terms = true;

/*
 * Every term takes a slot of the lock table that all sessions share.  Whoever
 * raises this may have to raise max_locks_per_transaction, too.
 */
int			le_max_terms_per_session = 1000;

/*
 * Define the settings
 */
void
_PG_init(void)
{
	DefineCustomBoolVariable("leader_election.log_terms",
							 "Logs the beginning and the end of each term.",
							 NULL,
							 &le_log_terms,
							 true,
							 PGC_SUSET,
							 0,
							 NULL,
							 NULL,
							 NULL);

	DefineCustomIntVariable("leader_election.max_terms_per_session",
							"Sets the maximum number of elections that one session may lead at a time.",
							"Each term takes one slot of the lock table, which all sessions share.",
							&le_max_terms_per_session,
							1000,
							1,
							INT_MAX,
							PGC_SUSET,
							0,
							NULL,
							NULL,
							NULL);

	MarkGUCPrefixReserved("leader_election");
}

/*
 * Run the action, and let nothing that it throws get further than the log
 *
 * For callbacks from the end of a transaction: an error would take down the
 * server after a commit, and come again and again in an abort.  No LWLock may be
 * held by the caller.  At the end of a session this is in vain, because the server
 * makes every error fatal there.
 */
void
le_catching(void (*action) (void *), void *argument)
{
	MemoryContext context = CurrentMemoryContext;
	uint32		interrupts_held = InterruptHoldoffCount;
	volatile bool failed = false;

	PG_TRY();
	{
		action(argument);
	}
	PG_CATCH();
	{
		LWLockReleaseAll();
		MemoryContextSwitchTo(context);
		FlushErrorState();
		InterruptHoldoffCount = interrupts_held;
		failed = true;
	}
	PG_END_TRY();

	if (failed)
	{
		HOLD_INTERRUPTS();
		ereport(LOG_SERVER_ONLY,
				(errmsg_internal("leader_election: could not bring the registry up to date"),
				 errhidestmt(true), errhidecontext(true)));
		RESUME_INTERRUPTS();
	}
}

/*
 * Keep this session's terms in step with the end of its transactions
 *
 * At XACT_EVENT_COMMIT and XACT_EVENT_ABORT the transaction's locks are still
 * held: see term.c for why that matters.  Before a commit it is not too late to
 * throw; after it, and in an abort, it is.
 */
static void
at_xact_event(XactEvent event, void *arg pg_attribute_unused())
{
	switch (event)
	{
		case XACT_EVENT_PRE_PREPARE:
			le_terms_before_prepare();
			le_grants_before_prepare();
			le_verify_terms(NULL);
			break;
		case XACT_EVENT_PRE_COMMIT:
			le_verify_terms(NULL);
			break;
		case XACT_EVENT_COMMIT:
			le_terms_at_xact_end();
			le_grants_at_commit();
			break;
		case XACT_EVENT_ABORT:
			le_withdraw();
			le_catching(le_verify_terms, NULL);
			le_terms_at_xact_end();
			le_grants_at_abort();
			break;
		default:
			break;
	}
}

/*
 * Keep this session's terms in step with the end of its subtransactions
 */
static void
at_subxact_event(SubXactEvent event, SubTransactionId mine,
				 SubTransactionId parent, void *arg pg_attribute_unused())
{
	switch (event)
	{
		case SUBXACT_EVENT_COMMIT_SUB:
			le_terms_at_subxact_commit(mine, parent);
			le_grants_at_subxact_commit(mine, parent);
			break;
		case SUBXACT_EVENT_ABORT_SUB:
			le_withdraw();
			le_catching(le_verify_terms, NULL);
			le_terms_at_subxact_abort(mine);
			le_grants_at_subxact_abort(mine);
			break;
		default:
			break;
	}
}

/*
 * End this session's terms before the server releases its locks
 *
 * A FATAL error can bring us here from within a transaction, with LWLocks held.
 * Aborting it first is what the server is about to do itself.
 */
static void
before_exit(int code pg_attribute_unused(), Datum arg pg_attribute_unused())
{
	AbortOutOfAnyTransaction();
	le_terms_at_exit();
}

/*
 * Register the callbacks, once, in a backend that bids for leadership
 *
 * A backend that never bids has none.
 */
void
le_register_callbacks(void)
{
	static bool registered = false;

	if (registered)
		return;

	before_shmem_exit(before_exit, (Datum) 0);
	RegisterXactCallback(at_xact_event, NULL);
	RegisterSubXactCallback(at_subxact_event, NULL);
	registered = true;
}
