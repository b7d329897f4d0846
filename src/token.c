/*-------------------------------------------------------------------------
 *
 * token.c
 *	  Fencing tokens.
 *
 * A token only ever grows, across every election of the database.  Tokens come
 * from a sequence, in blocks: the sequence's last value is the last token that
 * may have been handed out, and the rest of the present block is in the registry.
 * A block is on disk before its first token is handed out, so that neither a
 * rollback nor a crash of the server takes a token back, and most elections write
 * nothing.  It is waited for on synchronous standbys as a commit would be: if that
 * wait is cancelled, there is the server's warning, and the block is used.
 *
 * Of a database's block in the registry, next and end only grow, whatever
 * sequence they come from.  It is written under its partition's LWLock.
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

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/fmgrprotos.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

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
 * Take the next token of the block; false when the block is used up, or was
 * drawn from another sequence
 */
static bool
take_token(Oid sequence, int64 *token)
{
	dshash_table *blocks = le_registry_token_blocks();
	LeTokenBlock *block;
	bool		taken = false;

	block = dshash_find(blocks, &MyDatabaseId, true);
	if (block == NULL)
		return false;
	if (block->sequence == sequence && block->next < block->end)
	{
		*token = block->next++;
		taken = true;
	}
	dshash_release_lock(blocks, block);
	return taken;
}

/*
 * Return the greatest token that may have been handed out since the server
 * started, 0 if none was
 */
static int64
token_floor(void)
{
	dshash_table *blocks = le_registry_token_blocks();
	LeTokenBlock *block;
	int64		floor;

	block = dshash_find(blocks, &MyDatabaseId, false);
	if (block == NULL)
		return 0;
	floor = block->end - 1;
	dshash_release_lock(blocks, block);
	return floor;
}

/*
 * Hand out tokens from this block from now on
 *
 * The caller holds the lock on the sequence under which it drew the block.
 */
static void
offer_tokens(Oid sequence, int64 first, int64 end)
{
	dshash_table *blocks = le_registry_token_blocks();
	LeTokenBlock *block;
	bool		found;

	block = dshash_find_or_insert(blocks, &MyDatabaseId, &found);
	Assert(!found || first >= block->end);
	block->sequence = sequence;
	block->next = first;
	block->end = end;
	dshash_release_lock(blocks, block);
}

/*
 * Return the last value that the sequence has given out
 *
 * From its one tuple: pg_sequence_last_value does not tell where a sequence
 * begins that was restarted.
 */
static int64
read_sequence(Relation sequence)
{
	Buffer		buffer = ReadBuffer(sequence, 0);
	Page		page;
	HeapTupleHeader tuple;
	FormData_pg_sequence_data data;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buffer);
	tuple = (HeapTupleHeader) PageGetItem(page, PageGetItemId(page, FirstOffsetNumber));
	memcpy(&data, (char *) tuple + tuple->t_hoff, sizeof(data));
	UnlockReleaseBuffer(buffer);

	return data.is_called ? data.last_value : data.last_value - 1;
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
	Oid			user;
	int			context;
	bool		read_only = XactReadOnly;
	int64		first;

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(sequence->rd_rel->relowner,
						   context | SECURITY_LOCAL_USERID_CHANGE);
	XactReadOnly = false;

	/* a sequence that was created anew must not repeat what was handed out */
	first = Max(read_sequence(sequence), token_floor()) + 1;
	DirectFunctionCall2(setval_oid,
						ObjectIdGetDatum(RelationGetRelid(sequence)),
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
 * May write WAL and throw, and wait: for other sessions that draw a block, for DDL
 * on the sequence, for synchronous standbys.  No LWLock may be held; to keep the
 * tokens of an election in order, the election's lock must be.
 */
int64
le_next_token(void)
{
	Oid			sequence;
	Relation	rel;
	int64		token;

	for (;;)
	{
		sequence = find_sequence();
		if (take_token(sequence, &token))
			return token;

		/*
		 * One session draws the next block, the others wait for it here.  The
		 * sequence is gone if the extension was replaced while we waited to
		 * be elected.
		 */
		rel = try_relation_open(sequence, ShareUpdateExclusiveLock);
		if (rel != NULL)
			break;
		sequence_oid = InvalidOid;
		CHECK_FOR_INTERRUPTS();
	}

	if (RelationIsNewCompat(rel))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot elect a leader in the transaction that created or changed sequence \"%s\"",
						LE_SEQUENCE),
				 errhint("Commit the transaction first.")));
	while (!take_token(sequence, &token))
	{
		int64		first = advance_sequence(rel);

		make_durable();
		offer_tokens(sequence, first, first + LE_TOKEN_BLOCK);
	}
	relation_close(rel, ShareUpdateExclusiveLock);

	return token;
}
