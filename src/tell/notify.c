/*-------------------------------------------------------------------------
 *
 * tell/notify.c
 *	  Announcements: NOTIFY on the channel leader_election when a term begins
 *	  or ends, or its leader publishes a value.
 *
 * An announcement is a hint, and a notification like any other.  A session
 * announces the terms that it begins, the ends that it logs, the leaders that
 * it deposes, and its values, with its next commit.  A resignation is final
 * even if its transaction is rolled back.  So announcements are on a list
 * until they are given to the server for a commit.  That is done once: if a
 * commit fails for want of its turn to notify, the next one must not.
 *
 * The payload is a JSON object in ASCII.
 *
 * A session that ends announces nothing.  A transaction of its own would have
 * to wait for other commits that notify, and nothing could end that wait.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/async.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "storage/ipc.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/memutils.h"

#include "tell/tell.h"

static void
append_string(StringInfo payload, const char *field, const char *value)
{
	appendStringInfo(payload, ", \"%s\": ", field);
	escape_json(payload, value);
}

/* Indexed by LeEvent */
static const char *const event_names[] = {
	[LE_ELECTED] = "elected",
	[LE_ENDED] = "ended",
	[LE_PROCLAIMED] = "proclaimed",
};

/*
 * Fill in the payload, a JSON object
 *
 * It is sent in ASCII (le_payload_to_ascii), and must be shorter than 8000
 * bytes.  No byte of a string becomes more than six: a control character or a
 * byte of a single-byte encoding becomes \uXXXX, and two bytes of any other
 * encoding become at most two of these.  So a name, an identity and a reason
 * of 255 bytes each and a role of 63 are at most 4968 bytes, and the rest is
 * at most 200.
 */
void
le_fill_payload(StringInfo payload, const LeNews *news)
{
	const LeTerm *term = news->term;

	appendStringInfoString(payload, "{\"election\": ");
	escape_json(payload, term->name);
	append_string(payload, "event", event_names[news->event]);
	appendStringInfo(payload, ", \"token\": " INT64_FORMAT, term->token);
	append_string(payload, "identity", le_identity_public(&term->identity));
	if (news->event == LE_ENDED)
		append_string(payload, "reason", le_reason_name(news->reason));
	if (news->by != NULL)
		append_string(payload, "by", news->by);
	if (news->why != NULL)
		append_string(payload, "why", news->why);
	appendStringInfoChar(payload, '}');
}

/* A string to be converted to UTF-8 */
typedef struct LeConversion
{
	const char *from;
	const char *to;				/* NULL: not possible */
} LeConversion;

static void
convert(void *argument)
{
	LeConversion *conversion = argument;
	const char *from = conversion->from;

	if (GetDatabaseEncoding() != PG_SQL_ASCII)
		conversion->to = pg_server_to_any(from, strlen(from), PG_UTF8);
}

static void
append_utf16(StringInfo ascii, pg_wchar character)
{
	if (character < 0x10000)
		appendStringInfo(ascii, "\\u%04x", character);
	else
		appendStringInfo(ascii, "\\u%04x\\u%04x",
						 0xD7C0 + (character >> 10), 0xDC00 + (character & 0x3FF));
}

/*
 * Return the JSON in ASCII, which every client's encoding contains.  An idle
 * session that listens is ended if it is sent something that cannot be
 * converted.
 *
 * What cannot be converted here, such as bytes in SQL_ASCII, is taken for
 * Latin 1.
 */
const char *
le_payload_to_ascii(const char *json)
{
	LeConversion conversion = {.from = json};
	StringInfoData ascii;
	const unsigned char *next = (const unsigned char *) json;

	while (*next != '\0' && !IS_HIGHBIT_SET(*next))
		next++;
	if (*next == '\0')
		return json;

	(void) le_try(convert, &conversion);
	initStringInfo(&ascii);
	next = (const unsigned char *) (conversion.to != NULL ? conversion.to : json);
	while (*next != '\0')
	{
		bool		is_utf8 = conversion.to != NULL;

		if (!IS_HIGHBIT_SET(*next))
			appendStringInfoChar(&ascii, *next);
		else
			append_utf16(&ascii, is_utf8 ? utf8_to_unicode(next) : *next);
		next += is_utf8 ? pg_utf_mblen(next) : 1;
	}
	return ascii.data;
}

#define LE_CHANNEL	"leader_election"

/*
 * How many announcements a session can have on its list; the oldest one makes
 * room for a further one
 */
#define LE_ANNOUNCEMENTS_MAX	1000

/* How full the server's queue may be */
#define LE_QUEUE_USAGE_MAX		0.9

