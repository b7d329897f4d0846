/*-------------------------------------------------------------------------
 *
 * signals.c
 *	  Turn signals into bytes of a pipe, for poll().
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include <fcntl.h>
#include <unistd.h>

#ifdef NSIG
#define N_SIGNALS NSIG
#else
#define N_SIGNALS 65
#endif

static int	signal_pipe[2] = {-1, -1};
static struct sigaction former[N_SIGNALS];
static bool is_caught[N_SIGNALS];

static void
write_signal(int signal_number)
{
	int			save_errno = errno;
	unsigned char byte = (unsigned char) signal_number;

	/* if the pipe is full, it holds more signals than can be told apart */
	if (write(signal_pipe[1], &byte, 1) < 0)
		errno = save_errno;
	errno = save_errno;
}

/*
 * Make the pipe, also anew after a fork, and return the end to poll, or -1
 */
int
signals_open(void)
{
	for (int i = 0; i < 2; i++)
	{
		if (signal_pipe[i] >= 0)
			close(signal_pipe[i]);
	}
	if (pipe(signal_pipe) != 0)
	{
		signal_pipe[0] = signal_pipe[1] = -1;
		return -1;
	}
	for (int i = 0; i < 2; i++)
	{
		fcntl(signal_pipe[i], F_SETFD, FD_CLOEXEC);
		fcntl(signal_pipe[i], F_SETFL, O_NONBLOCK);
	}
	return signal_pipe[0];
}

/*
 * Catch a signal, unless the program was started with it ignored, as by
 * nohup(1)
 */
void
signals_catch(int signal_number)
{
	struct sigaction action = {.sa_handler = write_signal,
	.sa_flags = SA_RESTART};

	sigemptyset(&action.sa_mask);
	sigaction(signal_number, NULL, &former[signal_number]);
	if (former[signal_number].sa_handler == SIG_IGN &&
		signal_number != SIGCHLD)
		return;
	is_caught[signal_number] = true;
	sigaction(signal_number, &action, NULL);
}

/*
 * Ignore a signal, but not for the command
 */
void
signals_ignore(int signal_number)
{
	struct sigaction action = {.sa_handler = SIG_IGN};

	sigemptyset(&action.sa_mask);
	is_caught[signal_number] = true;
	sigaction(signal_number, &action, &former[signal_number]);
}

/*
 * Take the next signal out of the pipe; return false if there is none
 */
bool
signals_take(int fd, int *signal_number)
{
	unsigned char byte;

	if (read(fd, &byte, 1) != 1)
		return false;
	*signal_number = byte;
	return true;
}

/*
 * Let all signals do again what they did when the program was started
 */
void
signals_restore(void)
{
	for (int i = 1; i < N_SIGNALS; i++)
	{
		if (is_caught[i])
			sigaction(i, &former[i], NULL);
	}
}
