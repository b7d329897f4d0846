/*
 * A library that takes all but so many of the timers which the server has for
 * libraries, as others that use timers may have done.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/timeout.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

static void
do_nothing(void)
{
}

void
_PG_init(void)
{
	for (int i = USER_TIMEOUT; i < MAX_TIMEOUTS - TIMERS_LEFT; i++)
		(void) RegisterTimeout(USER_TIMEOUT, do_nothing);
}
