/*-------------------------------------------------------------------------
 *
 * http.c
 *	  Answer probes by HTTP, with libmicrohttpd.
 *
 * The library runs in the loop of the program, and has no thread.  What it
 * says is so at that moment: if the loop hangs, a probe gets no answer.
 *
 *	/live		200 as long as the loop goes on, whatever the server does
 *	/ready		200 if it waits or leads, and in the first minute, else 503
 *	/health		200 if it waits or leads, else 503
 *	/leader		200 if this process leads, else 503, with a JSON object
 *	/metrics	for Prometheus
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#ifdef USE_MICROHTTPD

#include <microhttpd.h>
#include <netdb.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_ADDRESSES 8
#define MAX_CONNECTIONS 100		/* then the oldest one is closed */
#define CLOSING_CONNECTIONS 28	/* for each address, besides these */
#define MAX_SECONDS 5			/* for a connection */
#define MEMORY_LIMIT 4096		/* of a connection */
#define READY_AT_FIRST	(60 * SECOND)

#if MHD_VERSION < 0x00097002
typedef int HttpResult;
#else
typedef enum MHD_Result HttpResult;
#endif

/* A daemon for each address, and the descriptor to poll for all */
static struct MHD_Daemon *daemons[MAX_ADDRESSES];
static int	n_daemons;
static int	http_epoll = -1;

/* The library limits only how long a connection is idle */
typedef struct OpenConnection
{
	int			fd;
	usec		end;			/* 0: this one is free; 1: is being closed */
}			OpenConnection;

static OpenConnection open_connections[MAX_ADDRESSES *
									   (MAX_CONNECTIONS + CLOSING_CONNECTIONS)];
static void (*get_status) (HttpStatus *status);
static usec began;

static void
write_leader(PQExpBuffer body, const HttpStatus *s)
{
	char		since[64];

	appendPQExpBufferStr(body, "{\"election\": ");
	append_json(body, s->election);
	append_leader(body, s->identity, s->token);
	appendPQExpBuffer(body, ", \"leading\": %s, \"since\": ", s->leading ?
					  "true" : "false");
	if (s->token != 0)
		write_time(since, sizeof(since), s->since);
	append_json(body, s->token != 0 ? since : NULL);
	appendPQExpBufferStr(body, ", \"state\": ");
	append_json(body, s->state);
	appendPQExpBufferStr(body, "}\n");
}

static void
write_metric(PQExpBuffer body, const char *name, const char *type,
			 const char *help, const HttpStatus *s, int64 value)
{
	appendPQExpBuffer(body, "# HELP %s %s\n# TYPE %s %s\n%s{election=\"", name,
					  help, name, type, name);
	for (const char *c = s->election; *c != '\0'; c++)
	{
		if (*c == '\n')
			appendPQExpBufferStr(body, "\\n");
		else
			appendPQExpBuffer(body, *c == '"' || *c == '\\' ? "\\%c" : "%c",
							  *c);
	}
	appendPQExpBuffer(body, "\"} " INT64_FORMAT "\n", value);
}

static void
write_metrics(PQExpBuffer body, const HttpStatus *s)
{
	write_metric(body, "leader_election_leading", "gauge",
				 "1 if this process leads the election.", s, s->leading);
	write_metric(body, "leader_election_healthy", "gauge",
				 "1 if the process waits or leads, 0 in doubt.", s,
				 s->healthy);
	write_metric(body, "leader_election_token", "gauge",
				 "Token of the present term, or 0.", s, s->token);
	if (!s->follows)
	{
		write_metric(body, "leader_election_terms_total", "counter",
					 "Terms that this process has led.", s, s->elector->terms);
		write_metric(body, "leader_election_confirmations_total", "counter",
					 "Confirmations of leadership.",
					 s, s->elector->confirmations);
	}
	write_metric(body, "leader_election_errors_total", "counter",
				 "Errors that were reported.", s, s->elector->errors);
}

