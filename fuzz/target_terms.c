/*-------------------------------------------------------------------------
 *
 * target_terms.c
 *	  What is told of a term, for any leader: notifications and lines of the
 *	  log.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/async.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"

#include "tell/tell.h"
#include "fuzz.h"

/* What is told, of what, by the functions of the extension */
typedef struct LeFuzzNews
{
	uint8		what;			/* 0: elected, 1: proclaimed, 2: deposed, else
								 * ended in another way */
	LeEndReason end_reason;
	LeTerm		term;
	char	   *by;
	char	   *reason;			/* NULL: none */
} LeFuzzNews;

/* Async_Notify, and what stands in its place: see tools/fuzz */
extern void __real_Async_Notify(const char *channel, const char *payload);
extern void __wrap_Async_Notify(const char *channel, const char *payload);

static const LeFuzzNews *told;
static int	notifications;
static int	log_lines;
static emit_log_hook_type next_log_hook;

/*
 * Take a string of 1 to 255 bytes
 */
static void
take_name(LeFuzzInput *input, char *name)
{
	char	   *string = le_fuzz_long_string(input, LE_TEXT_MAX);

	strlcpy(name, string, LE_TEXT_SIZE);
	name[pg_mbcliplen(name, strlen(name), LE_TEXT_MAX)] = '\0';
	if (name[0] == '\0')
		strcpy(name, "x");
}

static void
take_news(LeFuzzInput *input, LeFuzzNews *news)
{
	uint8		flags = le_fuzz_byte(input);
	LeTerm	   *term = &news->term;
	char		by[LE_TEXT_SIZE];
	char		reason[LE_TEXT_SIZE];

	memset(news, 0, sizeof(LeFuzzNews));
	news->what = flags & 3;
	term->identity.has_client = flags & 4;
	term->election.key = le_fuzz_int64(input);
	term->election.database = MyDatabaseId;
	term->token = le_fuzz_int64(input);
	term->lasts_us = le_fuzz_int64(input);
	term->scope = le_fuzz_byte(input) % (LE_SCOPE_LEASE + 1);
	news->end_reason = le_fuzz_byte(input) % LE_END_REASONS;
	take_name(input, term->identity.string);
	take_name(input, by);
	take_name(input, reason);
	take_name(input, term->name);
	term->election.lock_class = LE_CLASS_ELECTION;

	/* the name of a role */
	by[pg_mbcliplen(by, strlen(by), NAMEDATALEN - 1)] = '\0';
	news->by = pstrdup(by);
	news->reason = flags & 16 ? pstrdup(reason) : NULL;
}

/*
 * Is this the value of that member?  expected: NULL for none
 */
static bool
has_string(Jsonb *object, const char *member, const char *expected)
{
	JsonbValue	buffer;
	JsonbValue *value = getKeyJsonValueFromContainer(&object->root, member,
													 strlen(member), &buffer);

	if (expected == NULL)
		return value == NULL;
	return value != NULL && value->type == jbvString &&
		(size_t) value->val.string.len == strlen(expected) &&
		memcmp(value->val.string.val, expected, value->val.string.len) == 0;
}

static bool
has_number(Jsonb *object, const char *member, int64 expected)
{
	JsonbValue	buffer;
	JsonbValue *value = getKeyJsonValueFromContainer(&object->root, member,
													 strlen(member), &buffer);

	return value != NULL && value->type == jbvNumeric &&
		DatumGetInt64(DirectFunctionCall1(numeric_int8,
										  NumericGetDatum(value->val.numeric))) == expected;
}

static void
check_payload(const char *payload)
{
	static const char *const events[] = {"elected", "proclaimed", "ended", "ended"};
	const LeTerm *term = &told->term;
	bool		is_deposed = told->what == 2;
	const char *reason = is_deposed ? le_reason_name(LE_END_DEPOSED) :
		told->what == 3 ? le_reason_name(told->end_reason) : NULL;
	const char *why = is_deposed ? told->reason : NULL;
	Jsonb	   *object;

	for (const char *next = payload; *next != '\0'; next++)
		LE_FUZZ_CHECK(*next >= ' ' && !IS_HIGHBIT_SET(*next));

	/* the server takes no such escape where it knows no encoding */
	for (const char *next = payload; GetDatabaseEncoding() == PG_SQL_ASCII && *next != '\0'; next++)
	{
		if (strncmp(next, "\\u00", 4) == 0 && next[4] >= '8')
			return;
	}
	object = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(payload)));
	LE_FUZZ_CHECK(JB_ROOT_IS_OBJECT(object));
	LE_FUZZ_CHECK(JB_ROOT_COUNT(object) == 4 + is_deposed + (reason != NULL) + (why != NULL));
	LE_FUZZ_CHECK(has_string(object, "election", term->name));
	LE_FUZZ_CHECK(has_string(object, "event", events[told->what]));
	LE_FUZZ_CHECK(has_number(object, "token", term->token));
	LE_FUZZ_CHECK(has_string(object, "identity", le_identity_public(&term->identity)));
	LE_FUZZ_CHECK(has_string(object, "by", is_deposed ? told->by : NULL));
	LE_FUZZ_CHECK(has_string(object, "reason", reason));
	LE_FUZZ_CHECK(has_string(object, "why", why));
}

