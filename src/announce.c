/*-------------------------------------------------------------------------
 *
 * announce.c
 *	  Announcements: NOTIFY on the channel leader_election when a term begins or
 *	  ends, or its leader publishes a value.
 *
 * The server sends notifications with a commit, and throws them away with a
 * rollback.  But most of what is announced does not depend on the transaction in
 * which it happened: a session resigns for good, even if the transaction is rolled
 * back.  So announcements are kept in a list of our own, given to the server just
 * before a commit, and forgotten after it.
 *
 * An announcement must not stand in the way of what it announces, nor of anybody
 * else.  All commits that notify hold one lock until they are done; so a commit that
 * may have to wait for standbys does not take announcements along, unless they have
 * waited long.  Nor does one that would have to wait for that lock, or that cannot get
 * what notifying takes.
 *
 * What is left on the list after a commit or rollback is owed to the world, and the
 * client may send nothing for an hour.  So the session asks the server for the
 * transaction that an idle session runs when it is to catch up on invalidation
 * messages: the commit of that one takes the announcements along.  A timer asks until
 * the list is empty, because in a transaction block that has failed nothing can be
 * sent before its end.  An error in that transaction would end the session.
 *
 * A session that ends sends what it owes in transactions of its own, when its terms
 * are over and their locks are free.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_database.h"
#include "commands/async.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/memutils.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "leader_election.h"

#define LE_CHANNEL	"leader_election"

/* How many a session can owe; what is more is not announced */
#define LE_ANNOUNCEMENTS_MAX	10000

/* What is sent with one commit, in bytes, unless it is a single announcement */
#define LE_ANNOUNCEMENTS_BYTES	32768

/* After which time they are sent with a commit that waits for standbys, too */
#define LE_PATIENCE_US			USECS_PER_SEC

/* How often an idle session tries to send what it owes: at first, and later */
#define LE_ASK_SOON_MS			10
#define LE_ASK_SOON_US			(2 * USECS_PER_SEC)
#define LE_ASK_AGAIN_MS			200

/* How long the end of a session, or a wait, is put off for it, and how often we try */
#define LE_PUT_OFF_US			USECS_PER_SEC
#define LE_TRY_AGAIN_US			1000

/* How full the server's queue may be, and how often we look */
#define LE_QUEUE_USAGE_MAX		0.9
#define LE_QUEUE_LOOK_US		USECS_PER_SEC

typedef struct LeAnnouncement
{
	dlist_node	node;
	bool		with_commit;	/* it becomes true with the commit at hand
								 * only */
	bool		sent;			/* given to the server, for that commit */
	char		payload[FLEXIBLE_ARRAY_MEMBER];
} LeAnnouncement;

static dlist_head announcements = DLIST_STATIC_INIT(announcements);
static int	announcement_count = 0;
static MemoryContext announcement_context = NULL;	/* reset when there are
													 * none */
static uint64 owed_since;		/* when the first was put on the list */
static TimeoutId ask_timeout;

static void
append_string(StringInfo payload, const char *field, const char *value)
{
	appendStringInfo(payload, ", \"%s\": ", field);
	escape_json(payload, value);
}

/*
 * Fill in the payload, a JSON object
 *
 * A name, an identity and a reason of 255 bytes each are at most 1530 bytes long when
 * escaped, so that it always fits into a notification.
 */
static void
fill_payload(StringInfo payload, const LeTerm *term, const char *event,
			 const char *by, const char *reason)
{
	appendStringInfoString(payload, "{\"election\": ");
	if (term->name[0] != '\0')
		escape_json(payload, term->name);
	else
		appendStringInfo(payload, "null, \"key\": " INT64_FORMAT, term->election.key);
	append_string(payload, "event", event);
	appendStringInfo(payload, ", \"token\": " INT64_FORMAT, term->token);
	append_string(payload, "identity", le_identity_public(&term->identity));
	if (by != NULL)
		append_string(payload, "by", by);
	if (reason != NULL)
		append_string(payload, "reason", reason);
	appendStringInfoChar(payload, '}');
}

/*
 * Announce what has become of the term, or will have, with the next commit
 */
