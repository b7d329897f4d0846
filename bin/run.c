/*-------------------------------------------------------------------------
 *
 * run.c
 *	  pg_leader run: drive the state machine of an elector, and the command.
 *
 * All goes on in one loop around poll().  What arrives becomes an event of the
 * state machine, and the actions that it returns are done at once.  Nothing
 * in the loop waits.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static const int forwarded[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1,
SIGUSR2, SIGWINCH};

static struct
{
	Settings   *settings;
	Elector		elector;
	Connection	connection;
	Keeper		keeper;
	Every		every;
	int			signals;
	int			heartbeat[2];	/* a pipe */
	struct timespec touched;	/* the file of heartbeats */
	usec		look_at_file;
	usec		began;			/* this program */
	usec		give_up;		/* when not to wait any longer */
	usec		watchdog_at;
	moment		since;			/* when the term has begun */
	bool		job;			/* the state machine lets the job run */
	bool		told_stop;
	int			pending_returns;
	bool		ended;

	/* how it has ended */
	int			stop_signal;
	bool		started;		/* a command */
	bool		not_elected;
	bool		answered;		/* a bid was denied */
	bool		lost;
	bool		failed;
	int			status;
}			run;

static void happen(const Event *event);
static bool note_touched(void);

static void
happen_plainly(EventKind kind)
{
	Event		event = {.kind = kind};

	happen(&event);
}

/*
 * Errors
 */

static void
report_error(const ElectorError *error)
{
	if (error->kind != ERROR_JOB)	/* see end_command() */
		pg_log_warning("%s", error->message);
	notify_service("STATUS=%s", error->message);
}

/*
 * Ask one statement on a connection of its own, which is closed soon.  Return
 * its result, or NULL: this is only tried.
 */
static PGresult *
ask_once(const Statement *s)
{
	Connection	c;
	Reply		reply = {0};
	usec		end = clock_now() + 5 * SECOND;
	PGresult   *result = NULL;

	connection_init(&c, run.settings, NULL);
	connection_ask(&c, 1, s, 5 * SECOND, clock_now());
	while (clock_now() < end && reply.kind != REPLY_FAILED && !result)
	{
		if (connection_advance(&c, clock_now(), &reply) == REPLY_ANSWER)
			result = reply.result;
		else if (reply.kind == REPLY_NONE)
		{
			struct pollfd fd;

			connection_poll(&c, &fd);
			poll(&fd, 1, 100);
		}
	}
	connection_close(&c);
	return result;
}

/* Say in words what is wrong with the extension, or the SQL edition */
static void
diagnose(const ElectorError *error)
{
	Statement	s;
	PGresult   *result;
	const char *schema = run.settings->elector.schema;

	pg_log_error("%s", error->message);
	statement_set(&s, NULL,
				  "SELECT (SELECT nspname::text FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = pronamespace"
				  " WHERE proname = 'le_version' ORDER BY p.oid LIMIT 1), current_database()");
	result = ask_once(&s);
	if (!result || PQntuples(result) != 1)
		return;
	if (PQgetisnull(result, 0, 0))
		pg_log_error_hint("leader_election is not installed in database \"%s\": run CREATE EXTENSION leader_election, "
						  "or install the SQL edition.",
						  PQgetvalue(result, 0, 1));
	else if (!schema || strcmp(schema, PQgetvalue(result, 0, 0)) != 0)
		pg_log_error_hint("leader_election is in schema \"%s\": use --schema, or add it to search_path.",
						  PQgetvalue(result, 0, 0));
	PQclear(result);
}

/* End the session that leads on a shared connection */
static void
expel(void)
{
	const ElectorOptions *o = &run.settings->elector;
	Statement	s;
	PGresult   *result;
	usec		end = clock_now() + 5 * SECOND;

	pg_log_error("session scope needs a connection of its own, and a pooler shares this one");
	pg_log_error_hint("Lead by a lease: use --ttl.");
	statement_set(&s, o->schema, o->seats > 0 ?
				  "SELECT pg_terminate_backend(pid) FROM %le_leaders WHERE identity = $2::text AND name = ANY (%le_seats($1::text, $3::int))" :
				  "SELECT pg_terminate_backend(pid) FROM %le_leaders WHERE identity = $2::text AND name = $1::text");
	statement_add(&s, o->election);
	statement_add(&s, o->identity);
	if (o->seats > 0)
		statement_add_number(&s, o->seats);
	/* it can run in the session that it ends, or in one that another ends */
	while (!(result = ask_once(&s)) && clock_now() < end)
		pg_usleep(100 * MILLISECOND);
	PQclear(result);
}

