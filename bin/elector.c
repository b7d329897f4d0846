/*-------------------------------------------------------------------------
 *
 * elector.c
 *	  The state machine of an elector and of a follower.
 *
 * See elector.h.  The order of the functions is that of the sections of
 * clients/README.md, "Rules".
 *
 *-------------------------------------------------------------------------
 */
#include "elector.h"

/* What the time can bring, in the order in which it is looked at */
typedef enum TimerKind
{
	TIMER_DOUBT,
	TIMER_DEADLINE,
	TIMER_SLOW,
	TIMER_CAMPAIGN,
	TIMER_QUESTION,
	TIMER_PROCLAIM
} TimerKind;

#define N_TIMERS (TIMER_PROCLAIM + 1)

static void answer_ask(Elector *e, uint32 serial, const Answer *answer,
					   const ElectorError *error);
static void cancel_job(Elector *e, const char *reason);
static void finish_term(Elector *e);
static void lose(Elector *e, const ElectorError *error);

/*
 * Options
 */

static bool
is_array(const char *name)
{
	size_t		length = strlen(name);

	return length >= 2 && name[0] == '{' && name[length - 1] == '}';
}

static bool
has_length(const char *name, size_t suffix, size_t most)
{
	return *name != '\0' && strlen(name) + suffix <= most;
}

/*
 * Return the name of an option that the server would refuse, or NULL
 */
const char *
elector_check(const ElectorOptions *options)
{
	size_t		suffix = 0;

	if (options->seats < 0 || options->seats > 10000)
		return "seats";
	if (options->seats > 0)
		suffix = snprintf(NULL, 0, "/%d", options->seats);
	if (!has_length(options->election, suffix, MAX_NAME) ||
		is_array(options->election))
		return "election";
	if (!has_length(options->identity, 0, MAX_NAME))
		return "identity";
	if (options->schema && !has_length(options->schema, 0, 63))
		return "schema";
	if (options->ttl != 0 && (options->ttl < SECOND || options->ttl > DAY))
		return "ttl";
	if (options->heartbeat != 0 && (options->heartbeat < SECOND ||
									options->heartbeat > DAY))
		return "heartbeat";
	if (options->stop_timeout <= 0 || options->stop_timeout > DAY)
		return "stop_timeout";
	return NULL;
}

/*
 * The ways to lead, and to follow
 */

static Way
session_way(usec heartbeat)
{
	Way			way = {.bid = DO_BID,.opens = true,.interval = SECOND,
		.retry = NEVER,
	.validity = 6 * SECOND,.round = 300 * SECOND,.limit = 5 * SECOND};

	if (heartbeat > 0)
	{
		way.interval = Min(way.interval, heartbeat / 4);
		way.limit = Min(way.limit, heartbeat / 3);
	}
	way.patience = way.proclaiming = way.limit;
	return way;
}

static Way
lease_way(usec ttl)
{
	Way			way = {.bid = DO_BID,.interval = ttl / 3,
		.validity = ttl * 2 / 3,
		.limit = Min(5 * SECOND, ttl / 3),
	.patience = Min(5 * SECOND, ttl / 5)};

	way.retry = way.proclaiming = Min(SECOND, ttl / 10);
	return way;
}

static void
forget_term(Elector *e)
{
	memset(&e->term, 0, sizeof(e->term));
	e->term.due = e->term.report_at = NEVER;
	e->term.beat_length = e->term.beaten_until = NEVER;
}

/*
 * Make an elector.  The options must have passed elector_check(), and their
 * texts must stay.  The function returns a number from 0 to 1.
 */
void
elector_init(Elector *e, const ElectorOptions *options,
			 double (*random) (void))
{
	memset(e, 0, sizeof(*e));
	e->options = *options;
	e->random = random;
	e->until = NEVER;
	e->way = options->ttl > 0 ? lease_way(options->ttl) :
		session_way(options->heartbeat);
	forget_term(e);
}

