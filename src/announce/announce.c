/*-------------------------------------------------------------------------
 *
 * announce/announce.c
 *	  Announcements: NOTIFY on the channel leader_election when a term begins
 *	  or ends, or its leader publishes a value.
 *
 * The server sends notifications with a commit, and discards them with a
 * rollback.  But most of what is announced does not depend on the transaction
 * in which it happened: a resignation is final, even if the transaction is
 * rolled back.  So announcements are kept in a list of the extension's own,
 * given to the server just before a commit, and forgotten after it.
 *
 * An announcement must not delay what it announces, nor other sessions.  All
 * commits that notify hold one lock until they are done.  So a commit that may
 * have to wait for standbys does not take announcements along, unless they
 * have waited long.  Nor does a commit that would have to wait for that lock,
 * or that cannot get what notifying takes.
 *
 * Announcements still queued after a commit or rollback must be sent later,
 * but the client may send nothing for an hour.  So the session asks the server
 * for the transaction that an idle session runs to catch up on invalidation
 * messages, whose commit takes the announcements along.  A timer asks until
 * the list is empty, because in a failed transaction block nothing can be sent
 * before its end.  An error in that transaction would end the session, because
 * the server is about to read a command.  So what the extension does there
 * raises none.  What the server does afterwards may: it writes a page of its
 * queue to make room for another one, which may fail, as on a full disk.
 *
 * A session that ends sends its announcements in transactions of its own,
 * after its terms have ended and their locks are released.
 *
 * An announcement need not be sent by the session that has it on its list.
 * The next leader, or a session that finds an expired lease, may be faster:
 * see registry/news.c.  So just before it is sent, it is claimed there, and
 * dropped if it has been announced.  A claim is kept if the commit fails.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "commands/async.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "announce/internal.h"

#define LE_CHANNEL	"leader_election"

/*
 * How many announcements a session can have on its list; further ones are
 * dropped
 */
#define LE_ANNOUNCEMENTS_MAX	10000

/*
 * How often an idle session tries to send announcements: at first, and later
 */
#define LE_ASK_SOON_MS			10
#define LE_ASK_SOON_US			(2 * USECS_PER_SEC)
#define LE_ASK_AGAIN_MS			200

/*
 * How long the end of a session, or a wait, is delayed for them, and how often
 * the session tries
 */
#define LE_PUT_OFF_US			USECS_PER_SEC
#define LE_TRY_AGAIN_US			1000

typedef struct LeAnnouncement
{
	dlist_node	node;
	bool		with_commit;	/* becomes true with the current commit only */
	bool		sent;			/* given to the server for this commit */
	bool		ours;			/* no other session announces it */
	bool		doubtful;		/* another session may have announced it */
	LeNewsKind	what;
	int64		token;
	LeElectionKey election;
	char		payload[FLEXIBLE_ARRAY_MEMBER]; /* in the server's encoding */
} LeAnnouncement;

static dlist_head announcements = DLIST_STATIC_INIT(announcements);
static int	announcement_count = 0;
static MemoryContext announcement_context = NULL;	/* reset when there are
													 * none */
static uint64 owed_since;		/* when the first was put on the list */
static TimeoutId ask_timeout;

/*
 * Put the news of a term on the list.  If with_commit is set, it becomes true
 * with the current commit.
 */
static void
announce(const LeNews *news, LeNewsKind what, LeDuty duty, bool with_commit)
{
	const LeTerm *term = &news->term;
	StringInfoData payload;
	LeAnnouncement *announcement;

	if (announcement_count > LE_ANNOUNCEMENTS_MAX)
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
	le_fill_payload(&payload, news, what);
	announcement = MemoryContextAlloc(announcement_context,
									  offsetof(LeAnnouncement, payload) +
									  payload.len + 1);
	if (dlist_is_empty(&announcements))
		owed_since = le_monotonic_us();
	announcement->with_commit = with_commit;
	announcement->sent = false;
	announcement->ours = duty == LE_DUTY_TAKEN;
	announcement->doubtful = duty == LE_DUTY_SHARED;
	announcement->what = what;
	announcement->token = term->token;
	announcement->election = term->election;
	strcpy(announcement->payload, payload.data);
	dlist_push_tail(&announcements, &announcement->node);
	pfree(payload.data);
}