/* Write the body of an answer, and return its status */
static int
write_answer(PQExpBuffer body, const char *url, const char *method,
			 const char **type)
{
	HttpStatus	status;
	bool		good = true;

	get_status(&status);
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 &&
		strcmp(method, MHD_HTTP_METHOD_HEAD) != 0 &&
		strcmp(method, MHD_HTTP_METHOD_OPTIONS) != 0)
	{
		appendPQExpBufferStr(body, "only GET, HEAD and OPTIONS are allowed\n");
		return MHD_HTTP_METHOD_NOT_ALLOWED;
	}
	if (strcmp(url, "/leader") == 0)
	{
		good = status.leading;
		*type = "application/json";
		write_leader(body, &status);
	}
	else if (strcmp(url, "/live") == 0 || strcmp(url, "/ready") == 0 ||
			 strcmp(url, "/health") == 0)
	{
		good = status.healthy || url[1] == 'l' ||
			(url[1] == 'r' && clock_now() < began + READY_AT_FIRST);
		appendPQExpBuffer(body, "%s\n", status.health);
	}
	else if (strcmp(url, "/metrics") == 0)
	{
		*type = "text/plain; version=0.0.4; charset=utf-8";
		write_metrics(body, &status);
	}
	else
	{
		appendPQExpBufferStr(body,
							 "not found: there are /live, /ready, /health, /leader and /metrics\n");
		return MHD_HTTP_NOT_FOUND;
	}
	return good ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
}

static HttpResult
answer_request(void *arg, struct MHD_Connection *connection, const char *url,
			   const char *method, const char *version,
			   const char *upload, size_t *upload_size, void **state)
{
	PQExpBufferData body;
	int			code;
	const char *type = "text/plain; charset=utf-8";
	struct MHD_Response *response;
	HttpResult	result;

	(void) arg;
	(void) version;
	(void) upload;
	if (*upload_size > 0)
	{
		*upload_size = 0;		/* what is sent is not read */
		return MHD_YES;
	}
	if (*state == NULL)
	{
		*state = &daemons;		/* at the first call, there are headers only */
		return MHD_YES;
	}
	initPQExpBuffer(&body);
	code = write_answer(&body, url, method, &type);
	response = MHD_create_response_from_buffer(body.len, body.data,
											   MHD_RESPMEM_MUST_COPY);
	termPQExpBuffer(&body);
	if (!response)
		return MHD_NO;
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL,
							"no-store");
	/* as a connection does not last */
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
	if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW,
								"GET, HEAD, OPTIONS");
	result = MHD_queue_response(connection, code, response);
	MHD_destroy_response(response);
	return result;
}

static void
ignore_message(void *arg, const char *fmt, va_list args)
{
	(void) arg;
	(void) fmt;
	(void) args;
}

static void
end_connection(OpenConnection * open)
{
	open->end = 1;
	shutdown(open->fd, SHUT_RDWR);
}

/*
 * Note when a connection is to end, or that it has ended.  So that no probe
 * waits for clients that say nothing, a new one takes the place of the oldest.
 */
static void
note_connection(void *arg, struct MHD_Connection *connection, void **context,
				enum MHD_ConnectionNotificationCode code)
{
	OpenConnection *open = *context;
	OpenConnection *oldest = NULL;
	int			n = 0;
	const union MHD_ConnectionInfo *info;

	(void) arg;
	if (code == MHD_CONNECTION_NOTIFY_CLOSED)
	{
		if (open)
			open->end = 0;
		return;
	}
	info = MHD_get_connection_info(connection,
								   MHD_CONNECTION_INFO_CONNECTION_FD);
	for (OpenConnection * c = open_connections;
		 c < open_connections + lengthof(open_connections); c++)
	{
		n += c->end > 1;
		if (c->end > 1 && (!oldest || c->end < oldest->end))
			oldest = c;
		if (c->end == 0)
			open = c;
	}
	if (!info || !open)
		return;
	open->fd = info->connect_fd;
	open->end = clock_now() + MAX_SECONDS * SECOND;
	*context = open;
	if (n >= MAX_CONNECTIONS)
		end_connection(oldest);
}

static bool
start_daemon(const struct addrinfo *address)
{
	struct epoll_event event = {.events = EPOLLIN};
	struct MHD_Daemon *started;

	started = MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_ERROR_LOG |
							   (address->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0),
							   0, NULL, NULL, answer_request, NULL,
							   MHD_OPTION_EXTERNAL_LOGGER, ignore_message, NULL,
							   MHD_OPTION_NOTIFY_CONNECTION, note_connection,
							   NULL,
							   MHD_OPTION_SOCK_ADDR, address->ai_addr,
							   MHD_OPTION_CONNECTION_LIMIT,
							   (unsigned int) MAX_CONNECTIONS +
							   CLOSING_CONNECTIONS,
							   MHD_OPTION_CONNECTION_TIMEOUT,
							   (unsigned int) MAX_SECONDS,
							   MHD_OPTION_CONNECTION_MEMORY_LIMIT,
							   (size_t) MEMORY_LIMIT,
							   MHD_OPTION_END);
	if (!started)
		return false;
	epoll_ctl(http_epoll, EPOLL_CTL_ADD,
			  MHD_get_daemon_info(started,
								  MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd, &event);
	daemons[n_daemons++] = started;
	return true;
}

