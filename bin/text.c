/*-------------------------------------------------------------------------
 *
 * text.c
 *	  Write times, texts as JSON and for a terminal, and the output.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include <time.h>

/*
 * Write what was printed; return false if that fails, which is then reported
 */
bool
flush_output(void)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return true;
	pg_log_error("could not write output: %m");
	return false;
}

/*
 * Return the time in microseconds since 1970
 */
moment
wall_clock(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec * SECOND + now.tv_nsec / 1000;
}

/*
 * Write a time such as 2026-01-01T12:00:00.123Z
 */
void
write_time(char *string, size_t size, moment time)
{
	time_t		seconds = time / SECOND;
	struct tm	tm;
	size_t		length;

	gmtime_r(&seconds, &tm);
	length = strftime(string, size, "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(string + length, size - length, ".%03dZ",
			 (int) (time % SECOND / 1000));
}

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
 * Append the members of a JSON object that name a leader, or none
 */
void
append_leader(PQExpBuffer buffer, const char *identity, int64 token)
{
	appendPQExpBufferStr(buffer, ", \"identity\": ");
	append_json(buffer, identity);
	if (token != 0)
		appendPQExpBuffer(buffer, ", \"token\": " INT64_FORMAT, token);
	else
		appendPQExpBufferStr(buffer, ", \"token\": null");
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