/*
 * Announce that a term has begun, or, if with_commit is set, that it begins
 * when the current commit succeeds
 */
void
le_announce_begin(const LeTerm *term, bool with_commit)
{
	LeNews		news;

	if (!term->announces)
		return;
	news.term = *term;
	announce(&news, LE_NEWS_BEGIN, LE_DUTY_OWN, with_commit);
}

/*
 * If the node is the given news, return the node before it in the list, else
 * NULL.  If the news is not to be matched, return the node itself.  NULL
 * stands for a search that has already failed.
 */
static dlist_node *
match_back(dlist_node *node, const LeNews *news, LeNewsKind what)
{
	LeAnnouncement *announcement;

	if (node == NULL || (news->what & what) == 0)
		return node;
	if (node == &announcements.head)
		return NULL;
	announcement = dlist_container(LeAnnouncement, node, node);
	if (announcement->what != what || announcement->token != news->term.token)
		return NULL;
	return node->prev;
}

/*
 * Take over the news at the end of this session's own list, which happens if
 * one session leads repeatedly in one transaction.  Return false if that is
 * not all of the news.
 */
static bool
take_from_own_list(const LeNews *news)
{
	dlist_node *node;
	dlist_node *end;

	if (news->what == 0 || dlist_is_empty(&announcements))
		return false;
	node = dlist_tail_node(&announcements);
	end = match_back(match_back(node, news, LE_NEWS_END), news, LE_NEWS_BEGIN);
	if (end == NULL)
		return false;
	for (; node != end; node = node->prev)
		dlist_container(LeAnnouncement, node, node)->ours = true;
	return true;
}

/*
 * Announce what is still to be announced of a term that has ended, or that
 * ends with the commit
 */
void
le_announce_news(const LeNews *news, LeDuty duty, bool with_commit)
{
	if (duty == LE_DUTY_TAKEN && take_from_own_list(news))
		return;
	if (news->what & LE_NEWS_BEGIN)
		announce(news, LE_NEWS_BEGIN, duty, with_commit);
	if (news->what & LE_NEWS_END)
		announce(news, LE_NEWS_END, duty, with_commit);
}

/*
 * Announce that the leader publishes another value if the commit succeeds
 */
void
le_announce_value(const LeTerm *term)
{
	LeNews		news;

	if (!le_notify)
		return;
	news.term = *term;
	announce(&news, LE_NEWS_VALUE, LE_DUTY_OWN, true);
}

/*
 * Announce the end of the election's last term, if the session responsible for
 * that has not done so
 */
void
le_announce_owed(const LeElection *election)
{
	LeNews		news;

	if (le_registry_find_news(&election->key, &news))
		le_announce_news(&news, LE_DUTY_SHARED, false);
}

static void
forget_announcement(LeAnnouncement *announcement)
{
	dlist_delete(&announcement->node);
	pfree(announcement);
	announcement_count--;
}

/*
 * Empty the list, and stop the timer
 */
static void
forget_announcements(void)
{
	dlist_init(&announcements);
	announcement_count = 0;
	MemoryContextReset(announcement_context);
	if (get_timeout_active(ask_timeout))
		disable_timeout(ask_timeout, false);
}

/*
 * Check whether anything is to be announced.  Never raises an error.
 */
bool
le_has_announcements(void)
{
	return !dlist_is_empty(&announcements);
}

/*
 * Drop what other sessions have announced, up to the first announcement that
 * is still to be sent, so that nothing is prepared in vain
 */
