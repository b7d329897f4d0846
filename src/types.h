/*-------------------------------------------------------------------------
 *
 * types.h
 *	  The types that the files of the extension share, and what is in them.
 *
 * First those of elections and of what is known of them, then those in shared memory
 * (registry.c says what protects these), then those of a session's own.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_TYPES_H
#define LE_TYPES_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "fmgr.h"
#include "lib/ilist.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/lock.h"
#include "utils/dsa.h"

#include "compat.h"

/* Names and identities are 1 to 255 bytes long, and kept with their NUL */
#define LE_TEXT_MAX		255
#define LE_TEXT_SIZE	(LE_TEXT_MAX + 1)

/* The shortest ttl of a lease, and the longest that can be allowed */
#define LE_MIN_TTL_MS	100
#define LE_MAX_TTL_MS	(24 * 60 * 60 * 1000)

/* A published value is up to 8 kB long */
#define LE_VALUE_MAX	8192
#define LE_VALUE_SIZE	(LE_VALUE_MAX + 1)

/*
 * The fourth field of an advisory lock's tag (objsubid in pg_locks).  The
 * server uses 1 for bigint keys and 2 for pairs of integers, and offers no way
 * to lock any other, so that elections by name collide with no application's
 * advisory locks.  Elections by bare key use the server's own class on purpose.
 */
typedef enum LeLockClass
{
	LE_CLASS_BARE_KEY = 1,
	LE_CLASS_ELECTION = 0x4C45, /* "LE" */
	LE_CLASS_GUARD = 0x4C47		/* "LG", see election_lock.c */
} LeLockClass;

/* SQLSTATEs of our own, in a class that the SQL standard leaves to us */
#define ERRCODE_LE_NOT_LEADER		MAKE_SQLSTATE('L', 'E', '0', '0', '1')
#define ERRCODE_LE_KEY_COLLISION	MAKE_SQLSTATE('L', 'E', '0', '0', '2')
#define ERRCODE_LE_NOT_YET			MAKE_SQLSTATE('L', 'E', '0', '0', '3')

/* What to do where two clients are on one session */
#define LE_HINT_SHARED_SESSION \
	"Another client may use the same connection, as through a pooler in transaction mode or a connection pool. To lead through these, use a lease."

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
	LE_END_EXTENSION_DROPPED
} LeEndReason;

#define LE_END_REASONS	(LE_END_EXTENSION_DROPPED + 1)

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

/*
 * When a lease runs out, by le_monotonic_us; else one of these, which are long past.
 * A lease that is marked as over stays so.
 */
#define LE_DEADLINE_UNCOMMITTED UINT64CONST(0)	/* not yet begun */
#define LE_DEADLINE_OVER		UINT64CONST(1)	/* ended before it ran out */

/* What of a lease in the registry changes while it runs */
typedef struct LeLease
{
	int64		ttl_us;
	pg_atomic_uint64 deadline;
	pg_atomic_uint64 renewals;
} LeLease;

/*
 * What is counted of an election, since it was first heard of or the last reset.
 * Times are by le_monotonic_us
 */
typedef struct LeTally
{
	int64		terms;
	int64		ended[LE_END_REASONS];
	uint64		led_us;			/* by terms that have ended */
	uint64		vacant_us;		/* before the last term began */
	uint64		changed_at;		/* when that began, or the last one ended */
	pg_atomic_uint64 denied;
	pg_atomic_uint64 longest_wait_us;
} LeTally;

/* For whom an election's entry stays where it is */
typedef enum LeWatcher
{
	LE_OBSERVER,				/* who may be about to sleep on it */
	LE_FOLLOWER					/* who campaigns for many elections, and this
								 * one */
} LeWatcher;

/*
 * An election as the registry keeps it; registry.c says what protects it
 *
 * What is small comes last, as there may be a million of these.
 */
