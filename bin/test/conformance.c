/*-------------------------------------------------------------------------
 *
 * test/conformance.c
 *	  Run the cases of clients/conformance on the state machine, and some of
 *	  its own on schedules.
 *
 *	conformance CASES [SCHEDULES]
 *
 * clients/conformance/README.md describes the format.  Prints each failure,
 * and the count.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <math.h>
#include <time.h>

#include "elector.h"
#include "schedule.h"

#define MAX_OUT 256
#define MAX_LINE 1024
#define MAX_WORDS 32
#define EPOCH (INT64CONST(946684800) * SECOND)

/*
 * An argument of a command has no zero byte.  Nor are cases of try_run: what
 * --no-wait and --wait do is the command's own matter, not the machine's.
 */
static const char *const not_applicable[] = {"name-zero-byte", NULL};

static const char *const action_names[] = {
	"open", "bid", "confirm", "beat", "resign", "proclaim", "observe", "close",
	"elected",
	"job", "cancel", "ousted", "error", "proclaimed", "told", "end"
};
static const char *const error_names[] = {
	"", "", "timeout", "no-connection", "broken", "lost", "in doubt", "job",
	"slow job",
	"callback", "over", "extension", "privilege", "argument", "pooler"
};

/* The clock, the server and the program of one case */
static struct
{
	char		name[64];
	bool		failed;
	bool		refused;
	bool		has_machine;
	usec		time;
	int64		token;
	char		hold[256];
	char		starve[256];
	char		show[512];
	char		out[MAX_OUT][MAX_LINE];
	usec		out_at[MAX_OUT];
	int			n_out;
	int			compared;
	uint32		asked;
	uint32		given_up;
	int			n_values;
	Elector		machine;
	Schedule	schedule;
	moment		last;
}			world;

static double draw = 1;
static char values[MAX_WORDS][MAX_LINE];

static double
drawn(void)
{
	return draw;
}

static void
fail_case(const char *line, const char *what)
{
	printf("case %s: FAILED: %s: %s\n", world.name, line, what);
	world.failed = true;
}

static bool
is_in(const char *list, const char *word)
{
	char		padded[64];

	snprintf(padded, sizeof(padded), " %s ", word);
	return strstr(list, padded) != NULL;
}

static usec
seconds(const char *string)
{
	return (usec) llround(atof(string) * SECOND);
}

/* Return a word of a case as a text, or NULL for none */
static const char *
text_value(const char *word, int slot)
{
	char	   *to = values[slot];
	const char *star = strchr(word, '*');

	if (strcmp(word, "none") == 0)
		return NULL;
	if (strcmp(word, "empty") == 0)
		return "";
	strlcpy(to, word, MAX_LINE);
	if (*word == '"')
	{
		strlcpy(to, word + 1, MAX_LINE);
		to[strlen(to) - 1] = '\0';
	}
	else if (star && star > word && star - word <= 2)
	{
		*to = '\0';
		for (int i = atoi(star + 1); i > 0; i--)
			strncat(to, word, star - word);
	}
	return to;
}

static void step_world(const Event *event);

static void
answer_usually(const Action *action)
{
	Answer		answer = {.yes = true,.pid = 11};
	Event		event = {.kind = ON_ANSWER,.serial = action->serial,
	.answer = &answer};

	if (action->kind == DO_BID)
	{
		answer.token = ++world.token;
		answer.name = world.machine.options.seats > 0 ? "e/2" : NULL;
	}
	step_world(&event);
}

static void
show_action(const Action *action, const char *shown)
{
	char	   *line = world.out[world.n_out];
	const char *name = action_names[action->kind];
	const Elector *e = &world.machine;

	if (!is_in(world.show, shown) && !is_in(world.hold, shown) &&
		!is_in(world.starve, shown))
		return;
	if (action->kind == DO_OUSTED)
		snprintf(line, MAX_LINE, "%s %s", name, action->reason);
	else if (action->kind == DO_PROCLAIM)
		snprintf(line, MAX_LINE, "%s %s", name, action->value);
	else if (action->kind == DO_PROCLAIMED && action->error.kind == ERROR_NONE)
		snprintf(line, MAX_LINE, "%s ok", name);
	else if (action->kind == DO_TOLD && action->number == 0)
		snprintf(line, MAX_LINE, "%s none none none", name);
	else if (action->kind == DO_TOLD)
		snprintf(line, MAX_LINE, "%s " INT64_FORMAT " %s %s", name,
				 action->number, e->told_identity,
				 e->told_has_value ? e->told_value : "none");
	else if (action->kind == DO_JOB && e->options.seats > 0)
		snprintf(line, MAX_LINE, "%s " INT64_FORMAT " %s", name,
				 action->number, e->term.election);
	else if (action->error.kind != ERROR_NONE)
		snprintf(line, MAX_LINE, "%s %s", name,
				 action->error.kind == ERROR_SERVER ?
				 action->error.sqlstate : error_names[action->error.kind]);
	else if (action->number != 0)
		snprintf(line, MAX_LINE, "%s " INT64_FORMAT, name, action->number);
	else
		strlcpy(line, name, MAX_LINE);
	world.out_at[world.n_out++] = world.time;
}

