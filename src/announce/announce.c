/*-------------------------------------------------------------------------
 *
 * announce/announce.c
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
 * sent before its end.  An error in that transaction would end the session, because the
 * server is about to read a command.  So what we do there cannot raise one.  What the
 * server does afterwards can: it writes a page of its queue to make room for another one,
 * and that may fail, as on a full disk.
 *
 * A session that ends sends what it owes in transactions of its own, when its terms
 * are over and their locks are free.
 *
 * What a session owes need not be sent by that session.  The next leader, or a session
 * that finds an expired lease, may be faster: see registry/news.c.  So just before
 * it is sent, it is claimed there, and dropped if it has been announced.  A claim is
 * kept if the commit fails.
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

/* How many a session can owe; what is more is not announced */
#define LE_ANNOUNCEMENTS_MAX	10000

/* How often an idle session tries to send what it owes: at first, and later */
#define LE_ASK_SOON_MS			10
#define LE_ASK_SOON_US			(2 * USECS_PER_SEC)
#define LE_ASK_AGAIN_MS			200

/* How long the end of a session, or a wait, is put off for it, and how often we try */
#define LE_PUT_OFF_US			USECS_PER_SEC
#define LE_TRY_AGAIN_US			1000

typedef struct LeAnnouncement
{
	dlist_node	node;
	bool		with_commit;	/* it becomes true with the commit at hand
								 * only */
	bool		sent;			/* given to the server, for that commit */
	bool		ours;			/* no other session announces it */
	bool		doubtful;		/* another session may have announced it */
	uint8		what;			/* LE_NEWS_BEGIN, _END or _VALUE */
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
 * Announce what has become of the term, or will have, with the next commit
 */
static void
announce(const LeNews *news, uint8 what, LeDuty duty, bool with_commit)
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
 * Announce that a term has begun; with_commit: that it does if the commit succeeds
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
 * Return what comes before that in the list if it is this news, or NULL; node is NULL if
 * the search has failed already
 */
static dlist_node *
match_back(dlist_node *node, const LeNews *news, uint8 what)
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
 * Take over what is at the end of this session's own list, as where one session leads
 * again and again in one transaction; false if that is not all of the news
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
 * Announce what is still to be announced of a term that has ended, or will have
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
 * Announce the end of the election's last term, if the session that was to do it has not
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
 * Forget all, and ask no more
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
 * Forget what other sessions have announced, up to the first that is still to be
 * announced: so that nothing is got ready for nothing
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
 * Give the announcement to the server, unless another session has; return how long it is
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
 * Give the server what is to be sent with the commit at hand
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
 * Give the server what it is to send with the commit at hand, if that can be done
 *
 * Never throws.  What cannot be given stays on the list.
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
