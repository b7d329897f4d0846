/*-------------------------------------------------------------------------
 *
 * pg_leader.c
 *	  A command that runs another one only while it leads an election.
 *
 * This file reads the command line.  The others are, from the top:
 *
 *	run.c, follow.c, list.c		the commands
 *	every.c						the times that are due, for run --every
 *	keeper.c					the process that keeps the command
 *	http.c, notify.c			what probes and systemd are told
 *	connection.c, lookup.c		the connection, without blocking
 *	statements.c				the statements
 *	signals.c, text.c			tools
 *	elector.c, schedule.c		pure: the state machine, and schedules
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "common/string.h"
#include "getopt_long.h"

#ifndef LE_VERSION
#define LE_VERSION "unknown"
#endif

char	   *command_zone;
bool		has_command_zone;

enum
{
	OPTION_NO_WAIT = 256,
	OPTION_GRACE,
	OPTION_RESTART,
	OPTION_SEATS,
	OPTION_IDENTITY,
	OPTION_HEARTBEAT,
	OPTION_HEARTBEAT_FILE,
	OPTION_TTL,
	OPTION_SCHEMA,
	OPTION_VALUE,
	OPTION_EVERY,
	OPTION_TIMEZONE,
	OPTION_MISSED,
	OPTION_RECORD,
	OPTION_LISTEN,
	OPTION_JSON,
	OPTION_EXEC,
	OPTION_REASON
};

/* The commands that an option belongs to, as bits */
enum
{
	RUN = 1,
	LIST = 2,
	FOLLOW = 4,
	DEPOSE = 8
};

static const struct
{
	const char *name;
	int			bit;
	int			(*call) (Settings *settings);
}			commands[] = {
	{"run", RUN, run_command},
	{"list", LIST, list_command},
	{"follow", FOLLOW, follow_command},
	{"depose", DEPOSE, depose_command}
};

static const struct option long_options[] = {
	{"dbname", required_argument, NULL, 'd'},
	{"host", required_argument, NULL, 'h'},
	{"port", required_argument, NULL, 'p'},
	{"username", required_argument, NULL, 'U'},
	{"no-password", no_argument, NULL, 'w'},
	{"password", no_argument, NULL, 'W'},
	{"verbose", no_argument, NULL, 'v'},
	{"conflict-exit-code", required_argument, NULL, 'E'},
	{"wait", required_argument, NULL, 't'},
	{"no-wait", no_argument, NULL, 'n'},
	{"grace", required_argument, NULL, OPTION_GRACE},
	{"restart", no_argument, NULL, OPTION_RESTART},
	{"seats", required_argument, NULL, OPTION_SEATS},
	{"identity", required_argument, NULL, OPTION_IDENTITY},
	{"heartbeat", required_argument, NULL, OPTION_HEARTBEAT},
	{"heartbeat-file", required_argument, NULL, OPTION_HEARTBEAT_FILE},
	{"ttl", required_argument, NULL, OPTION_TTL},
	{"schema", required_argument, NULL, OPTION_SCHEMA},
	{"value", required_argument, NULL, OPTION_VALUE},
	{"every", required_argument, NULL, OPTION_EVERY},
	{"timezone", required_argument, NULL, OPTION_TIMEZONE},
	{"missed", required_argument, NULL, OPTION_MISSED},
	{"record", required_argument, NULL, OPTION_RECORD},
	{"listen", required_argument, NULL, OPTION_LISTEN},
	{"json", no_argument, NULL, OPTION_JSON},
	{"exec", required_argument, NULL, OPTION_EXEC},
	{"reason", required_argument, NULL, OPTION_REASON},
	{"help", no_argument, NULL, '?'},
	{"version", no_argument, NULL, 'V'},
	{NULL, 0, NULL, 0}
};

/* The options that not all commands have */
static const struct
{
	int			option;
	int			commands;
}			option_commands[] = {
	{'E', RUN}, {'t', RUN}, {'n', RUN}, {OPTION_GRACE, RUN}, {OPTION_RESTART,
	RUN},
	{OPTION_SEATS, RUN}, {OPTION_IDENTITY, RUN | FOLLOW},
	{OPTION_HEARTBEAT, RUN},
	{OPTION_HEARTBEAT_FILE, RUN}, {OPTION_TTL, RUN}, {OPTION_VALUE, RUN},
	{OPTION_EVERY, RUN},
	{OPTION_TIMEZONE, RUN}, {OPTION_MISSED, RUN}, {OPTION_RECORD, RUN},
	{OPTION_LISTEN, RUN | FOLLOW},
	{OPTION_JSON, LIST | FOLLOW},
	{OPTION_EXEC, FOLLOW}, {OPTION_REASON, DEPOSE}
};

/*
 * Return the time of a clock that goes on while the machine is suspended,
 * where there is one
 */
