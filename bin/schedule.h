/*-------------------------------------------------------------------------
 *
 * schedule.h
 *	  Schedules, and the times that are due by them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef SCHEDULE_H
#define SCHEDULE_H

#include "elector.h"

/* Microseconds since 1970-01-01 00:00 UTC, by the server's clock */
typedef int64 moment;

/* What is done about times that are due when the last one is long past */
typedef enum Missed
{
	MISSED_LAST,				/* the last one only */
	MISSED_ALL,					/* one after the other */
	MISSED_NONE					/* none that is past by a minute */
} Missed;

/* Bits of the fields of a cron expression */
typedef struct Cron
{
	uint64		minutes;
	uint32		hours;
	uint32		days;			/* of the month, from bit 1 on */
	uint32		months;			/* from bit 1 on */
	uint32		weekdays;		/* Sunday is bit 0 */
	bool		any_day;		/* the field began with * */
	bool		any_weekday;
	bool		each_hour;		/* a job of intervals, not of a time of day */
} Cron;

typedef struct Schedule
{
	usec		interval;		/* 0: by next */
	moment		(*next) (const struct Schedule *schedule, moment last); /* NEVER: none */
	Cron		cron;
	int64		period;			/* of the test's schedule, in seconds */
	int64		shift;
} Schedule;

extern bool schedule_parse(Schedule *schedule, const char *string, char *error,
						   size_t size);
extern bool schedule_set_zone(const char *zone);
extern moment schedule_due(const Schedule *schedule, moment *last, moment now);
extern moment schedule_due_missed(const Schedule *schedule, Missed missed,
								  moment *last, moment now);
extern moment schedule_next(const Schedule *schedule, moment last);
extern bool parse_duration(const char *string, usec *result);

#endif							/* SCHEDULE_H */