/*
 * Make a follower.  It waits for changes as a campaign in session scope waits
 * for an election.
 */
void
follower_init(Elector *e, const ElectorOptions *options,
			  double (*random) (void))
{
	elector_init(e, options, random);
	e->way = session_way(0);
	e->way.bid = DO_OBSERVE;
	e->way.round = 30 * SECOND;
}

/*
 * Actions
 */

static Action *
add_action(Elector *e, ActionKind kind)
{
	Action	   *action = &e->actions[e->n_actions++];

	Assert(e->n_actions <= MAX_ACTIONS);
	memset(action, 0, offsetof(Action, error));
	action->error.kind = ERROR_NONE;
	action->kind = kind;
	return action;
}

void
elector_error(ElectorError *error, ErrorKind kind, const char *fmt,...)
{
	va_list		args;

	memset(error, 0, sizeof(*error));
	error->kind = kind;
	va_start(args, fmt);
	vsnprintf(error->message, sizeof(error->message), fmt, args);
	va_end(args);
}

static void
report(Elector *e, const ElectorError *error)
{
	e->errors++;
	add_action(e, DO_ERROR)->error = *error;
}

static Action *
send_ask(Elector *e, ActionKind kind, usec limit)
{
	Action	   *action = add_action(e, kind);

	action->serial = ++e->serial;
	e->ask = (Ask)
	{
		.asking = true,.serial = e->serial,.kind = kind,.asked = e->now,
			.deadline = e->now + limit,.beats = e->term.beats
	};
	return action;
}

static void
close_connection(Elector *e)
{
	e->ask.asking = false;
	add_action(e, DO_CLOSE);
}

static void
end_machine(Elector *e, const ElectorError *error)
{
	Action	   *action = add_action(e, DO_END);

	e->phase = PHASE_STOPPED;
	e->until = NEVER;
	if (error)
		action->error = *error;
}

static void
pause_machine(Elector *e, usec length)
{
	e->phase = PHASE_PAUSED;
	e->until = e->now + length;
}

static usec
jittered(Elector *e, usec length)
{
	return length * (0.5 + e->random() / 2);
}

/*
 * Return the pause after an error, which doubles with each in a row.  A job
 * that fails counts by itself, too.
 */
static usec
backoff(Elector *e, int before, usec most)
{
	e->failures++;
	return jittered(e, Min(most, (SECOND / 2) << Min(before, 7)));
}

/* Return the time from one bid for a lease to the next */
static usec
bid_interval(const Elector *e)
{
	return Min(e->way.interval, SECOND);
}

/*
 * The campaign
 */

/*
 * Return how long a bid waits in the server
 *
 * The first one after an error is answered soon, since the health is in doubt
 * until then.
 */
usec
elector_round(const Elector *e)
{
	return e->way.bid == DO_BID && e->failures > 0 ? Min(e->way.round, SECOND) : e->way.round;
}

static void
send_bid(Elector *e)
{
	Action	   *action = send_ask(e, e->way.bid, e->way.limit + elector_round(e));

	action->number = e->way.bid == DO_OBSERVE ? e->version : e->kept_token;
}

static void
begin_campaign(Elector *e)
{
	e->phase = PHASE_CAMPAIGN;
	e->until = NEVER;
	if (e->way.opens)
		send_ask(e, DO_OPEN, e->way.limit);
	else
		send_bid(e);
}

static void
answer_open(Elector *e, const Answer *answer)
{
	e->pid = answer->pid;
	e->version = 0;
	send_bid(e);
}

/* Note a confirmation, which is valid from when its question was sent */
static void
note_confirmation(Elector *e, const Ask *ask)
{
	Term	   *term = &e->term;

	e->confirmations++;
	term->due = ask->asked + e->way.interval;
	term->confirmed_until = ask->asked + e->way.validity;
	if (ask->kind == DO_BEAT)
	{
		term->carried = ask->beats;
		term->beaten_until = ask->asked + e->options.heartbeat * 2 / 3;
	}
}

