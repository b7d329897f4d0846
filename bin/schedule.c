/*-------------------------------------------------------------------------
 *
 * schedule.c
 *	  Intervals and cron expressions, and the times that are due by them.
 *
 * A cron expression means times of a time zone.  When the zone's clocks are
 * put forward, a time that is left out is due at the end of the gap.  When
 * they are put back, a time that comes twice is due the first time.  A job of
 * intervals, whose field of hours begins with *, has neither rule: it is due
 * by the clock, whatever that shows.
 *
 *-------------------------------------------------------------------------
 */
#include "schedule.h"

#include <sys/stat.h>
#include <time.h>

/* 2000-01-01 00:00 UTC, from which intervals are counted */
#define EPOCH_2000	(INT64CONST(946684800) * SECOND)
#define MAX_STEPS	10000
#define SKIP_AFTER	(60 * SECOND)
#define MAX_YEARS	9			/* from one 29 February to the next, and more */

static const char *const month_names[] =
{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov",
"dec", NULL};
static const char *const day_names[] =
{"sun", "mon", "tue", "wed", "thu", "fri", "sat", NULL};

/*
 * Parse a length of time such as "90", "1.5 s", "10min" or "1 h 30 min".  A
 * number without a unit is of seconds.  Return false if it is none.
 */
bool
parse_duration(const char *string, usec *result)
{
	static const struct
	{
		const char *name;
		double		seconds;
	}			units[] = {
		{"ms", 0.001}, {"s", 1}, {"sec", 1}, {"second", 1}, {"seconds", 1},
		{"m", 60}, {"min", 60}, {"minute", 60}, {"minutes", 60},
		{"h", 3600}, {"hour", 3600}, {"hours", 3600}, {"d", 86400}, {"day",
		86400}, {"days", 86400}
	};
	double		sum = 0;
	bool		found = false;

	for (string += strspn(string, " "); *string != '\0'; string += strspn(string, " "))
	{
		char	   *end;
		double		number;
		double		factor = 0;
		size_t		length;

		if (!isdigit((unsigned char) *string) && *string != '.')
			return false;
		number = strtod(string, &end);
		if (end == string || end[-1] == ' ')
			return false;
		string = end + strspn(end, " ");
		length = strspn(string, "abcdefghijklmnopqrstuvwxyz");
		if (length == 0 && *string == '\0' && !found)
			factor = 1;
		for (size_t i = 0; i < lengthof(units); i++)
		{
			if (strlen(units[i].name) == length &&
				strncmp(units[i].name, string, length) == 0)
				factor = units[i].seconds;
		}
		if (factor == 0)
			return false;
		sum += number * factor;
		string += length;
		found = true;
	}
	if (!found || !(sum <= 1e9))
		return false;
	*result = (usec) (sum * SECOND + 0.5);
	return true;
}

/*
 * Cron expressions
 */

/* Parse a number or name of a field, and set text behind it; -1: neither */
static int
parse_value(const char **string, const char *const *names, int first)
{
	if (isdigit((unsigned char) **string))
	{
		char	   *end;
		long		value = strtol(*string, &end, 10);

		*string = end;
		return value > 1000 ? -1 : (int) value;
	}
	for (int i = 0; names && names[i]; i++)
	{
		if (pg_strncasecmp(*string, names[i], 3) == 0)
		{
			*string += 3;
			return first + i;
		}
	}
	return -1;
}

/* Parse one field; return false if it is wrong */
static bool
parse_field(const char *string, int least, int most, const char *const *names,
			uint64 *bits)
{
	*bits = 0;
	do
	{
		int			from = least;
		int			to = most;
		int			step = 1;

		if (*string == '*')
			string++;
		else
		{
			from = parse_value(&string, names, least);
			if (from < 0)
				return false;
			to = *string == '/' ? most : from;
			if (*string == '-')
			{
				string++;
				to = parse_value(&string, names, least);
			}
		}
		if (*string == '/')
		{
			string++;
			step = parse_value(&string, NULL, 0);
		}
		if (from < least || to > most || from > to || step < 1)
			return false;
		for (int value = from; value <= to; value += step)
			*bits |= UINT64CONST(1) << value;
	} while (*string++ == ',');
	return string[-1] == '\0';
}

