/*-------------------------------------------------------------------------
 *
 * term/term.h
 *	  A session's own terms, their heartbeats and tokens, and the origin of the
 *	  data.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_TERM_H
#define LE_TERM_H

#include "registry/registry.h"

/* Tokens are exact as numbers in JavaScript and JSON */
#define LE_TOKEN_MAX	((INT64CONST(1) << 53) - 1)

/* A term that this session runs */
typedef struct LeHeldTerm
{
	LeElection	election;		/* hash key first: election.key */
	int64		token;
	bool		for_session;	/* else for the transaction */
	LeElectionEntry *entry;		/* has the deadline of the heartbeat; NULL: no
								 * heartbeat */
	int64		heartbeat_us;	/* if there is an entry */
	dlist_node	beat_node;
	dlist_node	session_node;	/* if for the session */
	LeXactItem	xact_item;		/* else */
} LeHeldTerm;

/* term.c */
extern void le_require_primary(void);
extern LeHeldTerm *le_held_term(const LeElection *election);
extern bool le_leads_for_session(void);
extern int	le_count_held(void);
extern void le_fill_term(LeTerm *term, const LeBid *bid, const LeIdentity *identity);
extern int64 le_begin_term(const LeBid *bid, const LeIdentity *identity);
extern void le_set_heartbeat(LeHeldTerm *held, int64 heartbeat_us);
extern void le_abandon_term(const LeElection *election);
extern void le_let_go_for_session(LeHeldTerm *held);
extern int	le_let_go_all_for_session(void);
extern void le_terms_before_prepare(void);
extern void le_verify_terms(void *unused);
extern void le_terms_at_xact_end(void);
extern void le_terms_at_exit(void);

/* heartbeat.c */
extern void le_prepare_heartbeat(void);
extern void le_release_timer(void);
extern void le_start_heartbeat(LeHeldTerm *held, LeElectionEntry *entry);
extern void le_stop_heartbeat(LeHeldTerm *held);
extern bool le_held_is_silent(const LeHeldTerm *held);
pg_noreturn extern void le_raise_silent(const LeHeldTerm *held);
extern void le_log_silence(const LeHeldTerm *held);
extern bool le_beat(LeHeldTerm *held);

/* origin.c */
extern int64 le_origin_now(Oid database);
extern int64 le_first_token(int64 last, int64 then, int64 now,
							const struct timeval *clock);
extern uint64 le_grants_from(void);
pg_noreturn extern void le_raise_not_yet(const LeElection *election, uint64 grants_from);

/* token.c */
extern int64 le_next_token(uint64 until);

#endif							/* LE_TERM_H */