static void
come_in_doubt(Elector *e)
{
	ElectorError error;

	elector_error(&error, ERROR_IN_DOUBT,
				  "leadership of election \"%s\" is in doubt",
				  e->term.election);
	lose(e, &error);
}

/* Go on after leadership was confirmed for the first time, or was not */
static void
begin_leading(Elector *e)
{
	if (e->term.over.kind == ERROR_NONE && e->now >= elector_valid_until(e))
		come_in_doubt(e);
	if (e->term.over.kind != ERROR_NONE || e->stopping)
	{
		e->phase = PHASE_LEAVING;
		return;
	}
	e->phase = PHASE_ELECTED;
	e->term.began = e->now;
	e->term.report_at = e->now + e->options.stop_timeout;
	e->terms++;
	add_action(e, DO_ELECTED)->number = e->term.token;
}

static void
answer_bid(Elector *e, const Ask *ask, const Answer *answer)
{
	Term	   *term = &e->term;

	e->failures = 0;
	e->told_not_yet = false;
	e->kept_token = 0;
	if (answer->token != 0)
	{
		forget_term(e);
		term->exists = true;
		term->token = answer->token;
		strlcpy(term->election, answer->name ? answer->name :
				e->options.election, sizeof(term->election));
		if (e->way.opens)
		{
			e->phase = PHASE_CONFIRMING;
			send_ask(e, e->options.heartbeat > 0 ? DO_BEAT : DO_CONFIRM,
					 e->way.limit);
			return;
		}
		if (e->options.heartbeat > 0)
		{
			term->beat_length = e->options.heartbeat * 2 / 3;
			term->last_beat = ask->asked;
		}
		note_confirmation(e, ask);
		begin_leading(e);
	}
	else if (e->stopping)
		finish_term(e);
	else if (e->way.opens)
		send_bid(e);
	else
		e->until = ask->asked + bid_interval(e);
}

static void
copy_text(char *to, const char *from, size_t size)
{
	strlcpy(to, from ? from : "", size);
}

static void
answer_observe(Elector *e, const Answer *answer)
{
	const char *identity = answer->identity ? answer->identity : "";
	const char *value = answer->value ? answer->value : "";

	e->failures = 0;
	e->told_not_yet = false;
	e->version = answer->version;
	if (!e->told || e->told_token != answer->token ||
		strcmp(e->told_identity, identity) != 0 ||
		e->told_has_value != (answer->value != NULL) ||
		strcmp(e->told_value, value) != 0)
	{
		e->told = true;
		e->told_token = answer->token;
		copy_text(e->told_identity, identity, sizeof(e->told_identity));
		copy_text(e->told_value, value, sizeof(e->told_value));
		e->told_has_value = answer->value != NULL;
		add_action(e, DO_TOLD)->number = answer->token;
	}
	send_bid(e);
}

/* Return whether the role may not do that, as after the role was replaced */
static bool
is_refused(const Ask *ask, const ElectorError *error)
{
	return ask->begun && strcmp(error->sqlstate, "42501") == 0;
}

/* Return the kind of permanent error that an error of a bid is, or ERROR_NONE */
static ErrorKind
permanent_kind(const ElectorError *error)
{
	const char *state = error->sqlstate;

	if (strcmp(state, "42883") == 0 || strcmp(state, "42P01") == 0 ||
		strcmp(state, "3F000") == 0)
		return ERROR_EXTENSION;
	if (strcmp(state, "42501") == 0)
		return ERROR_PRIVILEGE;
	if (strcmp(state, "LE005") == 0)
		return ERROR_POOLER;
	if (strncmp(state, "22", 2) == 0 || strncmp(state, "42", 2) == 0)
		return ERROR_ARGUMENT;
	return ERROR_NONE;
}

