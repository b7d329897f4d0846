/*-------------------------------------------------------------------------
 *
 * leader_election.h
 *	  What the files of the extension share.
 *
 * Words: an election is a contest for one job in one database; a term is one
 * unbroken period of one leader, known by its token; a candidate waits to be
 * elected.  README.md explains how the parts work together.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEADER_ELECTION_H
#define LEADER_ELECTION_H

#include "datatype/timestamp.h"
#include "fmgr.h"
#include "lib/ilist.h"
#include "storage/lock.h"

#include "compat.h"

/* Names and identities are 1 to 255 bytes long, and kept with their NUL */
#define LE_TEXT_MAX		255
#define LE_TEXT_SIZE	(LE_TEXT_MAX + 1)

/*
 * The fourth field of an advisory lock's tag (objsubid in pg_locks).  The
 * server uses 1 for bigint keys and 2 for pairs of integers, and offers no way
 * to lock any other, so that elections by name collide with no application's
 * advisory locks.  Elections by bare key use the server's own class on purpose.
 */
typedef enum LeLockClass
{
	LE_CLASS_BARE_KEY = 1,
	LE_CLASS_ELECTION = 0x4C45	/* "LE" */
} LeLockClass;

/* SQLSTATEs of our own, in a class that the SQL standard leaves to us */
#define ERRCODE_LE_KEY_COLLISION	MAKE_SQLSTATE('L', 'E', '0', '0', '2')

/* What a term is bound to */
typedef enum LeScope
{
	LE_SCOPE_SESSION,
	LE_SCOPE_TRANSACTION
} LeScope;

/* Why a term ended */
typedef enum LeEndReason
{
	LE_END_RESIGNED,
	LE_END_TRANSACTION,
	LE_END_SESSION,
	LE_END_LOCK_RELEASED
} LeEndReason;

/* What identifies an election in the server; no padding, as it is hashed */
typedef struct LeElectionKey
{
	int64		key;
	Oid			database;
	uint32		lock_class;		/* LeLockClass */
} LeElectionKey;

StaticAssertDecl(sizeof(LeElectionKey) == 16, "LeElectionKey must have no padding");

/* An election, as a caller named it */
typedef struct LeElection
{
	LeElectionKey key;
	LOCKTAG		tag;
	char		name[LE_TEXT_SIZE]; /* empty for a bare key */
} LeElection;

/* Who stands for leader, in words for people */
typedef struct LeIdentity
{
	char		string[LE_TEXT_SIZE];
	bool		has_client;		/* made up as user@client, see identity.c */
} LeIdentity;

/* A term on record in the registry; registry.c says what protects it */
typedef struct LeTerm
{
	LeElectionKey election;		/* hash key; must be first */
	int64		token;			/* 0: no term runs */
	LeScope		scope;
	int			pid;
	Oid			role;
	TimestampTz since;
	LeIdentity	identity;
	char		name[LE_TEXT_SIZE]; /* empty for a bare key */
} LeTerm;

/* A backend that waits in the lock manager's queue to be elected */
typedef struct LeCandidate
{
	int			pid;			/* hash key; must be first */
	Oid			role;
	LeElectionKey election;
	LeIdentity	identity;
	char		name[LE_TEXT_SIZE]; /* empty for a bare key */
} LeCandidate;

/* The block that a database's tokens come from; token.c says what protects it */
typedef struct LeTokenBlock
{
	Oid			database;		/* hash key; must be first */
	Oid			sequence;		/* the sequence it was drawn from */
	int64		next;
	int64		end;			/* exclusive */
} LeTokenBlock;

/* A term that this session runs; term.c says what the holds are */
typedef struct LeHeldTerm
{
	LeElection	election;		/* hash key first: election.key */
	int64		token;
	bool		noticed;		/* was its leader told: see notice_outlives */
	bool		session_hold;
	SubTransactionId xact_hold; /* InvalidSubTransactionId: none */
	dlist_node	session_node;	/* in names_held or keys_held */
	dlist_node	xact_node;		/* in xact_held */
} LeHeldTerm;

/* How long a bid waits, in milliseconds; else one of these */
#define LE_WAIT_NOT			INT64CONST(0)
#define LE_WAIT_FOREVER		INT64CONST(-1)

/* leader_election.c */
extern bool le_log_terms;
extern int	le_max_terms_per_session;
extern void le_register_callbacks(void);
extern void le_catching(void (*action) (void *), void *argument);

/* election_key.c */
extern void le_election_by_name(LeElection *election, const text *name);
extern void le_election_by_key(LeElection *election, int64 key);
extern const char *le_election_label(const LeElectionKey *key, const char *name);
extern void le_refuse_collision(const LeElection *election, const char *name);
extern char *le_escape_line(const char *string);

/* election_lock.c */
extern bool le_acquire_for_xact(const LeElection *election, bool dont_wait);
extern void le_release_for_xact(const LeElection *election);
extern void le_acquire_for_session(const LeElection *election);
extern void le_release_for_session(const LeElection *election);
extern bool le_has_lock(const LeElection *election);
extern bool le_lock_unbroken(const LeElection *election, bool *session_level);
extern bool le_find_holder(const LeElection *election, int *pid);

/* registry.c */
extern bool le_registry_read(const LeElectionKey *key, LeTerm *term);
extern bool le_registry_begin_term(const LeTerm *term, LeTerm *stale);
extern bool le_registry_end_term(const LeElectionKey *key, int64 token);
extern void le_registry_set_scope(const LeElectionKey *key, int64 token, LeScope scope);
extern void le_registry_remember_key(const LeElection *election);
extern void le_registry_bound_keys(void);
extern void le_registry_add_candidate(const LeCandidate *candidate);
extern void le_registry_remove_candidate(int pid);
extern LeTerm *le_registry_list_terms(int *count);
extern LeCandidate *le_registry_list_candidates(int *count);
extern dshash_table *le_registry_token_blocks(void);

/* token.c */
extern int64 le_next_token(void);

/* term.c */
extern LeHeldTerm *le_held_term(const LeElection *election);
extern bool le_leads_fewer_than(int limit);
extern void le_begin_term(const LeElection *election, LeScope scope,
						  const LeIdentity *identity);
extern void le_hold_for_session(LeHeldTerm *held);
extern void le_hold_for_transaction(LeHeldTerm *held);
extern void le_let_go_for_session(LeHeldTerm *held);
extern int	le_let_go_all_for_session(void);
extern void le_terms_before_prepare(void);
extern void le_verify_terms(void *unused);
extern void le_terms_at_xact_end(void);
extern void le_terms_at_subxact_commit(SubTransactionId mine, SubTransactionId parent);
extern void le_terms_at_subxact_abort(SubTransactionId mine);
extern void le_terms_at_exit(void);

/* term_log.c */
extern void le_log_begin(const LeTerm *term);
extern void le_log_end(const LeElectionKey *key, const char *name, int64 token,
					   LeEndReason reason);
extern const char *le_scope_name(LeScope scope);

/* campaign.c */
extern bool le_elect(const LeElection *election, LeScope scope, int64 wait_ms,
					 const text *given_identity);
extern void le_withdraw(void);
extern bool le_resign_term(const LeElection *election);

/* identity.c */
extern void le_identity_fill(LeIdentity *identity, const text *given);
extern const char *le_identity_shown(const LeIdentity *identity, Oid role);

/* liveness.c */
extern void le_require_client(void);

#endif							/* LEADER_ELECTION_H */