/* What is to be answered after a step has ended */
static Action inbox[64];
static int	inbox_from;
static int	inbox_to;
static bool in_step;

static void
take_actions(void)
{
	for (int i = 0; i < world.machine.n_actions; i++)
	{
		const Action *action = &world.machine.actions[i];
		const char *shown = action_names[action->kind == DO_BEAT ? DO_CONFIRM :
										 action->kind];

		show_action(action, shown);
		if (action->kind <= DO_OBSERVE)
		{
			if (is_in(world.hold, shown) || is_in(world.starve, shown))
				world.asked = action->serial;
			inbox[inbox_to++ % 64] = *action;
		}
		else if (action->kind == DO_CLOSE && world.asked != 0)
		{
			world.given_up = world.asked;
			world.asked = 0;
		}
		else if (action->kind == DO_ELECTED || action->kind == DO_OUSTED ||
				 action->kind == DO_CANCEL)
		{
			if (!is_in(world.hold, action->kind == DO_CANCEL ? "job" : shown))
				inbox[inbox_to++ % 64] = *action;
		}
	}
}

/* Let the machine take a step, and then all that follows from it at once */
static void
step_world(const Event *event)
{
	elector_step(&world.machine, world.time, event);
	take_actions();
	if (in_step)
		return;
	in_step = true;
	while (inbox_from < inbox_to)
	{
		Action		action = inbox[inbox_from++ % 64];
		const char *shown = action_names[action.kind == DO_BEAT ? DO_CONFIRM :
										 action.kind];
		Event		begun = {.kind = ON_BEGUN,.serial = action.serial};
		Event		returned = {.kind = ON_RETURNED};

		if (action.kind > DO_OBSERVE)
			step_world(&returned);
		else
		{
			if (!is_in(world.starve, shown))
				step_world(&begun);
			if (!is_in(world.hold, shown) && !is_in(world.starve, shown))
				answer_usually(&action);
		}
	}
	in_step = false;
}

static void
advance(usec until, bool inclusive)
{
	while (world.has_machine)
	{
		usec		wakeup = Max(elector_wakeup(&world.machine), world.time);

		if (wakeup > until || (wakeup == until && !inclusive))
			break;
		world.time = wakeup;
		step_world(NULL);
	}
	world.time = Max(world.time, until);
}

static moment
next_of_test(const Schedule *schedule, moment last)
{
	int64		since = last - EPOCH - schedule->shift * SECOND;
	int64		period = schedule->period * SECOND;
	int64		count = since / period - (since % period < 0);

	return EPOCH + schedule->shift * SECOND + (count + 1) * period;
}

