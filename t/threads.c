/*
 * A library that has a thread in the server process, as language runtimes do.  The thread
 * blocks no signal.
 */
#include "postgres.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "fmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(start_thread);
PG_FUNCTION_INFO_V1(timer_waits_for_main);

static void *
wait_for_signals(void *arg)
{
	for (;;)
		pause();
	return arg;
}

Datum
start_thread(PG_FUNCTION_ARGS)
{
	pthread_t	thread;

	PG_RETURN_BOOL(pthread_create(&thread, NULL, wait_for_signals, NULL) == 0);
}

/*
 * Block all signals in the main thread for so many milliseconds, and log whether a
 * real-time signal is pending then: if so, no other thread has handled it
 */
Datum
timer_waits_for_main(PG_FUNCTION_ARGS)
{
	sigset_t	all;
	sigset_t	before;
	sigset_t	pending;
	struct timespec delay = {0, PG_GETARG_INT32(0) * 1000000L};
	bool		found = false;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	(void) nanosleep(&delay, NULL);
	sigpending(&pending);
	for (int number = SIGRTMIN; number <= SIGRTMAX; number++)
		found = found || sigismember(&pending, number);
	elog(LOG, "timer %s for the main thread", found ? "waits" : "does not wait");
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	PG_RETURN_VOID();
}
