/*-------------------------------------------------------------------------
 *
 * keeper.c
 *	  The process that keeps the command.
 *
 * pg_leader does not start the command itself, but forks a keeper, which
 * starts the command in a process group of its own and sees to its end:
 *
 * - The keeper knows until when leadership is confirmed.  When that time has
 *   passed, it stops the command, even if pg_leader itself is stopped, hangs,
 *   or has only not noticed yet.
 *
 * - When pg_leader has gone, however it was killed, the keeper finds the end
 *   of the socket between them, and stops the command.
 *
 * - The keeper holds a copy of the connection's socket.  If pg_leader is
 *   killed in session scope, the session ends when the keeper does.  So the
 *   server elects no other candidate before the command has ended.
 *
 * - pg_leader continues a keeper that was stopped by SIGSTOP.  If the keeper
 *   does not stop the command in time, as in a debugger, pg_leader kills all
 *   that descends from the keeper, and the keeper at last.
 *
 * - On Linux, the keeper is the subreaper of the command.  What the command
 *   leaves behind, also in other process groups and sessions, becomes a child
 *   of the keeper.  The keeper stops that before it ends.  If the keeper is
 *   killed, the kernel kills the command, and pg_leader the rest.  On other
 *   systems, the keeper knows the process group only.
 *
 * To stop means SIGTERM to the process group, and SIGKILL to everything that
 * is left when the grace period is over.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#define MAX_STRANGERS 256
#define HEARTBEAT_FD 3

typedef enum MessageKind
{
	KEEPER_HOLD,				/* leadership is confirmed until the time */
	KEEPER_SIGNAL,
	KEEPER_TERMINATE,
	KEEPER_STARTED,				/* the command */
	KEEPER_ENDED,				/* the command and what it left */
	KEEPER_NOT_STARTED,			/* exec has failed */
	KEEPER_FAILED				/* for lack of a process or a descriptor */
} MessageKind;

typedef struct Message
{
	MessageKind kind;
	int			number;			/* a signal, process, status or errno */
	bool		stopped;		/* the keeper has begun to stop the command
								 * before it ended */
	usec		time;
} Message;

/* The keeper's own, but pg_leader also knows the command */
static struct
{
	KeeperSpec	spec;
	int			fd;
	pid_t		command;
	bool		ended;
	int			status;
	usec		valid_until;
	bool		stopping;
	bool		stopped;		/* the command was told to stop, and then
								 * ended */
	usec		kill_at;
}			kept;

/*
 * The processes that the command has started
 */

#ifdef __linux__

/* Return the parent of a process and whether it still runs, or 0 */
static pid_t
parent_of(pid_t pid, bool *runs)
{
	char		path[64];
	char		stat[512];
	int			fd;
	ssize_t		length;
	const char *behind_name;
	char		state = 'X';
	int			parent = 0;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int) pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	length = read(fd, stat, sizeof(stat) - 1);
	close(fd);
	stat[Max(length, 0)] = '\0';
	behind_name = strrchr(stat, ')');
	if (!behind_name ||
		sscanf(behind_name + 1, " %c %d", &state, &parent) != 2)
		return 0;
	*runs = state != 'Z' && state != 'X';
	return parent;
}

/* The children that pg_leader had before, as that of a shell that it replaced */
static pid_t strangers[MAX_STRANGERS];
static int	n_strangers;

static bool
is_stranger(pid_t pid)
{
	for (int i = 0; i < n_strangers; i++)
	{
		if (strangers[i] == pid)
			return true;
	}
	return false;
}

/*
 * Send a signal to all processes that descend from this one, but not to the
 * keeper, if it is given, and not to what descends from strangers; or note all
 * children as strangers, if the signal is 0.  Return whether any was there.
 */
static bool
signal_descendants(int signal_number, pid_t keeper)
{
	pid_t		self = getpid();
	DIR		   *proc = opendir("/proc");
	struct dirent *entry;
	bool		any = false;

	while (proc && (entry = readdir(proc)) != NULL)
	{
		pid_t		pid = atoi(entry->d_name);
		pid_t		child = pid;
		bool		runs = false;
		bool		ignored;
		pid_t		parent = pid > 1 && pid != self && pid != keeper ?
			parent_of(pid, &runs) : 0;

		while (parent > 1 && parent != self)
		{
			child = parent;
			parent = parent_of(child, &ignored);
		}
		if (parent != self || is_stranger(child))
			continue;
		if (signal_number != 0)
		{
			kill(pid, signal_number);
			any = any || runs;
		}
		else if (child == pid && n_strangers < MAX_STRANGERS)
			strangers[n_strangers++] = pid;
	}
	if (proc)
		closedir(proc);
	return any;
}

