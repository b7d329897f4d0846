/*-------------------------------------------------------------------------
 *
 * follow.c
 *	  pg_leader follow: drive the state machine of a follower.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#define HOOK_GRACE	(5 * SECOND)

static const int ending[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};

static struct
{
	Settings   *settings;
	Elector		follower;
	Connection	connection;
	int			signals;
	int			stop_signal;
	bool		ended;
	int			status;
	moment		since;
	Keeper		hook;			/* that runs */
	bool		hook_waits;		/* is to run for the leader, which has changed */
}			follow;

/* The leader that was told, or NULL */
static const char *
leader(void)
{
	const Elector *e = &follow.follower;

	return e->told_token != 0 ? e->told_identity : NULL;
}

static const char *
leader_value(void)
{
	const Elector *e = &follow.follower;

	return e->told_has_value ? e->told_value : NULL;
}

static void
print_leader(void)
{
	int64		token = follow.follower.told_token;
	const char *value = leader_value();
	const char *election = follow.settings->elector.election;
	char		now[64];
	PQExpBufferData line;

	write_time(now, sizeof(now), wall_clock());
	initPQExpBuffer(&line);
	if (!follow.settings->json)
	{
		append_printable(&line, election);
		appendPQExpBufferStr(&line, token == 0 ? ": no leader" :
							 ": led by ");
		if (token != 0)
		{
			append_printable(&line, leader());
			appendPQExpBuffer(&line, ", token " INT64_FORMAT "%s", token,
							  value ? ", value " : "");
			append_printable(&line, value ? value : "");
		}
		printf("%s %s\n", now, line.data);
	}
	else
	{
		appendPQExpBuffer(&line, "{\"time\": \"%s\", \"election\": ", now);
		append_json(&line, election);
		append_leader(&line, leader(), token);
		appendPQExpBufferStr(&line, ", \"value\": ");
		append_json(&line, value);
		printf("%s}\n", line.data);
	}
	termPQExpBuffer(&line);
	if (!flush_output())
	{
		follow.ended = true;
		follow.status = 1;
	}
}

static void
set_or_unset(const char *name, const char *value)
{
	if (value)
		setenv(name, value, 1);
	else
		unsetenv(name);
}

/* Run the hook for the present leader, after the one before has ended */
static void
start_hook(void)
{
	char		token[32];
	char	   *command[] = {"/bin/sh", "-c",
	unconstify(char *, follow.settings->hook), NULL};
	KeeperSpec	spec = {.command = command,.valid_until = NEVER,
	.grace = HOOK_GRACE,.connection = -1,.heartbeat = -1};

	if (!follow.hook_waits || follow.hook.state != KEEPER_NONE ||
		follow.ended)
		return;
	follow.hook_waits = false;
	snprintf(token, sizeof(token), INT64_FORMAT, follow.follower.told_token);
	setenv("LE_ELECTION", follow.settings->elector.election, 1);
	set_or_unset("LE_TOKEN", leader() ? token : NULL);
	set_or_unset("LE_IDENTITY", leader());
	set_or_unset("LE_VALUE", leader_value());
	keeper_start(&follow.hook, &spec);
}

static void
take_hook(void)
{
	if (!keeper_take(&follow.hook))
		return;
	if (follow.hook.start_errno != 0)
		pg_log_warning("could not start the hook: %s",
					   strerror(follow.hook.start_errno));
	else if (follow.hook.status != 0 && !follow.hook.terminating)
	{
		char	   *result = wait_result_to_str(follow.hook.status);

		pg_log_warning("the hook has failed: %s", result);
		pg_free(result);
	}
	follow.hook.state = KEEPER_NONE;
	start_hook();
}

/* Stop the hook that runs */
static void
stop_hook(void)
{
	while (follow.hook.state == KEEPER_RUNS)
	{
		struct pollfd fd = {.fd = follow.hook.fd,.events = POLLIN};

		keeper_terminate(&follow.hook);
		poll(&fd, 1, (int) (KILL_AGAIN / MILLISECOND));
		if (clock_now() >= follow.hook.kill_at)
			keeper_kill(&follow.hook);
		take_hook();
	}
}

static void
happen(const Event *event)
{
	Action		actions[MAX_ACTIONS];
	Elector    *e = &follow.follower;
	Statement	s;
	int			n;

	if (follow.ended)
		return;
	elector_step(e, clock_now(), event);
	n = e->n_actions;
	memcpy(actions, e->actions, n * sizeof(Action));
	for (int i = 0; i < n; i++)
	{
		switch (actions[i].kind)
		{
			case DO_OPEN:
				connection_ask(&follow.connection, actions[i].serial, NULL,
							   e->way.limit, e->now);
				break;
			case DO_OBSERVE:
				statement_for(&s, e, &actions[i], 0);
				connection_ask(&follow.connection, actions[i].serial, &s,
							   e->way.limit, e->now);
				break;
			case DO_CLOSE:
				connection_close(&follow.connection);
				break;
			case DO_TOLD:
				follow.since = wall_clock();
				print_leader();
				follow.hook_waits = follow.settings->hook != NULL;
				start_hook();
				break;
			case DO_ERROR:
				pg_log_warning("%s", actions[i].error.message);
				break;
			case DO_END:
				follow.ended = true;
				if (actions[i].error.kind != ERROR_NONE)
				{
					pg_log_error("%s", actions[i].error.message);
					follow.status = 1;
				}
				break;
			default:
				break;
		}
	}
}