static void
end_run(const ElectorError *error)
{
	connection_close(&run.connection);
	run.ended = true;
	if (error->kind == ERROR_NONE)
		return;
	run.failed = true;
	if (error->kind == ERROR_EXTENSION)
		diagnose(error);
	else if (error->kind == ERROR_POOLER)
		expel();
	else
		pg_log_error("%s", error->message);
}

/*
 * The command
 */

static void
set_number(const char *name, int64 number)
{
	char		string[32];

	snprintf(string, sizeof(string), INT64_FORMAT, number);
	setenv(name, string, 1);
}

/* Set the environment of the command, which this process can have, too */
static void
set_environment(void)
{
	setenv("LE_ELECTION", run.elector.term.election, 1);
	setenv("LE_IDENTITY", run.settings->elector.identity, 1);
	set_number("LE_TOKEN", run.elector.term.token);
	if (run.settings->elector.heartbeat > 0)
		setenv("LE_HEARTBEAT_FD", "3", 1);
	if (run.settings->heartbeat_file)
		setenv("LE_HEARTBEAT_FILE", run.settings->heartbeat_file, 1);
	if (run.every.due != 0)
	{
		char		string[64];

		write_time(string, sizeof(string), run.every.due);
		setenv("LE_DUE", string, 1);
	}
}

static usec
grace_period(void)
{
	const Settings *s = run.settings;
	usec		grace = 5 * SECOND;

	if (s->grace >= 0)
		return s->grace;
	/* before the server elects another candidate */
	if (s->elector.ttl > 0)
		grace = Min(grace, s->elector.ttl / 4);
	if (s->elector.heartbeat > 0)
		grace = Min(grace, s->elector.heartbeat / 4);
	return grace;
}

static void
start_command(void)
{
	Settings   *s = run.settings;
	PGconn	   *pg = run.connection.pg;
	KeeperSpec	spec = {
		.command = s->command,
		.valid_until = elector_valid_until(&run.elector),
		.grace = grace_period(),
		.connection = s->elector.ttl == 0 && pg ? PQsocket(pg) : -1,
		.heartbeat = run.heartbeat[1],
		.gets_terminal = true
	};
	char	   *zone = getenv("TZ") ? pg_strdup(getenv("TZ")) : NULL;

	set_environment();
	if (s->scheduled && has_command_zone)
		setenv("TZ", command_zone, 1);
	else if (s->scheduled)
		unsetenv("TZ");
	keeper_start(&run.keeper, &spec);
	if (s->scheduled && zone)
		setenv("TZ", zone, 1);
	free(zone);
	run.started = true;
	run.lost = false;
}

/* Return whether there is no other campaign after this job */
static bool
is_last_job(void)
{
	const Settings *s = run.settings;

	if (s->restart)
		return false;
	if (s->scheduled && s->wait == NEVER)
		return false;
	return run.started || run.every.done;
}

/* The job has ended: tell the state machine */
static void
end_job(const ElectorError *error)
{
	Event		event = {.kind = ON_RETURNED,.error = error};

	run.job = false;
	if (run.settings->scheduled)
		every_end(&run.every);
	happen(&event);
	if (is_last_job())
		happen_plainly(ON_STOP);
	else if (!run.told_stop)
	{
		/* it waits again, and if the term was lost, then only that long */
		run.lost = !run.started;
		run.started = false;
		if (!run.settings->restart && run.settings->wait != NEVER)
			run.give_up = clock_now() + run.settings->wait;
	}
}