static bool
descends_any(void)
{
	siginfo_t	info = {0};

	return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

/*
 * Kill what a keeper that was killed has left, which is pg_leader's now
 */
static void
kill_rest(void)
{
	usec		end = clock_now() + SECOND;

	do
	{
		signal_descendants(SIGKILL, 0);
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		if (n_strangers > 0)
			return;				/* which are children, too */
		pg_usleep(10 * MILLISECOND);
	} while (descends_any() && clock_now() < end);
}

#else

static bool
signal_descendants(int signal_number, pid_t keeper)
{
	(void) keeper;
	return kept.command > 0 && kill(-kept.command, signal_number) == 0;
}

static void
kill_rest(void)
{
	signal_descendants(SIGKILL, 0);
}

#endif

/* Take the status of each process that has ended; return whether any is left */
static bool
reap(void)
{
	int			status;
	pid_t		pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
	{
		if (pid == kept.command)
		{
			kept.ended = true;
			kept.status = status;
			kept.stopped = kept.stopping;
		}
	}
	if (pid == 0)
		return true;
#ifndef __linux__
	return kill(-kept.command, 0) == 0;
#else
	return false;
#endif
}

/*
 * Send a signal to the command, which gets it at once even if it is stopped,
 * unless it is about the size of the window
 */
static void
signal_command(int signal_number)
{
	if (kept.ended)
		return;
	kill(-kept.command, signal_number);
	if (signal_number != SIGWINCH)
		kill(-kept.command, SIGCONT);
}

/* Begin to stop all that is left of the command */
static void
stop_command(void)
{
	if (kept.stopping)
		return;
	kept.stopping = true;
	kept.kill_at = clock_now() + kept.spec.grace;
	signal_command(SIGTERM);
	if (kept.ended)
		signal_descendants(SIGTERM, 0);
}

/* Kill what is left, again and again, as processes can fork meanwhile */
static void
kill_command(void)
{
	if (!kept.ended)
		kill(-kept.command, SIGKILL);
	signal_descendants(SIGKILL, 0);
	kept.kill_at = clock_now() + KILL_AGAIN;
}

static void
tell(MessageKind kind, int number)
{
	Message		message = {.kind = kind,.number = number,.stopped = kept.stopped};

	if (write(kept.fd, &message, sizeof(message)) < 0)
		return;					/* pg_leader has gone */
}

/*
 * The start of the command
 */

/* End the keeper for lack of a process or a descriptor */
static void
fail_to_keep(void)
{
	tell(KEEPER_FAILED, errno);
	_exit(0);
}

static void
exec_command(const KeeperSpec *spec, pid_t keeper)
{
	sigset_t	none;

	setpgid(0, 0);
#ifdef __linux__
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != keeper)
		_exit(EXIT_FAILED);
#else
	(void) keeper;
#endif
	if (spec->gets_terminal && tcgetpgrp(STDIN_FILENO) == getpgid(keeper))
	{
		/* a command in the foreground of a terminal keeps the terminal */
		tcsetpgrp(STDIN_FILENO, getpid());
		/* the shell would not learn that the command alone was suspended */
		signal(SIGTSTP, SIG_IGN);
	}
	if (spec->heartbeat >= 0)
	{
		if (spec->heartbeat == HEARTBEAT_FD)
			fcntl(HEARTBEAT_FD, F_SETFD, 0);
		else
			dup2(spec->heartbeat, HEARTBEAT_FD);
	}
	signals_restore();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execvp(spec->command[0], spec->command);
}

/*
 * Start the command; return 0, or why exec has failed
 */
static int
start_command(void)
{
	int			failed[2];
	int			error = 0;
	pid_t		self = getpid();

	if (pipe(failed) != 0)
		fail_to_keep();
	for (int i = 0; i < 2; i++)
	{
		/* out of the way of the heartbeat's */
		int			fd = fcntl(failed[i], F_DUPFD_CLOEXEC, HEARTBEAT_FD + 1);

		if (fd < 0)
			fail_to_keep();
		close(failed[i]);
		failed[i] = fd;
	}
	kept.command = fork();
	if (kept.command < 0)
		fail_to_keep();
	if (kept.command == 0)
	{
		exec_command(&kept.spec, self);
		error = errno;
		if (write(failed[1], &error, sizeof(error)) < 0)
			_exit(EXIT_FAILED);
		_exit(EXIT_NOT_EXECUTABLE);
	}
	setpgid(kept.command, kept.command);
	close(failed[1]);
	if (read(failed[0], &error, sizeof(error)) != sizeof(error))
		error = 0;
	close(failed[0]);
	return error;
}