static void
forget_announced(void *unused pg_attribute_unused())
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &announcements)
	{
		LeAnnouncement *announcement = dlist_container(LeAnnouncement, node, iter.cur);

		if (announcement->ours || !announcement->doubtful ||
			le_registry_is_untold(&announcement->election, announcement->token,
								  announcement->what))
			break;
		forget_announcement(announcement);
	}
	if (dlist_is_empty(&announcements))
		forget_announcements();
}

/*
 * Give the announcement to the server, unless another session has announced
 * it.  Return its length.
 */
static size_t
give_announcement(LeAnnouncement *announcement)
{
	const char *payload = le_payload_to_ascii(announcement->payload);

	if (!announcement->ours &&
		!le_registry_claim_news(&announcement->election, announcement->token,
								announcement->what))
	{
		forget_announcement(announcement);
		return 0;
	}
	announcement->ours = true;
	Async_Notify(LE_CHANNEL, payload);
	announcement->sent = true;
	return strlen(payload);
}

/*
 * Give the server what is to be sent with the current commit
 */
static void
give_announcements(void *unused pg_attribute_unused())
{
	static size_t bytes = 0;
	dlist_mutable_iter iter;

	if (le_notify_queue_is_full(bytes))
	{
		forget_announcements();
		return;
	}
	bytes = 0;
	dlist_foreach_modify(iter, &announcements)
	{
		if (bytes > LE_ANNOUNCEMENTS_BYTES)
			break;
		bytes += give_announcement(dlist_container(LeAnnouncement, node, iter.cur));
	}
	if (dlist_is_empty(&announcements))
		forget_announcements();
}

/*
 * Give the server what is to be sent with the current commit, if that is
 * possible now
 *
 * What cannot be given stays on the list.  Never raises an error.
 */
void
le_announcements_before_commit(void)
{
	if (dlist_is_empty(&announcements))
		return;
	le_run_safely(forget_announced, NULL);
	if (!dlist_is_empty(&announcements) && le_can_notify(owed_since))
		le_run_safely(give_announcements, NULL);
}

/*
 * Ask for a transaction after the given time, and repeatedly after that
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
 * Ensure that what is left on the list is sent as soon as the session is idle.
 * Never raises an error.
 */
void
le_announcements_ask(void)
{
	ask(0);
}

/*
 * After a commit, drop what was sent.  The rest has become true.  Never raises
 * an error.
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
		announcement->doubtful = true;
		if (announcement->sent)
		{
			forget_announcement(announcement);
			any_sent = true;
		}
	}
	if (dlist_is_empty(&announcements))
		forget_announcements();
	else if (any_sent || !get_timeout_active(ask_timeout))
		ask(0);
	else if (le_monotonic_us() - owed_since < LE_ASK_SOON_US)
		ask(LE_ASK_SOON_MS);
}

/*
 * After an abort, nothing was sent.  Drop what was to become true with the
 * commit.  Never raises an error.
 */
void
le_announcements_at_abort(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &announcements)
	{
		LeAnnouncement *announcement = dlist_container(LeAnnouncement, node, iter.cur);

		announcement->sent = false;
		announcement->doubtful = true;
		if (announcement->with_commit)
			forget_announcement(announcement);
	}
	if (!dlist_is_empty(&announcements))
		le_announcements_ask();
	else if (announcement_context != NULL)
		forget_announcements();
}

/*
 * Call the function, which commits, until the list is empty, but only for a
 * short time
 *
 * Used before a wait, in which nothing can be sent.
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
 * This does not wait for standbys, since nothing could cancel that wait.
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
				(errmsg_internal("leader_election: %d changes are not announced, because other sessions keep sending notifications",
								 announcement_count),
				 errhidestmt(true), errhidecontext(true)));
}

/*
 * Register the timer.  Called once in a session that may announce something.
 */
void
le_register_announcements(void)
{
	ask_timeout = RegisterTimeout(USER_TIMEOUT, RequestCatchupCompat);
}
