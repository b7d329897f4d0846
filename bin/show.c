/*-------------------------------------------------------------------------
 *
 * show.c
 *	  pg_leader list, show, resign and depose.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include <time.h>
#include <unistd.h>

#include "fe_utils/print.h"
#include "mb/pg_wchar.h"

/* What a screen has shown the last time, to tell what has changed since */
typedef struct Row
{
	char		name[4 * MAX_NAME + 1]; /* bytes in UTF-8 */
	char		token[32];
	char		identity[4 * MAX_NAME + 1];
} Row;

typedef struct Screen
{
	Row		   *rows;
	int			n_rows;
	bool		seen;
	char		last_change[4096];
} Screen;

static const char *const list_text =
"SELECT l.name, l.identity AS leader, l.scope, l.token, date_trunc('second', clock_timestamp() - l.since) AS \"led for\","
" l.candidates, l.value"
" FROM %le_leaders AS l WHERE l.name IS NOT NULL AND ($1::text IS NULL OR l.name = $1::text)"
" UNION ALL"
" SELECT c.name, NULL, NULL, NULL, NULL, count(*), NULL FROM %le_candidates AS c"
" WHERE c.name IS NOT NULL AND ($1::text IS NULL OR c.name = $1::text)"
" AND NOT EXISTS (SELECT FROM %le_leaders AS l WHERE l.name = c.name) GROUP BY c.name"
" ORDER BY 1";

static const char *const list_json_text =
"SELECT coalesce(json_agg(t ORDER BY t.name), '[]') FROM (SELECT l.name, l.identity, l.scope, l.token, l.since, l.candidates,"
" l.value, l.usename, l.application_name, l.client_addr, l.expires_in FROM %le_leaders AS l"
" WHERE l.name IS NOT NULL AND ($1::text IS NULL OR l.name = $1::text)) AS t";

static const char *const show_text =
"SELECT l.name AS election, l.identity AS leader, l.scope, l.token, l.since,"
" date_trunc('second', clock_timestamp() - l.since) AS \"led for\","
" l.candidates, l.usename AS role, l.application_name AS application, l.client_addr AS address, l.pid,"
" l.ttl, l.heartbeat, l.expires_in AS \"expires in\", l.value"
" FROM %le_leaders AS l WHERE l.name = $1::text";

static const char *const candidates_text =
"SELECT c.position, c.identity AS candidate, c.usename AS role, c.application_name AS application, c.client_addr AS address,"
" date_trunc('second', clock_timestamp() - c.since) AS \"waits for\", c.waits_for AS obstacle"
" FROM %le_candidates AS c WHERE c.name = $1::text ORDER BY c.position NULLS LAST, c.since LIMIT 100";

static const char *const show_json_text =
"SELECT json_build_object('election', $1::text, 'led', l.name IS NOT NULL, 'identity', l.identity, 'scope', l.scope,"
" 'token', l.token, 'since', l.since, 'candidates', coalesce(l.candidates,"
" (SELECT count(*) FROM %le_candidates WHERE name = $1::text)), 'value', l.value, 'pid', l.pid, 'role', l.usename,"
" 'application', l.application_name, 'address', l.client_addr, 'ttl', l.ttl, 'heartbeat', l.heartbeat), l.name IS NOT NULL"
" FROM (SELECT) AS one LEFT JOIN %le_leaders AS l ON l.name = $1::text";

/* Ask a statement, or NULL if that fails, which is reported */
static PGresult *
ask(PGconn *pg, const Settings *settings, const char *sql,
	const char *parameter)
{
	Statement	s;
	PGresult   *result;
	char		string[4096];

	if (PQstatus(pg) != CONNECTION_OK)
	{
		pg_log_error("%s", PQerrorMessage(pg));
		return NULL;
	}
	Assert(strlen(sql) < sizeof(s.sql));
	statement_set(&s, settings->elector.schema, sql);
	strlcpy(string, s.sql, sizeof(string));
	result = PQexecParams(pg, string, 1, NULL, &parameter, NULL, NULL, 0);
	if (PQresultStatus(result) == PGRES_TUPLES_OK)
		return result;
	pg_log_error("%s", PQerrorMessage(pg));
	PQclear(result);
	return NULL;
}

static void
print_result(const PGresult *result, const char *title, bool expanded)
{
	printQueryOpt options = {.topt = {.format = PRINT_ALIGNED,.border = 1,
	.default_footer = false}};
	char		name[MAX_NAME + 64];

	options.topt.expanded = expanded ? 1 : 0;
	options.topt.start_table = options.topt.stop_table = true;
	options.topt.encoding = PG_UTF8;
	options.nullPrint = pg_strdup("");
	if (title)
	{
		snprintf(name, sizeof(name), "%s", title);
		options.title = name;
	}
	printQuery(result, &options, stdout, false, NULL);
	pg_free(options.nullPrint);
}

