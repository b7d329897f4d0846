/*-------------------------------------------------------------------------
 *
 * announce/notify.c
 *	  Check whether a commit can take notifications along without delaying
 *	  other sessions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_database.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "storage/lock.h"
#include "utils/fmgrprotos.h"

#include "announce/internal.h"

/* How full the server's queue may be, and how often this is checked */
#define LE_QUEUE_USAGE_MAX		0.9
#define LE_QUEUE_LOOK_US		USECS_PER_SEC
#define LE_QUEUE_LOOK_AFTER		100

/*
 * After this time, announcements are sent even with a commit that waits for
 * standbys
 */
#define LE_NOTIFY_WITH_SYNC_AFTER_US	USECS_PER_SEC

/*
 * For how long fresh announcements are tried again, which is about as long as
 * another commit takes, and how often
 */
#define LE_NOTIFY_WITHIN_US	10000
#define LE_NOTIFY_AGAIN_US	1000

/*
 * Check whether the server's queue of notifications is so full that a commit
 * would fail for it.  "count" announcements are about to be given to it.
 *
 * The commit is the application's, which must not fail for the sake of a hint.
 */
bool
le_notify_queue_is_full(int count)
{
	static uint64 looked_at = 0;
	static int	given = 0;
	static bool full = false;
	uint64		now = le_monotonic_us();

	given += count;
	if (looked_at == 0 || now - looked_at > LE_QUEUE_LOOK_US || given > LE_QUEUE_LOOK_AFTER)
	{
		full = DatumGetFloat8(OidFunctionCall0(F_PG_NOTIFICATION_QUEUE_USAGE)) >
			LE_QUEUE_USAGE_MAX;
		looked_at = now;
		given = 0;
		if (full)
			ereport(LOG_SERVER_ONLY,
					(errmsg_internal("leader_election: changes are not announced, because the queue of notifications is nearly full"),
					 errhidestmt(true), errhidecontext(true)));
	}
	return full;
}

/*
 * Get what notifying takes, if that is possible without waiting
 */
static void
prepare_to_notify(void *argument)
{
	LockAcquireResult *lock = argument;
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, InvalidOid, 0);
	*lock = LockAcquire(&tag, AccessExclusiveLock, false, true);
	if (*lock != LOCKACQUIRE_NOT_AVAIL)
		(void) GetCurrentTransactionId();
}

/*
 * Check whether the current commit is to take announcements along.  The first
 * of them has waited since waiting_since.  Never raises an error.
 *
 * Notifying takes a transaction ID.  A commit of a transaction that has
 * written without one, as a bid does, waits for standbys only if it gets one,
 * so it never takes announcements along.
 */
bool
le_can_notify(uint64 waiting_since)
{
	bool		has_xid = TransactionIdIsValid(GetTopTransactionIdIfAny());
	bool		has_written = has_xid || XactLastRecEnd != InvalidXLogRecPtr;
	LockAcquireResult lock;

	if (has_written && SyncRepRequested() && le_has_synchronous_standbys() &&
		(!has_xid || le_monotonic_us() - waiting_since < LE_NOTIFY_WITH_SYNC_AFTER_US))
		return false;
	for (;;)
	{
		if (!le_try(prepare_to_notify, &lock))
			return false;
		if (lock != LOCKACQUIRE_NOT_AVAIL)
			return true;
		if (le_monotonic_us() - waiting_since > LE_NOTIFY_WITHIN_US)
			return false;
		pg_usleep(LE_NOTIFY_AGAIN_US);
	}
}
