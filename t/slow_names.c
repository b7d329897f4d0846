/*
 * A library for LD_PRELOAD that lets a server of names be silent: as long as
 * the file SLOW_NAMES exists, a name is looked up ten seconds later.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <unistd.h>

int
getaddrinfo(const char *node, const char *service,
			const struct addrinfo *hints, struct addrinfo **found)
{
	int			(*look_up) (const char *, const char *,
							const struct addrinfo *, struct addrinfo **) =
		dlsym(RTLD_NEXT, "getaddrinfo");
	const char *file = getenv("SLOW_NAMES");

	if (node && !(hints && hints->ai_flags & AI_NUMERICHOST) &&
		*node != '/' && file && access(file, F_OK) == 0)
		sleep(10);
	return look_up(node, service, hints, found);
}
