/*-------------------------------------------------------------------------
 *
 * lead/lead.h
 *	  Operations of leaders, and on leaders.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_LEAD_H
#define LE_LEAD_H

#include "registry/registry.h"
#include "term/term.h"

/* Hint for callers whose term has ended */
#define LE_HINT_OVER	"The term is over: stop the job, and campaign again."

/* Hint for clients that share a session */
#define LE_HINT_SHARED_SESSION \
	"Another client may use the same connection, as through a pooler in transaction mode or a connection pool. To lead through these, use a lease."

/*
 * How often to check whether sessions and transactions still hold the lock by
 * which they lead
 */
#define LE_LOCK_LOOK_US		USECS_PER_SEC

/* depose.c */
extern bool le_depose_leader(const LeElection *election, const char *why);
extern int	le_wait_until_gone(const LeElection *election, int *pids, int count,
							   int *(*list) (const LeElection *election, int *count),
							   uint64 until);

/* guard.c */
extern int64 le_guarded_by(const LeElection *election);
extern int64 le_presented_token(void);
extern bool le_guard_transaction(const LeElection *election, int64 token,
								 bool in_trigger);
extern bool le_may_use_term(const LeElection *election, int64 token, bool in_trigger);
extern void le_guards_before_commit(void);
extern void le_guards_at_xact_end(void);

/* not_leader.c */
extern void le_warn_not_leader(const LeElection *election, const int64 *token);
pg_noreturn extern void le_raise_not_leader(const LeElection *election, const int64 *token);
extern void le_raise_over(const LeElection *election, int64 token);
extern void le_warn_not_deposed(const LeElection *election, const char *identity,
								bool prepared);
extern void le_warn_bound_to_transaction(const LeElection *election);

/* once.c */
extern bool le_do_once(const LeElection *election, TimestampTz due, int64 token);

/* other_client.c */
extern bool le_is_led_as(const LeElection *election, int64 token, const text *identity,
						 const char **as);
extern bool le_is_leased_as(const LeElection *election, int64 token, const text *identity);
extern void le_warn_held_as(const LeElection *election, const char *as);
extern bool le_renew_by_bid(const LeBid *bid, int64 token);
extern bool le_may_resign_as(const LeElection *election, int64 token, const text *identity);

/* proclaim.c */
extern void le_require_own_term(const LeElection *election);
extern bool le_publish(const LeElection *election, int64 token, const text *value);

/* resign.c */
extern bool le_resign_term(const LeElection *election);
extern int	le_resign_terms(void);
extern bool le_resign_by_token(const LeElection *election, int64 token);

/* silence.c */
extern void le_await_silent(const LeElection *election, const LeTerm *silent, uint64 until);
extern bool le_beat_by_token(const LeElection *election, int64 token);

/* observe.c */
extern void le_stop_observing(void);
extern int64 le_observe_election(LeElection *election, int64 known, int64 wait_ms,
								 LeTerm *leader, char *value);

#endif							/* LE_LEAD_H */
