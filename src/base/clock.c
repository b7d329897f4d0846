/*-------------------------------------------------------------------------
 *
 * base/clock.c
 *	  The clock by which everything expires.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>

#include "datatype/timestamp.h"

#include "base/base.h"

/*
 * Return the time in microseconds on a clock that nobody sets.  Does not throw
 *
 * The same in all processes, and only good for comparison.
 */
uint64
le_monotonic_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64) now.tv_sec * USECS_PER_SEC + now.tv_nsec / 1000;
}
