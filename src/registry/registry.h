/*-------------------------------------------------------------------------
 *
 * registry/registry.h
 *	  The registry: shared memory for elections, terms, candidates and
 *	  databases.
 *
 *	  registry.c says which locks protect what.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_REGISTRY_H
#define LE_REGISTRY_H

#include "port/atomics.h"
#include "utils/dsa.h"

#include "election/election.h"

/*
 * How an entry that still has a token tells that the term is over:
 *
 *	LE_DEADLINE_OVER	a lease has ended before its time.  Set under the
 *						exclusive lock.
 *	LE_DEADLINE_SEEN	a session has found the time of a lease or a heartbeat
 *						passed.  Set atomically: see expiry.c.
 *	silent				likewise of a heartbeat, and stays if the heartbeat is
 *						changed.  Set under the shared lock: see expiry.c.
 *	lock_gone			the lock of a session or transaction was seen free.
 *						Set under the exclusive lock: see lead/observe.c.
 *	running is false	the end is counted in the statistics.  Set under the
 *						exclusive lock, with or after one of those above.
 */

/*
 * When a term with a ttl or a heartbeat expires, by le_monotonic_us; or one of
 * these marks.  A term that is marked as over stays so.
 *
 * The time is even.  The last bit says that a session has found the deadline
 * passed: see expiry.c.
 */
#define LE_DEADLINE_UNCOMMITTED UINT64CONST(0)	/* not yet begun */
#define LE_DEADLINE_OVER		UINT64CONST(1)	/* ended before it expired */

/* in a time: a session has found it passed */
#define LE_DEADLINE_SEEN		UINT64CONST(1)

/*
 * The rule of leases: a lease is first uncommitted, then runs until its
 * deadline, and then is over, by expiry or by a mark.  All code that must tell
 * these states apart uses these functions.
 */

/*
 * Check whether the lease with this deadline is committed: it runs, or has run
 */
static inline bool
le_deadline_is_committed(uint64 deadline)
{
	return deadline != LE_DEADLINE_UNCOMMITTED;
}

/* Check whether the deadline is a time rather than a mark */
static inline bool
le_deadline_is_time(uint64 deadline)
{
	return deadline > LE_DEADLINE_OVER;
}

/* Return the deadline that is one ttl from now */
static inline uint64
le_deadline_after(uint64 now, int64 ttl_us)
{
	return (now + ttl_us + 1) & ~LE_DEADLINE_SEEN;
}

/* Return when a term with this deadline, which is a time, expires */
static inline uint64
le_deadline_time(uint64 deadline)
{
	return deadline & ~LE_DEADLINE_SEEN;
}

/*
 * Check whether the lease with this deadline is over.  An uncommitted one is
 * not.
 */
static inline bool
le_deadline_is_over(uint64 deadline, uint64 now)
{
	return le_deadline_is_committed(deadline) && le_deadline_time(deadline) <= now;
}

/* Check whether the lease with this deadline runs */
static inline bool
le_deadline_runs(uint64 deadline, uint64 now)
{
	return le_deadline_is_committed(deadline) && !le_deadline_is_over(deadline, now);
}

/* What can change of a term with a deadline while it runs */
typedef struct LeExpiry
{
	int64		lasts_us;		/* after each sign of life: the ttl of a
								 * lease, or else the heartbeat, 0: none */
	pg_atomic_uint64 deadline;
	pg_atomic_uint64 renewals;	/* of a lease */
} LeExpiry;

/*
 * Statistics of an election, since it became known or since the last reset.
 * Times are by le_monotonic_us.
 */
typedef struct LeTally
{
	int64		terms;
	int64		ended[LE_END_REASONS];
	uint64		led_us;			/* by terms that have ended */
	uint64		vacant_us;		/* before the last term began */
	uint64		changed_at;		/* when the running term began, or else the
								 * last one ended */
	pg_atomic_uint64 denied;
	pg_atomic_uint64 rolled_back;	/* new leases */
	pg_atomic_uint64 longest_wait_us;
} LeTally;

/* Why an election's entry stays in place */
typedef enum LePin
{
	LE_OBSERVER,				/* a session that may sleep on it */
	LE_MANY,					/* a candidate for many elections, this one
								 * among them */
	LE_IN_LINE,					/* a candidate in line for it */
	LE_BEATING					/* a leader with a heartbeat, see
								 * term/heartbeat.c */
} LePin;