static void
take_replies(void)
{
	Reply		reply;

	while (!follow.ended && connection_advance(&follow.connection, clock_now(),
											   &reply) != REPLY_NONE)
	{
		Event		event = {.serial = reply.serial};
		Answer		answer = {0};
		const PGresult *result = reply.result;

		event.kind = reply.kind == REPLY_BEGUN ? ON_BEGUN :
			reply.kind == REPLY_ANSWER ? ON_ANSWER :
			reply.kind == REPLY_FAILED ? ON_FAILED : ON_BROKEN;
		if (reply.kind == REPLY_ANSWER)
		{
			event.answer = &answer;
			if (follow.follower.ask.kind == DO_OBSERVE &&
				PQntuples(result) == 1 && PQnfields(result) == 4)
			{
				answer.version = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
				answer.token = strtoll(PQgetvalue(result, 0, 1), NULL, 10);
				answer.identity = PQgetisnull(result, 0, 2) ? NULL :
					PQgetvalue(result, 0, 2);
				answer.value = PQgetisnull(result, 0, 3) ? NULL :
					PQgetvalue(result, 0, 3);
			}
		}
		else if (reply.kind != REPLY_BEGUN)
			event.error = &reply.error;
		happen(&event);
		PQclear(reply.result);
		if (reply.kind == REPLY_BROKEN &&
			follow.connection.state == CONNECTION_IDLE)
			connection_close(&follow.connection);
	}
}

static void
take_status(HttpStatus *status)
{
	memset(status, 0, sizeof(*status));
	status->election = follow.settings->elector.election;
	status->identity = leader();
	status->health = follow.follower.failures > 0 ? "in doubt" : "waiting";
	status->state = "follows";
	status->healthy = follow.follower.failures == 0 && follow.follower.told;
	status->leading = status->healthy && leader() &&
		follow.settings->has_identity &&
		strcmp(leader(), follow.settings->elector.identity) == 0;
	status->token = follow.follower.told_token;
	status->since = follow.since;
	status->follows = true;
	status->elector = &follow.follower;
}

static void
wait_for_something(void)
{
	struct pollfd fds[4];
	usec		now = clock_now();
	usec		next = Min(elector_wakeup(&follow.follower),
						   connection_wakeup(&follow.connection));

	next = Min(next, http_wakeup(now));
	next = Max(0, Min(next - now, SECOND));
	memset(fds, 0, sizeof(fds));
	fds[0].fd = follow.signals;
	fds[0].events = POLLIN;
	connection_poll(&follow.connection, &fds[1]);
	http_poll(&fds[2]);
	fds[3].fd = follow.hook.state == KEEPER_RUNS ? follow.hook.fd : -1;
	fds[3].events = POLLIN;
	poll(fds, lengthof(fds), (int) ((next + MILLISECOND - 1) / MILLISECOND));
}

int
follow_command(Settings *settings)
{
	char		application[MAX_NAME + 32];
	Event		event = {.kind = ON_RUN};
	int			signal_number;

	memset(&follow, 0, sizeof(follow));
	follow.settings = settings;
	follow.signals = signals_open();
	if (follow.signals < 0)
		pg_fatal("could not create a pipe: %m");
	for (size_t i = 0; i < lengthof(ending); i++)
		signals_catch(ending[i]);
	signals_catch(SIGCHLD);
	if (settings->listen && !http_start(settings->listen, take_status))
		return 1;
	follower_init(&follow.follower, &settings->elector, draw_random);
	snprintf(application, sizeof(application), "leader_election: %s",
			 settings->elector.election);
	connection_init(&follow.connection, settings, application);
	happen(&event);
	while (!follow.ended)
	{
		wait_for_something();
		while (signals_take(follow.signals, &signal_number))
		{
			event.kind = ON_STOP;
			if (signal_number == SIGCHLD)
				continue;
			follow.stop_signal = signal_number;
			happen(&event);
		}
		take_replies();
		happen(NULL);
		take_hook();
		keeper_reap_others(&follow.hook);
		http_advance();
	}
	stop_hook();
	connection_close(&follow.connection);
	http_stop();
	return follow.status != 0 ? follow.status : follow.stop_signal != 0 ?
		EXIT_BY_SIGNAL + follow.stop_signal : 0;
}