usec
clock_now(void)
{
	struct timespec now;

#ifdef CLOCK_BOOTTIME
	if (clock_gettime(CLOCK_BOOTTIME, &now) != 0)
#endif
		clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * SECOND + now.tv_nsec / 1000;
}

/*
 * Return a random number from 0 to 1
 */
double
draw_random(void)
{
	return random() / (double) 0x7fffffff;
}

static void
usage(const char *progname)
{
	printf("%s runs a command while it leads an election in a PostgreSQL database.\n\n", progname);
	printf("Usage:\n");
	printf("  %s run [OPTION]... ELECTION [--] COMMAND [ARGUMENT]...\n",
		   progname);
	printf("  %s list [OPTION]... [ELECTION]\n", progname);
	printf("  %s follow [OPTION]... ELECTION\n", progname);
	printf("  %s depose [OPTION]... ELECTION\n", progname);
	printf("\nOptions of run:\n");
	printf("  -n, --no-wait              do not wait to be elected\n");
	printf("  -t, --wait=TIME            wait for at most that long (default: for ever)\n");
	printf("  -E, --conflict-exit-code=NUMBER  exit status if not elected (default: %d)\n", EXIT_NOT_ELECTED);
	printf("      --ttl=TIME             lead by a lease, as through a pooler\n");
	printf("      --heartbeat=TIME       stop the command if it does not beat for two thirds of that\n");
	printf("      --heartbeat-file=FILE  the command beats by touching this file\n");
	printf("      --grace=TIME           time from SIGTERM to SIGKILL (default: 5 s, and at most a quarter\n"
		   "                             of the ttl and of the heartbeat)\n");
	printf("      --restart              campaign again when the command has ended\n");
	printf("      --seats=NUMBER         campaign for one of so many seats\n");
	printf("      --value=TEXT           publish a value while leading\n");
	printf("      --every=SCHEDULE       run the command at each interval, such as \"15 min\", or by a cron\n"
		   "                             expression, such as \"30 2 * * *\"\n");
	printf("      --timezone=ZONE        time zone of the cron expression, such as Europe/Berlin (default: UTC;\n"
		   "                             with --no-wait or --wait the local one, as that of cron)\n");
	printf("      --missed=last|all|none which times to make up for (default: last)\n");
	printf("      --record=start|end     when a time is recorded as done (default: start)\n");
	printf("\nOptions of the other commands:\n");
	printf("      --json                 print JSON (list, follow)\n");
	printf("      --exec=HOOK            run a shell command at each change (follow)\n");
	printf("      --reason=TEXT          what the server's log says (depose)\n");
	printf("\nGeneral options:\n");
	printf("      --identity=TEXT        name of this candidate (run), of the leader (follow)\n");
	printf("      --schema=NAME          schema of leader_election\n");
	printf("      --listen=[HOST:]PORT   answer /live, /ready, /leader and /metrics by HTTP (run, follow;\n"
		   "                             default host: 127.0.0.1)\n");
	printf("  -v, --verbose              tell of elections and terms\n");
	printf("  -V, --version              output version information, then exit\n");
	printf("  -?, --help                 show this help, then exit\n");
	printf("\nConnection options:\n");
	printf("  -d, --dbname=DBNAME        database, or connection string (a password in it can be seen in\n"
		   "                             the list of processes)\n");
	printf("  -h, --host=HOSTNAME        database server host or socket directory\n");
	printf("  -p, --port=PORT            database server port\n");
	printf("  -U, --username=USERNAME    user name to connect as\n");
	printf("  -w, --no-password          never prompt for password\n");
	printf("  -W, --password             force password prompt\n");
	printf("\nTIME is a number of seconds, or such as \"90 s\" or \"5 min\".\n");
	printf("\nrun exits with the status of the command, with %d if leadership was lost, %d if it\n"
		   "was not elected in time, %d if %s itself has failed, %d or %d if the command\n"
		   "could not be started, and %d + N if signal N has ended the command or the wait.\n"
		   "The others exit with 0, with 1 after an error, and with %d if there is no leader.\n",
		   EXIT_LOST, EXIT_NOT_ELECTED, EXIT_FAILED, progname,
		   EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND,
		   EXIT_BY_SIGNAL, EXIT_NO_LEADER);
}

static void
exit_for_help(int status)
{
	pg_log_error_hint("Try \"pg_leader --help\" for more information.");
	exit(status);
}

/* The status with which a wrong command line ends */
static int	usage_status = 1;

static usec
read_time(const char *option, const char *string)
{
	usec		result;

	if (!parse_duration(string, &result))
	{
		pg_log_error("invalid time for option --%s: \"%s\"", option, string);
		exit_for_help(usage_status);
	}
	return result;
}