/* Go on after the command has ended */
static void
end_command(void)
{
	const Settings *s = run.settings;
	ElectorError error;
	bool		succeeded;

	if (run.keeper.failed)
		pg_log_error("could not start a process: %s",
					 strerror(run.keeper.start_errno));
	else if (run.keeper.start_errno != 0)
		pg_log_error("could not execute \"%s\": %s", s->command[0],
					 strerror(run.keeper.start_errno));
	run.status = exit_status_of(&run.keeper);
	/* one that has ended by itself has its status, however late that is */
	if (!run.keeper.stopped)
		run.lost = false;
	else if (!run.told_stop)
		run.lost = true;		/* the keeper can be faster */
	succeeded = run.status == 0 && run.elector.term.over.kind == ERROR_NONE;
	run.keeper.state = KEEPER_NONE;
	pg_log_info("the command has ended with status %d", run.status);
	if (run.keeper.start_errno != 0 && !run.told_stop)
	{
		run.told_stop = true;
		happen_plainly(ON_STOP);
	}
	if (s->scheduled && !run.elector.term.cancelled)
	{
		every_done(&run.every, succeeded, clock_now());
		return;
	}
	elector_error(&error, ERROR_JOB, "the command has ended with status %d",
				  run.status);
	end_job(succeeded || !s->restart ? NULL : &error);
}

/* Stop the command, if the state machine does not let it run any more */
static void
look_after_command(void)
{
	Elector    *e = &run.elector;

	if (!run.job)
		return;
	if (run.keeper.state == KEEPER_NONE)
	{
		/* as between two times that are due, there is no command to stop */
		if (e->term.cancelled)
			end_job(NULL);
		return;
	}
	if (e->term.over.kind != ERROR_NONE)
	{
		run.lost = run.lost || !run.told_stop;
		keeper_terminate(&run.keeper);
		if (clock_now() >= run.keeper.kill_at)
			keeper_kill(&run.keeper);
	}
	else
		keeper_hold(&run.keeper, elector_valid_until(e));
}

/*
 * The state machine
 */

static usec
bid_round(void)
{
	usec		left = run.give_up == NEVER ? NEVER :
		run.give_up - clock_now();

	return Max(0, Min(elector_round(&run.elector), left));
}

static void
ask_server(const Action *action)
{
	Elector    *e = &run.elector;
	Statement	s;

	if (action->kind == DO_OPEN)
	{
		connection_ask(&run.connection, action->serial, NULL, e->way.limit,
					   e->now);
		return;
	}
	if (run.connection.state != CONNECTION_CLOSED &&
		run.connection.state != CONNECTION_IDLE)
		connection_close(&run.connection);
	statement_for(&s, e, action, bid_round());
	connection_ask(&run.connection, action->serial, &s, e->way.limit, e->now);
}

static void
act(const Action *action)
{
	Elector    *e = &run.elector;
	const char *election = e->term.election;

	switch (action->kind)
	{
		case DO_CLOSE:
			connection_close(&run.connection);
			break;
		case DO_ELECTED:
			run.since = wall_clock();
			run.give_up = NEVER;
			run.lost = false;
			pg_log_info("elected in \"%s\" with token " INT64_FORMAT, election,
						action->number);
			notify_service("READY=1\nSTATUS=leads \"%s\" with token " INT64_FORMAT, election, action->number);
			run.pending_returns++;
			break;
		case DO_JOB:
			run.job = true;
			run.look_at_file = 0;
			note_touched();
			if (run.settings->value)
			{
				Event		proclaim = {.kind = ON_PROCLAIM,
				.value = run.settings->value};

				happen(&proclaim);
			}
			if (run.settings->scheduled)
				every_begin(&run.every, run.settings, election, action->number,
							run.began, clock_now());
			else if (run.keeper.state == KEEPER_NONE && !e->term.cancelled)
				start_command();
			break;
		case DO_CANCEL:
			break;				/* see look_after_command() */
		case DO_OUSTED:
			pg_log_info("the term in \"%s\" is over: %s", election,
						action->reason);
			notify_service("STATUS=the term in \"%s\" is over: %s", election,
						   action->reason);
			run.pending_returns++;
			break;
		case DO_ERROR:
			report_error(&action->error);
			break;
		case DO_PROCLAIMED:
			if (action->error.kind != ERROR_NONE)
				pg_log_warning("could not publish the value: %s",
							   action->error.message);
			break;
		case DO_END:
			end_run(&action->error);
			break;
		default:
			ask_server(action);
	}
}

