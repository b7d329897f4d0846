/*-------------------------------------------------------------------------
 *
 * base/safely.c
 *	  To call what may raise an error from where none may get out.
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
 * Run the action; false if it has thrown an error, which is forgotten
 *
 * It must not leave anything to clean up but LWLocks.  No LWLock may be held by the
 * caller.  At the end of a session this is in vain, because the server makes every
 * error fatal there.
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
 * Run the action, and let nothing that it throws get further than the log
 *
 * For callbacks from the end of a transaction: an error would take down the
 * server after a commit, and come again and again in an abort.
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