typedef struct LeAnnouncement
{
	dlist_node	node;
	bool		with_commit;	/* becomes true with the current commit only */
	char		payload[FLEXIBLE_ARRAY_MEMBER];
} LeAnnouncement;

static dlist_head announcements = DLIST_STATIC_INIT(announcements);
static int	announcement_count = 0;
static bool given = false;		/* to the server, for the current commit */

static void
forget_announcement(LeAnnouncement *announcement)
{
	dlist_delete(&announcement->node);
	pfree(announcement);
	le_other_pending--;
	announcement_count--;
}

/*
 * Put an announcement on the list, if the session announces anything
 *
 * Terms in transaction scope are not announced: when it is sent, they are
 * over.
 */
static void
announce(const LeNews *news)
{
	LeAnnouncement *announcement;
	StringInfoData payload;
	const char *ascii;
	Size		size;

	if (!le_notify || proc_exit_inprogress ||
		news->term->scope == LE_SCOPE_TRANSACTION)
		return;
	if (announcement_count == LE_ANNOUNCEMENTS_MAX)
		forget_announcement(dlist_head_element(LeAnnouncement, node, &announcements));
	initStringInfo(&payload);
	le_fill_payload(&payload, news);
	ascii = le_payload_to_ascii(payload.data);
	size = strlen(ascii) + 1;
	announcement = MemoryContextAlloc(TopMemoryContext,
									  offsetof(LeAnnouncement, payload) + size);
	announcement->with_commit = news->event == LE_ELECTED &&
		news->term->scope == LE_SCOPE_LEASE;
	memcpy(announcement->payload, ascii, size);
	pfree(payload.data);
	dlist_push_tail(&announcements, &announcement->node);
	announcement_count++;
	le_other_pending++;
}

/*
 * Announce that the term with the given token has begun, a lease with the
 * current commit, or that its leader publishes a value
 */
void
le_announce_running(const LeElectionKey *election, int64 token, LeEvent event)
{
	LeTerm		term;
	LeNews		news = {.term = &term,.event = event};

	if (le_notify && le_registry_read(election, &term) && term.token == token)
		announce(&news);
}

/*
 * Log the end of a term, and announce it, unless the session that deposes the
 * leader does
 */
void
le_report_end(const LeTerm *term, LeEndReason reason)
{
	LeNews		news = {.term = term,.event = LE_ENDED,.reason = reason};

	le_log_end(term, reason);
	if (reason != LE_END_DEPOSED)
		announce(&news);
}

/*
 * Announce that this session has deposed a leader
 */
void
le_announce_deposed(const LeTerm *term, const char *by, const char *why)
{
	LeNews		news = {
		.term = term,
		.event = LE_ENDED,
		.reason = LE_END_DEPOSED,
		.by = by,
		.why = why
	};

	announce(&news);
}

/*
 * Check whether the server's queue of notifications is so full that a commit
 * might fail for it
 *
 * The commit is the application's, which must not fail for the sake of a hint.
 */
static bool
queue_is_full(void)
{
	static uint64 looked_at = 0;
	static bool full = false;
	uint64		now = le_monotonic_us();

	if (now - looked_at > USECS_PER_SEC)
	{
		full = DatumGetFloat8(OidFunctionCall0(F_PG_NOTIFICATION_QUEUE_USAGE)) >
			LE_QUEUE_USAGE_MAX;
		looked_at = now;
		if (full)
			le_log("changes are not announced, because the queue of notifications is nearly full");
	}
	return full;
}

static void
give_announcements(void *unused pg_attribute_unused())
{
	dlist_iter	iter;

	if (queue_is_full())
		return;

	/* needed to notify; if there is none, the commit does not fail for it */
	(void) GetCurrentTransactionId();
	given = true;
	dlist_foreach(iter, &announcements)
		Async_Notify(LE_CHANNEL, dlist_container(LeAnnouncement, node, iter.cur)->payload);
}

/*
 * Give the server what is to be sent with the current commit, unless there is
 * no room for it.  Never raises an error.
 */
void
le_announcements_before_commit(void)
{
	if (!dlist_is_empty(&announcements))
		le_run_safely(give_announcements, NULL);
}

/*
 * After a commit, or the abort of one that was to send them, drop all, and
 * after another abort, what was to become true with the commit.  Never raises
 * an error.
 *
 * Call this before the terms of the transaction are ended, which puts them on
 * the list.
 */
void
le_announcements_at_xact_end(bool is_commit)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &announcements)
	{
		LeAnnouncement *announcement = dlist_container(LeAnnouncement, node, iter.cur);

		if (is_commit || given || announcement->with_commit)
			forget_announcement(announcement);
	}
	given = false;
}