/* Return the pause that the hint of LE003 names, or one after an error */
static usec
pause_after(Elector *e, const ElectorError *error)
{
	const char *unit = strstr(error->hint, " ms");
	const char *digits = unit;

	if (e->told_not_yet && unit)
	{
		while (digits > error->hint && isdigit((unsigned char) digits[-1]))
			digits--;
		if (digits < unit)
			return Min(strtoul(digits, NULL, 10) * MILLISECOND, DAY);
	}
	return backoff(e, e->failures, 15 * SECOND);
}

static void
fail_attempt(Elector *e, const Ask *ask, const ElectorError *error)
{
	bool		not_yet = strcmp(error->sqlstate, "LE003") == 0;
	bool		told = e->told_not_yet;

	forget_term(e);
	close_connection(e);
	e->told_not_yet = false;
	if (is_refused(ask, error) && e->kept_token != 0)
		e->kept_token = 0;
	else if (ask->kind == e->way.bid && ask->begun && !e->stopping &&
			 permanent_kind(error) != ERROR_NONE)
	{
		ElectorError permanent = *error;

		permanent.kind = permanent_kind(error);
		end_machine(e, &permanent);
		return;
	}
	if (!not_yet || !told)
		report(e, error);
	e->told_not_yet = not_yet;
	if (e->stopping)
		end_machine(e, NULL);
	else
		pause_machine(e, pause_after(e, error));
}

/*
 * Confirmation
 */

/* Return whether leadership is to be confirmed */
static bool
holds(const Elector *e)
{
	return e->phase >= PHASE_ELECTED && e->phase <= PHASE_OUSTED &&
		e->term.over.kind == ERROR_NONE;
}

static void
send_confirm(Elector *e)
{
	bool		beat = e->way.opens && e->options.heartbeat > 0 &&
		e->term.beats != e->term.carried;

	send_ask(e, beat ? DO_BEAT : DO_CONFIRM, e->way.patience);
}

static void
answer_confirm(Elector *e, const Ask *ask, const Answer *answer)
{
	ElectorError error;

	if (e->term.over.kind != ERROR_NONE)
		return;
	if (e->way.opens && answer->pid != e->pid)
	{
		elector_error(&error, ERROR_POOLER,
					  "a pooler has changed the server connection");
		lose(e, &error);
	}
	else if (answer->yes)
		note_confirmation(e, ask);
	else
	{
		elector_error(&error, ERROR_LOST,
					  "leadership of election \"%s\" is lost",
					  e->term.election);
		lose(e, &error);
	}
	if (e->phase == PHASE_CONFIRMING)
		begin_leading(e);
}

/* Note that the connection in session scope has ended */
static void
lose_connection(Elector *e, const ElectorError *error)
{
	if (holds(e))
	{
		ElectorError lost = *error;

		lost.kind = ERROR_LOST;
		snprintf(lost.message, sizeof(lost.message),
				 "leadership of election \"%s\" is lost: %.*s",
				 e->term.election, (int) sizeof(lost.message) - MAX_NAME - 64,
				 error->message);
		lose(e, &lost);
	}
	else if (e->term.over.kind == ERROR_IN_DOUBT)
		e->term.over = *error;
}

/*
 * Statements
 */

/* Tell how the first proclamation has ended, unless that was told */
static void
tell_proclaimed(Elector *e, const ElectorError *error)
{
	Term	   *term = &e->term;
	Action	   *action;

	if (term->n_proclaims == 0)
		return;
	term->n_proclaims--;
	memmove(&term->proclaims[0], &term->proclaims[1],
			term->n_proclaims * sizeof(char *));
	action = add_action(e, DO_PROCLAIMED);
	if (error)
		action->error = *error;
}

static void
tell_proclaim_over(Elector *e)
{
	ElectorError over;

	elector_error(&over, ERROR_OVER, "the term is over");
	tell_proclaimed(e, &over);
}