/* Close what is pg_leader's own, but for the two sockets that are needed */
static void
close_rest(void)
{
	int			end = (int) sysconf(_SC_OPEN_MAX);
	DIR		   *dir = opendir("/proc/self/fd");
	struct dirent *entry;

	if (dir)
	{
		/* the limit can be a billion */
		end = STDERR_FILENO + 1;
		while ((entry = readdir(dir)) != NULL)
			end = Max(end, atoi(entry->d_name) + 1);
		closedir(dir);
	}
	for (int fd = STDERR_FILENO + 1; fd < end; fd++)
	{
		int			flags = fcntl(fd, F_GETFD);

		if (flags >= 0 && (flags & FD_CLOEXEC) && fd != kept.fd &&
			fd != kept.spec.connection &&
			fd != kept.spec.heartbeat)
			close(fd);
	}
}

/*
 * The keeper's loop
 */

/* Take what pg_leader says */
static void
listen_to_leader(void)
{
	Message		message;
	ssize_t		length;

	while ((length = read(kept.fd, &message,
						  sizeof(message))) == sizeof(message))
	{
		if (message.kind == KEEPER_HOLD)
			kept.valid_until = message.time;
		else if (message.kind == KEEPER_TERMINATE)
			stop_command();
		else
			signal_command(message.number);
	}
	if (length == 0 || (errno != EAGAIN && errno != EWOULDBLOCK &&
						errno != EINTR))
		stop_command();			/* pg_leader has gone */
}

static void
keep(int signals)
{
	struct pollfd fds[2] = {{.fd = kept.fd,.events = POLLIN}, {.fd = signals,
	.events = POLLIN}};
	int			signal_number;
	bool		left;

	while ((left = reap()) || !kept.ended)
	{
		usec		now = clock_now();
		usec		next;

		/* after a pause, what pg_leader has said meanwhile counts */
		listen_to_leader();
		if (kept.ended || now >= kept.valid_until)
			stop_command();
		if (kept.stopping && now >= kept.kill_at)
			kill_command();
		next = kept.stopping ? kept.kill_at : kept.valid_until;
		next = Min(Max(next - now, 0), SECOND);
		if (kept.ended && !left)
			break;
		/* if pg_leader has gone, its socket would never be silent again */
		poll(fds, 2, (int) (next / MILLISECOND) + 1);
		while (signals_take(signals, &signal_number))
			;
		if (fds[0].revents & (POLLHUP | POLLERR))
			fds[0].fd = -1;
	}
}

static void
keeper_main(void)
{
	int			signals;
	int			error;
	sigset_t	none;

#ifdef __linux__
	prctl(PR_SET_NAME, "pg_leader:keep");
	prctl(PR_SET_CHILD_SUBREAPER, 1);
#endif
	close_rest();
#ifdef __linux__
	n_strangers = 0;			/* they are pg_leader's */
#endif
	signals = signals_open();
	if (signals < 0)
		fail_to_keep();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	error = start_command();
	/* a process group of its own, so that one signal does not end both */
	setpgid(0, 0);
	if (kept.spec.heartbeat >= 0)
		close(kept.spec.heartbeat);
	if (error != 0)
	{
		waitpid(kept.command, NULL, 0);
		tell(KEEPER_NOT_STARTED, error);
		_exit(0);
	}
	tell(KEEPER_STARTED, kept.command);
	keep(signals);
	tell(KEEPER_ENDED, kept.status);
	_exit(0);
}

/*
 * The calls of pg_leader
 */

/*
 * Start a keeper with its command.  Whether that has failed turns out by
 * keeper_take().
 */
void
keeper_start(Keeper *keeper, const KeeperSpec *spec)
{
	int			ends[2];
	sigset_t	all;
	sigset_t	former;

	memset(keeper, 0, sizeof(*keeper));
#ifdef __linux__
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	n_strangers = 0;
	signal_descendants(0, 0);
#endif
	keeper->state = KEEPER_DONE;
	keeper->failed = true;
	keeper->gives_terminal = spec->gets_terminal &&
		tcgetpgrp(STDIN_FILENO) == getpgrp();
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
	{
		keeper->start_errno = errno;
		return;
	}
	for (int i = 0; i < 2; i++)
	{
		fcntl(ends[i], F_SETFD, FD_CLOEXEC);
		fcntl(ends[i], F_SETFL, O_NONBLOCK);
	}
	fflush(NULL);

	/* no signal reaches the keeper before it has a pipe of its own */
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &former);
	keeper->pid = fork();
	keeper->start_errno = errno;
	if (keeper->pid == 0)
	{
		kept.spec = *spec;
		kept.fd = ends[1];
		kept.valid_until = spec->valid_until;
		close(ends[0]);
		keeper_main();
	}
	sigprocmask(SIG_SETMASK, &former, NULL);
	close(ends[1]);
	keeper->fd = ends[0];
	keeper->valid_until = spec->valid_until;
	keeper->grace = spec->grace;
	keeper->kill_at = NEVER;
	kept.command = 0;
	if (keeper->pid < 0)
	{
		close(ends[0]);
		return;
	}
	keeper->state = KEEPER_RUNS;
	keeper->failed = false;
	keeper->start_errno = 0;
}

