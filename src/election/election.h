/*-------------------------------------------------------------------------
 *
 * election/election.h
 *	  What an election is: its key and name, the rules for it, identities, and
 *	  what a transaction does to several.
 *
 *	  Terms used: an election is a contest for one job in one database; a term
 *	  is one unbroken period of one leader, identified by its token; a
 *	  candidate waits to be elected.  doc/internals.md explains how the parts
 *	  work together.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_ELECTION_H
#define LE_ELECTION_H

#include "pg/pg.h"

/* Names and identities are 1 to 255 bytes long, and stored with their NUL */
#define LE_TEXT_MAX		255
#define LE_TEXT_SIZE	(LE_TEXT_MAX + 1)

/* A published value is at most 8 kB long */
#define LE_VALUE_MAX	8192
#define LE_VALUE_SIZE	(LE_VALUE_MAX + 1)

/*
 * The fourth field of an advisory lock's tag (objsubid in pg_locks).  The
 * server uses 1 for bigint keys and 2 for pairs of integers, and offers no way
 * to lock any other, so that elections collide with no application's advisory
 * locks.
 */
typedef enum LeLockClass
{
	LE_CLASS_ELECTION = 0x4C45, /* "LE" */
	LE_CLASS_GUARD = 0x4C47,	/* "LG", see lock.c */
	LE_CLASS_JOB = 0x4C4A,		/* "LJ", likewise */
	LE_CLASS_SWEEP = 0x4C53		/* "LS", likewise */
} LeLockClass;

/*
 * SQLSTATEs of the extension, in a class that the SQL standard reserves for
 * implementations
 */
#define ERRCODE_LE_NOT_LEADER		MAKE_SQLSTATE('L', 'E', '0', '0', '1')
#define ERRCODE_LE_KEY_COLLISION	MAKE_SQLSTATE('L', 'E', '0', '0', '2')
#define ERRCODE_LE_NOT_YET			MAKE_SQLSTATE('L', 'E', '0', '0', '3')
#define ERRCODE_LE_SILENT			MAKE_SQLSTATE('L', 'E', '0', '0', '4')
#define ERRCODE_LE_SHARED_SESSION	MAKE_SQLSTATE('L', 'E', '0', '0', '5')

/* What a term is bound to */
typedef enum LeScope
{
	LE_SCOPE_SESSION,
	LE_SCOPE_TRANSACTION,
	LE_SCOPE_LEASE
} LeScope;

/* Why a term ended; CONTRIBUTING.md says what a new reason needs */
typedef enum LeEndReason
{
	LE_END_RESIGNED,
	LE_END_DEPOSED,
	LE_END_TRANSACTION,
	LE_END_SESSION,
	LE_END_LOCK_RELEASED,
	LE_END_EXPIRED,
	LE_END_EXTENSION_DROPPED,
	LE_END_SILENT
} LeEndReason;

#define LE_END_REASONS	(LE_END_SILENT + 1)

/* What identifies an election in the server; no padding, as it is hashed */
typedef struct LeElectionKey
{
	int64		key;
	Oid			database;
	uint32		lock_class;		/* LE_CLASS_ELECTION, always */
} LeElectionKey;

StaticAssertDecl(sizeof(LeElectionKey) == 16, "LeElectionKey must have no padding");

/* An election as a caller named it */
typedef struct LeElection
{
	LeElectionKey key;
	LOCKTAG		tag;
	char		name[LE_TEXT_SIZE];
	bool		declared;		/* as the last bid or observer has found */
} LeElection;

/* Name of a leader or candidate, for people to read */
typedef struct LeIdentity
{
	char		string[LE_TEXT_SIZE];
	bool		has_client;		/* made up as user@client, see identity.c */
} LeIdentity;

/* How long a bid waits, in milliseconds, or one of these */
#define LE_NO_WAIT			INT64CONST(0)
#define LE_WAIT_FOREVER		INT64CONST(-1)

