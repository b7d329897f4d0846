/*-------------------------------------------------------------------------
 *
 * tell/payload.c
 *	  The payload of a notification: a JSON object in ASCII.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "utils/json.h"

#include "tell/internal.h"

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
