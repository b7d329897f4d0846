/*-------------------------------------------------------------------------
 *
 * connection.c
 *	  A connection that never blocks, with at most one statement on its way.
 *
 * libpq knows no timeout for a host while it connects without blocking, and
 * tries no other host after one that accepts and closes.  So libpq is given one
 * host at a time.  Each of several hosts gets an equal share of the time for a
 * connection.  connect_timeout can shorten this time, and is for one host, as
 * in libpq.
 *
 * Names of hosts are looked up before that, in a thread.  All addresses of a
 * name are tried as if they were hosts.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include <unistd.h>

#include "common/string.h"

#define MAX_KEYWORDS 12

static const char *const list_names[N_LISTS] = {"host", "hostaddr", "port"};

void
connection_init(Connection *c, const Settings *settings,
				const char *application)
{
	memset(c, 0, sizeof(*c));
	c->settings = settings;
	c->application = application ? pg_strdup(application) : NULL;
	c->lookup = -1;
}

/* Note the last words of a server; other notices are shown if verbose */
static void
take_notice(void *arg, const PGresult *result)
{
	Connection *c = arg;
	const char *severity = PQresultErrorField(result,
											  PG_DIAG_SEVERITY_NONLOCALIZED);
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

	if (!message)
		return;
	if (c && severity && (strcmp(severity, "FATAL") == 0 ||
						  strcmp(severity, "PANIC") == 0))
		strlcpy(c->last_words, message, sizeof(c->last_words));
	else
		pg_log_info("server: %s", message);
}

/* Fill in the parameters of a connection; return how many there are */
static int
fill_keywords(const Settings *settings, const char **keywords,
			  const char **values, bool with_name)
{
	int			i = 0;

#define ADD(keyword, value) (keywords[i] = (keyword), values[i++] = (value))
	ADD("host", settings->host);
	ADD("port", settings->port);
	ADD("user", settings->user);
	ADD("password", settings->password);
	ADD("dbname", settings->dbname);
	if (with_name)
		ADD("fallback_application_name", settings->progname);
	if (!getenv("PGCLIENTENCODING"))
		ADD("client_encoding", "UTF8");
	ADD(NULL, NULL);
#undef ADD
	return i - 1;
}

/* Take what libpq makes of the connection string, services and environment */
static void
read_lists(Connection *c)
{
	const char *keywords[MAX_KEYWORDS];
	const char *values[MAX_KEYWORDS];
	int			n = fill_keywords(c->settings, keywords, values, false);
	PGconn	   *pg;
	PQconninfoOption *all;

	/* so that libpq stops before it looks up a name */
	keywords[n] = "sslmode";
	values[n++] = "?";
	keywords[n] = NULL;
	pg = PQconnectStartParams(keywords, values, 1);
	all = pg ? PQconninfo(pg) : NULL;
	for (PQconninfoOption *o = all; o && o->keyword; o++)
	{
		for (int i = 0; i < N_LISTS; i++)
		{
			if (strcmp(o->keyword, list_names[i]) == 0 && o->val && *o->val)
				c->lists[i] = pg_strdup(o->val);
		}
		if (o->val && strcmp(o->keyword, "connect_timeout") == 0)
			c->connect_timeout = Max(0, atoi(o->val)) * SECOND;
	}
	PQconninfoFree(all);
	PQfinish(pg);
}

static void
forget_lists(Connection *c)
{
	for (int i = 0; i < N_LISTS; i++)
	{
		free(c->lists[i]);
		c->lists[i] = NULL;
	}
}

static void
count_hosts(Connection *c)
{
	c->n_hosts = 1;
	for (int i = LIST_HOST; i <= LIST_HOSTADDR; i++)
	{
		if (c->lists[i])
			c->n_hosts = Max(c->n_hosts, list_length(c->lists[i]));
	}
	c->host %= c->n_hosts;
}