/* A bid for leadership, as the caller made it */
typedef struct LeBid
{
	LeElection	election;
	LeScope		scope;
	int64		wait_ms;
	int64		lasts_us;		/* the ttl in lease scope; in session scope
								 * the heartbeat, 0: none */
	const text *identity;		/* NULL: the default one */

	/* working state, see campaign.c */
	uint64		patience_until; /* until when standbys are waited for, or one
								 * of the marks below */
	int64		token;			/* of the term that is about to begin */
	int64		grace_us;		/* the grace period that applies to it */
} LeBid;

/* How a bid waits for standbys, instead of until a time */
#define LE_PATIENCE_UNSET	0	/* the first wait sets the time */
#define LE_NO_PATIENCE		1	/* not at all: this time is long past */

/* An item of the current transaction, in a list; see xact_list.c */
typedef struct LeXactItem
{
	dlist_node	node;
	dlist_node	in_bucket;
	SubTransactionId subxact;	/* that the item belongs to */
	LeElectionKey election;
} LeXactItem;

typedef struct LeXactList
{
	dlist_head	items;			/* in the order in which they were added */
	void		(*undo) (LeXactItem *item); /* removes it, at a rollback */
	bool		is_used;
	struct LeXactList *next;
	uint32		count;
	uint32		bucket_count;	/* a power of two; 0: no item was added yet */
	dlist_head *buckets;
} LeXactList;

/* The function is called for each item that is rolled back, without errors */
#define LE_XACT_LIST(list, undo_item) \
	{.items = DLIST_STATIC_INIT((list).items),.undo = undo_item}

/* declaration.c */
extern void le_require_ttl(const LeElection *election, int64 ttl_us);
extern void le_require_candidate(LeBid *bid);
extern void le_require_own_key(const LeElection *election);
extern void le_require_observer(LeElection *election);
extern bool le_may_observe(const LeElectionKey *election);
extern void le_declare_election(const LeElection *election, Name candidates,
								const Interval *grace, const Interval *max_ttl,
								const bool *private_value);
extern bool le_undeclare_election(const LeElection *election);

/* key.c */
extern bool le_has_lock(const LeElectionKey *key);
extern void le_election_by_name(LeElection *election, const text *name);
extern char *le_escape_line(const char *string);
extern const char *le_name_label(const char *name);
extern const char *le_label(const LeElection *election);
extern void le_refuse_collision(const LeElection *election, const char *name);

/* end_reason.c */
extern const char *le_reason_name(LeEndReason reason);
extern bool le_is_resignation(LeEndReason reason);

/* identity.c */
extern void le_identity_fill(LeIdentity *identity, const text *given);
extern const char *le_identity_public(const LeIdentity *identity);
extern const char *le_identity_shown(const LeIdentity *identity, Oid role);

/* xact_list.c */
extern uint32 le_xact_items;
extern uint32 le_other_pending;
extern void le_xact_list_reserve(LeXactList *list);
extern void le_xact_list_add(LeXactList *list, LeXactItem *item,
							 const LeElectionKey *election);
extern void le_xact_list_remove(LeXactList *list, LeXactItem *item);
extern LeXactItem *le_xact_list_next(LeXactList *list, const LeElectionKey *election,
									 LeXactItem *after);
extern void le_xact_list_each(LeXactList *list, void (*visit) (LeXactItem *item));
extern void le_xact_lists_at_abort(void);
extern void le_xact_lists_at_subxact_abort(SubTransactionId mine);
extern void le_xact_lists_at_subxact_commit(SubTransactionId mine, SubTransactionId parent);

/*
 * Check whether any list has an item.  Never raises an error.
 */
static inline bool
le_xact_has_items(void)
{
	return le_xact_items > 0;
}

/*
 * Check whether anything is to be done when the transaction commits, except
 * for the terms of the session.  In most transactions of a leader nothing is.
 * Never raises an error.
 */
static inline bool
le_has_pending(void)
{
	return le_xact_items > 0 || le_other_pending > 0;
}

#endif							/* LE_ELECTION_H */
