/*-------------------------------------------------------------------------
 *
 * base/durability.c
 *	  To make durable what is written without regard to the transaction.
 *
 * Durable means: on this server's disk, and on the synchronous standbys, as after a
 * commit.  There are two ways to get there:
 *
 *	A bid polls (le_await_durable).  It must be able to give up, be cancelled, or time out,
 *	without a new term, and several bids may wait for the same place.
 *	What ends or changes a lease waits as a commit does (le_make_durable): it is done
 *	already, and cannot be undone.
 *
 * No LWLock may be held.  A wait for standbys may last for hours: no lock that matters
 * to other elections may be held over it.
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
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/base.h"

/* How often the standbys are looked at: twice as rarely each time, within these */
#define LE_POLL_MIN_US	100
#define LE_POLL_MAX_US	(10 * INT64CONST(1000))

static void
set_synchronous_commit(int level)
{
	synchronous_commit = level;
	assign_synchronous_commit(level, NULL);
}

/*
 * Make the WAL up to there, if anywhere, durable, however this transaction ends
 *
 * Synchronous standbys are waited for as a commit would, and as one does by default where
 * the session asks for less: others depend on it.  If that wait is cancelled, there is
 * the server's warning, and no error.
 */
void
le_make_durable(XLogRecPtr written)
{
	int			sessions_own = synchronous_commit;

	if (XLogRecPtrIsInvalid(written))
		return;
	XLogFlush(written);

	HOLD_INTERRUPTS();
	if (synchronous_commit < SYNCHRONOUS_COMMIT_REMOTE_FLUSH)
		set_synchronous_commit(SYNCHRONOUS_COMMIT_REMOTE_FLUSH);
	SyncRepWaitForLSN(written, true);
	set_synchronous_commit(sessions_own);
	RESUME_INTERRUPTS();
}

/*
 * Check whether the server has synchronous standbys now.  Never throws.
 *
 * The server's own answer, not the session's: if the list of standbys is emptied, a bid
 * that waits in the middle of a statement learns of it, too.
 */
bool
le_has_synchronous_standbys(void)
{
	return max_wal_senders > 0 && SyncStandbysDefinedCompat();
}

/*
 * Check whether the synchronous standbys, if any, have the WAL up to there on disk
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
 * Check whether the WAL up to there, if anywhere, is durable; waits for nothing
 */
bool
le_is_durable(XLogRecPtr written)
{
	return XLogRecPtrIsInvalid(written) ||
		(written <= GetFlushRecPtr(NULL) && is_on_standbys(written));
}

/*
 * Make the WAL up to there, if anywhere, durable; false if the standbys do not have it
 * at that time, by le_monotonic_us
 *
 * A time that has passed, such as 0, means not to wait for standbys.  May raise an error,
 * and end the session of a client that has gone.
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
