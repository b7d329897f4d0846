/*-------------------------------------------------------------------------
 *
 * list.c
 *	  pg_leader list and depose.
 *
 * What else can be shown or done by one statement is left to psql.  These two
 * are also for a container that has pg_leader alone.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include "fe_utils/print.h"
#include "mb/pg_wchar.h"

/* Elections that are led, and those that are only waited for */
#define ELECTIONS \
" FROM (SELECT l.name AS election, l.identity, l.token, l.scope, l.since, l.candidates, l.value, l.usename::text AS role," \
" l.application_name AS application, host(l.client_addr) AS address, l.expires_in FROM %le_leaders AS l" \
" UNION ALL SELECT c.name, NULL, NULL, NULL, NULL, count(*), NULL, NULL, NULL, NULL, NULL FROM %le_candidates AS c" \
" WHERE NOT EXISTS (SELECT FROM %le_leaders AS l WHERE l.name = c.name) GROUP BY c.name) AS e" \
" WHERE e.election IS NOT NULL AND ($1::text IS NULL OR e.election = $1::text)"

static const char *const list_text =
"SELECT e.election, e.identity AS leader, e.scope, e.token, date_trunc('second', clock_timestamp() - e.since) AS \"led for\","
" e.candidates, e.value"
ELECTIONS " ORDER BY 1";

static const char *const list_json_text =
"SELECT coalesce(json_agg(json_build_object('election', e.election, 'identity', e.identity, 'token', e.token,"
" 'scope', e.scope, 'since', to_char(e.since AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'),"
" 'candidates', e.candidates, 'value', e.value, 'role', e.role, 'application', e.application, 'address', e.address,"
" 'expires_in', extract(epoch FROM e.expires_in)) ORDER BY e.election), '[]'), count(e.token)"
ELECTIONS;

/* Ask a statement, or return NULL if that fails, which is reported */
static PGresult *
ask(PGconn *pg, const Settings *settings, const char *sql,
	const char *second)
{
	const char *parameters[2] = {settings->elector.election, second};
	Statement	s;
	PGresult   *result = NULL;

	Assert(strlen(sql) < sizeof(s.sql));
	statement_set(&s, settings->elector.schema, sql);
	if (PQstatus(pg) == CONNECTION_OK)
		result = PQexecParams(pg, s.sql, strstr(sql, "$2") ? 2 : 1, NULL,
							  parameters, NULL, NULL, 0);
	if (PQresultStatus(result) == PGRES_TUPLES_OK)
		return result;
	pg_log_error("%s", PQerrorMessage(pg));
	PQclear(result);
	return NULL;
}

static void
print_result(const PGresult *result)
{
	printQueryOpt options = {.topt = {.format = PRINT_ALIGNED,.border = 1,
			.start_table = true,.stop_table = true,.encoding = PG_UTF8
	}};

	printQuery(result, &options, stdout, false, NULL);
}

/*
 * Show the elections; the exit status tells whether the only one is led
 */
int
list_command(Settings *settings)
{
	PGconn	   *pg = connect_now(settings);
	PGresult   *result = ask(pg, settings, settings->json ? list_json_text :
							 list_text, NULL);
	bool		led = !settings->elector.election;

	if (result && settings->json)
	{
		printf("%s\n", PQgetvalue(result, 0, 0));
		led = led || *PQgetvalue(result, 0, 1) != '0';
	}
	else if (result)
	{
		print_result(result);
		led = led || (PQntuples(result) > 0 && !PQgetisnull(result, 0, 3));
	}
	PQfinish(pg);
	if (!result || !flush_output())
		return 1;
	PQclear(result);
	return led ? 0 : EXIT_NO_LEADER;
}

/* Show the warnings of a server, which tell why nothing was done */
static void
show_notice(void *arg, const PGresult *result)
{
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

	(void) arg;
	if (message)
		pg_log_warning("%s", message);
}

int
depose_command(Settings *settings)
{
	PGconn	   *pg = connect_now(settings);
	PGresult   *result;
	int			status = 1;

	PQsetNoticeReceiver(pg, show_notice, NULL);
	result = ask(pg, settings, "SELECT %le_depose($1::text, $2::text)",
				 settings->reason);
	if (result)
		status = *PQgetvalue(result, 0, 0) == 't' ? 0 : EXIT_NO_LEADER;
	PQclear(result);
	PQfinish(pg);
	return status;
}
