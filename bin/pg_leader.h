/*-------------------------------------------------------------------------
 *
 * pg_leader.h
 *	  What the files of pg_leader share.  pg_leader.c has an overview.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PG_LEADER_H
#define PG_LEADER_H

#include "postgres_fe.h"

#include <poll.h>
#include <signal.h>

#include "common/logging.h"
#include "elector.h"
#include "libpq-fe.h"
#include "pqexpbuffer.h"
#include "schedule.h"

/* Exit statuses of run; those from 123 on are like those of timeout(1) */
#define EXIT_LOST			123 /* the command was stopped, as leadership was
								 * lost */
#define EXIT_NOT_ELECTED	124
#define EXIT_FAILED			125 /* pg_leader itself has failed */
#define EXIT_NOT_EXECUTABLE 126
#define EXIT_NOT_FOUND		127
#define EXIT_BY_SIGNAL		128 /* and the number of the signal */

/* Exit status of list ELECTION and depose, if there is no leader */
#define EXIT_NO_LEADER		3

/* What the command line says */
typedef struct Settings
{
	const char *progname;

	/* the connection */
	const char *dbname;
	const char *host;
	const char *port;
	const char *user;
	char	   *password;

	/* all commands */
	ElectorOptions elector;
	bool		json;
	const char *listen;
	const char *hook;			/* of follow */
	const char *reason;			/* of depose */
	bool		has_identity;

	/* run */
	char	  **command;
	usec		wait;			/* NEVER: for ever; 0: not at all */
	usec		grace;			/* -1: by default */
	bool		restart;
	int			not_elected;	/* the exit status */
	const char *heartbeat_file;
	const char *value;
	bool		scheduled;
	Schedule	schedule;
	const char *zone;
	const char *needs_every;	/* an option that was given */
	Missed		missed;
	bool		record_at_end;
} Settings;

/* pg_leader.c and the commands */
extern usec clock_now(void);
extern double draw_random(void);
extern char *command_zone;		/* TZ as the command is to have it; NULL:
								 * unset */
extern bool has_command_zone;

extern int	run_command(Settings *settings);
extern int	follow_command(Settings *settings);
extern int	list_command(Settings *settings);
extern int	depose_command(Settings *settings);

/* signals.c */
extern int	signals_open(void);
extern void signals_catch(int signal_number);
extern void signals_ignore(int signal_number);
extern bool signals_take(int fd, int *signal_number);
extern void signals_restore(void);

/* statements.c */
#define MAX_PARAMETERS 6

typedef struct Statement
{
	char		sql[2048];
	int			n_parameters;
	const char *parameters[MAX_PARAMETERS];
	char		numbers[MAX_PARAMETERS][32];
} Statement;

extern void statement_for(Statement *s, const Elector *e, const Action *action,
						  usec round);
extern void statement_set(Statement *s, const char *schema, const char *sql);
extern void statement_add(Statement *s, const char *value);
extern void statement_add_number(Statement *s, int64 value);
extern void statement_settings(Statement *s, const char *application);

/* connection.c */
typedef enum ReplyKind
{
	REPLY_NONE,
	REPLY_BEGUN,				/* the statement has got its connection */
	REPLY_ANSWER,
	REPLY_FAILED,
	REPLY_BROKEN				/* the connection has ended, without a
								 * statement on its way */
} ReplyKind;

typedef struct Reply
{
	ReplyKind	kind;
	uint32		serial;
	PGresult   *result;			/* of REPLY_ANSWER: to be cleared */
	ElectorError error;
} Reply;

typedef enum ConnectionState
{
	CONNECTION_CLOSED,
	CONNECTION_LOOKING_UP,		/* the names of hosts */
	CONNECTION_CONNECTING,
	CONNECTION_SETTING,			/* runs the settings of a session */
	CONNECTION_IDLE,
	CONNECTION_ASKING
} ConnectionState;

enum
{
	LIST_HOST,
	LIST_HOSTADDR,
	LIST_PORT,
	N_LISTS
};

typedef struct Connection
{
	const Settings *settings;
	char	   *application;	/* NULL: sets nothing, as behind a pooler */
	ConnectionState state;
	PGconn	   *pg;
	PostgresPollingStatusType polling;
	bool		begun;			/* that was told */
	bool		only_open;
	uint32		serial;
	Statement	statement;
	PGresult   *result;
	char		last_words[512];	/* of a server that ends the session */

	/* the hosts, see connection.c */
	int			lookup;			/* a pipe for the lists, or -1 */
	PQExpBufferData text;		/* of these, and then what the hosts said */
	char	   *lists[N_LISTS]; /* with commas, or NULL */
	int			n_hosts;
	int			host;			/* whose turn it is */
	int			hosts_tried;
	usec		limit;
	usec		connect_timeout;	/* 0: none */
	usec		host_since;
} Connection;