static void
fail_ask(Elector *e, const Ask *ask, const ElectorError *error)
{
	if (is_refused(ask, error))
		e->term.refused = true;
	if (e->phase <= PHASE_CONFIRMING)
		fail_attempt(e, ask, error);
	else if (ask->kind == DO_RESIGN ||
			 (e->way.opens && e->phase == PHASE_LEAVING && ask->kind != DO_PROCLAIM))
	{
		int64		token = e->way.opens || e->term.refused ? 0 : e->term.token;

		report(e, error);
		finish_term(e);
		e->kept_token = token;
	}
	else if (ask->kind == DO_PROCLAIM)
	{
		tell_proclaimed(e, error);
		if (!e->way.opens)
			close_connection(e);
		else if (error->kind != ERROR_SERVER || error->fatal)
			lose_connection(e, error);
	}
	else if (e->way.opens)
		lose_connection(e, error);
	else if (e->term.over.kind == ERROR_NONE)
	{
		report(e, error);
		close_connection(e);
		e->term.due = e->now + e->way.retry;
	}
}

/* Take the answer to a statement, or its failure, unless it was given up */
static void
answer_ask(Elector *e, uint32 serial, const Answer *answer,
		   const ElectorError *error)
{
	Ask			ask = e->ask;
	bool		yields;

	if (!ask.asking || ask.serial != serial)
		return;
	e->ask.asking = false;
	if (error)
	{
		fail_ask(e, &ask, error);
		return;
	}
	switch (ask.kind)
	{
		case DO_OPEN:
			answer_open(e, answer);
			break;
		case DO_BID:
			answer_bid(e, &ask, answer);
			break;
		case DO_OBSERVE:
			answer_observe(e, answer);
			break;
		case DO_CONFIRM:
		case DO_BEAT:
			answer_confirm(e, &ask, answer);
			break;
		case DO_PROCLAIM:
			if (answer->yes)
				tell_proclaimed(e, NULL);
			else
				tell_proclaim_over(e);
			break;
		case DO_RESIGN:
			yields = e->term.over.kind != ERROR_NONE && !e->way.opens;
			finish_term(e);
			if (yields && e->phase == PHASE_PAUSED)
				e->until += bid_interval(e);	/* others bid this often */
			break;
		default:
			Assert(false);
	}
}

/* Give up the statement whose deadline has passed */
static void
give_up(Elector *e)
{
	ElectorError error;
	double		seconds = (e->ask.deadline - e->ask.asked) / (double) SECOND;

	if (e->ask.begun)
		elector_error(&error, ERROR_TIMEOUT,
					  "no answer from the server within %.3g s", seconds);
	else
		elector_error(&error, ERROR_NO_CONNECTION,
					  "no connection to the server within %.3g s", seconds);
	answer_ask(e, e->ask.serial, NULL, &error);
}

static void
note_broken(Elector *e, const ElectorError *error)
{
	ElectorError broken;

	if (!error)
	{
		elector_error(&broken, ERROR_BROKEN,
					  "the connection to the server has ended");
		error = &broken;
	}
	if (e->ask.asking)
		answer_ask(e, e->ask.serial, NULL, error);
	else
		lose_connection(e, error);
}

/*
 * The term
 */

/* Go on after elected, the job or ousted has returned, or failed */
static void
note_returned(Elector *e, const ElectorError *error)
{
	Phase		returned = e->phase;
	Action	   *action;

	Assert(returned >= PHASE_ELECTED && returned <= PHASE_OUSTED);
	e->phase++;
	if (error)
		report(e, error);
	e->term.report_at = NEVER;
	if (returned == PHASE_JOB)
		cancel_job(e, error ? "job failed" : "job returned");
	if (e->phase == PHASE_JOB && e->term.reason)
		e->phase = PHASE_OUSTED;
	if (e->phase == PHASE_LEAVING)
		return;
	if (e->phase == PHASE_OUSTED)
		e->term.report_at = e->now + e->options.stop_timeout;
	action = add_action(e, e->phase == PHASE_JOB ? DO_JOB : DO_OUSTED);
	action->number = e->term.token;
	action->reason = e->term.reason;
}

