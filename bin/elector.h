/*-------------------------------------------------------------------------
 *
 * elector.h
 *	  The state machine of an elector and of a follower.
 *
 * The machine is pure: it has no clock, no connection and no process.
 * elector_step() gets the time and what has happened, and leaves what is to
 * be done in the actions.  clients/README.md has the rules, and
 * clients/conformance/cases.txt the cases that test/conformance.c runs.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ELECTOR_H
#define ELECTOR_H

#include "postgres_fe.h"

/* pg_attribute_printf() is that of the compiler of the server */
#define le_printf(f, a) __attribute__((format(printf, f, a)))

/* Microseconds of a clock that goes on while the machine is suspended */
typedef int64 usec;

#define NEVER		PG_INT64_MAX
#define MILLISECOND	INT64CONST(1000)
#define SECOND		INT64CONST(1000000)
#define DAY			(86400 * SECOND)

#define MAX_NAME	255			/* bytes of an election or identity */
#define MAX_VALUE	8192		/* bytes of a value that a leader publishes */
#define MAX_ACTIONS 16
#define MAX_PROCLAIMS 4

typedef struct ElectorOptions
{
	const char *election;
	const char *identity;
	const char *schema;			/* NULL: by search_path */
	int			seats;			/* 0: none */
	usec		ttl;			/* 0: session scope */
	usec		heartbeat;		/* 0: none */
	usec		stop_timeout;
} ElectorOptions;

typedef enum ErrorKind
{
	ERROR_NONE,
	ERROR_SERVER,				/* has an SQLSTATE */
	ERROR_TIMEOUT,				/* no answer in time */
	ERROR_NO_CONNECTION,		/* no connection in time */
	ERROR_BROKEN,				/* failed without an SQLSTATE */
	ERROR_LOST,
	ERROR_IN_DOUBT,
	ERROR_JOB,
	ERROR_SLOW_JOB,
	ERROR_CALLBACK,
	ERROR_OVER,					/* of a proclamation: the term is over */
	/* permanent errors, which end the machine */
	ERROR_EXTENSION,
	ERROR_PRIVILEGE,
	ERROR_ARGUMENT,
	ERROR_POOLER
} ErrorKind;

typedef struct ElectorError
{
	ErrorKind	kind;
	bool		fatal;			/* the server has ended the connection */
	char		sqlstate[6];
	char		message[1024];
	char		hint[512];
} ElectorError;

typedef enum ActionKind
{
	/* statements */
	DO_OPEN,
	DO_BID,
	DO_CONFIRM,
	DO_BEAT,
	DO_RESIGN,
	DO_PROCLAIM,
	DO_OBSERVE,
	/* the rest */
	DO_CLOSE,
	DO_ELECTED,
	DO_JOB,
	DO_CANCEL,
	DO_OUSTED,
	DO_ERROR,
	DO_PROCLAIMED,
	DO_TOLD,
	DO_END
} ActionKind;

/* What the machine wants to be done */
typedef struct Action
{
	ActionKind	kind;
	uint32		serial;			/* of a statement */
	int64		number;			/* token of DO_BID, DO_ELECTED, DO_JOB and
								 * DO_TOLD, version of DO_OBSERVE; 0: none */
	const char *reason;			/* of DO_OUSTED */
	const char *value;			/* of DO_PROCLAIM */
	ElectorError error;			/* of DO_ERROR, DO_PROCLAIMED and DO_END */
} Action;

/* What a statement returns; a number that is NULL is 0 */
typedef struct Answer
{
	int			pid;
	bool		yes;
	int64		token;
	int64		version;
	const char *name;
	const char *identity;
	const char *value;
} Answer;

typedef enum EventKind
{
	ON_RUN,
	ON_BEGUN,					/* the statement has got its connection */
	ON_ANSWER,
	ON_FAILED,
	ON_BROKEN,					/* the connection has ended */
	ON_RETURNED,				/* elected, the job or ousted is done */
	ON_NOTE,					/* an error that is only to be reported */
	ON_PROCLAIM,
	ON_STOP
} EventKind;