/* Make what is tested, and let it run */
static void
make_tested(char **words, int n)
{
	ElectorOptions options = {.election = "e",.identity = "i",
	.stop_timeout = 10 * SECOND};
	Event		run = {.kind = ON_RUN};
	const char *refused;

	if (strcmp(words[1], "every") == 0 || strcmp(words[1], "schedule") == 0)
	{
		char	   *plus = strchr(words[2], '+');

		world.last = EPOCH + seconds(words[4]);
		if (plus)
		{
			world.schedule.next = next_of_test;
			world.schedule.period = atoi(words[2]);
			world.schedule.shift = atoi(plus + 1);
		}
		else
			world.schedule.interval = seconds(words[2]);
		return;
	}
	for (int i = 2; i + 1 < n; i += 2)
	{
		const char *value = words[i + 1];

		if (strcmp(words[i], "election") == 0)
			options.election = text_value(value, 0);
		else if (strcmp(words[i], "identity") == 0)
			options.identity = text_value(value, 1);
		else if (strcmp(words[i], "schema") == 0)
			options.schema = text_value(value, 2);
		else if (strcmp(words[i], "seats") == 0)
			options.seats = atoi(value);
		else if (strcmp(words[i], "ttl") == 0)
			options.ttl = seconds(value);
		else if (strcmp(words[i], "heartbeat") == 0)
			options.heartbeat = seconds(value);
		else if (strcmp(words[i], "stop_timeout") == 0)
			options.stop_timeout = seconds(value);
		else
			fail_case(words[i], "an option that the runner does not know");
	}
	refused = elector_check(&options);
	if (refused)
	{
		snprintf(world.out[world.n_out++], MAX_LINE, "refused %s", refused);
		return;
	}
	world.has_machine = true;
	if (strcmp(words[1], "follow") == 0)
		follower_init(&world.machine, &options, drawn);
	else
		elector_init(&world.machine, &options, drawn);
	step_world(&run);
}

static void
answer_asked(uint32 serial, char **words, int n)
{
	Answer		answer = {0};
	Event		event = {.kind = ON_ANSWER,.serial = serial,.answer = &answer};
	const char *texts[4] = {NULL};

	for (int i = 0; i < n && i < 4; i++)
		texts[i] = text_value(words[i], i);
	if (world.machine.way.bid == DO_OBSERVE && n == 4)
	{
		answer.version = atoll(texts[0]);
		answer.token = texts[1] ? atoll(texts[1]) : 0;
		answer.identity = texts[2];
		answer.value = texts[3];
	}
	else
	{
		/* one word is a process ID, a token, or whether it is so */
		answer.yes = strcmp(words[0], "true") == 0;
		answer.pid = n > 1 ? atoi(words[1]) : atoi(words[0]);
		answer.token = texts[0] ? atoll(texts[0]) : 0;
	}
	step_world(&event);
}

/* Let something arrive */
static void
arrive(const char *line, char **words, int n)
{
	ElectorError error;
	Event		event = {.error = NULL};
	uint32		serial = world.asked;

	elector_error(&error, ERROR_CALLBACK, "fails");
	if (strcmp(words[0], "late") == 0)
		answer_asked(world.given_up, words + 2, n - 2);
	else if (strcmp(words[0], "answer") == 0 || strcmp(words[0], "fails") == 0)
	{
		if (serial == 0)
			fail_case(line, "no statement waits for an answer");
		world.asked = 0;
		if (*words[0] == 'a')
		{
			answer_asked(serial, words + 1, n - 1);
			return;
		}
		event.kind = ON_FAILED;
		event.serial = serial;
		event.error = &error;
		error.kind = ERROR_SERVER;
		strlcpy(error.sqlstate, words[1], sizeof(error.sqlstate));
		for (int i = 3; i < n; i++)
			snprintf(error.hint + strlen(error.hint),
					 sizeof(error.hint) - strlen(error.hint), "%s ", words[i]);
		step_world(&event);
	}
	else if (strcmp(words[0], "broken") == 0)
	{
		world.asked = 0;
		event.kind = ON_BROKEN;
		step_world(&event);
	}
	else if (strcmp(words[0], "asleep") == 0)
		world.time = seconds(words[2]);
	else if (strcmp(words[0], "heartbeat") == 0)
	{
		elector_heartbeat(&world.machine, world.time);
		step_world(NULL);
	}
	else if (strcmp(words[0], "proclaim") == 0)
	{
		event.kind = ON_PROCLAIM;
		event.value = text_value(words[1], MAX_WORDS / 2 + world.n_values++);
		step_world(&event);
	}
	else if (strcmp(words[0], "stop") == 0)
	{
		event.kind = ON_STOP;
		step_world(&event);
	}
	else
	{
		event.kind = ON_RETURNED;
		if (strcmp(words[1], "fails") == 0)
			event.error = &error;
		if (strcmp(words[0], "job") == 0)
			error.kind = ERROR_JOB;
		step_world(&event);
	}
}