static void
report_slow(Elector *e)
{
	bool		job = e->phase == PHASE_JOB;
	ElectorError error;

	e->term.report_at = NEVER;
	elector_error(&error, job ? ERROR_SLOW_JOB : ERROR_CALLBACK,
				  "the %s of election \"%s\" has not %s within %.3g s",
				  job ? "command" : "callback", e->term.election,
				  job ? "stopped" : "returned",
				  e->options.stop_timeout / (double) SECOND);
	report(e, &error);
}

static void
take_proclaim(Elector *e, const char *value)
{
	Assert(e->term.n_proclaims < MAX_PROCLAIMS);
	e->term.proclaims[e->term.n_proclaims++] = value;
	if (!holds(e) || e->term.reason)
		tell_proclaim_over(e);
}

static void
send_proclaim(Elector *e)
{
	const char *value = e->term.proclaims[0];

	send_ask(e, DO_PROCLAIM, e->way.proclaiming)->value = value;
}

/*
 * The end of a term
 */

static void
lose(Elector *e, const ElectorError *error)
{
	e->term.over = *error;
	if (error->kind != ERROR_POOLER)
		report(e, error);
	if (!e->way.opens && e->ask.asking)
		close_connection(e);
	cancel_job(e, error->kind == ERROR_IN_DOUBT ? "in doubt" : "lost");
}

/* Tell the job to stop, once a term */
static void
cancel_job(Elector *e, const char *reason)
{
	if (!e->term.reason)
	{
		e->term.reason = reason;
		e->term.cancelled = true;
		/* the job works */
		if (strcmp(reason, "job returned") == 0 ||
			e->now >= e->term.began + 60 * SECOND)
			e->job_failures = 0;
		if (e->phase == PHASE_JOB)
		{
			e->term.report_at = e->now + e->options.stop_timeout;
			add_action(e, DO_CANCEL);
		}
	}
	while (e->term.n_proclaims > 0)
		tell_proclaim_over(e);
}

/* Resign, unless there is nothing to resign, or no way to do it */
static void
leave_term(Elector *e)
{
	ErrorKind	over = e->term.over.kind;
	bool		asking = e->ask.asking && e->ask.kind != DO_RESIGN;

	if (over != ERROR_NONE && (over != ERROR_IN_DOUBT || asking))
		finish_term(e);
	else if (!e->ask.asking)
		send_ask(e, DO_RESIGN, e->way.limit);
}

static void
finish_term(Elector *e)
{
	const char *reason = e->term.reason ? e->term.reason : "";
	ElectorError over = e->term.over;

	forget_term(e);
	close_connection(e);
	if (over.kind == ERROR_POOLER)
		end_machine(e, &over);
	else if (e->stopping)
		end_machine(e, NULL);
	else if (strcmp(reason, "job returned") == 0)
		pause_machine(e, jittered(e, SECOND));
	else if (strcmp(reason, "job failed") == 0)
		pause_machine(e, backoff(e, e->job_failures++, 60 * SECOND));
	else
		pause_machine(e, backoff(e, e->failures, 15 * SECOND));
}

static void
take_stop(Elector *e)
{
	bool		waits = e->phase > PHASE_STOPPED &&
		e->phase <= PHASE_CONFIRMING && !e->stopping;

	e->stopping = true;
	if (e->phase >= PHASE_ELECTED && e->phase <= PHASE_OUSTED)
		cancel_job(e, "resigned");
	else if (waits && (e->way.opens || !e->ask.asking || !e->ask.begun))
	{
		forget_term(e);
		close_connection(e);
		end_machine(e, NULL);
	}
}

/*
 * Time
 */