extern void connection_init(Connection *c, const Settings *settings,
							const char *application);
extern void connection_ask(Connection *c, uint32 serial,
						   const Statement *statement, usec limit, usec now);
extern void connection_poll(const Connection *c, struct pollfd *fd);
extern usec connection_wakeup(const Connection *c);
extern ReplyKind connection_advance(Connection *c, usec now, Reply *reply);
extern void connection_close(Connection *c);
extern PGconn *connect_now(const Settings *settings);

/* lookup.c */
extern int	lookup_start(const char *hosts, const char *ports);
extern const char *list_element(const char *list, int index, int *length);
extern int	list_length(const char *list);

/* keeper.c */
typedef enum KeeperState
{
	KEEPER_NONE,
	KEEPER_RUNS,
	KEEPER_DONE					/* the command has ended, with all it left */
} KeeperState;

typedef struct Keeper
{
	KeeperState state;
	pid_t		pid;
	int			fd;
	usec		valid_until;	/* as the keeper knows it */
	usec		grace;
	usec		kill_at;		/* when pg_leader kills what the keeper has
								 * not killed */
	bool		terminating;
	bool		gives_terminal; /* to the command, and takes it back */
	bool		stopped;		/* the command was told to stop, and then
								 * ended */
	int			status;			/* as waitpid() returns it */
	int			start_errno;	/* why the command was not started; 0: it was */
	bool		failed;			/* for lack of a process or a descriptor */
} Keeper;

typedef struct KeeperSpec
{
	char	  **command;
	usec		valid_until;
	usec		grace;
	int			connection;		/* a socket that stays open while the command
								 * runs, or -1 */
	int			heartbeat;		/* what the command writes heartbeats to, or
								 * -1 */
	bool		gets_terminal;	/* that pg_leader has the foreground of */
} KeeperSpec;

#define KILL_AGAIN	(50 * MILLISECOND)	/* until all has gone */

extern void keeper_start(Keeper *keeper, const KeeperSpec *spec);
extern void keeper_hold(Keeper *keeper, usec valid_until);
extern void keeper_signal(Keeper *keeper, int signal_number);
extern void keeper_terminate(Keeper *keeper);
extern void keeper_kill(Keeper *keeper);
extern bool keeper_take(Keeper *keeper);
extern void keeper_reap_others(const Keeper *keeper);
extern int	exit_status_of(const Keeper *keeper);

/* every.c */
typedef struct Every
{
	const Settings *settings;
	Connection	connection;
	char		election[MAX_NAME + 1];
	int64		token;
	usec		began;			/* the program, perhaps before the term */
	int			step;
	uint32		serial;
	usec		deadline;
	usec		until;			/* when to look again */
	moment		last;
	moment		next_last;
	moment		due;			/* what is done now; 0: nothing */
	usec		pause;			/* after a failure */
	bool		starts;			/* the command is to be started */
	bool		once;			/* one time only, as for cron */
	bool		done;			/* that is done, or nothing is due */
	bool		succeeded;		/* the command; that is to be recorded */
	ElectorError error;			/* is to be reported */
} Every;

extern void every_begin(Every *every, const Settings *settings,
						const char *election, int64 token, usec began,
						usec now);
extern void every_end(Every *every);
extern void every_advance(Every *every, usec now);
extern usec every_wakeup(const Every *every);
extern void every_done(Every *every, bool succeeded, usec now);

/* notify.c */
extern void notify_init(void);
extern void notify_service(const char *fmt,...) le_printf(1, 2);
extern usec notify_watchdog(void);

/* http.c */
typedef struct HttpStatus
{
	const char *election;
	const char *identity;		/* of the leader that is known, or NULL */
	const char *state;
	const char *health;
	int64		token;
	moment		since;
	bool		leading;
	bool		healthy;
	bool		follows;
	const Elector *elector;
} HttpStatus;

extern bool http_start(const char *address, void (*status) (HttpStatus *));
extern void http_poll(struct pollfd *fd);
extern usec http_wakeup(usec now);
extern void http_advance(void);
extern void http_stop(void);

/* text.c */
extern bool flush_output(void);
extern void write_time(char *string, size_t size, moment time);
extern moment wall_clock(void);
extern void append_json(PQExpBuffer buffer, const char *string);
extern void append_leader(PQExpBuffer buffer, const char *identity,
						  int64 token);
extern void append_printable(PQExpBuffer buffer, const char *string);

#endif							/* PG_LEADER_H */
