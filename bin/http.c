/*-------------------------------------------------------------------------
 *
 * http.c
 *	  Answer probes by HTTP, with libmicrohttpd.
 *
 * The library runs in the loop of the program, and has no thread.  What it
 * says is so at that moment: if the loop hangs, a probe gets no answer.
 *
 *	/leader		200 if this process leads, else 503, with a JSON object
 *	/health		200 if it waits or leads, else 503
 *	/metrics	for Prometheus
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#ifdef USE_MICROHTTPD

#include <microhttpd.h>
#include <netdb.h>
#include <sys/socket.h>
#include <time.h>

#define MAX_CONNECTIONS 100
#define MAX_SECONDS 5			/* for a request */
#define MEMORY_LIMIT 4096		/* of a connection */

#if MHD_VERSION < 0x00097002
typedef int HttpResult;
#else
typedef enum MHD_Result HttpResult;
#endif

static struct MHD_Daemon *http_daemon;
static void (*get_status) (HttpStatus *status);

static void
write_leader(PQExpBuffer body, const HttpStatus *s)
{
	appendPQExpBufferStr(body, "{\"election\": ");
	append_json(body, s->election);
	appendPQExpBuffer(body, ", \"leader\": %s, \"token\": ", s->leading ?
					  "true" : "false");
	if (s->token != 0)
		appendPQExpBuffer(body, INT64_FORMAT, s->token);
	else
		appendPQExpBufferStr(body, "null");
	appendPQExpBufferStr(body, ", \"since\": ");
	if (s->token != 0 && s->since != 0)
	{
		time_t		since = (time_t) s->since;
		struct tm	tm;
		char		text[32];

		gmtime_r(&since, &tm);
		strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm);
		append_json(body, text);
	}
	else
		appendPQExpBufferStr(body, "null");
	appendPQExpBufferStr(body, ", \"identity\": ");
	append_json(body, s->identity);
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
	write_metric(body, "pg_leader_leading", "gauge",
				 "1 if this process leads the election.", s, s->leading);
	write_metric(body, "pg_leader_healthy", "gauge",
				 "1 if the process waits or leads, 0 in doubt.", s,
				 s->healthy);
	write_metric(body, "pg_leader_token", "gauge",
				 "Token of the present term, or 0.", s, s->token);
	if (!s->follows)
	{
		write_metric(body, "pg_leader_terms_total", "counter",
					 "Terms that this process has led.", s, s->elector->terms);
		write_metric(body, "pg_leader_confirmations_total", "counter",
					 "Confirmations of leadership.",
					 s, s->elector->confirmations);
	}
	write_metric(body, "pg_leader_errors_total", "counter",
				 "Errors that were reported.", s, s->elector->errors);
}

static HttpResult
answer_request(void *arg, struct MHD_Connection *connection, const char *url,
			   const char *method,
			   const char *version, const char *upload, size_t *upload_size,
			   void **state)
{
	HttpStatus	status;
	PQExpBufferData body;
	int			code = MHD_HTTP_NOT_FOUND;
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
		*state = &http_daemon;	/* at the first call, there are headers only */
		return MHD_YES;
	}
	get_status(&status);
	initPQExpBuffer(&body);
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 &&
		strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
	{
		code = MHD_HTTP_METHOD_NOT_ALLOWED;
		appendPQExpBufferStr(&body, "only GET and HEAD are allowed\n");
	}
	else if (strcmp(url, "/leader") == 0)
	{
		code = status.leading ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
		type = "application/json";
		write_leader(&body, &status);
	}
	else if (strcmp(url, "/health") == 0)
	{
		code = status.healthy ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
		appendPQExpBuffer(&body, "%s\n", status.health);
	}
	else if (strcmp(url, "/metrics") == 0)
	{
		code = MHD_HTTP_OK;
		type = "text/plain; version=0.0.4; charset=utf-8";
		write_metrics(&body, &status);
	}
	else
		appendPQExpBufferStr(&body,
							 "not found: there are /leader, /health and /metrics\n");

	response = MHD_create_response_from_buffer(body.len, body.data,
											   MHD_RESPMEM_MUST_COPY);
	termPQExpBuffer(&body);
	if (!response)
		return MHD_NO;
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL,
							"no-store");
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

/*
 * Listen on an address of the form HOST:PORT or PORT; without a host, on
 * 127.0.0.1 only
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
	if (colon && colon != address)
		snprintf(host, sizeof(host), "%.*s", (int) (colon - address), address);
	if (*host == '[' && host[strlen(host) - 1] == ']')
	{
		host[strlen(host) - 1] = '\0';
		memmove(host, host + 1, strlen(host));
	}
	rc = *port == '\0' ? EAI_NONAME : getaddrinfo(strcmp(host, "*") == 0 ?
												  NULL : host, port, &hints,
												  &found);
	if (rc != 0)
	{
		pg_log_error("invalid address to listen on: \"%s\": %s", address,
					 gai_strerror(rc));
		return false;
	}
	http_daemon = MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_ERROR_LOG |
								   (found->ai_family == AF_INET6 ?
									MHD_USE_IPv6 : 0),
								   0, NULL, NULL, answer_request, NULL,
								   MHD_OPTION_EXTERNAL_LOGGER, ignore_message,
								   NULL,
								   MHD_OPTION_SOCK_ADDR, found->ai_addr,
								   MHD_OPTION_CONNECTION_LIMIT,
								   (unsigned int) MAX_CONNECTIONS,
								   MHD_OPTION_CONNECTION_TIMEOUT,
								   (unsigned int) MAX_SECONDS,
								   MHD_OPTION_CONNECTION_MEMORY_LIMIT,
								   (size_t) MEMORY_LIMIT,
								   MHD_OPTION_END);
	freeaddrinfo(found);
	if (!http_daemon)
		pg_log_error("could not listen on \"%s\": %m", address);
	return http_daemon != NULL;
}

void
http_poll(struct pollfd *fd)
{
	const union MHD_DaemonInfo *info = http_daemon ?
		MHD_get_daemon_info(http_daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;

	fd->fd = info ? info->epoll_fd : -1;
	fd->events = POLLIN;
}

usec
http_wakeup(usec now)
{
	MHD_UNSIGNED_LONG_LONG timeout;

	if (!http_daemon || MHD_get_timeout(http_daemon, &timeout) != MHD_YES)
		return NEVER;
	return now + (usec) Min(timeout, 1000) * MILLISECOND;
}

void
http_advance(void)
{
	if (http_daemon)
		MHD_run(http_daemon);
}

void
http_stop(void)
{
	if (http_daemon)
		MHD_stop_daemon(http_daemon);
	http_daemon = NULL;
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
