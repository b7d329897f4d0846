/*-------------------------------------------------------------------------
 *
 * statements.c
 *	  The statements of clients/README.md, "Statements" and "Connections".
 *
 * Each function and view of the extension is written with % before its name,
 * which becomes its schema.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

/*
 * Begin a statement; each % of its text becomes the schema, quoted
 */
void
statement_set(Statement *s, const char *schema, const char *sql)
{
	char	   *to = s->sql;
	char	   *end = s->sql + sizeof(s->sql) - 1;

	s->n_parameters = 0;
	for (; *sql != '\0' && to < end; sql++)
	{
		if (*sql != '%')
			*to++ = *sql;
		else if (schema)
		{
			*to++ = '"';
			for (const char *c = schema; *c != '\0' && to < end - 4; c++)
			{
				if (*c == '"')
					*to++ = '"';
				*to++ = *c;
			}
			*to++ = '"';
			*to++ = '.';
		}
	}
	*to = '\0';
}

void
statement_add(Statement *s, const char *value)
{
	Assert(s->n_parameters < MAX_PARAMETERS);
	s->parameters[s->n_parameters++] = value;
}

void
statement_add_number(Statement *s, int64 value)
{
	char	   *number = s->numbers[s->n_parameters];

	snprintf(number, sizeof(s->numbers[0]), INT64_FORMAT, value);
	statement_add(s, number);
}

/* Add a length of time; 0 is NULL */
static void
add_interval(Statement *s, usec length)
{
	char	   *number = s->numbers[s->n_parameters];

	snprintf(number, sizeof(s->numbers[0]), INT64_FORMAT " ms",
			 length / MILLISECOND);
	statement_add(s, length > 0 ? number : NULL);
}

/*
 * The statement that a session or follower runs first
 */
void
statement_settings(Statement *s, const char *application)
{
	statement_set(s, NULL,
				  "SELECT pg_backend_pid(),"
				  " count(set_config(name, CASE name WHEN 'application_name' THEN $1::text"
				  " WHEN 'client_connection_check_interval' THEN '5s' ELSE '0' END, false))"
				  " FROM pg_settings"
				  " WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_session_timeout',"
				  " 'idle_in_transaction_session_timeout', 'transaction_timeout')"
				  " OR name = 'application_name' AND setting = ''"
				  " OR name = 'client_connection_check_interval' AND setting = '0'");
	statement_add(s, application);
}

static void
set_bid(Statement *s, const Elector *e, const Action *action, usec round)
{
	const ElectorOptions *o = &e->options;
	bool		lease = o->ttl > 0;

	if (!lease)
		statement_set(s, o->schema, o->seats > 0 ?
					  "CALL %le_campaign(%le_seats($1::text, $5::int), timeout => $4::interval, heartbeat => $2::interval, identity => $3::text)" :
					  "CALL %le_campaign($1::text, timeout => $4::interval, heartbeat => $2::interval, identity => $3::text)");
	else if (o->seats > 0)
		statement_set(s, o->schema,
					  "CALL %le_campaign(%le_seats($1::text, $4::int), timeout => '0', ttl => $2::interval, identity => $3::text)");
	else
		statement_set(s, o->schema,
					  "SELECT %le_lease($1::text, $2::interval, identity => $3::text, token => $4::bigint)");
	statement_add(s, o->election);
	add_interval(s, lease ? o->ttl : o->heartbeat);
	statement_add(s, o->identity);
	if (!lease)
	{
		add_interval(s, round);
		if (round <= 0)
			s->parameters[s->n_parameters - 1] = "0";
	}
	else if (o->seats == 0)
	{
		statement_add_number(s, action->number);
		if (action->number == 0)
			s->parameters[s->n_parameters - 1] = NULL;
	}
	if (o->seats > 0)
		statement_add_number(s, o->seats);
}

/*
 * Fill in the statement of an action.  A bid in session scope waits in the
 * server for a round.
 */
void
statement_for(Statement *s, const Elector *e, const Action *action, usec round)
{
	const char *schema = e->options.schema;
	bool		lease = e->options.ttl > 0;

	switch (action->kind)
	{
		case DO_BID:
			set_bid(s, e, action, round);
			return;
		case DO_OBSERVE:
			statement_set(s, schema,
						  "CALL %le_observe($1::text, version => $2::bigint, timeout => '30 s')");
			statement_add(s, e->options.election);
			statement_add_number(s, action->number);
			if (action->number == 0)
				s->parameters[1] = NULL;
			return;
		case DO_BEAT:
			statement_set(s, schema,
						  "SELECT %le_heartbeat($1::text), pg_backend_pid()");
			break;
		case DO_CONFIRM:
			statement_set(s, schema, lease ?
						  "SELECT %le_renew($1::text, $2::bigint)" :
						  "SELECT %le_am_leader($1::text, identity => $2::text), pg_backend_pid()");
			break;
		case DO_RESIGN:
			statement_set(s, schema, lease ?
						  "SELECT %le_resign($1::text, $2::bigint)" :
						  "SELECT %le_resign($1::text, identity => $2::text)");
			break;
		case DO_PROCLAIM:
			statement_set(s, schema, lease ?
						  "SELECT %le_proclaim($1::text, $3::text, $2::bigint)" :
						  "SELECT %le_proclaim($1::text, $2::text)");
			break;
		default:
			Assert(false);
			return;
	}
	statement_add(s, e->term.election);
	if (lease)
		statement_add_number(s, e->term.token);
	else if (action->kind != DO_BEAT && action->kind != DO_PROCLAIM)
		statement_add(s, e->options.identity);
	if (action->kind == DO_PROCLAIM)
		statement_add(s, action->value);
}
