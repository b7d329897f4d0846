/*-------------------------------------------------------------------------
 *
 * pg/durability.c
 *	  Making WAL durable that takes effect regardless of the transaction.
 *
 * Durable means: on this server's disk and on the synchronous standbys, as
 * after a commit.  There are two ways:
 *
 * - A bid polls (le_await_durable).  It must be able to give up, be canceled,
 *   or time out, without a new term, and several bids may wait for the same
 *   LSN.
 * - What ends or changes a lease waits as a commit does (le_make_durable),
 *   since it has already happened and cannot be undone.
 *
 * The caller must not hold an LWLock.  A wait for standbys may last for hours,
 * so the caller must not hold a lock that other elections need.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "storage/lwlock.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"

#include "pg/pg.h"

/*
 * The interval at which standbys are polled doubles each time, within these
 * bounds
 */
#define LE_POLL_MIN_US	100
#define LE_POLL_MAX_US	(10 * INT64CONST(1000))

/*
 * Make the WAL up to the given LSN durable, however this transaction ends.
 * Does nothing if the LSN is invalid.
 *
 * Waits for synchronous standbys as a commit does, and as one does by default
 * if the session's synchronous_commit asks for less, because other sessions
 * depend on it.  If that wait is canceled, the server issues its warning and
 * no error is raised.
 */
void
le_make_durable(XLogRecPtr written)
{
	int			nest_level;

	if (XLogRecPtrIsInvalid(written))
		return;
	XLogFlush(written);

	nest_level = NewGUCNestLevel();
	if (synchronous_commit < SYNCHRONOUS_COMMIT_REMOTE_FLUSH)
		le_set_locally("synchronous_commit", "on");
	HOLD_INTERRUPTS();
	SyncRepWaitForLSN(written, true);
	RESUME_INTERRUPTS();
	AtEOXact_GUC(false, nest_level);
}

/*
 * Check whether the server has synchronous standbys now.  Never raises an
 * error.
 *
 * This is the server's state, not the session's.  So if the list of standbys
 * is emptied, a bid that waits in the middle of a statement notices that, too.
 */
bool
le_has_synchronous_standbys(void)
{
	return max_wal_senders > 0 && SyncStandbysDefinedCompat();
}

/*
 * Check whether the synchronous standbys, if any, have the WAL up to the given
 * LSN on disk
 */
static bool
is_on_standbys(XLogRecPtr written)
{
	bool		reached;

	if (likely(!le_has_synchronous_standbys()))
		return true;
	LWLockAcquire(SyncRepLock, LW_SHARED);
	reached = written <= WalSndCtl->lsn[SYNC_REP_WAIT_FLUSH];
	LWLockRelease(SyncRepLock);
	return reached;
}

/*
 * Check whether the WAL up to the given LSN, if valid, is durable.  Does not
 * wait.
 */
bool
le_is_durable(XLogRecPtr written)
{
	return XLogRecPtrIsInvalid(written) ||
		(written <= GetFlushRecPtr(NULL) && is_on_standbys(written));
}

/*
 * Make the WAL up to the given LSN, if valid, durable.  Return false if the
 * standbys do not have it by the given time, by le_monotonic_us.
 *
 * If that time has passed, such as 0, does not wait for standbys.  May raise
 * an error, and ends the session if its client is gone.
 */
bool
le_await_durable(XLogRecPtr written, uint64 until)
{
	uint64		pause_us = LE_POLL_MIN_US;

	if (XLogRecPtrIsInvalid(written))
		return true;
	XLogFlush(written);
	while (!is_on_standbys(written))
	{
		uint64		now = until > 0 ? le_monotonic_us() : 0;

		if (now >= until)
			return false;
		if (pause_us == LE_POLL_MIN_US)
			InvalidateCatalogSnapshotConditionally();
		le_sleep(NULL, Min(until, now + pause_us), LE_SLEEP_STANDBY);
		CHECK_FOR_INTERRUPTS();
		pause_us = Min(pause_us * 2, LE_POLL_MAX_US);
	}
	return true;
}