/* Let something happen to the state machine, or only time pass if NULL */
static void
happen(const Event *event)
{
	Action		actions[MAX_ACTIONS];
	int			n;

	if (run.ended)
		return;
	elector_step(&run.elector, clock_now(), event);
	n = run.elector.n_actions;
	memcpy(actions, run.elector.actions, n * sizeof(Action));
	for (int i = 0; i < n && !run.ended; i++)
		act(&actions[i]);
	while (run.pending_returns > 0 && !run.ended)
	{
		run.pending_returns--;
		happen_plainly(ON_RETURNED);
	}
}

/* Return what a statement has returned */
static Answer
read_answer(const PGresult *result)
{
	Answer		answer = {0};
	int			n = PQnfields(result);

	if (PQntuples(result) < 1 || n < 1)
		return answer;
	switch (run.elector.ask.kind)
	{
		case DO_OPEN:
			answer.pid = atoi(PQgetvalue(result, 0, 0));
			break;
		case DO_BID:
			answer.token = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
			if (n > 1 && !PQgetisnull(result, 0, 1))
				answer.name = PQgetvalue(result, 0, 1);
			break;
		default:
			answer.yes = *PQgetvalue(result, 0, 0) == 't';
			if (n > 1)
				answer.pid = atoi(PQgetvalue(result, 0, 1));
	}
	return answer;
}

static void
take_answer(const Reply *reply)
{
	Answer		answer = read_answer(reply->result);
	Event		event = {.kind = ON_ANSWER,.serial = reply->serial,
	.answer = &answer};
	bool		denied = run.elector.ask.kind == DO_BID && answer.token == 0;

	run.answered = run.answered || denied;
	/* a bid that was denied is not repeated after the time to wait */
	if (denied && clock_now() >= run.give_up)
	{
		run.not_elected = true;
		if (run.elector.way.opens)
		{
			happen_plainly(ON_STOP);
			return;
		}
		happen(&event);
		happen_plainly(ON_STOP);
		return;
	}
	happen(&event);
}

static void
take_replies(void)
{
	Reply		reply;

	while (!run.ended && connection_advance(&run.connection, clock_now(),
											&reply) != REPLY_NONE)
	{
		Event		event = {.serial = reply.serial};

		switch (reply.kind)
		{
			case REPLY_BEGUN:
				event.kind = ON_BEGUN;
				happen(&event);
				break;
			case REPLY_ANSWER:
				take_answer(&reply);
				PQclear(reply.result);
				break;
			case REPLY_FAILED:
				event.kind = ON_FAILED;
				event.error = &reply.error;
				happen(&event);
				break;
			default:
				if (!run.elector.way.opens)
					connection_close(&run.connection);
				else
				{
					event.kind = ON_BROKEN;
					event.error = &reply.error;
					happen(&event);
					if (run.connection.state == CONNECTION_IDLE)
						connection_close(&run.connection);
				}
		}
	}
}

/*
 * Signals and heartbeats
 */

static void
take_signals(void)
{
	int			signal_number;

	while (signals_take(run.signals, &signal_number))
	{
		bool		stops = signal_number == SIGTERM ||
			signal_number == SIGINT || signal_number == SIGQUIT;

		if (signal_number == SIGCHLD)
			continue;
		if (run.keeper.state == KEEPER_RUNS)
			keeper_signal(&run.keeper, signal_number);
		else
			stops = stops || signal_number == SIGHUP;
		if (stops && !run.told_stop)
		{
			run.told_stop = true;
			run.stop_signal = signal_number;
			notify_service("STOPPING=1");
			happen_plainly(ON_STOP);
		}
	}
}

static void
beat(void)
{
	elector_heartbeat(&run.elector, clock_now());
	happen(NULL);
}