/* Begin to connect to the host whose turn it is */
static void
start_connecting(Connection *c, usec now)
{
	const char *keywords[MAX_KEYWORDS];
	const char *values[MAX_KEYWORDS];
	char	   *elements[N_LISTS] = {NULL};
	int			n = fill_keywords(c->settings, keywords, values,
								  !c->application);

	for (int i = 0; i < N_LISTS; i++)
	{
		int			length;
		const char *element;

		if (!c->lists[i])
			continue;
		element = list_element(c->lists[i], c->host, &length);
		elements[i] = pnstrdup(element, length);
		keywords[n] = list_names[i];
		values[n++] = elements[i];
	}
	keywords[n] = NULL;
	PQfinish(c->pg);
	c->pg = PQconnectStartParams(keywords, values, 1);
	if (!c->pg)
		pg_fatal("out of memory");
	for (int i = 0; i < N_LISTS; i++)
		free(elements[i]);
	c->state = CONNECTION_CONNECTING;
	c->polling = PGRES_POLLING_WRITING;
	c->host_since = now;
	c->last_words[0] = '\0';
	PQsetNoticeReceiver(c->pg, take_notice, c);
}

/* Begin with the names of hosts, or with the connection if there are none */
static void
start_looking_up(Connection *c, usec now)
{
	read_lists(c);
	initPQExpBuffer(&c->text);
	count_hosts(c);
	if (c->lists[LIST_HOST] && !c->lists[LIST_HOSTADDR])
		c->lookup = lookup_start(c->lists[LIST_HOST], c->lists[LIST_PORT] ?
								 c->lists[LIST_PORT] : "");
	if (c->lookup < 0)
	{
		start_connecting(c, now);
		return;
	}
	c->state = CONNECTION_LOOKING_UP;
}

static void
send_statement(Connection *c, const Statement *s, ConnectionState state)
{
	/* if this fails, the connection turns out to be broken */
	if (PQsendQueryParams(c->pg, s->sql, s->n_parameters, NULL, s->parameters,
						  NULL, NULL, 0))
		PQflush(c->pg);
	c->state = state;
}

/*
 * Ask a statement, or only open the connection if it is NULL.  Opens the
 * connection if there is none, for which there is the limit.
 */
void
connection_ask(Connection *c, uint32 serial, const Statement *statement,
			   usec limit, usec now)
{
	Assert(c->state == CONNECTION_CLOSED || c->state == CONNECTION_IDLE);
	c->serial = serial;
	c->begun = false;
	c->limit = limit;
	c->only_open = statement == NULL;
	c->hosts_tried = 0;
	if (statement)
	{
		c->statement = *statement;
		/* its numbers are in the copy, too */
		for (int i = 0; i < statement->n_parameters; i++)
		{
			if (statement->parameters[i] == statement->numbers[i])
				c->statement.parameters[i] = c->statement.numbers[i];
		}
	}
	if (c->state == CONNECTION_CLOSED)
		start_looking_up(c, now);
	else
		send_statement(c, &c->statement, CONNECTION_ASKING);
}

void
connection_close(Connection *c)
{
	if (c->result)
		PQclear(c->result);
	if (c->pg)
		PQfinish(c->pg);
	if (c->lookup >= 0)
		close(c->lookup);
	forget_lists(c);
	termPQExpBuffer(&c->text);
	c->lookup = -1;
	c->result = NULL;
	c->pg = NULL;
	c->state = CONNECTION_CLOSED;
}

/*
 * Fill in what to poll
 */
void
connection_poll(const Connection *c, struct pollfd *fd)
{
	fd->fd = c->lookup >= 0 ? c->lookup : c->pg ? PQsocket(c->pg) : -1;
	fd->events = POLLIN;
	if (c->state == CONNECTION_CONNECTING &&
		c->polling == PGRES_POLLING_WRITING)
		fd->events = POLLOUT;
	else if (c->state > CONNECTION_CONNECTING && PQflush(c->pg) == 1)
		fd->events |= POLLOUT;
}

/*
 * Return when to advance although nothing has arrived
 */
usec
connection_wakeup(const Connection *c)
{
	usec		patience = NEVER;

	if (c->state != CONNECTION_CONNECTING)
		return NEVER;
	if (c->n_hosts > 1)
		patience = c->limit / c->n_hosts;
	if (c->connect_timeout > 0)
		patience = Min(patience, c->connect_timeout);
	return patience == NEVER ? NEVER : c->host_since + patience;
}

