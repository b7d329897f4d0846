/*-------------------------------------------------------------------------
 *
 * lookup.c
 *	  Look up the names of hosts in a thread, as getaddrinfo() can wait for a
 *	  server of names for a long time.
 *
 * The answer comes through a pipe.  If nothing waits for it any more, the
 * thread ends without a trace when getaddrinfo() returns.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <unistd.h>

typedef struct Lookup
{
	int			fd;
	char	   *hosts;
	char	   *ports;
} Lookup;

/*
 * Return the element of a list with commas, or the list's only one
 */
const char *
list_element(const char *list, int index, int *length)
{
	int			found = 0;

	if (!strchr(list, ','))
		index = 0;
	while (found < index && strchr(list, ','))
	{
		list = strchr(list, ',') + 1;
		found++;
	}
	*length = (int) strcspn(list, ",");
	return list;
}

int
list_length(const char *list)
{
	int			n = 1;

	for (; *list != '\0'; list++)
		n += *list == ',';
	return n;
}

/* Return whether a host is no folder of a socket */
static bool
is_remote(const char *host)
{
	return *host != '\0' && !strchr("/@,", *host);
}

/* Append a host, its address, and its port to these lists */
static void
add_address(PQExpBufferData *lists, const char *host, const char *address,
			const char *port, int port_length)
{
	const char *comma = lists[2].len > 0 ? "," : "";

	appendPQExpBuffer(&lists[0], "%s%s", comma, host);
	appendPQExpBuffer(&lists[1], "%s%s", comma, address);
	appendPQExpBuffer(&lists[2], "%s%.*s", *comma ? comma : "\n", port_length,
					  port);
}

/* The thread: send three lists, or an error after a ! */
static void *
look_up(void *arg)
{
	Lookup	   *l = arg;
	PQExpBufferData lists[3];
	PQExpBufferData error;
	sigset_t	all;

	/* signals are for the loop, and SIGPIPE is for nothing */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	for (int i = 0; i < 3; i++)
		initPQExpBuffer(&lists[i]);
	initPQExpBuffer(&error);
	for (int i = 0; i < list_length(l->hosts); i++)
	{
		char		host[NI_MAXHOST];
		char		address[NI_MAXHOST];
		int			length;
		int			port_length;
		const char *element = list_element(l->hosts, i, &length);
		const char *port = list_element(l->ports, i, &port_length);
		struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
		struct addrinfo *found = NULL;
		int			rc = 0;

		snprintf(host, sizeof(host), "%.*s", length, element);
		if (!is_remote(host))
			add_address(lists, host, "", port, port_length);
		else if ((rc = getaddrinfo(host, NULL, &hints, &found)) != 0)
			printfPQExpBuffer(&error, "could not translate host name \"%s\" to address: %s",
							  host, gai_strerror(rc));
		for (struct addrinfo *a = found; a; a = a->ai_next)
		{
			if (getnameinfo(a->ai_addr, a->ai_addrlen, address,
							sizeof(address), NULL, 0, NI_NUMERICHOST) == 0)
				add_address(lists, host, address, port, port_length);
		}
		if (found)
			freeaddrinfo(found);
	}
	if (lists[2].len == 0)
		printfPQExpBuffer(&lists[0], "!%s", error.data);
	else
		appendPQExpBuffer(&lists[0], "\n%s%s", lists[1].data, lists[2].data);
	if (write(l->fd, lists[0].data, lists[0].len) < 0)
		pg_log_debug("no longer waited for: %m");
	close(l->fd);
	for (int i = 0; i < 3; i++)
		termPQExpBuffer(&lists[i]);
	termPQExpBuffer(&error);
	free(l->hosts);
	free(l->ports);
	free(l);
	return NULL;
}

/*
 * Begin to look up the names of a list of hosts.  Return the pipe through
 * which the lists of hosts, of addresses and of ports will come, or -1 if
 * there is nothing to look up, or no thread can be had.
 */
int
lookup_start(const char *hosts, const char *ports)
{
	int			fds[2];
	Lookup	   *l;
	pthread_t	thread;
	bool		any = false;

	for (int i = 0; i < list_length(hosts); i++)
	{
		int			length;

		any = any || is_remote(list_element(hosts, i, &length));
	}
	if (!any || pipe(fds) != 0)
		return -1;
	for (int i = 0; i < 2; i++)
		fcntl(fds[i], F_SETFD, FD_CLOEXEC);
	fcntl(fds[0], F_SETFL, O_NONBLOCK);
	l = pg_malloc(sizeof(Lookup));
	*l = (Lookup)
	{
		.fd = fds[1],.hosts = pg_strdup(hosts),.ports = pg_strdup(ports)
	};
	if (pthread_create(&thread, NULL, look_up, l) == 0)
	{
		pthread_detach(thread);
		return fds[0];
	}
	free(l->hosts);
	free(l->ports);
	free(l);
	close(fds[0]);
	close(fds[1]);
	return -1;
}