#define LE_PINS		(LE_BEATING + 1)

/*
 * An election in the registry; registry.c says what protects it
 *
 * Small fields come last, as there may be a million entries.
 */
typedef struct LeElectionEntry
{
	LeElectionKey election;		/* hash key; must be first */
	dsa_pointer name;

	/* the term */
	int64		token;			/* 0: no term runs */
	TimestampTz since;
	LeExpiry	expiry;
	dsa_pointer identity;		/* invalid: no term */
	dsa_pointer value;			/* published by the leader; invalid: none */
	int			pid;			/* 0: a lease, which is bound to no process */
	Oid			role;
	XLogRecPtr	voided_at;		/* end of the WAL that makes its row void;
								 * invalid: not known to be void */
	dsa_pointer used;			/* the counter in which the term is counted;
								 * invalid: none */
	Oid			lease_table;	/* that a lease is recorded in, see lease.c */

	/* the election */
	int64		last_token;		/* of the last ended term; 0: unknown */
	int64		first_row;		/* no row of the election in le_leases has a
								 * lesser token; 0: unknown */
	uint64		grace_from;		/* when that ended without resignation, by
								 * le_monotonic_us; 0: it was resigned */
	LeTally		tally;
	pg_atomic_uint64 denied_at; /* a TimestampTz; 0: no bid was denied */
	dsa_pointer denied_identity;	/* of that bid; invalid: unknown */
	Oid			denied_role;	/* that the identity belongs to */
	pg_atomic_uint32 pins[LE_PINS]; /* their number, by LePin */
	ConditionVariable changed;	/* term, value or deadline has changed */
	pg_atomic_uint32 releases;	/* see wakeup.c */

	/* the election, continued */
	bool		declared;		/* when last bid for: evicted last */
	bool		grace_from_known;	/* although last_token is not */
	bool		denied_has_client;

	/* the term, continued */
	uint8		scope;			/* LeScope */
	bool		identity_has_client;
	bool		deposed;		/* does le_depose end it? */
	bool		running;		/* begun, and not known to have ended */
	bool		lock_gone;		/* was its lock seen free? see observe.c */
	bool		silent;			/* found to have missed its heartbeat, see
								 * expiry.c */
} LeElectionEntry;

/* dsa.c rounds sizes up to its size classes, and dshash adds 16 bytes */
StaticAssertDecl(sizeof(LeElectionEntry) <= 368, "an entry must fit into 384 bytes");

/* The bid that was denied last */
typedef struct LeDenial
{
	TimestampTz at;				/* 0: none was */
	Oid			role;
	LeIdentity	identity;		/* empty: unknown */
} LeDenial;

/*
 * What is recorded of an election, at one moment: its term, or if the token is
 * 0, how the last one ended
 */
typedef struct LeTerm
{
	LeElectionKey election;
	int64		token;			/* 0: no term is recorded */
	LeScope		scope;
	int			pid;			/* 0: a lease */
	Oid			role;
	Oid			lease_table;
	bool		declared;		/* of a term that begins */
	TimestampTz since;
	int64		lasts_us;		/* as in LeExpiry */
	uint64		deadline;
	uint64		renewals;
	XLogRecPtr	voided_at;		/* of a lease that has ended */
	LeEndReason end_reason;		/* of a term that has ended */
	bool		silent;			/* has it ended for a missing heartbeat? */
	bool		expired;		/* a lease: had it ended when it was copied? */
	bool		lock_gone;		/* as in LeElectionEntry */
	bool		has_value;
	bool		end_known;		/* is it known how the last term ended? */
	uint64		grace_from;		/* if so, as in LeElectionEntry */
	int64		begun_token;	/* last term that has begun; 0: unknown */
	int			candidates;		/* in line, and for many */
	LeDenial	last_denied;	/* in a list only */
	LeIdentity	identity;
	char		name[LE_TEXT_SIZE]; /* empty: nothing is known */
} LeTerm;

/* A row of the statistics */
typedef struct LeStatistics
{
	LeElectionKey election;
	char		name[LE_TEXT_SIZE];
	int64		terms;
	int64		ended[LE_END_REASONS];
	uint64		denied;
	LeDenial	last_denied;	/* in a list only */
	uint64		led_us;
	uint64		vacant_us;
	uint64		rolled_back;
	uint64		longest_wait_us;
	uint64		vacant_for_us;	/* now */
	bool		is_vacant;
	int			candidates;
} LeStatistics;