/* Return whether the file of heartbeats was touched since the last look */
static bool
note_touched(void)
{
	struct stat st;
	bool		touched;

	if (!run.settings->heartbeat_file ||
		stat(run.settings->heartbeat_file, &st) != 0)
		return false;
	touched = st.st_mtim.tv_sec != run.touched.tv_sec ||
		st.st_mtim.tv_nsec != run.touched.tv_nsec;
	run.touched = st.st_mtim;
	return touched;
}

static void
take_heartbeats(usec now)
{
	const Settings *s = run.settings;
	char		bytes[256];
	bool		beats = false;

	if (s->elector.heartbeat == 0 || !run.job)
		return;
	while (read(run.heartbeat[0], bytes, sizeof(bytes)) > 0)
		beats = true;
	if (s->heartbeat_file && now >= run.look_at_file)
	{
		run.look_at_file = now + Min(SECOND, s->elector.heartbeat / 10);
		beats = note_touched() || beats;
	}
	/* between two times that are due, there is no command to beat */
	if (s->scheduled && run.keeper.state == KEEPER_NONE)
		beats = true;
	if (beats)
		beat();
}

/*
 * The loop
 */

static void
take_status(HttpStatus *status)
{
	Elector    *e = &run.elector;
	usec		now = clock_now();

	memset(status, 0, sizeof(*status));
	status->election = e->term.exists ? e->term.election : e->options.election;
	status->identity = e->options.identity;
	status->state = elector_state(e);
	status->health = elector_health(e, now);
	status->leading = e->phase >= PHASE_ELECTED && elector_is_leading(e, now);
	status->healthy = strcmp(status->health, "leading") == 0 ||
		strcmp(status->health, "waiting") == 0;
	status->token = e->term.exists ? e->term.token : 0;
	status->since = run.since;
	status->elector = e;
}

/* Return whether it waits to be elected, but not for ever */
static bool
may_give_up(void)
{
	return run.give_up != NEVER && !run.told_stop && !run.started &&
		run.elector.phase < PHASE_ELECTED;
}

static usec
next_wakeup(usec now)
{
	usec		next = Min(elector_wakeup(&run.elector),
						   connection_wakeup(&run.connection));

	if (may_give_up() && run.settings->wait > 0)
		next = Min(next, now < run.give_up ? run.give_up :
				   run.give_up + SECOND);
	if (run.keeper.state == KEEPER_RUNS)
		next = Min(next, run.keeper.kill_at);
	if (run.job && run.settings->scheduled && run.keeper.state == KEEPER_NONE)
		next = Min(next, every_wakeup(&run.every));
	if (run.job && run.settings->heartbeat_file)
		next = Min(next, run.look_at_file);
	if (run.job && run.settings->scheduled &&
		run.settings->elector.heartbeat > 0)
		next = Min(next, now + run.settings->elector.heartbeat / 10);
	next = Min(next, run.watchdog_at);
	next = Min(next, http_wakeup(now));
	/* timers stand still while the machine is suspended */
	return Max(0, Min(next - now, SECOND));
}

static void
wait_for_something(void)
{
	struct pollfd fds[6];
	usec		now = clock_now();

	memset(fds, 0, sizeof(fds));
	fds[0].fd = run.signals;
	fds[0].events = POLLIN;
	connection_poll(&run.connection, &fds[1]);
	fds[2].fd = run.keeper.state == KEEPER_RUNS ? run.keeper.fd : -1;
	fds[2].events = POLLIN;
	fds[3].fd = run.job ? run.heartbeat[0] : -1;
	fds[3].events = POLLIN;
	fds[4].fd = -1;
	if (run.job && run.settings->scheduled &&
		run.keeper.state == KEEPER_NONE)
		connection_poll(&run.every.connection, &fds[4]);
	http_poll(&fds[5]);
	poll(fds, lengthof(fds),
		 (int) ((next_wakeup(now) + MILLISECOND - 1) / MILLISECOND));
}