static void
announce(const LeTerm *term, const char *event, const char *by, const char *reason,
		 bool with_commit)
{
	StringInfoData payload;
	LeAnnouncement *announcement;

	if (!le_notify || announcement_count > LE_ANNOUNCEMENTS_MAX)
		return;
	if (announcement_count++ == LE_ANNOUNCEMENTS_MAX)
	{
		HOLD_INTERRUPTS();
		ereport(LOG_SERVER_ONLY,
				(errmsg_internal("leader_election: more than %d changes in one transaction, the rest is not announced",
								 LE_ANNOUNCEMENTS_MAX),
				 errhidestmt(true), errhidecontext(true)));
		RESUME_INTERRUPTS();
		return;
	}

	if (announcement_context == NULL)
		announcement_context = AllocSetContextCreate(TopMemoryContext,
													 "leader_election announcements",
													 ALLOCSET_SMALL_SIZES);
	initStringInfo(&payload);
	fill_payload(&payload, term, event, by, reason);
	announcement = MemoryContextAlloc(announcement_context,
									  offsetof(LeAnnouncement, payload) +
									  payload.len + 1);
	if (dlist_is_empty(&announcements))
		owed_since = le_monotonic_us();
	announcement->with_commit = with_commit;
	announcement->sent = false;
	strcpy(announcement->payload, payload.data);
	dlist_push_tail(&announcements, &announcement->node);
	pfree(payload.data);
}

/*
 * Announce that a term has begun; with_commit: that it does if the commit succeeds
 */
void
le_announce_begin(const LeTerm *term, bool with_commit)
{
	announce(term, "elected", NULL, NULL, with_commit);
}

/*
 * Announce that a term has ended; with_commit: that it does if the commit succeeds
 */
void
le_announce_end(const LeTerm *term, LeEndReason reason, bool with_commit)
{
	announce(term, "ended", NULL, le_reason_name(reason), with_commit);
}

/*
 * Announce by whom the leader is deposed, and why, if that was said
 */
void
le_announce_deposed(const LeTerm *term, const char *by, const char *why)
{
	announce(term, "deposed", by, why, false);
}

/*
 * Announce that the leader publishes another value if the commit succeeds
 */
void
le_announce_value(const LeTerm *term)
{
	announce(term, "proclaimed", NULL, NULL, true);
}

/*
 * Tell the log and the world that a term has begun
 */
void
le_tell_begin(const LeTerm *term)
{
	le_log_begin(term);
	le_announce_begin(term, false);
}

/*
 * Tell the log and the world that a term has ended
 */
void
le_tell_end(const LeTerm *term, LeEndReason reason)
{
	le_log_end(term, reason);
	le_announce_end(term, reason, false);
}

static void
forget(LeAnnouncement *announcement)
{
	dlist_delete(&announcement->node);
	pfree(announcement);
	announcement_count--;
}

/*
 * Forget all, and ask no more
 */
static void
forget_all(void)
{
	dlist_init(&announcements);
	announcement_count = 0;
	MemoryContextReset(announcement_context);
	if (get_timeout_active(ask_timeout))
		disable_timeout(ask_timeout, false);
}

/*
 * Is the server's queue of notifications so full that a commit could fail for it?
 *
 * bytes is what we have given to the server since the last call.
 */
static bool
queue_is_full(size_t bytes)
{
	static uint64 looked_at = 0;
	static size_t given = 0;
	static bool full = false;
	uint64		now = le_monotonic_us();

	given += bytes;
	if (looked_at == 0 || now - looked_at > LE_QUEUE_LOOK_US ||
		given > LE_ANNOUNCEMENTS_BYTES)
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
 * Get what notifying takes, if it is to be had without waiting
 */
static void
get_ready(void *argument)
{
	LockAcquireResult *lock = argument;
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, InvalidOid, 0);
	*lock = LockAcquire(&tag, AccessExclusiveLock, false, true);
	if (*lock != LOCKACQUIRE_NOT_AVAIL)
		(void) GetCurrentTransactionId();
}

/*
 * Is the commit at hand to take announcements along?
 */