typedef struct LeElectionEntry
{
	LeElectionKey election;		/* hash key; must be first */
	dsa_pointer name;			/* invalid: a bare key */

	/* the term */
	int64		token;			/* 0: no term runs */
	TimestampTz since;
	LeLease		lease;
	dsa_pointer identity;		/* invalid: no term */
	dsa_pointer value;			/* that its leader has published; invalid:
								 * none */
	int			pid;			/* 0: a lease, which is bound to no process */
	Oid			role;
	Oid			lease_table;	/* where a lease is written down, see lease.c */
	XLogRecPtr	voided_at;		/* end of the WAL that says there that it is
								 * over; invalid: not known to say so */
	dsa_pointer used;			/* by its role: the counter that a lease is
								 * counted in; invalid: none */

	/* the election */
	int			successor;		/* process that is to lead next; 0: the first
								 * in line */
	int64		last_token;		/* of the last term that has ended; 0: unknown */
	uint64		lost_at;		/* when that has, without resignation, by
								 * le_monotonic_us; 0: it was resigned */
	LeTally		tally;
	int			watchers[2];	/* how many there are, by LeWatcher */
	ConditionVariable changed;	/* term, value or deadline has */

	/* again the election */
	bool		declared;		/* never evicted */
	bool		lost_at_known;	/* although its last term is not */

	/* again the term */
	uint8		scope;			/* LeScope */
	bool		identity_has_client;
	bool		announces;		/* is its end to be announced? */
	bool		counted;		/* as begun, and not as ended */
	bool		lost;			/* was its lock seen free: see watch.c */
	bool		hidden;			/* forgotten but for its last term, and not
								 * heard of since */

	/* what is not announced yet, see registry_news.c */
	bool		news_has_client;
	uint8		news;			/* LE_NEWS_BEGIN and LE_NEWS_END */
	uint8		end_reason;		/* LeEndReason */
	int			teller;			/* process that was last to put the end on its
								 * list */
	int64		news_token;		/* the term that the news is of */
	dsa_pointer news_identity;	/* once that is off the record */
	dsa_pointer deposed_by;		/* role that ends the term by le_depose */
	dsa_pointer deposed_why;
} LeElectionEntry;

/* An entry takes one of the sizes of dsa.c, and dshash adds 16 bytes to it */
StaticAssertDecl(sizeof(LeElectionEntry) <= 368, "an entry must fit into 384 bytes");

/* What is announced of a term */
#define LE_NEWS_BEGIN	1
#define LE_NEWS_END		2
#define LE_NEWS_VALUE	4

/* What came of an attempt to forget an election */
typedef enum LeForgotten
{
	LE_FORGOTTEN,
	LE_NOT_KNOWN,
	LE_IN_USE
} LeForgotten;

/* A copy of a term */
typedef struct LeTerm
{
	LeElectionKey election;
	int64		token;			/* 0: no term runs */
	LeScope		scope;
	int			pid;			/* 0: a lease */
	Oid			role;
	Oid			lease_table;
	TimestampTz since;
	int64		ttl_us;
	uint64		deadline;
	uint64		renewals;
	XLogRecPtr	voided_at;		/* of a lease that is over */
	int			successor;		/* of the election, see LeElectionEntry */
	LeEndReason end_reason;		/* of one that has ended */
	bool		has_value;
	bool		announces;		/* are its beginning and end announced? */
	int			followers;
	LeIdentity	identity;
	char		name[LE_TEXT_SIZE]; /* empty for a bare key */
} LeTerm;

/* A term, and what is still to be announced of it */
typedef struct LeNews
{
	uint8		what;			/* LE_NEWS_BEGIN and LE_NEWS_END */
	LeTerm		term;
	char		by[NAMEDATALEN];	/* role that has deposed its leader */
	char		why[LE_TEXT_SIZE];	/* empty if that was not said */
} LeNews;

/* What makes a session announce something */
typedef enum LeDuty
{
	LE_DUTY_OWN,				/* it is first to know */
	LE_DUTY_SHARED,				/* another session may announce it first */
	LE_DUTY_TAKEN				/* it has taken it over */
} LeDuty;

/* What observers are told of an election */
typedef struct LeSight
{
	int64		token;			/* negative, or 0: vacant, see watch.c */
	bool		by_lock;		/* led as long as its session has the lock */
	uint64		deadline;		/* of a lease that runs; 0: none */
	Oid			lease_table;	/* likewise */
	bool		expired;		/* a lease has just run out, and nobody has
								 * seen it */
	bool		owed;			/* that a term has ended was not announced */
	bool		has_value;
	Oid			role;
	LeIdentity	identity;		/* of who leads, or has just expired */
	char		name[LE_TEXT_SIZE]; /* of the election that has the key */
	char		value[LE_VALUE_SIZE];
} LeSight;