static const char *
field(const PGresult *result, int row, const char *name)
{
	int			number = PQfnumber(result, name);

	return number < 0 ? "" : PQgetvalue(result, row, number);
}

static const Row *
find_row(const Screen *screen, const char *name)
{
	for (int i = 0; i < screen->n_rows; i++)
	{
		if (strcmp(screen->rows[i].name, name) == 0)
			return &screen->rows[i];
	}
	return NULL;
}

static void
note_change(Screen *screen, const char *name, const char *before,
			const char *now)
{
	time_t		seconds = time(NULL);
	struct tm	tm;
	char		clock[32];
	PQExpBufferData string;

	localtime_r(&seconds, &tm);
	strftime(clock, sizeof(clock), "%H:%M:%S", &tm);
	initPQExpBuffer(&string);
	appendPQExpBuffer(&string, "%s ", clock);
	append_printable(&string, name);
	appendPQExpBufferStr(&string, ": ");
	append_printable(&string, *before ? before : "no leader");
	appendPQExpBufferStr(&string, " -> ");
	append_printable(&string, *now ? now : "no leader");
	strlcpy(screen->last_change, string.data, sizeof(screen->last_change));
	termPQExpBuffer(&string);
}

/* Note what has changed since the last look */
static void
note_changes(Screen *screen, const PGresult *result)
{
	const char *key = PQfnumber(result, "name") >= 0 ? "name" : "election";
	int			n = PQntuples(result);
	Row		   *rows = pg_malloc0(Max(n, 1) * sizeof(Row));

	for (int i = 0; i < n; i++)
	{
		const Row  *before;

		strlcpy(rows[i].name, field(result, i, key), sizeof(rows[i].name));
		strlcpy(rows[i].token, field(result, i, "token"),
				sizeof(rows[i].token));
		strlcpy(rows[i].identity, field(result, i, "leader"),
				sizeof(rows[i].identity));
		before = find_row(screen, rows[i].name);
		if (screen->seen && (!before || strcmp(before->token,
											   rows[i].token) != 0))
			note_change(screen, rows[i].name, before ? before->identity : "",
						rows[i].identity);
	}
	for (int i = 0; i < screen->n_rows; i++)
	{
		Screen		present = {.rows = rows,.n_rows = n};

		if (!find_row(&present, screen->rows[i].name) &&
			screen->rows[i].token[0] != '\0')
			note_change(screen, screen->rows[i].name, screen->rows[i].identity,
						"");
	}
	pg_free(screen->rows);
	screen->rows = rows;
	screen->n_rows = n;
	screen->seen = true;
}

static void
begin_screen(const Settings *settings)
{
	time_t		seconds = time(NULL);
	struct tm	tm;
	char		clock[64];

	if (settings->watch == 0 || settings->json)
		return;
	localtime_r(&seconds, &tm);
	strftime(clock, sizeof(clock), "%Y-%m-%d %H:%M:%S", &tm);
	if (isatty(STDOUT_FILENO))
		printf("\033[H\033[J");
	printf("%s (every %g s)\n\n", clock, settings->watch / (double) SECOND);
}

static void
end_screen(const Settings *settings, const Screen *screen)
{
	if (settings->watch == 0 || settings->json)
		return;
	if (screen->last_change[0] != '\0')
		printf("last change: %s\n", screen->last_change);
	fflush(stdout);
}

/* Show once; return the exit status */
static int
list_once(PGconn *pg, const Settings *settings, Screen *screen)
{
	PGresult   *result = ask(pg, settings, settings->json ? list_json_text :
							 list_text, NULL);

	if (!result)
		return 1;
	begin_screen(settings);
	if (settings->json)
		printf("%s\n", PQgetvalue(result, 0, 0));
	else
	{
		note_changes(screen, result);
		print_result(result, NULL, false);
	}
	end_screen(settings, screen);
	PQclear(result);
	return 0;
}

static int
show_once(PGconn *pg, const Settings *settings, Screen *screen)
{
	const char *election = settings->elector.election;
	PGresult   *result = ask(pg, settings, settings->json ? show_json_text :
							 show_text, election);
	PGresult   *candidates = NULL;
	bool		led;

	if (!result)
		return 1;
	if (settings->json)
	{
		printf("%s\n", PQgetvalue(result, 0, 0));
		led = *PQgetvalue(result, 0, 1) == 't';
		PQclear(result);
		return led ? 0 : EXIT_NO_LEADER;
	}
	led = PQntuples(result) > 0;
	candidates = ask(pg, settings, candidates_text, election);
	if (candidates)
	{
		begin_screen(settings);
		note_changes(screen, result);
		if (led)
			print_result(result, NULL, true);
		else
			printf("%s: no leader\n\n", election);
		if (PQntuples(candidates) > 0)
			print_result(candidates, NULL, false);
		end_screen(settings, screen);
	}
	PQclear(result);
	PQclear(candidates);
	return candidates ? led ? 0 : EXIT_NO_LEADER : 1;
}