static bool
can_send(void)
{
	bool		has_written = TransactionIdIsValid(GetTopTransactionIdIfAny()) ||
		XactLastRecEnd != InvalidXLogRecPtr;
	LockAcquireResult lock;

	if (has_written && SyncRepRequested() && SyncRepStandbyNames != NULL &&
		SyncRepStandbyNames[0] != '\0' &&
		le_monotonic_us() - owed_since < LE_PATIENCE_US)
		return false;
	return le_try(get_ready, &lock) && lock != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Give the server what is to be sent with the commit at hand
 */
void
le_announcements_before_commit(void)
{
	static size_t bytes = 0;
	dlist_iter	iter;

	if (dlist_is_empty(&announcements) || !can_send())
		return;
	if (queue_is_full(bytes))
	{
		forget_all();
		return;
	}
	bytes = 0;
	dlist_foreach(iter, &announcements)
	{
		LeAnnouncement *announcement = dlist_container(LeAnnouncement, node, iter.cur);

		if (bytes > LE_ANNOUNCEMENTS_BYTES)
			break;
		Async_Notify(LE_CHANNEL, announcement->payload);
		announcement->sent = true;
		bytes += strlen(announcement->payload);
	}
}

/*
 * Ask for a transaction after that time, and again and again after it
 */
static void
ask(int delay_ms)
{
	if (dlist_is_empty(&announcements) || proc_exit_inprogress)
		return;
	if (get_timeout_active(ask_timeout))
		disable_timeout(ask_timeout, false);
	enable_timeout_every(ask_timeout,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(), delay_ms),
						 LE_ASK_AGAIN_MS);
}

/*
 * See to it that what is left on the list is sent as soon as the session is idle.
 * Does not throw
 */
void
le_announcements_ask(void)
{
	ask(0);
}

/*
 * Forget what was sent; what was not is true now.  Does not throw
 */
void
le_announcements_at_commit(void)
{
	dlist_mutable_iter iter;
	bool		any_sent = false;

	if (dlist_is_empty(&announcements))
		return;
	dlist_foreach_modify(iter, &announcements)
	{
		LeAnnouncement *announcement = dlist_container(LeAnnouncement, node, iter.cur);

		announcement->with_commit = false;
		if (announcement->sent)
		{
			forget(announcement);
			any_sent = true;
		}
	}
	if (dlist_is_empty(&announcements))
		forget_all();
	else if (any_sent || !get_timeout_active(ask_timeout))
		ask(0);
	else if (le_monotonic_us() - owed_since < LE_ASK_SOON_US)
		ask(LE_ASK_SOON_MS);
}

/*
 * Nothing was sent, and what was to become true with the commit has not.  Does not
 * throw
 */
void
le_announcements_at_abort(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &announcements)
	{
		LeAnnouncement *announcement = dlist_container(LeAnnouncement, node, iter.cur);

		announcement->sent = false;
		if (announcement->with_commit)
			forget(announcement);
	}
	if (!dlist_is_empty(&announcements))
		le_announcements_ask();
	else if (announcement_context != NULL)
		forget_all();
}

/*
 * Commit, by that function, until nothing is owed any more, but not for long
 *
 * Before we wait for something, as then nothing is sent.
 */
void
le_announcements_commit(void (*commit) (void))
{
	uint64		give_up_at = le_monotonic_us() + LE_PUT_OFF_US;

	while (!dlist_is_empty(&announcements))
	{
		int			owed = announcement_count;

		commit();
		if (announcement_count < owed)
			continue;
		if (le_monotonic_us() > give_up_at)
			break;
		pg_usleep(LE_TRY_AGAIN_US);
	}
}

static void
commit_nothing(void)
{
	StartTransactionCommand();
	CommitTransactionCommand();
}

/*
 * Send what is left at the end of a session, which has no transaction any more
 *
 * No standby is waited for, as nobody could cancel that.
 */
void
le_announcements_at_exit(void)
{
	if (dlist_is_empty(&announcements) || RecoveryInProgress())
		return;
	synchronous_commit = SYNCHRONOUS_COMMIT_OFF;
	le_announcements_commit(commit_nothing);
	if (!dlist_is_empty(&announcements))
		ereport(LOG_SERVER_ONLY,
				(errmsg_internal("leader_election: %d changes are not announced, because others are sending notifications all the time",
								 announcement_count),
				 errhidestmt(true), errhidecontext(true)));
}

/*
 * Make ready to ask for transactions; once in a session that may announce something
 */
void
le_register_announcements(void)
{
	ask_timeout = RegisterTimeout(USER_TIMEOUT, RequestCatchupCompat);
}