/* A row of the statistics */
typedef struct LeStatistics
{
	LeElectionKey election;
	char		name[LE_TEXT_SIZE]; /* empty for a bare key */
	int64		terms;
	int64		ended[LE_END_REASONS];
	uint64		denied;
	uint64		led_us;
	uint64		vacant_us;
	uint64		longest_wait_us;
	uint64		vacant_for_us;	/* now */
	bool		is_vacant;
	int			followers;
} LeStatistics;

/* What the first candidate in line waits for */
typedef enum LeWait
{
	LE_WAITS_FOR_LEADER,		/* or, further back, for those ahead */
	LE_WAITS_FOR_GUARD,
	LE_WAITS_FOR_GRACE,
	LE_WAITS_AFTER_PROMOTION,
	LE_WAITS_FOR_STANDBY
} LeWait;

/*
 * A backend that waits to be elected: in the lock manager's queue, or, first in
 * line, for the end of a lease; or for any of many elections
 */
typedef struct LeCandidate
{
	int			pid;			/* hash key; must be first */
	Oid			role;
	LeElectionKey election;
	LeWait		waits_for;
	bool		gave_way;		/* to a successor, see handover.c */
	TimestampTz since;
	LeIdentity	identity;
	dsa_pointer keys;			/* of many elections by name; invalid: of one */
	int			key_count;
	char		name[LE_TEXT_SIZE]; /* empty for a bare key, and for many */
} LeCandidate;

/* Elections whose lock was let go, the last so many */
#define LE_RELEASES		256

/* A block of tokens that was drawn */
typedef struct LeTokenBlock
{
	Oid			sequence;		/* that it was drawn from */
	int64		first;			/* 0: none */
	XLogRecPtr	written;		/* must be durable before it is used */
} LeTokenBlock;

/* What the registry keeps for each database */
typedef struct LeDatabase
{
	Oid			database;		/* hash key; must be first */

	/* the block that tokens come from; token.c says what protects it */
	Oid			sequence;		/* the sequence it was drawn from */
	int64		next;
	int64		end;			/* exclusive */
	LeTokenBlock drawn;			/* the next one, until it is used */

	/* lease.c says how these are used */
	Oid			loaded_table;	/* the table whose leases are in the registry */
	bool		had_terms;		/* was there any before that was loaded? */
	uint64		forgotten_at;	/* see le_registry_forgotten_at */
	pg_atomic_uint32 leases_begun;	/* since the last sweep */
	pg_atomic_uint32 sweep_after;	/* so many */
	uint64		leases_evicted; /* see le_registry_note_eviction */

	/* which declarations the entries are marked by, see declaration.c */
	uint64		declarations;

	/* follow.c says how these are used */
	uint64		release_count;
	int64		released[LE_RELEASES];	/* keys of elections by name, in turn */
	ConditionVariable release;

	TimestampTz stats_reset;	/* 0: never */
} LeDatabase;

/*
 * What a role uses up: its running leases, and what its sessions watch.  The counter never
 * moves or goes, so that it can be counted down under any lock
 */
typedef struct LeRole
{
	Oid			role;			/* hash key; must be first */
	dsa_pointer used;			/* a pg_atomic_uint32 */
} LeRole;

/* Counters of the registry; atomic, and no more than hints but for evictions */
typedef struct LeCounters
{
	pg_atomic_uint32 elections; /* entries in all */
	pg_atomic_uint32 terms;		/* of which have a token */
	pg_atomic_uint32 pinned;	/* of the others, could not be evicted */
	pg_atomic_uint32 followers; /* sessions that campaign for many elections */
	pg_atomic_uint64 evictions;
} LeCounters;

/* What belongs to the current transaction, in a list; see xact_list.c */
typedef struct LeXactItem
{
	dlist_node	node;
	SubTransactionId subxact;	/* that it belongs to */
} LeXactItem;

