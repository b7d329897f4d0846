/*-------------------------------------------------------------------------
 *
 * announce/announce.c
 *	  Announcements: NOTIFY on the channel leader_election when a term begins
 *	  or ends, or its leader publishes a value.
 *
 * The server sends notifications with a commit, and discards them with a
 * rollback.  But most of what is announced does not depend on the transaction
 * in which it happened: a resignation is final, even if the transaction is
 * rolled back.  So a session keeps a list of the terms that it has something
 * to announce of.  Before each commit, it takes from the registry what is
 * still to be announced of them (registry/news.c), and gives it to the server.
 *
 * An announcement is a hint, so it must not delay what it announces, nor other
 * sessions.  All commits that notify hold one lock until they are done.  So a
 * commit that may have to wait for standbys does not take announcements along,
 * unless they have waited long.  Nor does a commit that would have to wait for
 * that lock, or that cannot get what notifying takes.  They then go with a
 * later commit of the session, or with the next term of the election, or are
 * lost.
 *
 * A session that ends sends its announcements in a transaction of its own,
 * after its terms have ended and their locks are released.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "commands/async.h"
#include "utils/memutils.h"

#include "announce/internal.h"

#define LE_CHANNEL	"leader_election"

/*
 * How many announcements a session can have on its list; the oldest one makes
 * room for a further one
 */
#define LE_ANNOUNCEMENTS_MAX	10000

typedef struct LeAnnouncement
{
	dlist_node	node;
	LeElectionKey election;
	int64		token;
	LeAnnounce	what;
	bool		final;			/* true even after a rollback */
	bool		sent;			/* given to the server for this commit */
	LeNewsTaken taken;			/* from the registry for that */
} LeAnnouncement;

static dlist_head announcements = DLIST_STATIC_INIT(announcements);
static int	announcement_count = 0;
static MemoryContext announcement_context = NULL;	/* reset when there are
													 * none */
static uint64 waiting_since;	/* when the first was put on the list */

static void
forget_announcement(LeAnnouncement *announcement)
{
	dlist_delete(&announcement->node);
	pfree(announcement);
	le_other_pending--;
	if (--announcement_count == 0)
		MemoryContextReset(announcement_context);
}

/*
 * Put a term on the list, of which there is something to announce
 */
void
le_announce(const LeElectionKey *election, int64 token, LeAnnounce what)
{
	LeAnnouncement *announcement;

	if (announcement_count == LE_ANNOUNCEMENTS_MAX)
		forget_announcement(dlist_head_element(LeAnnouncement, node, &announcements));
	if (announcement_context == NULL)
		announcement_context = AllocSetContextCreate(TopMemoryContext,
													 "leader_election announcements",
													 ALLOCSET_SMALL_SIZES);
	announcement = MemoryContextAllocZero(announcement_context, sizeof(LeAnnouncement));
	announcement->election = *election;
	announcement->token = token;
	announcement->what = what;
	announcement->final = what == LE_ANNOUNCE_TERM;
	if (dlist_is_empty(&announcements))
		waiting_since = le_monotonic_us();
	dlist_push_tail(&announcements, &announcement->node);
	announcement_count++;
	le_other_pending++;
}

/*
 * Log the end of a term, and announce it
 */
void
le_report_end(const LeTerm *term, LeEndReason reason)
{
	le_log_end(term, reason);
	if (term->announces)
		le_announce(&term->election, term->token, LE_ANNOUNCE_TERM);
}

/*
 * Give the server one announcement
 */
static void
notify(const LeNews *news, LeNewsKind what)
{
	StringInfoData payload;
	const char *ascii;

	if ((news->what & what) == 0)
		return;
	initStringInfo(&payload);
	le_fill_payload(&payload, news, what);
	ascii = le_payload_to_ascii(payload.data);
	Async_Notify(LE_CHANNEL, ascii);
	pfree(payload.data);
}

static void
notify_value(const LeAnnouncement *announcement)
{
	LeNews		news = {.what = LE_NEWS_VALUE};

	if (le_registry_read(&announcement->election, &news.term) &&
		news.term.token == announcement->token)
		notify(&news, LE_NEWS_VALUE);
}

static void
give_announcement(LeAnnouncement *announcement)
{
	LeNews		ended;
	LeNews		recorded;

	announcement->sent = true;
	if (announcement->what == LE_ANNOUNCE_VALUE)
	{
		notify_value(announcement);
		return;
	}
	le_registry_take_news(&announcement->election, announcement->token,
						  announcement->what == LE_ANNOUNCE_END_WITH_COMMIT,
						  &ended, &recorded, &announcement->taken);
	notify(&ended, LE_NEWS_BEGIN);
	notify(&ended, LE_NEWS_END);
	notify(&recorded, LE_NEWS_BEGIN);
	notify(&recorded, LE_NEWS_END);
}

/*
 * Give the server what is to be sent with the current commit, or drop it if
 * there is no room for it
 */
static void
give_announcements(void *unused pg_attribute_unused())
{
	bool		full = le_notify_queue_is_full(announcement_count);
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &announcements)
	{
		LeAnnouncement *announcement = dlist_container(LeAnnouncement, node, iter.cur);

		if (full)
			forget_announcement(announcement);
		else
			give_announcement(announcement);
	}
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
	if (!dlist_is_empty(&announcements) && le_can_notify(waiting_since))
		le_run_safely(give_announcements, NULL);
}

/*
 * After a commit, drop what was sent.  The rest has become true.  Never raises
 * an error.
 */
void
le_announcements_at_commit(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &announcements)
	{
		LeAnnouncement *announcement = dlist_container(LeAnnouncement, node, iter.cur);

		if (announcement->sent)
		{
			forget_announcement(announcement);
			continue;
		}
		if (announcement->what != LE_ANNOUNCE_VALUE)
			announcement->what = LE_ANNOUNCE_TERM;
		announcement->final = true;
	}
}

static void
return_news(void *argument)
{
	LeAnnouncement *announcement = argument;

	le_registry_return_news(&announcement->election, &announcement->taken);
}

/*
 * After an abort, nothing was sent.  Drop what was to become true with the
 * commit.  Never raises an error.
 *
 * Call this before the terms of the transaction are ended, which puts them on
 * the list again.
 */
void
le_announcements_at_abort(void)
{
	dlist_iter	last;
	dlist_mutable_iter iter;

	/* backwards, as two of them may be of one election */
	dlist_reverse_foreach(last, &announcements)
	{
		LeAnnouncement *announcement = dlist_container(LeAnnouncement, node, last.cur);

		if (announcement->sent)
			le_run_safely(return_news, announcement);
		announcement->sent = false;
	}
	dlist_foreach_modify(iter, &announcements)
	{
		LeAnnouncement *announcement = dlist_container(LeAnnouncement, node, iter.cur);

		if (!announcement->final)
			forget_announcement(announcement);
	}
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
	SetConfigOption("synchronous_commit", "off", PGC_USERSET, PGC_S_OVERRIDE);
	StartTransactionCommand();
	CommitTransactionCommand();
}
