/*-------------------------------------------------------------------------
 *
 * token.c
 *	  Fencing tokens.
 *
 * A token only ever grows, across every election of the database.  Tokens come
 * from a sequence, in blocks: the sequence's last value is the last token that
 * may have been handed out, the registry hands out the rest of the present
 * block.  A block is on disk, and on the standbys that a commit would wait for,
 * before its first token is handed out.  So neither a rollback nor a crash of
 * the server takes a token back, and most elections write nothing.
 *
 * The sequence is advanced by setval, not nextval: nextval would change what
 * lastval() returns to the application.  A lock on the sequence that conflicts
 * with itself keeps two sessions from drawing the same block; it is taken after
 * the election's lock, and no session that holds it takes an election's lock.
 *
 * In a transaction that has created or rewritten the sequence no block is drawn:
 * its rollback would take the block back.
 *
 * The upper 32 bits of a token are zero.  They are kept for a generation.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "storage/lmgr.h"
#include "utils/fmgrprotos.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "leader_election.h"

#define LE_EXTENSION	"leader_election"
#define LE_SEQUENCE		"le_token_seq"
#define LE_TOKEN_BLOCK	1024

/* the sequence's OID, or invalid until looked up and after it was dropped */
static Oid	sequence_oid = InvalidOid;

/*
 * Forget the sequence's OID when the sequence was dropped or changed
 */
static void
forget_sequence(Datum arg pg_attribute_unused(), Oid relid)
{
	if (relid == InvalidOid || relid == sequence_oid)
		sequence_oid = InvalidOid;
}

/*
 * Return the OID of the extension's sequence
 */
static Oid
find_sequence(void)
{
	static bool registered = false;
	Oid			schema;
	Oid			relid;

	if (OidIsValid(sequence_oid))
		return sequence_oid;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(forget_sequence, (Datum) 0);
		registered = true;
	}

	schema = get_extension_schema_compat(get_extension_oid(LE_EXTENSION, false));
	relid = get_relname_relid(LE_SEQUENCE, schema);
	if (!OidIsValid(relid) || get_rel_relkind(relid) != RELKIND_SEQUENCE)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("sequence \"%s\" of extension \"%s\" does not exist",
						LE_SEQUENCE, LE_EXTENSION)));

	return sequence_oid = relid;
}

/*
 * Return the last value of the sequence, 0 if it has none yet
 */
static int64
read_sequence(Oid sequence)
{
	LOCAL_FCINFO(fcinfo, 1);
	Datum		value;

	InitFunctionCallInfoData(*fcinfo, NULL, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = ObjectIdGetDatum(sequence);
	fcinfo->args[0].isnull = false;
	value = pg_sequence_last_value(fcinfo);

	return fcinfo->isnull ? 0 : DatumGetInt64(value);
}

/*
 * Advance the sequence by one block and return the block's first token
 *
 * As the sequence's owner, and in a read-only transaction, too: an election is
 * no change of the user's data, just as an advisory lock is none.  On error, the
 * server's own abort restores both.
 */
static int64
advance_sequence(Relation sequence)
{
	Oid			relid = RelationGetRelid(sequence);
	Oid			user;
	int			context;
	bool		read_only = XactReadOnly;
	int64		first;

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(sequence->rd_rel->relowner,
						   context | SECURITY_LOCAL_USERID_CHANGE);
	XactReadOnly = false;

	/* a sequence that was created anew must not repeat what was handed out */
	first = Max(read_sequence(relid), le_registry_token_floor()) + 1;
	DirectFunctionCall2(setval_oid, ObjectIdGetDatum(relid),
						Int64GetDatum(first + LE_TOKEN_BLOCK - 1));

	XactReadOnly = read_only;
	SetUserIdAndSecContext(user, context);

	return first;
}

/*
 * Make sure that the block just drawn is remembered by whoever comes after us
 */
static void
make_durable(void)
{
	XLogRecPtr	drawn = XactLastRecEnd;

	XLogFlush(drawn);

	HOLD_INTERRUPTS();
	SyncRepWaitForLSN(drawn, true);
	RESUME_INTERRUPTS();
}

/*
 * Return a token greater than any that was ever handed out in this database
 *
 * May write WAL, wait for it and throw.  No LWLock may be held; to keep the
 * tokens of an election in order, the election's lock must be.
 */
int64
le_next_token(void)
{
	Oid			sequence = find_sequence();
	Relation	rel;
	int64		token;

	if (le_registry_take_token(sequence, &token))
		return token;

	/* one session draws the next block, the others wait for it here */
	rel = relation_open(sequence, ShareUpdateExclusiveLock);
	if (RelationIsNewCompat(rel))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot elect a leader in the transaction that created or changed sequence \"%s\"",
						LE_SEQUENCE),
				 errhint("Commit the transaction first.")));
	while (!le_registry_take_token(sequence, &token))
	{
		int64		first = advance_sequence(rel);

		make_durable();
		le_registry_offer_tokens(sequence, first, first + LE_TOKEN_BLOCK);
	}
	relation_close(rel, ShareUpdateExclusiveLock);

	return token;
}