/* What a candidate waits for, mostly while first in line */
typedef enum LeWait
{
	LE_WAITS_FOR_LEADER,		/* or for candidates ahead of it */
	LE_WAITS_FOR_GUARD,
	LE_WAITS_FOR_GRACE,
	LE_WAITS_AFTER_PROMOTION,
	LE_WAITS_FOR_STANDBY
} LeWait;

/*
 * A backend that waits to be elected: in the lock manager's queue; first in
 * line, for example for the end of a lease; or for any of many elections
 */
typedef struct LeCandidate
{
	int			pid;			/* hash key; must be first */
	Oid			role;
	LeElectionKey election;
	LeWait		waits_for;
	TimestampTz since;
	LeIdentity	identity;
	dsa_pointer keys;			/* of many elections; invalid: of one */
	int			key_count;
	char		name[LE_TEXT_SIZE]; /* empty for many */
} LeCandidate;

/* A block of tokens that was drawn */
typedef struct LeTokenBlock
{
	Oid			sequence;		/* that it was drawn from */
	int64		first;			/* 0: none */
	XLogRecPtr	written;		/* must be durable before the block is used */
} LeTokenBlock;

/* What the registry keeps for each database */
typedef struct LeDatabase
{
	Oid			database;		/* hash key; must be first */
	pg_atomic_uint32 terms;		/* entries that have a token */

	/* the block that tokens come from; token.c says what protects it */
	Oid			sequence;		/* the sequence it was drawn from */
	int64		next;
	int64		end;			/* exclusive */
	LeTokenBlock drawn;			/* the next one, until it is used */

	/* lease.c says how these are used */
	Oid			loaded_table;	/* whose leases are in the registry */
	bool		had_terms;		/* were there terms before it was loaded? */
	uint64		forgotten_at;	/* see le_registry_forgotten_at */
	pg_atomic_uint32 leases_begun;	/* since the last sweep */

	ConditionVariable wakeup;	/* see wakeup.c */

	TimestampTz stats_reset;	/* 0: never */
} LeDatabase;

/*
 * Counters of the registry: atomic, and only hints, except elections and
 * evictions
 */
typedef struct LeCounters
{
	pg_atomic_uint32 elections; /* entries in all */
	pg_atomic_uint32 terms;		/* of which have a token */
	pg_atomic_uint32 pinned;	/* without a term, could not be evicted */
	pg_atomic_uint32 many;		/* candidates for many elections */
	pg_atomic_uint32 roles_added;	/* each time a role was */
	pg_atomic_uint64 evictions;
	pg_atomic_uint64 leases_over;	/* that have ended or were rolled back */
} LeCounters;

/* Actions on a running lease */
typedef enum LeLeaseAction
{
	LE_LEASE_LOOK,				/* nothing */
	LE_LEASE_RENEW,				/* for the ttl that it has */
	LE_LEASE_SET_TTL,			/* renew it for another one */
	LE_LEASE_END,
	LE_LEASE_DEPOSE				/* end it, whichever role has taken it */
} LeLeaseAction;

typedef struct LeLeaseOrder
{
	LeLeaseAction action;
	int64		ttl_us;			/* for LE_LEASE_SET_TTL */
} LeLeaseOrder;

/* Result of such an action */
typedef enum LeLeaseAnswer
{
	LE_LEASE_DONE,
	LE_LEASE_NOT_RUNNING,		/* no lease with that token */
	LE_LEASE_OF_ANOTHER_ROLE
} LeLeaseAnswer;

/*
 * Check whether the election is led by the term with the given token, as far
 * as it is recorded.  An uncommitted lease counts as well.
 */
static inline bool
le_term_is_led(const LeTerm *term, int64 token)
{
	return token != 0 && term->token == token && !term->silent && !term->expired;
}

/* registry.c */
extern LeCounters *le_registry_counters(void);
pg_noreturn extern void le_raise_registry_full(void);
extern uint64 le_registry_primary_since(void);
extern void le_registry_mark_guarded(void);
extern bool le_registry_has_guards(void);
extern bool le_registry_store_string(const char *string, dsa_pointer *stored);
extern void le_registry_free(dsa_pointer *stored);