static void
set_message(ElectorError *error, const char *message)
{
	strlcpy(error->message, message ? message : "", sizeof(error->message));
	pg_strip_crlf(error->message);
}

/* Describe what has happened to a connection */
static void
note_lost(Connection *c, ElectorError *error)
{
	elector_error(error, ERROR_BROKEN, "%s", "");
	if (c->last_words[0] != '\0')
		set_message(error, c->last_words);
	else
		set_message(error, PQerrorMessage(c->pg));
	if (error->message[0] == '\0')
		set_message(error, "the connection to the server has ended");
}

/* Describe an error of the server, with its detail and hint */
static void
note_error(Connection *c, const PGresult *result, ElectorError *error)
{
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	const char *severity = PQresultErrorField(result,
											  PG_DIAG_SEVERITY_NONLOCALIZED);
	const char *detail = PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL);
	const char *hint = PQresultErrorField(result, PG_DIAG_MESSAGE_HINT);
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

	if (!state)
	{
		note_lost(c, error);
		return;
	}
	elector_error(error, ERROR_SERVER, "%s%s%s%s%s", message ? message : "",
				  detail ? "; " : "",
				  detail ? detail : "", hint ? "; " : "", hint ? hint : "");
	strlcpy(error->sqlstate, state, sizeof(error->sqlstate));
	strlcpy(error->hint, hint ? hint : "", sizeof(error->hint));
	error->fatal = severity && strcmp(severity, "ERROR") != 0;
}

static ReplyKind
fail_statement(Connection *c, Reply *reply)
{
	reply->kind = REPLY_FAILED;
	reply->serial = c->serial;
	c->state = CONNECTION_IDLE;
	return reply->kind;
}

static bool
is_ready(const Connection *c)
{
	struct pollfd fd;

	connection_poll(c, &fd);
	return poll(&fd, 1, 0) > 0;
}

/*
 * Let the next host have its turn; return whether it has not been tried since
 * the statement was asked
 */
static bool
leave_host(Connection *c)
{
	c->host = (c->host + 1) % c->n_hosts;
	return ++c->hosts_tried < c->n_hosts;
}

/* Go on with a connection that is being made; return false while it waits */
static bool
advance_connecting(Connection *c, usec now, Reply *reply)
{
	while (is_ready(c) || PQstatus(c->pg) == CONNECTION_BAD)
	{
		if (PQstatus(c->pg) == CONNECTION_BAD)
			c->polling = PGRES_POLLING_FAILED;
		else
			c->polling = PQconnectPoll(c->pg);
		if (c->polling == PGRES_POLLING_FAILED)
		{
			appendPQExpBufferStr(&c->text, PQerrorMessage(c->pg));
			if (leave_host(c))
			{
				start_connecting(c, now);
				continue;
			}
			elector_error(&reply->error, ERROR_BROKEN, "%s", "");
			set_message(&reply->error, c->text.data);
			fail_statement(c, reply);
			return true;
		}
		if (c->polling == PGRES_POLLING_OK)
		{
			PQsetnonblocking(c->pg, 1);
			c->state = CONNECTION_IDLE;
			return true;
		}
	}
	if (now < connection_wakeup(c))
		return false;
	if (!leave_host(c) && c->connect_timeout > 0)
	{
		elector_error(&reply->error, ERROR_NO_CONNECTION,
					  "no connection to the server within connect_timeout");
		fail_statement(c, reply);
		return true;
	}
	start_connecting(c, now);
	return false;
}

/* Take the lists of hosts, addresses and ports when they have come */
static void
advance_looking_up(Connection *c, usec now, Reply *reply)
{
	char		bytes[1024];
	char	   *next;
	ssize_t		n;

	while ((n = read(c->lookup, bytes, sizeof(bytes))) > 0)
		appendBinaryPQExpBuffer(&c->text, bytes, n);
	if (n < 0)
		return;
	close(c->lookup);
	c->lookup = -1;
	next = c->text.data;
	if (*next == '!')
	{
		elector_error(&reply->error, ERROR_BROKEN, "%s", next + 1);
		fail_statement(c, reply);
		return;
	}
	forget_lists(c);
	for (int i = 0; i < N_LISTS; i++)
		c->lists[i] = pg_strdup(strsep(&next, "\n"));
	resetPQExpBuffer(&c->text);
	count_hosts(c);
	start_connecting(c, now);
}

