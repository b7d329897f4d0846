/*-------------------------------------------------------------------------
 *
 * base/safely.c
 *	  Calling code that may raise an error from where none may escape.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "base/base.h"

/*
 * Run the action.  Return false if it has raised an error, which is discarded.
 *
 * The action must leave nothing to clean up but LWLocks.  The caller must hold
 * no LWLock.  At the end of a session this has no effect, because the server
 * makes every error fatal there.
 */
bool
le_try(void (*action) (void *), void *argument)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	uint32		interrupts_held = InterruptHoldoffCount;
	uint32		cancels_held = QueryCancelHoldoffCount;
	volatile bool done = true;

	PG_TRY();
	{
		action(argument);
	}
	PG_CATCH();
	{
		LWLockReleaseAll();
		MemoryContextSwitchTo(context);
		FlushErrorState();
		CurrentResourceOwner = owner;
		InterruptHoldoffCount = interrupts_held;
		QueryCancelHoldoffCount = cancels_held;
		done = false;
	}
	PG_END_TRY();

	return done;
}

/*
 * Run the action.  If it raises an error, only log that.
 *
 * For callbacks at the end of a transaction, where an error would crash the
 * server after a commit, and recur endlessly in an abort.
 */
void
le_run_safely(void (*action) (void *), void *argument)
{
	if (le_try(action, argument))
		return;
	HOLD_INTERRUPTS();
	ereport(LOG_SERVER_ONLY,
			(errmsg_internal("leader_election: could not bring the registry up to date"),
			 errhidestmt(true), errhidecontext(true)));
	RESUME_INTERRUPTS();
}
