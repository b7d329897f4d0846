/*-------------------------------------------------------------------------
 *
 * base/base.h
 *	  Declarations for all other folders: elections and their keys, settings,
 *	  declarations, the clock, and error handling.
 *
 *	  Terms used: an election is a contest for one job in one database; a term
 *	  is one unbroken period of one leader, identified by its token; a
 *	  candidate waits to be elected.  doc/internals.md explains how the parts
 *	  work together.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_BASE_H
#define LE_BASE_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "fmgr.h"
#include "lib/ilist.h"
#include "storage/condition_variable.h"
#include "storage/lock.h"

#include "base/compat.h"

/* The extension's name */
#define LE_EXTENSION	"leader_election"

/* Names and identities are 1 to 255 bytes long, and stored with their NUL */
#define LE_TEXT_MAX		255
#define LE_TEXT_SIZE	(LE_TEXT_MAX + 1)

/* The shortest ttl of a lease, and the longest that can be allowed */
#define LE_MIN_TTL_MS	100
#define LE_MAX_TTL_MS	(24 * 60 * 60 * 1000)

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
	LE_CLASS_GUARD = 0x4C47,	/* "LG", see election_lock.c */
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

/* Why a term ended; end_reason.c says what a new reason needs */
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

/* The extension's sequences and tables */
typedef enum LeRelationId
{
	LE_TOKENS,
	LE_LEASE_ORIGIN,			/* see origin.c */
	LE_LEASES,
	LE_DECLARATIONS,
	LE_ONCE
} LeRelationId;

/* What a sleeping session waits for */
typedef enum LeSleep
{
	LE_SLEEP_LEASE,				/* first in line: the end of a lease */
	LE_SLEEP_GRACE,				/* first in line: the end of the grace */
	LE_SLEEP_PROMOTION,			/* first in line: the granting of leases */
	LE_SLEEP_OBSERVE,
	LE_SLEEP_DEPOSE,			/* the end of terminated sessions */
	LE_SLEEP_CAMPAIGN,			/* any of many elections */
	LE_SLEEP_STANDBY			/* synchronous standbys */
} LeSleep;

/* declaration.c */
extern void (*le_declarations_read_hook) (uint64 declarations);
extern bool le_knows_kept(const LeElectionKey *key, const char *name, bool *kept);
extern bool le_is_kept(const LeElection *election);
extern void le_require_ttl(const LeElection *election, int64 ttl_us);
extern void le_require_candidate(const LeBid *bid);
extern void le_require_own_key(const LeElection *election);
extern void le_require_observer(const LeElection *election);
extern bool le_may_observe(const LeElectionKey *election);
extern int64 le_grace_of(const LeElection *election);
extern void le_declarations_written(Relation table, bool inserted);

/* declare.c */
extern void le_declare_election(const LeElection *election, Name candidates,
								const Interval *grace, const Interval *max_ttl,
								const bool *private_value);
extern bool le_undeclare_election(const LeElection *election);

/* durability.c */
extern void le_make_durable(XLogRecPtr written);
extern bool le_has_synchronous_standbys(void);
extern bool le_is_durable(XLogRecPtr written);
extern bool le_await_durable(XLogRecPtr written, uint64 until);

/* election_key.c */
extern void le_election_tag(const LeElectionKey *key, LOCKTAG *tag);
extern bool le_has_lock(const LeElectionKey *key);
extern void le_election_by_name(LeElection *election, const text *name);
extern char *le_escape_line(const char *string);
extern const char *le_name_label(const char *name);
extern const char *le_label(const LeElection *election);
extern void le_refuse_collision(const LeElection *election, const char *name);

/* end_reason.c */
extern const char *le_reason_name(LeEndReason reason);
extern bool le_is_resignation(LeEndReason reason);

/* extension_relation.c */
extern Oid	le_extension_schema(void);
extern bool le_is_member(Oid catalog, Oid object);
extern bool le_extension_exists(void);
extern Oid	le_sequence_oid(LeRelationId sequence);
extern Oid	le_lease_table(void);
extern void le_require_unaltered(Relation table, LeRelationId which);
extern Relation le_open_table(LeRelationId which, LOCKMODE mode);
extern HeapTuple le_find_row(Relation table, const char *name, Snapshot snapshot);
extern int64 le_sequence_read(LeRelationId sequence, int64 *mark);
extern XLogRecPtr le_sequence_set(LeRelationId sequence, int64 value, int64 mark);

/* liveness.c */
extern void le_require_client(void);
extern void le_register_liveness(void);
extern void le_watch_client(bool leads);
extern void le_unwatch_client(void);
extern void le_sleep(ConditionVariable *condition, uint64 until, LeSleep what);
extern uint64 le_monotonic_us(void);

/* safely.c */
extern bool le_try(void (*action) (void *), void *argument);
extern void le_run_safely(void (*action) (void *), void *argument);

/* settings.c */
extern bool le_log_terms;
extern bool le_notify;
extern int64 le_session_token;
extern int	le_max_ttl;
extern int	le_grace_period;
extern bool le_declared_only;
extern int	le_dead_peer_timeout;
extern int	le_max_terms_per_session;
extern int	le_max_tracked;
extern int	le_max_elections;
extern int	le_max_elections_per_role;
extern void le_define_settings(void);
extern void le_set_locally(const char *name, const char *value);

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

#endif							/* LE_BASE_H */