static bool
parse_cron(Cron *cron, const char *string)
{
	static const struct
	{
		const char *name;
		const char *fields;
	}			nicknames[] = {
		{"@yearly", "0 0 1 1 *"}, {"@annually", "0 0 1 1 *"}, {"@monthly",
		"0 0 1 * *"},
		{"@weekly", "0 0 * * 0"}, {"@daily", "0 0 * * *"}, {"@midnight",
		"0 0 * * *"},
		{"@hourly", "0 * * * *"}
	};
	char		fields[5][128];
	char		rest;
	uint64		bits[5];

	for (size_t i = 0; i < lengthof(nicknames); i++)
	{
		if (strcmp(string, nicknames[i].name) == 0)
			string = nicknames[i].fields;
	}
	if (sscanf(string, " %127s %127s %127s %127s %127s %c", fields[0], fields[1],
			   fields[2],
			   fields[3], fields[4], &rest) != 5)
		return false;
	if (!parse_field(fields[0], 0, 59, NULL, &bits[0]) ||
		!parse_field(fields[1], 0, 23, NULL, &bits[1]) ||
		!parse_field(fields[2], 1, 31, NULL, &bits[2]) ||
		!parse_field(fields[3], 1, 12, month_names, &bits[3]) ||
		!parse_field(fields[4], 0, 7, day_names, &bits[4]))
		return false;
	cron->minutes = bits[0];
	cron->hours = (uint32) bits[1];
	cron->days = (uint32) bits[2];
	cron->months = (uint32) bits[3];
	cron->weekdays = (uint32) (bits[4] | bits[4] >> 7) & 0x7f;
	cron->any_day = *fields[2] == '*';
	cron->any_weekday = *fields[4] == '*';
	cron->each_hour = *fields[1] == '*';
	return true;
}

/*
 * Let cron expressions be of this time zone.  Return false if the system does
 * not know it: the C library would take it for UTC.
 */
bool
schedule_set_zone(const char *zone)
{
	const char *folder = getenv("TZDIR");
	char		path[MAXPGPATH];
	struct stat st;

	if (strcmp(zone, "UTC") != 0)
	{
		if (*zone == '\0' || *zone == ':' || *zone == '/' ||
			strstr(zone, ".."))
			return false;
		snprintf(path, sizeof(path), "%s/%s", folder ? folder :
				 "/usr/share/zoneinfo", zone);
		if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
			return false;
	}
	setenv("TZ", zone, 1);
	tzset();
	return true;
}

/* A job is due on a day that either field names, if both do not begin with * */
static bool
matches_day(const Cron *cron, const struct tm *tm)
{
	bool		day = cron->days & (1U << tm->tm_mday);
	bool		weekday = cron->weekdays & (1U << tm->tm_wday);

	if (!(cron->months & (1U << (tm->tm_mon + 1))))
		return false;
	return cron->any_day || cron->any_weekday ? day && weekday : day ||
		weekday;
}

static bool
matches_minute(const Cron *cron, const struct tm *tm)
{
	return matches_day(cron, tm) && (cron->hours & (1U << tm->tm_hour)) &&
		(cron->minutes & (UINT64CONST(1) << tm->tm_min));
}

/* The local time of a number of seconds since 1970 that it would show in UTC */
static int64
local_seconds(time_t t, struct tm *tm)
{
	localtime_r(&t, tm);
	return (int64) t + tm->tm_gmtoff;
}

/*
 * Return whether a job of a time of day is due at this minute, of which the
 * minute before is known.
 */