static usec
timer_due(const Elector *e, TimerKind timer)
{
	switch (timer)
	{
		case TIMER_DOUBT:
			return holds(e) ? elector_valid_until(e) : NEVER;
		case TIMER_DEADLINE:
			return e->ask.asking ? e->ask.deadline : NEVER;
		case TIMER_SLOW:
			return e->term.report_at;
		case TIMER_CAMPAIGN:
			return e->until;
		case TIMER_QUESTION:
			return holds(e) && !e->ask.asking ? e->term.due : NEVER;
		case TIMER_PROCLAIM:
			return e->term.n_proclaims > 0 && !e->ask.asking ? 0 : NEVER;
	}
	return NEVER;
}

static void
pass_time(Elector *e)
{
	static void (*const due[N_TIMERS]) (Elector *) = {
		come_in_doubt, give_up, report_slow, begin_campaign, send_confirm,
		send_proclaim
	};

	/* each is looked at after the one before was done */
	for (int timer = 0; timer < N_TIMERS; timer++)
	{
		if (e->now >= timer_due(e, timer))
			due[timer] (e);
	}
	if (e->phase == PHASE_LEAVING)
		leave_term(e);
}

static void
take_event(Elector *e, const Event *event)
{
	switch (event->kind)
	{
		case ON_RUN:
			begin_campaign(e);
			break;
		case ON_BEGUN:
			if (e->ask.asking && e->ask.serial == event->serial)
				e->ask.begun = true;
			break;
		case ON_ANSWER:
		case ON_FAILED:
			answer_ask(e, event->serial, event->answer, event->error);
			break;
		case ON_BROKEN:
			note_broken(e, event->error);
			break;
		case ON_RETURNED:
			note_returned(e, event->error);
			break;
		case ON_NOTE:
			report(e, event->error);
			break;
		case ON_PROCLAIM:
			take_proclaim(e, event->value);
			break;
		case ON_STOP:
			take_stop(e);
			break;
	}
}

/*
 * Let time pass up to now, and then let the event happen, if there is one.
 * What is to be done is left in the actions.
 */
void
elector_step(Elector *e, usec now, const Event *event)
{
	e->now = now;
	e->n_actions = 0;
	pass_time(e);
	if (event)
	{
		take_event(e, event);
		pass_time(e);
	}
}

/*
 * Return when elector_step() is to be called although nothing has happened
 */
usec
elector_wakeup(const Elector *e)
{
	usec		wakeup = NEVER;

	for (int timer = 0; timer < N_TIMERS; timer++)
		wakeup = Min(wakeup, timer_due(e, timer));
	return wakeup;
}

/*
 * What the elector offers
 */

/*
 * Note that the job has made progress
 */
void
elector_heartbeat(Elector *e, usec now)
{
	e->term.last_beat = now;
	e->term.beats++;
}

/*
 * Return when leadership of the present term is in doubt
 */
usec
elector_valid_until(const Elector *e)
{
	const Term *term = &e->term;
	usec		until = Min(term->confirmed_until, term->beaten_until);

	if (term->beat_length != NEVER)
		until = Min(until, term->last_beat + term->beat_length);
	return until;
}

/*
 * Return whether the job may go on
 */
bool
elector_is_leading(const Elector *e, usec now)
{
	return e->term.exists && !e->term.cancelled &&
		now < elector_valid_until(e);
}

const char *
elector_state(const Elector *e)
{
	switch (e->phase)
	{
		case PHASE_STOPPED:
			return "stopped";
		case PHASE_PAUSED:
			return "paused";
		case PHASE_CAMPAIGN:
		case PHASE_CONFIRMING:
			return "waiting";
		case PHASE_ELECTED:
		case PHASE_JOB:
			return e->term.reason ? "stopping" : "leading";
		default:
			return "stopping";
	}
}

/*
 * Return the health, of which "waiting" and "leading" are healthy
 */
const char *
elector_health(const Elector *e, usec now)
{
	if (e->phase == PHASE_STOPPED)
		return "stopped";
	if (e->failures > 0 || e->term.over.kind != ERROR_NONE)
		return "in doubt";
	if (!e->term.exists || e->phase == PHASE_CONFIRMING)
		return "waiting";
	return now < elector_valid_until(e) ? "leading" : "in doubt";
}