/* Check what a case says of a state */
static void
check_state(const char *line, char **words, int n)
{
	Elector    *e = &world.machine;
	char		expected[64];
	char		found[64];

	strlcpy(expected, words[n - 1], sizeof(expected));
	if (strcmp(words[0], "due") == 0)
	{
		moment		due = schedule_due(&world.schedule, &world.last,
									   EPOCH + world.time);

		strlcpy(found, "none", sizeof(found));
		if (due != 0)
			snprintf(found, sizeof(found), "%.0f",
					 (due - EPOCH) / (double) SECOND);
	}
	else if (strcmp(words[n - 1], "leading") == 0 &&
			 n == 1 + (*words[0] == 'n'))
	{
		strlcpy(expected, words[0], sizeof(expected));
		strlcpy(found, elector_is_leading(e, world.time) ? "leading" : "not",
				sizeof(found));
	}
	else if (strcmp(words[0], "state") == 0)
		strlcpy(found, elector_state(e), sizeof(found));
	else if (strcmp(words[0], "health") == 0)
	{
		strlcpy(found, elector_health(e, world.time), sizeof(found));
		if (n == 3)
			snprintf(expected, sizeof(expected), "%s %s", words[1], words[2]);
	}
	else
		snprintf(found, sizeof(found), INT64_FORMAT, *words[0] == 't' ?
				 e->terms :
				 *words[0] == 'c' ? e->confirmations : e->errors);
	if (strcmp(found, expected) != 0)
		fail_case(line, found);
}

static int
split_words(char *line, char **words)
{
	int			n = 0;

	for (char *word = strtok(line, " "); word &&
		 n < MAX_WORDS; word = strtok(NULL, " "))
		words[n++] = word;
	return n;
}

static void
add_words(char *list, size_t size, char **words, int n)
{
	for (int i = 1; i < n; i++)
		snprintf(list + strlen(list), size - strlen(list), "%s ", words[i]);
}

/* Follow a line of the case that begins with a time */
static void
follow_line(const char *line)
{
	char		copy[MAX_LINE];
	char	   *words[MAX_WORDS];
	const char *rest = strchr(line, ' ') + 3;
	char		mark = rest[-2];
	int			n;

	strlcpy(copy, rest, sizeof(copy));
	n = split_words(copy, words);
	advance(seconds(line), mark == '>');
	if (mark == '>')
	{
		int			i = world.compared++;

		if (i >= world.n_out)
			fail_case(line, "nothing has followed");
		else if (strcmp(world.out[i], rest) != 0 ||
				 llabs(world.out_at[i] - seconds(line)) > 1)
			fail_case(line, psprintf("this has followed: %g %s",
									 world.out_at[i] / (double) SECOND,
									 world.out[i]));
	}
	else if (world.compared < world.n_out)
		fail_case(line, psprintf("this has followed: %s",
								 world.out[world.compared]));
	else if (mark == '<')
		arrive(line, words, n);
	else
		check_state(line, words, n);
}

/* Run the case that begins at this line; return whether it has passed */
static bool
run_case(char **lines, int n_lines)
{
	char		copies[8][MAX_LINE];
	char	   *given[MAX_WORDS];
	char	   *words[MAX_WORDS];
	int			n_given = 0;
	int			n_copies = 0;
	int			i = 1;

	memset(&world, 0, sizeof(world));
	strlcpy(world.name, lines[0] + 3, sizeof(world.name));
	world.token = 6;
	draw = 1;
	strlcpy(world.hold, " ", sizeof(world.hold));
	strlcpy(world.starve, " ", sizeof(world.starve));
	strlcpy(world.show,
			" job cancel ousted error end proclaimed told refused ",
			sizeof(world.show));
	inbox_from = inbox_to = 0;

	while (i < n_lines && strncmp(lines[i], "given ", 6) != 0)
		i++;
	for (; i < n_lines && !isdigit((unsigned char) *lines[i]); i++)
	{
		char	   *copy = copies[n_copies++];
		int			n;

		strlcpy(copy, lines[i], MAX_LINE);
		if (n_given == 0)
		{
			n_given = split_words(copy, given);
			continue;
		}
		n = split_words(copy, words);
		if (strcmp(words[0], "random") == 0)
			draw = atof(words[1]);
		else if (strcmp(words[0], "hold") == 0)
			add_words(world.hold, sizeof(world.hold), words, n);
		else if (strcmp(words[0], "starve") == 0)
			add_words(world.starve, sizeof(world.starve), words, n);
		else
			add_words(world.show, sizeof(world.show), words, n);
	}
	make_tested(given, n_given);
	for (; i < n_lines && !world.failed; i++)
		follow_line(lines[i]);
	if (!world.failed && world.compared < world.n_out)
		fail_case("at the end", psprintf("this has followed: %s",
										 world.out[world.compared]));
	return !world.failed;
}