typedef struct Event
{
	EventKind	kind;
	uint32		serial;			/* of ON_BEGUN, ON_ANSWER and ON_FAILED */
	const Answer *answer;		/* of ON_ANSWER */
	const ElectorError *error;	/* of ON_FAILED, ON_NOTE, ON_RETURNED: NULL if
								 * it has not failed */
	const char *value;			/* of ON_PROCLAIM; must stay until it is
								 * proclaimed */
} Event;

/* What sessions, leases and followers do differently */
typedef struct Way
{
	ActionKind	bid;			/* DO_BID or DO_OBSERVE */
	bool		opens;			/* each campaign opens a connection */
	usec		interval;		/* from one question, or bid, to the next */
	usec		retry;			/* from a renewal that failed to the next */
	usec		validity;		/* of a confirmation */
	usec		round;			/* how long a bid waits in the server */
	usec		limit;			/* for an answer */
	usec		patience;		/* for an answer to a confirmation */
	usec		proclaiming;	/* for an answer to a proclamation */
} Way;

typedef enum Phase
{
	PHASE_STOPPED,
	PHASE_PAUSED,
	PHASE_CAMPAIGN,
	PHASE_CONFIRMING,			/* elected, and not confirmed yet */
	PHASE_ELECTED,				/* elected is called */
	PHASE_JOB,					/* the job runs */
	PHASE_OUSTED,				/* ousted is called */
	PHASE_LEAVING				/* leadership is to be resigned */
} Phase;

/* A statement on its way */
typedef struct Ask
{
	bool		asking;
	bool		begun;
	uint32		serial;
	ActionKind	kind;
	usec		asked;
	usec		deadline;
	int64		beats;			/* calls of elector_heartbeat() by then */
} Ask;

typedef struct Term
{
	bool		exists;
	char		election[MAX_NAME + 1]; /* of the seat, if there are seats */
	int64		token;
	bool		cancelled;
	int64		beats;
	int64		carried;		/* of these, known to the server */
	usec		last_beat;
	usec		beat_length;	/* by a lease; else NEVER */
	usec		confirmed_until;
	usec		beaten_until;
	ElectorError over;			/* how leadership has ended */
	const char *reason;			/* why the job is to stop */
	usec		due;			/* the next question */
	bool		refused;		/* the lease, as the role was replaced */
	usec		began;
	usec		report_at;		/* a slow job or callback */
	int			n_proclaims;
	const char *proclaims[MAX_PROCLAIMS];
} Term;

typedef struct Elector
{
	ElectorOptions options;
	Way			way;
	double		(*random) (void);

	int			n_actions;
	Action		actions[MAX_ACTIONS];

	/* counters */
	int64		terms;
	int64		confirmations;
	int64		errors;

	/* the rest is the machine's own */
	Phase		phase;
	usec		now;
	usec		until;			/* the end of a pause */
	bool		stopping;
	bool		told_not_yet;
	int			failures;		/* errors in a row */
	int			job_failures;	/* in a row */
	uint32		serial;
	int			pid;			/* of the connection's server process */
	int64		kept_token;		/* of a lease that could not be resigned */
	Ask			ask;
	Term		term;

	/* of a follower */
	int64		version;
	bool		told;
	int64		told_token;
	char		told_identity[4 * MAX_NAME + 1];	/* their bytes can be more
													 * in UTF-8 */
	char		told_value[4 * MAX_VALUE + 1];
	bool		told_has_value;
} Elector;

extern const char *elector_check(const ElectorOptions *options);
extern void elector_init(Elector *elector, const ElectorOptions *options,
						 double (*random) (void));
extern void follower_init(Elector *elector, const ElectorOptions *options,
						  double (*random) (void));
extern void elector_step(Elector *elector, usec now, const Event *event);
extern usec elector_wakeup(const Elector *elector);
extern usec elector_round(const Elector *elector);
extern void elector_heartbeat(Elector *elector, usec now);
extern usec elector_valid_until(const Elector *elector);
extern bool elector_is_leading(const Elector *elector, usec now);
extern const char *elector_state(const Elector *elector);
extern const char *elector_health(const Elector *elector, usec now);
extern void elector_error(ElectorError *error, ErrorKind kind, const char *fmt,
						  ...) le_printf(3, 4);

#endif							/* ELECTOR_H */