/* Show once, or again and again, also after errors */
static int
show_repeatedly(Settings *settings, int (*show) (PGconn *, const Settings *,
												 Screen *))
{
	PGconn	   *pg = connect_now(settings);
	Screen		screen = {0};
	int			status;

	for (;;)
	{
		status = show(pg, settings, &screen);
		fflush(stdout);
		if (settings->watch == 0 || ferror(stdout))
			break;
		pg_usleep(settings->watch);
		if (PQstatus(pg) != CONNECTION_OK)
			PQreset(pg);
	}
	PQfinish(pg);
	pg_free(screen.rows);
	return status;
}

int
list_command(Settings *settings)
{
	return show_repeatedly(settings, list_once);
}

int
show_command(Settings *settings)
{
	return show_repeatedly(settings, show_once);
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

/*
 * End the term of a lease.  A term in session scope can be resigned by its own
 * session only.
 */
int
resign_command(Settings *settings)
{
	const ElectorOptions *o = &settings->elector;
	PGconn	   *pg = connect_now(settings);
	PGresult   *result = ask(pg, settings,
							 "SELECT scope, token, identity, pid FROM %le_leader($1::text)", o->election);
	Statement	s;
	bool		resigned;
	int			status = EXIT_NO_LEADER;

	PQsetNoticeReceiver(pg, show_notice, NULL);
	if (!result)
		status = 1;
	else if (PQntuples(result) == 0)
		pg_log_warning("election \"%s\" has no leader", o->election);
	else if (settings->token != 0 && strtoll(PQgetvalue(result, 0, 1), NULL,
											 10) != settings->token)
		pg_log_warning("election \"%s\" is led by \"%s\" with token %s",
					   o->election,
					   PQgetvalue(result, 0, 2), PQgetvalue(result, 0, 1));
	else if (settings->has_identity && strcmp(PQgetvalue(result, 0, 2),
											  o->identity) != 0)
		pg_log_warning("election \"%s\" is led by \"%s\"", o->election,
					   PQgetvalue(result, 0, 2));
	else if (strcmp(PQgetvalue(result, 0, 0), "lease") != 0)
	{
		pg_log_error("election \"%s\" is led by \"%s\" in %s scope",
					 o->election,
					 PQgetvalue(result, 0, 2), PQgetvalue(result, 0, 0));
		pg_log_error_hint("Send SIGTERM to that program, or use depose.");
		status = 1;
	}
	else
	{
		const char *parameters[2] = {o->election, PQgetvalue(result, 0, 1)};
		PGresult   *answer;

		statement_set(&s, o->schema,
					  "SELECT %le_resign($1::text, $2::bigint)");
		answer = PQexecParams(pg, s.sql, 2, NULL, parameters, NULL, NULL, 0);
		resigned = PQresultStatus(answer) == PGRES_TUPLES_OK &&
			*PQgetvalue(answer, 0, 0) == 't';
		if (PQresultStatus(answer) != PGRES_TUPLES_OK)
		{
			pg_log_error("%s", PQerrorMessage(pg));
			status = 1;
		}
		else if (resigned)
			status = 0;
		PQclear(answer);
	}
	PQclear(result);
	PQfinish(pg);
	return status;
}

int
depose_command(Settings *settings)
{
	PGconn	   *pg = connect_now(settings);
	const char *parameters[2] = {settings->elector.election, settings->reason};
	Statement	s;
	PGresult   *result;
	int			status = 1;

	PQsetNoticeReceiver(pg, show_notice, NULL);
	statement_set(&s, settings->elector.schema,
				  "SELECT %le_depose($1::text, $2::text)");
	result = PQstatus(pg) == CONNECTION_OK ? PQexecParams(pg, s.sql, 2, NULL,
														  parameters, NULL,
														  NULL, 0) : NULL;
	if (PQresultStatus(result) == PGRES_TUPLES_OK)
		status = *PQgetvalue(result, 0, 0) == 't' ? 0 : EXIT_NO_LEADER;
	else
		pg_log_error("%s", PQerrorMessage(pg));
	PQclear(result);
	PQfinish(pg);
	return status;
}