static bool
applies(const char *name)
{
	for (int i = 0; not_applicable[i]; i++)
	{
		if (strcmp(name, not_applicable[i]) == 0)
			return false;
	}
	return strncmp(name, "try-", 4) != 0;
}

static void
run_cases(const char *path, int *passed, int *failed)
{
	const char *report = getenv("CONFORMANCE_REPORT");
	FILE	   *cases = fopen(path, "r");
	FILE	   *out = report ? fopen(report, "a") : NULL;
	char		line[MAX_LINE];
	char	   *lines[512];
	int			n = 0;
	bool		more = cases != NULL;

	if (!cases)
	{
		perror(path);
		exit(2);
	}
	while (more)
	{
		more = fgets(line, sizeof(line), cases) != NULL;
		if (more)
			line[strcspn(line, "\n")] = '\0';
		if (more && *line != '\0')
		{
			if (n > 0 || strncmp(line, "== ", 3) == 0)
				lines[n++] = pg_strdup(line);
			continue;
		}
		if (n > 0 && applies(lines[0] + 3))
		{
			bool		good = run_case(lines, n);

			*(good ? passed : failed) += 1;
			if (good && out)
				fprintf(out, "case %s: passed\n", world.name);
		}
		while (n > 0)
			pg_free(lines[--n]);
	}
	fclose(cases);
	if (out)
		fclose(out);
}

/*
 * Run a table of schedules.  Each line has a time zone, a schedule, a time in
 * UTC and the times that follow, in columns that are separated by |.
 */
static void
run_schedules(const char *path, int *passed, int *failed)
{
	FILE	   *table = fopen(path, "r");
	char		line[MAX_LINE];

	if (!table)
	{
		perror(path);
		exit(2);
	}
	while (fgets(line, sizeof(line), table))
	{
		char		error[MAX_LINE] = "";
		char		found[MAX_LINE] = "";
		char		copy[MAX_LINE];
		char	   *columns[4];
		int			n = 0;
		Schedule	schedule;
		struct tm	tm = {0};
		moment		at = 0;

		strlcpy(copy, line, sizeof(copy));
		copy[strcspn(copy, "\n")] = '\0';
		if (*line == '#' || *copy == '\0')
			continue;
		for (char *column = strtok(copy, "|"); column &&
			 n < 4; column = strtok(NULL, "|"))
		{
			column += strspn(column, " ");
			while (*column != '\0' && column[strlen(column) - 1] == ' ')
				column[strlen(column) - 1] = '\0';
			columns[n++] = column;
		}
		if (n < 4 || !schedule_set_zone(columns[0]))
			strlcpy(found, "no such time zone", sizeof(found));
		else if (!schedule_parse(&schedule, columns[1], error, sizeof(error)))
			strlcpy(found, "refused", sizeof(found));
		else if (sscanf(columns[2], "%d-%d-%d %d:%d:%d", &tm.tm_year,
						&tm.tm_mon, &tm.tm_mday,
						&tm.tm_hour, &tm.tm_min, &tm.tm_sec) >= 5)
		{
			tm.tm_year -= 1900;
			tm.tm_mon--;
			at = timegm(&tm) * SECOND;
			while (strlen(found) < strlen(columns[3]))
			{
				time_t		t;

				at = schedule_next(&schedule, at);
				t = at / SECOND;
				gmtime_r(&t, &tm);
				if (*found)
					strlcat(found, ", ", sizeof(found));
				strftime(found + strlen(found), 32, tm.tm_sec ?
						 "%Y-%m-%d %H:%M:%S" : "%Y-%m-%d %H:%M", &tm);
			}
		}
		if (strcmp(found, columns[n - 1]) == 0)
			*passed += 1;
		else
		{
			*failed += 1;
			printf("schedule FAILED: %s    found: %s\n", line, found);
		}
	}
	fclose(table);
}

int
main(int argc, char **argv)
{
	int			passed = 0;
	int			failed = 0;

	if (argc < 2)
		return 2;
	run_cases(argv[1], &passed, &failed);
	if (argc > 2)
		run_schedules(argv[2], &passed, &failed);
	printf("%d passed, %d failed\n", passed, failed);
	return failed > 0 || passed == 0;
}