/* A term that this session runs; term.c says what the holds are */
typedef struct LeHeldTerm
{
	LeElection	election;		/* hash key first: election.key */
	int64		token;
	bool		noticed;		/* was its leader told: see notice_outlives */
	bool		announced;		/* that it ends with the commit at hand */
	bool		session_hold;
	bool		xact_hold;
	dlist_node	session_node;	/* in names_held or keys_held */
	LeXactItem	xact_item;		/* in xact_held */
} LeHeldTerm;

/* A lease that this transaction has taken */
typedef struct LeGrant
{
	LeXactItem	item;
	LeElection	election;
	int64		token;
	Oid			role;
	LeElectionEntry *entry;		/* where the registry keeps it */
	bool		given_up;		/* only the lock is left */
} LeGrant;

/* How long a bid waits, in milliseconds; else one of these */
#define LE_WAIT_NOT			INT64CONST(0)
#define LE_WAIT_FOREVER		INT64CONST(-1)

/* How often it is looked whether sessions and transactions have kept the lock they lead by */
#define LE_LOCK_LOOK_US		USECS_PER_SEC

/* How long a bid that does not wait lets synchronous standbys answer */
#define LE_STANDBY_PATIENCE_US	(100 * INT64CONST(1000))

/* A bid for leadership, as the caller made it */
typedef struct LeBid
{
	LeElection	election;
	LeScope		scope;
	int64		wait_ms;
	int64		ttl_us;			/* in lease scope */
	const text *identity;		/* NULL: the default one */

	/* what comes of it, see campaign.c */
	uint64		patience_until; /* with standbys; 0: not yet tried */
	int64		token;			/* of the term that is about to begin */
} LeBid;

/* By which rules an election is held, if they are declared */
typedef struct LeDeclaration
{
	char		name[LE_TEXT_SIZE]; /* hash key; must be first */
	bool		for_everybody;
	NameData	candidates;		/* else: the role whose members may stand */
	Oid			role;			/* the OID that it must have; invalid: any */
	int64		grace_us;		/* -1: as set */
	int64		max_ttl_us;		/* -1: as set */
	bool		private_value;	/* only they may see what the leader publishes */
	bool		kept;			/* by the registry, see le_is_kept */
} LeDeclaration;

/* What is to be done with a lease that runs */
typedef enum LeLeaseAction
{
	LE_LEASE_LOOK,				/* nothing */
	LE_LEASE_RENEW,				/* for the ttl that it has */
	LE_LEASE_SET_TTL,			/* renew it for another one */
	LE_LEASE_END,
	LE_LEASE_DEPOSE				/* the same, whoever took it */
} LeLeaseAction;

typedef struct LeLeaseOrder
{
	LeLeaseAction action;
	int64		ttl_us;			/* for LE_LEASE_SET_TTL */
	int			successor;		/* for LE_LEASE_END; 0: the first in line */
} LeLeaseOrder;

/* What came of it */
typedef enum LeLeaseAnswer
{
	LE_LEASE_DONE,
	LE_LEASE_NOT_RUNNING,		/* no lease with that token */
	LE_LEASE_OF_ANOTHER_ROLE
} LeLeaseAnswer;

/* The extension's sequences */
typedef enum LeSequence
{
	LE_TOKENS,
	LE_TOKEN_ORIGIN,			/* see origin.c */
	LE_LEASE_ORIGIN
} LeSequence;

/* The extension's tables */
typedef enum LeTable
{
	LE_LEASES,
	LE_DECLARATIONS
} LeTable;

/* What a session that sleeps is doing */
typedef enum LeSleep
{
	LE_SLEEP_LEASE,				/* first in line, until a lease is over */
	LE_SLEEP_GRACE,				/* first in line, until the grace is over */
	LE_SLEEP_PROMOTION,			/* first in line, until leases are granted */
	LE_SLEEP_OBSERVE,
	LE_SLEEP_DEPOSE,			/* until those are gone who were told to */
	LE_SLEEP_CAMPAIGN,			/* for many elections */
	LE_SLEEP_STANDBY			/* until synchronous standbys have the WAL */
} LeSleep;

#endif							/* LE_TYPES_H */
