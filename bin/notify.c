/*-------------------------------------------------------------------------
 *
 * notify.c
 *	  Tell systemd how it is, as sd_notify(3) does.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include <stdarg.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char *service_socket;
static usec watchdog;

/*
 * Take what systemd has left in the environment, so that the command does not
 * get it
 */
void
notify_init(void)
{
	const char *name = getenv("NOTIFY_SOCKET");
	const char *interval = getenv("WATCHDOG_USEC");
	const char *pid = getenv("WATCHDOG_PID");

	if (name && (*name == '/' || *name == '@'))
		service_socket = pg_strdup(name);
	if (interval && (!pid || atoi(pid) == getpid()))
		watchdog = strtoul(interval, NULL, 10);
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	unsetenv("WATCHDOG_PID");
}

/*
 * Return how long systemd waits for a sign of life, or 0
 */
usec
notify_watchdog(void)
{
	return service_socket ? watchdog : 0;
}

/*
 * Send a state such as "READY=1" to systemd, if it has started the program
 */
void
notify_service(const char *fmt,...)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	socklen_t	length;
	char		state[1024];
	va_list		args;
	int			fd;

	if (!service_socket || strlen(service_socket) >= sizeof(address.sun_path))
		return;
	va_start(args, fmt);
	vsnprintf(state, sizeof(state), fmt, args);
	va_end(args);

	strlcpy(address.sun_path, service_socket, sizeof(address.sun_path));
	length = offsetof(struct sockaddr_un, sun_path) + strlen(service_socket);
	if (*service_socket == '@')
		address.sun_path[0] = '\0';
	else
		length++;
	fd = socket(AF_UNIX, SOCK_DGRAM, 0);
	if (fd < 0)
		return;
	if (sendto(fd, state, strlen(state), MSG_DONTWAIT,
			   (struct sockaddr *) &address, length) < 0)
		pg_log_debug("could not notify the service manager: %m");
	close(fd);
}
