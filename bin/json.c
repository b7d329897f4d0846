/*-------------------------------------------------------------------------
 *
 * json.c
 *	  Write texts as JSON, and for a terminal.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

/*
 * Append a text in UTF-8 as a JSON string, or null
 */
void
append_json(PQExpBuffer buffer, const char *string)
{
	if (!string)
	{
		appendPQExpBufferStr(buffer, "null");
		return;
	}
	appendPQExpBufferChar(buffer, '"');
	for (; *string != '\0'; string++)
	{
		unsigned char c = (unsigned char) *string;

		if (c == '"' || c == '\\')
			appendPQExpBuffer(buffer, "\\%c", c);
		else if (c < 0x20 || c == 0x7f)
			appendPQExpBuffer(buffer, "\\u%04x", c);
		else
			appendPQExpBufferChar(buffer, c);
	}
	appendPQExpBufferChar(buffer, '"');
}

/*
 * Append a text without the control characters that a terminal would obey
 */
void
append_printable(PQExpBuffer buffer, const char *string)
{
	for (; *string != '\0'; string++)
	{
		unsigned char c = (unsigned char) *string;

		if (c < 0x20 || c == 0x7f)
			appendPQExpBuffer(buffer, "\\x%02x", c);
		else
			appendPQExpBufferChar(buffer, c);
	}
}
