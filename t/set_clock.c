/*
 * A library for LD_PRELOAD that lets a server's wall clock be set: it adds the
 * nanoseconds in the file CLOCK_OFFSET, and leaves the monotonic clock as it is.
 *
 * libfaketime reads its file anew at each question, also in a signal handler.
 * PostgreSQL asks for the time in its handler of SIGALRM, where memory must not
 * be allocated: servers died of that by chance.  It also hides a step from a
 * handler that interrupts a sleep.  This one maps the file once.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset;

__attribute__((constructor)) static void
map_offset(void)
{
	const char *name = getenv("CLOCK_OFFSET");
	int			file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	void	   *map;

	if (file < 0)
		return;
	map = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
	close(file);
	if (map != MAP_FAILED)
		offset = map;
}

int
clock_gettime(clockid_t clock, struct timespec *now)
{
	int			result = (int) syscall(SYS_clock_gettime, clock, now);

	if (result == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
	{
		int64_t		all = now->tv_sec * INT64_C(1000000000) + now->tv_nsec + *offset;

		now->tv_sec = all / 1000000000;
		now->tv_nsec = all % 1000000000;
	}
	return result;
}

int
gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec exact;

	(void) zone;
	clock_gettime(CLOCK_REALTIME, &exact);
	now->tv_sec = exact.tv_sec;
	now->tv_usec = exact.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *now)
{
	struct timespec exact;

	clock_gettime(CLOCK_REALTIME, &exact);
	if (now)
		*now = exact.tv_sec;
	return exact.tv_sec;
}