static void
advance_schedule(void)
{
	Every	   *every = &run.every;

	if (!run.job || !run.settings->scheduled ||
		run.keeper.state != KEEPER_NONE ||
		run.elector.term.cancelled)
		return;
	every_advance(every, clock_now());
	if (every->error.kind != ERROR_NONE)
	{
		Event		note = {.kind = ON_NOTE,.error = &every->error};

		happen(&note);
		every->error.kind = ERROR_NONE;
	}
	if (every->done && run.job)
	{
		/* another process may have done what was due */
		run.not_elected = !run.started;
		end_job(NULL);
		return;
	}
	if (every->starts && run.job && elector_is_leading(&run.elector,
													   clock_now()))
	{
		every->starts = false;
		start_command();
	}
}

/* Stop waiting to be elected when it is time */
static void
keep_waiting_or_not(usec now)
{
	bool		fails = run.settings->wait == 0 &&
		run.elector.phase == PHASE_PAUSED;

	if (!may_give_up())
		return;
	if (!fails && (run.settings->wait == 0 || now < run.give_up))
		return;
	/* a bid that is on its way will be denied in a moment */
	if (!fails && run.elector.ask.asking && run.elector.ask.kind == DO_BID &&
		now < run.give_up + SECOND)
		return;
	/* without waiting, there is no second attempt */
	run.failed = (fails || !run.answered) && !run.lost;
	run.not_elected = true;
	run.told_stop = true;
	happen_plainly(ON_STOP);
}

static void
drive(void)
{
	happen_plainly(ON_RUN);
	while (!run.ended)
	{
		wait_for_something();
		take_signals();
		take_replies();
		take_heartbeats(clock_now());
		happen(NULL);
		look_after_command();
		if (keeper_take(&run.keeper))
			end_command();
		advance_schedule();
		keeper_reap_others(&run.keeper);
		keep_waiting_or_not(clock_now());
		http_advance();
		if (clock_now() >= run.watchdog_at)
		{
			notify_service("WATCHDOG=1");
			run.watchdog_at = clock_now() + notify_watchdog() / 3;
		}
	}
}

static int
run_status(void)
{
	if (run.failed)
		return EXIT_FAILED;
	if (run.started)
		return run.lost ? EXIT_LOST : run.status;
	if (run.stop_signal != 0)
		return EXIT_BY_SIGNAL + run.stop_signal;
	if (run.lost)
		return EXIT_LOST;
	return run.not_elected ? run.settings->not_elected : EXIT_FAILED;
}

int
run_command(Settings *settings)
{
	char		application[MAX_NAME + 32];

	memset(&run, 0, sizeof(run));
	run.settings = settings;
	run.signals = signals_open();
	if (run.signals < 0)
	{
		pg_log_error("could not create a pipe: %m");
		return EXIT_FAILED;
	}
	for (size_t i = 0; i < lengthof(forwarded); i++)
		signals_catch(forwarded[i]);
	signals_catch(SIGCHLD);
	signals_ignore(SIGPIPE);
	/* while the command has the terminal, this process is in the background */
	signals_ignore(SIGTTIN);
	signals_ignore(SIGTTOU);
	run.heartbeat[0] = run.heartbeat[1] = -1;
	if (settings->elector.heartbeat > 0)
	{
		if (pipe(run.heartbeat) != 0)
		{
			pg_log_error("could not create a pipe: %m");
			return EXIT_FAILED;
		}
		for (int i = 0; i < 2; i++)
			fcntl(run.heartbeat[i], F_SETFD, FD_CLOEXEC);
		fcntl(run.heartbeat[0], F_SETFL, O_NONBLOCK);
	}
	notify_init();
	run.watchdog_at = notify_watchdog() > 0 ? 0 : NEVER;
	if (settings->listen && !http_start(settings->listen, take_status))
		return EXIT_FAILED;
	elector_init(&run.elector, &settings->elector, draw_random);
	snprintf(application, sizeof(application), "leader_election: %s",
			 settings->elector.election);
	connection_init(&run.connection, settings, settings->elector.ttl > 0 ?
					NULL : application);
	run.began = clock_now();
	run.give_up = settings->wait == NEVER ? NEVER : run.began + settings->wait;
	notify_service("STATUS=waits to be elected in \"%s\"",
				   settings->elector.election);
	drive();
	http_stop();
	return run_status();
}
