/*-------------------------------------------------------------------------
 *
 * every.c
 *	  Find out which time is due, and record what is done.
 *
 * The leader asks the server for its time and for the last due time that is
 * recorded, at the beginning, when a time is due by its own clock, and each
 * minute.  le_once() records a due time, on a connection of its own: before
 * the command starts, so that the command runs at most once for that time, or
 * after the command has succeeded, so that the command is run again if it has
 * not.
 *
 * With a time to wait for an election, the program is itself started by cron,
 * on each host.  It then does what is due, or will be in a minute, as clocks
 * differ, and ends.  If the last time that was done is nearer than the next
 * one, the program was started for that.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include <time.h>

#define LOOK_AGAIN	(60 * SECOND)
#define LIMIT		(5 * SECOND)
#define SKEW		(60 * SECOND)	/* of the clock of a host that runs cron */

enum
{
	STEP_WAIT,					/* until a time */
	STEP_LOOK,					/* asks what is due */
	STEP_RECORD,				/* before the command, or after it */
	STEP_COMMAND				/* the command runs */
};

void
every_begin(Every *every, const Settings *settings, const char *election,
			int64 token, usec began, usec now)
{
	Every		before = *every;

	memset(every, 0, sizeof(*every));
	if (before.succeeded && strcmp(before.election, election) == 0)
	{
		/* could not be recorded in the term before */
		every->succeeded = true;
		every->due = before.due;
		every->next_last = before.next_last;
	}
	every->settings = settings;
	every->token = token;
	every->began = began;
	every->step = STEP_WAIT;
	every->until = now;
	every->once = settings->wait != NEVER;
	strlcpy(every->election, election, sizeof(every->election));
	connection_init(&every->connection, settings, NULL);
}

void
every_end(Every *every)
{
	connection_close(&every->connection);
}

usec
every_wakeup(const Every *every)
{
	if (every->step == STEP_COMMAND)
		return NEVER;
	if (every->step == STEP_WAIT)
		return every->until;
	return Min(every->deadline, connection_wakeup(&every->connection));
}

static void
ask(Every *every, int step, const Statement *statement, usec now)
{
	every->step = step;
	every->deadline = now + LIMIT;
	connection_ask(&every->connection, ++every->serial, statement, LIMIT, now);
}

static void
wait_until(Every *every, usec until)
{
	every->step = STEP_WAIT;
	every->until = until;
}

static void
look(Every *every, usec now)
{
	Statement	s;

	statement_set(&s, every->settings->elector.schema,
				  "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,"
				  " (SELECT (extract(epoch FROM due) * 1000000)::bigint FROM %le_once_done WHERE name = $1::text)");
	statement_add(&s, every->election);
	ask(every, STEP_LOOK, &s, now);
}

static void
record(Every *every, usec now)
{
	Statement	s;

	statement_set(&s, every->settings->elector.schema,
				  "SELECT %le_once($1::text, timestamptz 'epoch' + $2::bigint * interval '1 microsecond', $3::bigint)");
	statement_add(&s, every->election);
	statement_add_number(&s, every->due);
	statement_add_number(&s, every->token);
	ask(every, STEP_RECORD, &s, now);
}

/* Say that no time is near, which may not be what a crontab means */
static void
warn_of_next(const Settings *settings, moment next)
{
	time_t		seconds = next / SECOND;
	char		string[64] = "never";

	if (next != NEVER)
		strftime(string, sizeof(string), "%Y-%m-%d %H:%M:%S%z",
				 localtime(&seconds));
	pg_log_warning("no time is due within a minute in time zone \"%s\": the next one is %s",
				   settings->zone ? settings->zone : getenv("TZ") ?
				   getenv("TZ") : tzname[0], string);
}

/* Take the server's time, and what is recorded */
static void
take_times(Every *every, const PGresult *result, usec now)
{
	const Settings *settings = every->settings;
	moment		server = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
	moment		next;

	if (!PQgetisnull(result, 0, 1))
		every->last = Max(every->last, strtoll(PQgetvalue(result, 0, 1), NULL,
											   10));
	else if (every->last == 0)
		every->last = server - (every->once ? SKEW : now - every->began);
	every->next_last = every->last;
	every->due = schedule_due_missed(&settings->schedule, settings->missed,
									 &every->next_last, server);
	if (every->due == 0)
	{
		/*
		 * another host has run the command for which cron has started this
		 * one
		 */
		bool		done = !PQgetisnull(result, 0, 1) &&
			every->last >= server - (now - every->began) - SKEW;

		if (settings->missed != MISSED_ALL)
			every->last = every->next_last;
		next = schedule_next(&settings->schedule, every->last);
		every->done = every->once &&
			(next == NEVER || next - server > SKEW ||
			 next - server > server - every->last);
		if (every->once && !done && next - server > SKEW)
			warn_of_next(settings, next);
		wait_until(every, now + Max(0, Min(LOOK_AGAIN, next == NEVER ? NEVER :
										   next - server)));
		return;
	}
	if (settings->record_at_end)
	{
		every->step = STEP_COMMAND;
		every->starts = true;
	}
	else
		record(every, now);
}

/* Go on after a due time was recorded, or had been recorded before */
static void
take_record(Every *every, const PGresult *result, usec now)
{
	bool		recorded = *PQgetvalue(result, 0, 0) == 't';

	every->succeeded = false;
	every->last = every->next_last;
	if (recorded && !every->settings->record_at_end)
	{
		every->step = STEP_COMMAND;
		every->starts = true;
	}
	else
	{
		every->done = every->once;
		wait_until(every, now);
	}
}

static void
fail(Every *every, usec now)
{
	connection_close(&every->connection);
	wait_until(every, now + SECOND);
}

/*
 * Go on without blocking.  Sets starts if the command is to be started for the
 * time that is due, and error if one is to be reported.
 */
void
every_advance(Every *every, usec now)
{
	Reply		reply;

	while (connection_advance(&every->connection, now, &reply) != REPLY_NONE)
	{
		if (reply.kind == REPLY_ANSWER)
		{
			if (every->step == STEP_LOOK)
				take_times(every, reply.result, now);
			else if (every->step == STEP_RECORD)
				take_record(every, reply.result, now);
			PQclear(reply.result);
		}
		else if (reply.kind == REPLY_FAILED)
		{
			every->error = reply.error;
			fail(every, now);
		}
		else if (reply.kind == REPLY_BROKEN)
			connection_close(&every->connection);
	}
	/* after it was seen whether the connection has ended meanwhile */
	if (every->step == STEP_WAIT && now >= every->until)
	{
		/* the command is not run again because its record has failed */
		if (every->succeeded)
			record(every, now);
		else
			look(every, now);
	}
	if ((every->step == STEP_LOOK || every->step == STEP_RECORD) &&
		now >= every->deadline)
	{
		elector_error(&every->error, ERROR_TIMEOUT,
					  "no answer from the server about the time that is due");
		fail(every, now);
	}
}

/*
 * Note that the command has ended
 */
void
every_done(Every *every, bool succeeded, usec now)
{
	if (every->settings->record_at_end && succeeded)
	{
		every->pause = 0;
		every->succeeded = true;
		wait_until(every, now);
		return;
	}
	every->done = every->once;
	if (every->settings->record_at_end)
	{
		every->pause = Max(SECOND, Min(60 * SECOND, every->pause * 2));
		wait_until(every, now + every->pause);
	}
	else
		wait_until(every, now);
}
