/*-------------------------------------------------------------------------
 *
 * base/clock.c
 *	  The clock by which terms and waits expire.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>

#include "datatype/timestamp.h"

#include "base/base.h"

/*
 * Return the time in microseconds on a clock that cannot be set
 *
 * The clock is the same in all processes.  Its values are only good for
 * comparison.  Never raises an error.
 */
uint64
le_monotonic_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64) now.tv_sec * USECS_PER_SEC + now.tv_nsec / 1000;
}
