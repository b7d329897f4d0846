/*-------------------------------------------------------------------------
 *
 * pg/pg.h
 *	  What the extension asks of the server: its versions, relations, settings,
 *	  clock and client, and errors where there must be none.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_PG_H
#define LE_PG_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "fmgr.h"
#include "lib/ilist.h"
#include "storage/condition_variable.h"
#include "storage/lock.h"

#include "pg/compat.h"

/* The extension's name */
#define LE_EXTENSION	"leader_election"

/* The shortest ttl of a lease, and the longest that can be allowed */
#define LE_MIN_TTL_MS	100
#define LE_MAX_TTL_MS	(24 * 60 * 60 * 1000)

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

/* durability.c */
extern void le_make_durable(XLogRecPtr written);
extern bool le_has_synchronous_standbys(void);
extern bool le_is_durable(XLogRecPtr written);
extern bool le_await_durable(XLogRecPtr written, uint64 until);

/* relation.c */
extern Oid	le_extension_schema(void);
extern bool le_extension_exists(void);
extern Oid	le_sequence_oid(LeRelationId sequence);
extern Oid	le_lease_table(void);
extern void le_require_unaltered(Relation table, LeRelationId which);
extern Oid	le_unique_index(LeRelationId table);
extern Relation le_open_table(LeRelationId which, LOCKMODE mode);
extern HeapTuple le_find_row(Relation table, const char *name, Snapshot snapshot);
extern void le_write_row(Relation table, ItemPointer old, HeapTuple row);
extern int64 le_sequence_read(LeRelationId sequence, int64 *mark);
extern XLogRecPtr le_sequence_set(LeRelationId sequence, int64 value, int64 mark);

/* liveness.c */
extern void le_require_client(void);
extern void le_register_liveness(void);
extern void le_watch_client(bool leads);
extern void le_unwatch_client(void);
extern void le_sleep(ConditionVariable *condition, uint64 until, LeSleep what);
extern uint64 le_monotonic_us(void);

/* Write a line to the server's log */
#define le_log(...) \
do { \
	HOLD_INTERRUPTS(); \
	ereport(LOG_SERVER_ONLY, (errmsg_internal("leader_election: " __VA_ARGS__), \
							  errhidestmt(true), errhidecontext(true))); \
	RESUME_INTERRUPTS(); \
} while (0)

/* safely.c */
extern void le_run_released(void (*action) (void *), void *argument);
extern bool le_try(void (*action) (void *), void *argument);
extern void le_run_safely(void (*action) (void *), void *argument);
extern ErrorData *le_try_in_subtransaction(void (*action) (void *), void *argument);
extern void le_in_subtransaction(void (*action) (void *), void *argument);

/* The token in the setting */
typedef struct LeSessionToken
{
	int64		token;			/* 0: none */
	Oid			set_by;			/* whose code has set it; invalid: none but
								 * the session's own */
} LeSessionToken;

/* settings.c */
extern bool le_log_terms;
extern bool le_notify;
extern LeSessionToken le_session_token;
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

#endif							/* LE_PG_H */