static int
read_number(const char *option, const char *string, int least, int most)
{
	char	   *end;
	int64		number;

	errno = 0;
	number = strtoll(string, &end, 10);
	if (end == string || *end != '\0' || errno != 0 || number < least ||
		number > most)
	{
		pg_log_error("invalid value for option --%s: \"%s\": it is from %d to %d",
					 option, string, least, most);
		exit_for_help(usage_status);
	}
	return (int) number;
}

static void
check_belongs(int option, int bit, const char *command)
{
	for (size_t i = 0; i < lengthof(option_commands); i++)
	{
		if (option_commands[i].option != option ||
			(option_commands[i].commands & bit))
			continue;
		for (const struct option *o = long_options; o->name; o++)
		{
			if (o->val == option)
				pg_log_error("option --%s does not belong to %s", o->name,
							 command);
		}
		exit_for_help(usage_status);
	}
}

static void
read_schedule(Settings *s, const char *string)
{
	char		error[512];

	s->scheduled = true;
	if (schedule_parse(&s->schedule, string, error, sizeof(error)))
		return;
	pg_log_error("invalid schedule: %s", error);
	exit_for_help(usage_status);
}

static int
read_word(const char *option, const char *string, const char *const *words)
{
	for (int i = 0; words[i]; i++)
	{
		if (strcmp(string, words[i]) == 0)
			return i;
	}
	pg_log_error("invalid value for option --%s: \"%s\"", option, string);
	exit_for_help(usage_status);
	return 0;
}

static void
read_option(Settings *s, int option, char *string)
{
	static const char *const missed[] = {"last", "all", "none", NULL};
	static const char *const record[] = {"start", "end", NULL};

	switch (option)
	{
		case 'd':
			s->dbname = string;
			break;
		case 'h':
			s->host = string;
			break;
		case 'p':
			s->port = string;
			break;
		case 'U':
			s->user = string;
			break;
		case 'w':
			break;
		case 'W':
			s->password = simple_prompt("Password: ", false);
			break;
		case 'v':
			pg_logging_increase_verbosity();
			break;
		case 'E':
			s->not_elected = read_number("conflict-exit-code", string, 0, 255);
			break;
		case 't':
			s->wait = read_time("wait", string);
			break;
		case 'n':
			s->wait = 0;
			break;
		case OPTION_GRACE:
			s->grace = read_time("grace", string);
			break;
		case OPTION_RESTART:
			s->restart = true;
			break;
		case OPTION_SEATS:
			s->elector.seats = read_number("seats", string, 1, 10000);
			break;
		case OPTION_IDENTITY:
			s->elector.identity = string;
			s->has_identity = true;
			break;
		case OPTION_HEARTBEAT:
			s->elector.heartbeat = Max(1, read_time("heartbeat", string));
			break;
		case OPTION_HEARTBEAT_FILE:
			s->heartbeat_file = string;
			break;
		case OPTION_TTL:
			s->elector.ttl = Max(1, read_time("ttl", string));
			break;
		case OPTION_SCHEMA:
			s->elector.schema = string;
			break;
		case OPTION_VALUE:
			s->value = string;
			break;
		case OPTION_EVERY:
			read_schedule(s, string);
			break;
		case OPTION_TIMEZONE:
			s->zone = string;
			s->needs_every = "timezone";
			break;
		case OPTION_MISSED:
			s->missed = (Missed) read_word("missed", string, missed);
			s->needs_every = "missed";
			break;
		case OPTION_RECORD:
			s->record_at_end = read_word("record", string, record) == 1;
			s->needs_every = "record";
			break;
		case OPTION_LISTEN:
			s->listen = string;
			break;
		case OPTION_JSON:
			s->json = true;
			break;
		case OPTION_EXEC:
			s->hook = string;
			break;
		case OPTION_REASON:
			s->reason = string;
			break;
		default:
			/* getopt_long has already complained */
			exit_for_help(usage_status);
	}
}

/* Make an identity of the host, the process and a random number */
static char *
default_identity(void)
{
	char		host[201] = "unknown";

	gethostname(host, sizeof(host) - 1);
	return psprintf("%s:%d:%04lx", host, (int) getpid(), random() & 0xffff);
}

