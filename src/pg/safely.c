/*-------------------------------------------------------------------------
 *
 * pg/safely.c
 *	  Calling code that may raise an error from where none may escape.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/resowner.h"

#include "pg/pg.h"

/* What an error changes in the session, beside its own record */
typedef struct LeSavedState
{
	MemoryContext context;
	ResourceOwner owner;
	uint32		interrupts_held;
	uint32		cancels_held;
} LeSavedState;

static LeSavedState
save_state(void)
{
	LeSavedState state = {
		.context = CurrentMemoryContext,
		.owner = CurrentResourceOwner,
		.interrupts_held = InterruptHoldoffCount,
		.cancels_held = QueryCancelHoldoffCount
	};

	return state;
}

static void
restore_state(const LeSavedState *state)
{
	MemoryContextSwitchTo(state->context);
	CurrentResourceOwner = state->owner;
	InterruptHoldoffCount = state->interrupts_held;
	QueryCancelHoldoffCount = state->cancels_held;
}

/*
 * Return a copy of the error that was just caught, or NULL if there is no
 * memory for it
 */
static ErrorData *
copy_error(void)
{
	LeSavedState state = save_state();
	ErrorData  *volatile error = NULL;

	PG_TRY();
	{
		error = CopyErrorData();
	}
	PG_CATCH();
	{
		restore_state(&state);
		FlushErrorState();
	}
	PG_END_TRY();

	return error;
}

/*
 * Run the action.  Return false if it has raised an error, of which *error,
 * unless NULL, is set to a copy
 */
static bool
run(void (*action) (void *), void *argument, ErrorData **error)
{
	LeSavedState state = save_state();
	volatile bool done = true;

	PG_TRY();
	{
		action(argument);
	}
	PG_CATCH();
	{
		LWLockReleaseAll();
		restore_state(&state);
		if (error != NULL)
			*error = copy_error();
		FlushErrorState();
		done = false;
	}
	PG_END_TRY();

	return done;
}

/*
 * Run the action.  If it raises an error, release all LWLocks before that is
 * told.
 *
 * The server raises errors with LWLocks held: if it can neither create nor map
 * a segment of shared memory, or on a serialization conflict.  It keeps them
 * until the client has read the error, and all sessions would wait for them,
 * without being able to end.
 */
void
le_run_released(void (*action) (void *), void *argument)
{
	PG_TRY();
	{
		action(argument);
	}
	PG_CATCH();
	{
		LWLockReleaseAll();
		PG_RE_THROW();
	}
	PG_END_TRY();
}

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
	return run(action, argument, NULL);
}

/*
 * Run the action.  If it raises an error, only log that.
 *
 * For callbacks at the end of a transaction, where an error would crash the
 * server after a commit, and recur endlessly in an abort.
 *
 * If a caller aborts before it rethrows an error, as the apply worker of
 * logical replication does, and the action fails in that abort, then that
 * error is lost, and the server reports "errstart was not called".  It cannot
 * be kept: the server has no call to discard only the later error, and to copy
 * the earlier one is unsafe.  If that was rethrown before, it may point to
 * memory that the abort has freed.
 */
void
le_run_safely(void (*action) (void *), void *argument)
{
	ErrorData  *error = NULL;

	if (run(action, argument, &error))
		return;
	le_log("could not bring the registry up to date: %s",
		   error == NULL ? "out of memory" : error->message);
	if (error != NULL)
		FreeErrorData(error);
}

/*
 * Run the action in a subtransaction.  Return a copy of the error that it has
 * raised, which has rolled the subtransaction back, or NULL
 *
 * The server sends an error to the client before it aborts the transaction,
 * and waits for a client that does not read.  What the action has locked must
 * not be held until then, such as the election of another role, or a page that
 * has rows of others.  No other message may be sent meanwhile either: at
 * DEBUG5, the abort itself sends one before it releases locks.
 */
ErrorData *
le_try_in_subtransaction(void (*action) (void *), void *argument)
{
	LeSavedState state = save_state();
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(state.context);

	PG_TRY();
	{
		le_set_locally("client_min_messages", "error");
		action(argument);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(state.context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();

	MemoryContextSwitchTo(state.context);
	CurrentResourceOwner = state.owner;
	return error;
}

/*
 * Likewise, but raise the error then
 */
void
le_in_subtransaction(void (*action) (void *), void *argument)
{
	ErrorData  *error = le_try_in_subtransaction(action, argument);

	if (error != NULL)
		ReThrowError(error);
}