/* databases.c */
extern LeDatabase *le_registry_lock_database(bool exclusive);
extern void le_registry_unlock_database(LeDatabase *database);
extern pg_atomic_uint32 *le_registry_terms_here(void);
extern void le_registry_forget_end(Oid database, uint64 grace_from);
extern uint64 le_registry_forgotten_at(void);

/* elections.c */
extern LeElectionEntry *le_registry_pin(const LeElection *election, LePin what);
extern void le_registry_unpin(LeElectionEntry *entry, LePin what);
extern uint64 le_registry_fix_grace_from(const LeElection *election, uint64 grace_from);

/* limits.c */
extern int	le_registry_reserve(bool declared);
extern int	le_registry_most_here(int reserved);
pg_noreturn extern void le_raise_server_full(int reserved);
pg_noreturn extern void le_raise_database_full(int reserved);
pg_noreturn extern void le_raise_role_full(void);
extern int64 le_registry_most_for_role(void);
extern bool le_registry_role_fits(uint32 more);
extern void le_registry_charge(uint32 count);
extern void le_registry_uncharge(void);

/* eviction.c */
extern void le_registry_bound_elections(int more);
extern void le_registry_forget_databases(void);

/* terms.c */
extern bool le_registry_read(const LeElectionKey *key, LeTerm *term);
extern LeElectionEntry *le_registry_begin_term(const LeTerm *term);
extern void le_registry_load_lease(const LeTerm *term);
extern bool le_registry_end_term(const LeElectionKey *key, int64 token,
								 LeEndReason reason, LeTerm *ended);
extern void le_registry_set_voided(const LeElectionKey *key, int64 token,
								   XLogRecPtr voided_at);
extern int64 le_registry_first_row(const LeElectionKey *key, int64 raise_to);
extern bool le_registry_mark_lost(const LeElectionKey *key, int64 token);
extern bool le_registry_set_deposed(const LeElectionKey *key, int64 token, bool deposed);
extern void le_registry_set_value(const LeElectionKey *key, int64 token,
								  dsa_pointer *value);
extern bool le_registry_copy_value(const LeElectionKey *key, int64 token, char *value);
extern LeTerm *le_registry_list_terms(int *count);

/* leases.c */
extern LeLeaseAnswer le_registry_act_on_lease(const LeElection *election, int64 token,
											  Oid lease_table, const LeLeaseOrder *order,
											  Oid *role, int64 *old_ttl_us);
extern bool le_registry_close_lease(const LeElectionKey *key, int64 token,
									bool *expired);
extern LeElectionEntry *le_registry_find_lease(const LeElectionKey *key);
extern bool le_registry_begin_lease(const LeElectionKey *key, int64 token,
									LeTerm *begun);
extern int	le_registry_list_ended_leases(LeTerm *array, int capacity);
extern int	le_registry_start_loaded(Oid lease_table);

/* expiry.c */
extern bool le_entry_is_silent(LeElectionEntry *entry, int64 token);
extern bool le_entry_close_silent(LeElectionEntry *entry, int64 token);
extern LeElectionEntry *le_registry_set_heartbeat(const LeElectionKey *key, int64 token,
												  int64 heartbeat_us);
extern bool le_registry_beat(const LeElectionKey *key, int64 token);

/* candidates.c */
extern void le_registry_add_candidate(const LeCandidate *candidate, const int64 *keys,
									  int count);
extern void le_registry_set_wait(LeWait waits_for);
extern void le_registry_remove_candidate(void);
extern bool le_registry_copy_keys(const LeCandidate *candidate, int64 *keys);
extern LeCandidate *le_registry_list_candidates(int *count);

/* stats.c */
extern void le_registry_count_denial(const LeElection *election,
									 const LeIdentity *identity);
extern void le_registry_count_wait(const LeElectionKey *key, uint64 waited_us);
extern LeStatistics *le_registry_list_statistics(int *count);
extern void le_registry_reset_statistics(void);
extern TimestampTz le_registry_stats_reset(void);

/* wakeup.c */
extern ConditionVariable *le_registry_wakeup(void);
extern void le_wake_many(const LeElectionKey *key);

#endif							/* LE_REGISTRY_H */