static void
say_to_keeper(Keeper *keeper, MessageKind kind, int number, usec time)
{
	Message		message = {.kind = kind,.number = number,.time = time};

	if (keeper->state != KEEPER_RUNS)
		return;
	/* a keeper that has gone is noticed by keeper_take() */
	if (write(keeper->fd, &message, sizeof(message)) < 0)
		pg_log_debug("could not write to the keeper: %m");
	kill(keeper->pid, SIGCONT);
}

/*
 * Let the command run until that time
 */
void
keeper_hold(Keeper *keeper, usec valid_until)
{
	if (keeper->valid_until == valid_until)
		return;
	keeper->valid_until = valid_until;
	say_to_keeper(keeper, KEEPER_HOLD, 0, valid_until);
}

/*
 * Send a signal to the command's process group
 */
void
keeper_signal(Keeper *keeper, int signal_number)
{
	say_to_keeper(keeper, KEEPER_SIGNAL, signal_number, 0);
}

/*
 * Stop the command
 */
void
keeper_terminate(Keeper *keeper)
{
	if (keeper->terminating)
		return;
	keeper->terminating = true;
	keeper->kill_at = Min(clock_now(), keeper->valid_until) + keeper->grace +
		KILL_AGAIN;
	say_to_keeper(keeper, KEEPER_TERMINATE, 0, 0);
}

/*
 * Kill what the keeper should have killed by now.  It is to be called at the
 * keeper's kill_at.
 */
void
keeper_kill(Keeper *keeper)
{
	keeper->kill_at = clock_now() + KILL_AGAIN;
	if (!signal_descendants(SIGKILL, keeper->pid))
		kill(keeper->pid, SIGKILL);
}

/*
 * Take the status of a keeper that ends now, but do not wait for a debugger,
 * which can keep it
 */
static void
reap_keeper(const Keeper *keeper)
{
	usec		end = clock_now() + SECOND;

	while (waitpid(keeper->pid, NULL, WNOHANG) == 0 && clock_now() < end)
		pg_usleep(MILLISECOND);
}

/*
 * Take what the keeper says.  Return whether the command has ended, with all
 * that it left behind, or was not started.
 */
bool
keeper_take(Keeper *keeper)
{
	Message		message;
	ssize_t		length;
	pid_t		foreground;

	if (keeper->state != KEEPER_RUNS)
		return keeper->state == KEEPER_DONE;
	while ((length = read(keeper->fd, &message,
						  sizeof(message))) == sizeof(message) &&
		   message.kind == KEEPER_STARTED)
		kept.command = message.number;
	if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK ||
					   errno == EINTR))
		return false;
	keeper->status = SIGKILL;	/* of a keeper that was killed: so was the
								 * command */
	keeper->stopped = keeper->terminating;
	if (length == sizeof(message))
	{
		keeper->status = message.kind == KEEPER_ENDED ? message.number : 0;
		keeper->stopped = message.stopped;
		keeper->start_errno = message.kind == KEEPER_ENDED ? 0 :
			message.number;
		keeper->failed = message.kind == KEEPER_FAILED;
	}
	close(keeper->fd);
	if (length != sizeof(message))
		kill_rest();
	reap_keeper(keeper);
	keeper->state = KEEPER_DONE;
	foreground = tcgetpgrp(STDIN_FILENO);
	if (keeper->gives_terminal && foreground > 0 &&
		foreground != getpgrp() && kill(-foreground, 0) != 0 &&
		errno == ESRCH)
		/* take back the terminal that the command had */
		tcsetpgrp(STDIN_FILENO, getpgrp());
	return true;
}

/*
 * As process 1 of a container, reap what others have left
 */
void
keeper_reap_others(const Keeper *keeper)
{
	siginfo_t	info;

	for (;;)
	{
		info.si_pid = 0;
		if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
			info.si_pid == 0)
			return;
		if (keeper->state == KEEPER_RUNS && info.si_pid == keeper->pid)
			return;				/* see keeper_take() */
		waitpid(info.si_pid, NULL, WNOHANG);
	}
}

/*
 * Return the exit status that tells how the command has ended
 */
int
exit_status_of(const Keeper *keeper)
{
	if (keeper->failed)
		return EXIT_FAILED;
	if (keeper->start_errno != 0)
		return keeper->start_errno == ENOENT ? EXIT_NOT_FOUND :
			EXIT_NOT_EXECUTABLE;
	if (WIFSIGNALED(keeper->status))
		return EXIT_BY_SIGNAL + WTERMSIG(keeper->status);
	return WEXITSTATUS(keeper->status);
}