/* Take results of a statement; return false while it waits for more */
static bool
advance_asking(Connection *c, Reply *reply)
{
	PGresult   *result;
	ExecStatusType status;

	if (PQflush(c->pg) < 0 || !PQconsumeInput(c->pg))
	{
		/* what the server has said before may be there */
		while ((result = PQgetResult(c->pg)) != NULL)
		{
			PQclear(c->result);
			c->result = result;
		}
	}
	else
	{
		for (;;)
		{
			if (PQisBusy(c->pg))
				return false;
			result = PQgetResult(c->pg);
			if (!result)
				break;
			/* of an error and the end of the connection, the first counts */
			if (c->result && PQresultStatus(c->result) == PGRES_FATAL_ERROR)
				PQclear(result);
			else
			{
				PQclear(c->result);
				c->result = result;
			}
		}
	}
	status = PQresultStatus(c->result);
	if (c->result == NULL)
	{
		note_lost(c, &reply->error);
		fail_statement(c, reply);
	}
	else if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
	{
		note_error(c, c->result, &reply->error);
		PQclear(c->result);
		fail_statement(c, reply);
	}
	else
	{
		reply->kind = REPLY_ANSWER;
		reply->serial = c->serial;
		reply->result = c->result;
		c->state = CONNECTION_IDLE;
	}
	c->result = NULL;
	return true;
}

/* Look whether an idle connection has ended */
static void
advance_idle(Connection *c, Reply *reply)
{
	if (!is_ready(c))
		return;
	if (PQconsumeInput(c->pg))
		PQisBusy(c->pg);		/* reads what has arrived */
	if (PQstatus(c->pg) == CONNECTION_BAD)
	{
		reply->kind = REPLY_BROKEN;
		note_lost(c, &reply->error);
		c->last_words[0] = '\0';
	}
}

/*
 * Go on without blocking, and return what has happened.  To be called until it
 * returns REPLY_NONE.
 */
ReplyKind
connection_advance(Connection *c, usec now, Reply *reply)
{
	memset(reply, 0, offsetof(Reply, error));
	switch (c->state)
	{
		case CONNECTION_CLOSED:
			break;
		case CONNECTION_LOOKING_UP:
			advance_looking_up(c, now, reply);
			break;
		case CONNECTION_CONNECTING:
			if (!advance_connecting(c, now, reply) ||
				reply->kind != REPLY_NONE)
				break;
			if (c->application)
			{
				Statement	s;

				statement_settings(&s, c->application);
				send_statement(c, &s, CONNECTION_SETTING);
				break;
			}
			send_statement(c, &c->statement, CONNECTION_ASKING);
			return connection_advance(c, now, reply);
		case CONNECTION_SETTING:
			if (!advance_asking(c, reply) || reply->kind != REPLY_ANSWER)
				break;
			if (c->only_open)
				break;
			PQclear(reply->result);
			reply->result = NULL;
			send_statement(c, &c->statement, CONNECTION_ASKING);
			return connection_advance(c, now, reply);
		case CONNECTION_ASKING:
			if (!c->begun)
			{
				c->begun = true;
				reply->kind = REPLY_BEGUN;
				reply->serial = c->serial;
				break;
			}
			advance_asking(c, reply);
			break;
		case CONNECTION_IDLE:
			advance_idle(c, reply);
			break;
	}
	return reply->kind;
}

/*
 * Connect and wait for that, or exit
 */
PGconn *
connect_now(const Settings *settings)
{
	const char *keywords[MAX_KEYWORDS];
	const char *values[MAX_KEYWORDS];
	PGconn	   *pg;

	fill_keywords(settings, keywords, values, true);
	pg = PQconnectdbParams(keywords, values, 1);
	if (!pg)
		pg_fatal("out of memory");
	PQsetNoticeReceiver(pg, take_notice, NULL);
	return pg;
}