static bool
is_due_at(const Cron *cron, time_t t, int64 local, const struct tm *tm,
		  int64 local_before)
{
	struct tm	other;

	/* left out: the minutes from the one after the last, up to this one */
	for (int64 lost = local_before + 60; lost < local &&
		 local - lost <= 86400; lost += 60)
	{
		time_t		as_utc = (time_t) lost;

		gmtime_r(&as_utc, &other);
		if (matches_minute(cron, &other))
			return true;
	}
	if (!matches_minute(cron, tm))
		return false;
	/* shown before, within the last three hours, by a clock that was ahead */
	for (int back = 15; back <= 180; back += 15)
	{
		if (local_seconds(t - back * 60, &other) >= local)
			return false;
	}
	return true;
}

static moment
next_of_cron(const Schedule *schedule, moment last)
{
	const Cron *cron = &schedule->cron;
	time_t		t = last / SECOND;
	time_t		end = t + (time_t) MAX_YEARS * 366 * 86400;
	struct tm	tm;
	int64		before;

	if (last < 0)
		t = 0;
	t -= t % 60;
	before = local_seconds(t, &tm);
	for (t += 60; t < end; t += 60)
	{
		int64		local = local_seconds(t, &tm);
		time_t		rest = (24 - tm.tm_hour) * 3600 - tm.tm_min * 60;

		if (cron->each_hour ? matches_minute(cron, &tm) :
			is_due_at(cron, t, local, &tm, before))
			return (moment) t * SECOND;
		before = local;
		/* pass over a day that does not match, but not over its last hours */
		if (!matches_day(cron, &tm) && rest > 4 * 3600)
		{
			t += rest - 4 * 3600;
			before = local_seconds(t, &tm);
		}
	}
	return NEVER;
}

/*
 * Parse an interval or a cron expression.  If it is neither, leave what is
 * wrong in error, and return false.
 */
bool
schedule_parse(Schedule *schedule, const char *string, char *error, size_t size)
{
	memset(schedule, 0, sizeof(*schedule));
	if (parse_duration(string, &schedule->interval))
	{
		if (schedule->interval >= SECOND)
			return true;
		snprintf(error, size, "an interval is at least one second");
		return false;
	}
	schedule->interval = 0;
	schedule->next = next_of_cron;
	if (!parse_cron(&schedule->cron, string))
	{
		snprintf(error, size,
				 "\"%s\" is neither an interval nor a cron expression of five fields", string);
		return false;
	}
	if (next_of_cron(schedule, EPOCH_2000) == NEVER)
	{
		snprintf(error, size, "\"%s\" is never due", string);
		return false;
	}
	return true;
}

/*
 * Due times
 */

/* Return the first due time after another one, or NEVER */
moment
schedule_next(const Schedule *schedule, moment last)
{
	moment		since;
	moment		count;

	if (schedule->interval == 0)
		return schedule->next(schedule, last);
	since = last - EPOCH_2000;
	count = since / schedule->interval - (since % schedule->interval < 0);
	return EPOCH_2000 + (count + 1) * schedule->interval;
}

/*
 * Return the last time that is due after *last, or 0, and set *last to where
 * to go on.  At most MAX_STEPS times are passed over: then the call returns 0,
 * and the next one goes on.
 */
moment
schedule_due(const Schedule *schedule, moment *last, moment now)
{
	moment		due = 0;

	if (schedule->interval != 0 && now - schedule->interval > *last)
		*last = now - schedule->interval;
	for (int step = 0;; step++)
	{
		moment		following = schedule_next(schedule, *last);

		if (following > now)
			return due;
		if (step == MAX_STEPS)
			return 0;
		due = *last = following;
	}
}

/*
 * Return the time that is due now, or 0, as schedule_due(), by what is to be
 * done about times that were missed.
 */
moment
schedule_due_missed(const Schedule *schedule, Missed missed, moment *last,
					moment now)
{
	moment		due;

	if (missed == MISSED_ALL)
	{
		due = schedule_next(schedule, *last);
		if (due > now)
			return 0;
		return *last = due;
	}
	due = schedule_due(schedule, last, now);
	return missed == MISSED_NONE && due != 0 && due < now - SKIP_AFTER ? 0 :
		due;
}