/*
 * Listen on an address of the form HOST:PORT or PORT; without a host, on
 * 127.0.0.1 only.  Of the addresses of a name, those that this machine does
 * not have are left out, as ::1 without IPv6.
 */
bool
http_start(const char *address, void (*status) (HttpStatus *))
{
	char		host[256] = "127.0.0.1";
	const char *colon = strrchr(address, ':');
	const char *port = colon ? colon + 1 : address;
	struct addrinfo hints = {.ai_family = AF_UNSPEC,.ai_socktype = SOCK_STREAM,
	.ai_flags = AI_PASSIVE};
	struct addrinfo *found = NULL;
	int			rc;

	get_status = status;
	began = clock_now();
	if (colon && colon != address)
		snprintf(host, sizeof(host), "%.*s", (int) (colon - address), address);
	if (*host == '[' && host[strlen(host) - 1] == ']')
	{
		host[strlen(host) - 1] = '\0';
		memmove(host, host + 1, strlen(host));
	}
	/* getaddrinfo() takes 65536 for 0 */
	if (strspn(port, "0123456789") != strlen(port) || *port == '\0' ||
		strlen(port) > 5 || atoi(port) > 65535)
	{
		pg_log_error("invalid port to listen on: \"%s\": it is from 0 to 65535",
					 port);
		return false;
	}
	rc = getaddrinfo(strcmp(host, "*") == 0 ? NULL : host, port, &hints,
					 &found);
	if (rc != 0)
	{
		pg_log_error("invalid address to listen on: \"%s\": %s", address,
					 gai_strerror(rc));
		return false;
	}
	http_epoll = epoll_create1(EPOLL_CLOEXEC);
	if (http_epoll < 0)
		pg_log_error("could not listen on \"%s\": %m", address);
	for (struct addrinfo *a = found; a && http_epoll >= 0 &&
		 n_daemons < MAX_ADDRESSES; a = a->ai_next)
	{
		if (!start_daemon(a) &&
			((errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT) ||
			 (!a->ai_next && n_daemons == 0)))
		{
			pg_log_error("could not listen on \"%s\": %m", address);
			http_stop();
			break;
		}
	}
	freeaddrinfo(found);
	return n_daemons > 0;
}

void
http_poll(struct pollfd *fd)
{
	fd->fd = n_daemons > 0 ? http_epoll : -1;
	fd->events = POLLIN;
}

usec
http_wakeup(usec now)
{
	MHD_UNSIGNED_LONG_LONG timeout;
	usec		wakeup = NEVER;

	for (int i = 0; i < n_daemons; i++)
	{
		if (MHD_get_timeout(daemons[i], &timeout) == MHD_YES)
			wakeup = Min(wakeup, now + (usec) Min(timeout, 1000) * MILLISECOND);
	}
	return wakeup;
}

void
http_advance(void)
{
	usec		now = n_daemons > 0 ? clock_now() : 0;

	for (size_t i = 0; i < lengthof(open_connections); i++)
	{
		if (open_connections[i].end > 1 && now >= open_connections[i].end)
			end_connection(&open_connections[i]);
	}
	for (int i = 0; i < n_daemons; i++)
		MHD_run(daemons[i]);
}

void
http_stop(void)
{
	while (n_daemons > 0)
		MHD_stop_daemon(daemons[--n_daemons]);
	if (http_epoll >= 0)
		close(http_epoll);
	http_epoll = -1;
}

#else							/* USE_MICROHTTPD */

bool
http_start(const char *address, void (*status) (HttpStatus *))
{
	(void) address;
	(void) status;
	pg_log_error("--listen is not supported by this build");
	pg_log_error_hint("Build pg_leader with libmicrohttpd.");
	return false;
}

void
http_poll(struct pollfd *fd)
{
	fd->fd = -1;
}

usec
http_wakeup(usec now)
{
	(void) now;
	return NEVER;
}

void
http_advance(void)
{
}

void
http_stop(void)
{
}

#endif							/* USE_MICROHTTPD */
