/*-------------------------------------------------------------------------
 *
 * tell/log.c
 *	  Reports of terms in the server log: one line when a term begins, and one
 *	  when it ends.
 *
 * The callers of ereport hold interrupts.  ereport checks for them when it is
 * done, and a cancel must not come between the two halves of a change.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "tell/tell.h"

/* Indexed by LeScope */
static const char *const scope_names[] = {
	[LE_SCOPE_SESSION] = "session",
	[LE_SCOPE_TRANSACTION] = "transaction",
	[LE_SCOPE_LEASE] = "lease",
};

/*
 * Return the name of a scope in SQL and in the log
 */
const char *
le_scope_name(LeScope scope)
{
	return scope_names[scope];
}

/*
 * Return the client's address, in the form of log_line_prefix, after a comma;
 * an empty string for a local client
 */
static const char *
client_clause(void)
{
	if (MyProcPort == NULL || MyProcPort->remote_host == NULL ||
		MyProcPort->remote_host[0] == '\0' || MyProcPort->remote_host[0] == '[')
		return "";
	return psprintf(", client %s", le_escape_line(MyProcPort->remote_host));
}

/*
 * Log that a term began in this session
 */
void
le_log_begin(const LeTerm *term)
{
	const char *ttl = "";

	if (!le_log_terms)
		return;
	if (term->lasts_us != 0)
		ttl = psprintf(", %s " INT64_FORMAT " ms",
					   term->scope == LE_SCOPE_LEASE ? "ttl" : "heartbeat",
					   term->lasts_us / 1000);
	le_log("election %s: term " INT64_FORMAT " began: \"%s\" leads, process %d%s, %s scope%s",
		   le_name_label(term->name), term->token, le_escape_line(term->identity.string),
		   MyProcPid, client_clause(), scope_names[term->scope], ttl);
}

/*
 * Return how long the term was led until now, or until it expired, in
 * microseconds
 *
 * This uses the wall clock, as the term may have begun before the server
 * started.
 */
static int64
led_us(const LeTerm *term, LeEndReason reason)
{
	int64		led = GetCurrentTimestamp() - term->since;

	if ((reason == LE_END_EXPIRED || reason == LE_END_SILENT) &&
		le_deadline_is_time(term->deadline))
		led -= (int64) (le_monotonic_us() - term->deadline);
	return Max(led, 0);
}

/*
 * Format a time as an interval in hours, minutes, seconds and milliseconds
 */
static const char *
format_duration(int64 us)
{
	return psprintf("%02d:%02d:%02d.%03d", (int) (us / USECS_PER_HOUR),
					(int) (us / USECS_PER_MINUTE % MINS_PER_HOUR),
					(int) (us / USECS_PER_SEC % SECS_PER_MINUTE),
					(int) (us / 1000 % 1000));
}

/*
 * Log that a term ended: the reason, the leader, and the duration
 *
 * The reason comes first, so that no identity can be mistaken for it.
 */
void
le_log_end(const LeTerm *term, LeEndReason reason)
{
	if (!le_log_terms)
		return;
	le_log("election %s: term " INT64_FORMAT " ended: %s, \"%s\" led for %s",
		   le_name_label(term->name), term->token, le_reason_name(reason),
		   le_escape_line(term->identity.string), format_duration(led_us(term, reason)));
}

/*
 * Log which role deposes a leader, and the reason if one was given
 */
void
le_log_deposed(const LeTerm *term, const char *by, const char *why)
{
	const char *colon = why != NULL ? ": " : "";
	const char *line = why != NULL ? le_escape_line(why) : "";

	le_log("election %s: leader \"%s\" with token " INT64_FORMAT " is deposed by role \"%s\", process %d%s%s",
		   le_name_label(term->name), le_escape_line(term->identity.string), term->token,
		   le_escape_line(by), MyProcPid, colon, line);
}