static void
check_settings(Settings *s, bool runs)
{
	const char *refused = s->elector.election ? elector_check(&s->elector) :
		NULL;

	if (refused)
	{
		if (strcmp(refused, "election") == 0)
			pg_log_error("the name of an election has 1 to 255 bytes and is not enclosed in braces");
		else if (strcmp(refused, "ttl") == 0 ||
				 strcmp(refused, "heartbeat") == 0)
			pg_log_error("invalid time for option --%s: it is from 1 s to 1 day",
						 refused);
		else
			pg_log_error("invalid value for option --%s: it has 1 to %d bytes",
						 refused,
						 strcmp(refused, "schema") == 0 ? 63 : MAX_NAME);
		exit(usage_status);
	}
	if (!runs)
		return;
	if (s->heartbeat_file && s->elector.heartbeat == 0)
		pg_log_error("option --heartbeat-file needs --heartbeat");
	else if (s->needs_every && !s->scheduled)
		pg_log_error("option --%s needs --every", s->needs_every);
	else if (s->scheduled && s->restart)
		pg_log_error("options --every and --restart exclude each other");
	else if (s->value && strlen(s->value) > MAX_VALUE)
		pg_log_error("a value has at most %d bytes", MAX_VALUE);
	else if (s->command[0] == NULL)
		pg_log_error("no command specified");
	else
		return;
	exit_for_help(usage_status);
}

static void
set_zone(const Settings *s)
{
	has_command_zone = getenv("TZ") != NULL;
	command_zone = has_command_zone ? pg_strdup(getenv("TZ")) : NULL;
	tzset();
	/* cron, which starts the program, means the local time */
	if (!s->scheduled || (!s->zone && s->wait != NEVER) ||
		schedule_set_zone(s->zone ? s->zone : "UTC"))
		return;
	pg_log_error("time zone \"%s\" is not known", s->zone);
	pg_log_error_hint("Install the package tzdata, or use a name such as Europe/Berlin.");
	exit(usage_status);
}

/*
 * Open the standard descriptors that are closed, so that no connection gets
 * one of these numbers, which then belongs to the command and to messages
 */
static void
open_standard_descriptors(void)
{
	int			fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd > STDERR_FILENO)
		close(fd);
}

/* Exit if the argument asks for help or the version */
static void
tell_if_asked(const char *progname, const char *argument)
{
	if (strcmp(argument, "--help") == 0 || strcmp(argument, "-?") == 0)
		usage(progname);
	else if (strcmp(argument, "--version") == 0 || strcmp(argument, "-V") == 0)
		printf("pg_leader (leader_election) %s\n", LE_VERSION);
	else
		return;
	exit(0);
}

/* Return the index of the command that the first argument names */
static size_t
find_command(const char *progname, const char *name)
{
	if (name)
		tell_if_asked(progname, name);
	for (size_t i = 0; name && i < lengthof(commands); i++)
	{
		if (strcmp(name, commands[i].name) == 0)
			return i;
	}
	pg_log_error(name ? "unknown command \"%s\"" : "no command specified",
				 name);
	exit_for_help(1);
	return 0;
}

int
main(int argc, char *argv[])
{
	static Settings s = {.wait = NEVER,.grace = -1,
	.not_elected = EXIT_NOT_ELECTED};
	size_t		which;
	int			option;
	struct timespec now;

	open_standard_descriptors();
	pg_logging_init(argv[0]);
	pg_logging_set_level(PG_LOG_WARNING);
	set_pglocale_pgservice(argv[0], PG_TEXTDOMAIN("pg_leader"));
	s.progname = get_progname(argv[0]);
	clock_gettime(CLOCK_REALTIME, &now);
	srandom((unsigned int) (now.tv_nsec ^ now.tv_sec ^ (getpid() << 8)));

	which = find_command(s.progname, argv[1]);
	usage_status = commands[which].bit == RUN ? EXIT_FAILED : 1;
	argc--;
	argv++;
	argv[0] = unconstify(char *, s.progname);	/* for getopt_long */

	/* what follows the election that run has is not this program's */
	while ((option = getopt_long(argc, argv, commands[which].bit == RUN ?
								 "+d:h:p:U:wWvE:t:nV?" :
								 "d:h:p:U:wWvE:t:nV?",
								 long_options, NULL)) != -1)
	{
		if (option == '?' || option == 'V')
		{
			tell_if_asked(s.progname, argv[optind - 1]);
			exit_for_help(usage_status);
		}
		check_belongs(option, commands[which].bit, commands[which].name);
		read_option(&s, option, optarg);
	}
	if (optind < argc)
		s.elector.election = argv[optind++];
	else if (commands[which].bit != LIST)
	{
		pg_log_error("no election specified");
		exit_for_help(usage_status);
	}
	if (commands[which].bit == RUN && optind < argc &&
		strcmp(argv[optind], "--") == 0)
		optind++;
	s.command = &argv[optind];
	if (commands[which].bit != RUN && optind < argc)
	{
		pg_log_error("too many command-line arguments (first is \"%s\")",
					 argv[optind]);
		exit_for_help(usage_status);
	}
	if (!s.elector.identity)
		s.elector.identity = default_identity();
	s.elector.stop_timeout = 10 * SECOND;
	check_settings(&s, commands[which].bit == RUN);
	set_zone(&s);
	return commands[which].call(&s);
}