static void
notify(void *payload)
{
	__real_Async_Notify("leader_election", payload);
}

/*
 * What notify.c hands to the server; the server takes it, too, and forgets it again
 */
void
__wrap_Async_Notify(const char *channel, const char *payload)
{
	if (told == NULL)
	{
		__real_Async_Notify(channel, payload);
		return;
	}
	LE_FUZZ_CHECK(strcmp(channel, "leader_election") == 0);
	notifications++;
	check_payload(payload);
	LE_FUZZ_CHECK(le_fuzz_try(notify, unconstify(char *, payload)) == 0);
}

void
le_fuzz_notifications(LeFuzzInput *input)
{
	static const LeEvent events[] = {LE_ELECTED, LE_PROCLAIMED, LE_ENDED};
	LeFuzzNews	fuzzed;
	LeNews		news = {.term = &fuzzed.term};
	StringInfoData payload;

	take_news(input, &fuzzed);
	told = &fuzzed;
	notifications = 0;
	news.event = events[Min(fuzzed.what, 2)];
	news.reason = fuzzed.what == 2 ? LE_END_DEPOSED : fuzzed.end_reason;
	news.by = fuzzed.what == 2 ? fuzzed.by : NULL;
	news.why = fuzzed.what == 2 ? fuzzed.reason : NULL;
	initStringInfo(&payload);
	le_fill_payload(&payload, &news);
	Async_Notify("leader_election", le_payload_to_ascii(payload.data));
	told = NULL;
	LE_FUZZ_CHECK(notifications == 1);
}

/*
 * Does the line tell that string, with its control characters and quotes escaped?
 */
static bool
tells(const char *line, const char *string)
{
	return strstr(line, le_escape_line(string)) != NULL;
}

/*
 * The same, in quotes
 */
static bool
quotes(const char *line, const char *string)
{
	return strstr(line, psprintf("\"%s\"", le_escape_line(string))) != NULL;
}

/*
 * Look at each line of the extension, in place of the log
 */
static void
check_log_line(ErrorData *error)
{
	if (told != NULL && error->elevel == LOG_SERVER_ONLY)
	{
		const LeTerm *term = &told->term;
		const char *line = error->message;

		log_lines++;
		error->output_to_server = false;
		LE_FUZZ_CHECK(strncmp(line, "leader_election: election ", 26) == 0);
		LE_FUZZ_CHECK(le_fuzz_is_one_line(line));
		LE_FUZZ_CHECK(error->hide_stmt && error->detail == NULL && error->hint == NULL);
		LE_FUZZ_CHECK(quotes(line, term->name));
		LE_FUZZ_CHECK(tells(line, psprintf(INT64_FORMAT, term->token)));
		if (told->what != 3)
			LE_FUZZ_CHECK(quotes(line, term->identity.string));
		if (told->what == 2)
			LE_FUZZ_CHECK(quotes(line, told->by) &&
						  (told->reason == NULL || tells(line, told->reason)));
	}
	if (next_log_hook != NULL)
		next_log_hook(error);
}

void
le_fuzz_prepare_log_lines(void)
{
	SetConfigOption("log_min_messages", "log", PGC_SUSET, PGC_S_SESSION);
	next_log_hook = emit_log_hook;
	emit_log_hook = check_log_line;
}

void
le_fuzz_log_lines(LeFuzzInput *input)
{
	LeFuzzNews	news;

	take_news(input, &news);
	told = &news;
	log_lines = 0;
	if (news.what < 2)
		le_log_begin(&news.term);
	else if (news.what == 2)
		le_log_deposed(&news.term, news.by, news.reason);
	else
		le_log_end(&news.term, news.end_reason);
	told = NULL;
	LE_FUZZ_CHECK(log_lines == 1);
}
