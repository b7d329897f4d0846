/*-------------------------------------------------------------------------
 *
 * token.c
 *	  Fencing tokens.
 *
 * A token only ever grows, across every election of the database.  Tokens come
 * from a sequence, in blocks: the sequence's last value is the last token that
 * may have been handed out, and the rest of the present block is in the registry.
 * A block is durable before its first token is handed out, so that neither a
 * rollback nor a crash of the server takes a token back, and most elections write
 * nothing.
 *
 * Of a database's block in the registry, next and end only grow, whatever
 * sequence they come from.  It is written under its partition's LWLock.  A standby
 * draws none, so that what is there is of this timeline.
 *
 * The sequence is advanced by setval, not nextval: nextval would change what
 * lastval() returns to the application.  A lock on the sequence that conflicts
 * with itself keeps two sessions from drawing the same block; it is taken after
 * the election's lock, and no session that holds it takes an election's lock.
 *
 * In a transaction that has created or rewritten the sequence no block is drawn:
 * its rollback would take the block back.
 *
 * The upper 32 bits of a token are its generation.  It grows when the server may not
 * know of all tokens that were handed out: origin.c says when.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/time.h>

#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "storage/lmgr.h"
#include "utils/rel.h"

#include "leader_election.h"

#define LE_TOKEN_BLOCK	1024

/*
 * Take the next token of the block; false when the block is used up, or was
 * drawn from another sequence
 */
static bool
take_token(Oid sequence, int64 *token)
{
	LeDatabase *database = le_registry_lock_database(true);
	bool		taken = false;

	if (database->sequence == sequence && database->next < database->end)
	{
		*token = database->next++;
		taken = true;
	}
	le_registry_unlock_database(database);
	return taken;
}

/*
 * Return the greatest token that may have been handed out since the server
 * started, 0 if none was
 */
static int64
token_floor(void)
{
	LeDatabase *database = le_registry_lock_database(false);
	int64		floor = database->end - 1;

	le_registry_unlock_database(database);
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
	LeDatabase *database = le_registry_lock_database(true);

	Assert(first >= database->end);
	database->sequence = sequence;
	database->next = first;
	database->end = end;
	le_registry_unlock_database(database);
}

/*
 * Advance the sequence by one block and return the block's first token
 *
 * The origin is written after it: should it get lost, then the generation grows once
 * more.
 */
static int64
advance_sequence(void)
{
	int64		then = le_sequence_read(LE_TOKEN_ORIGIN);
	int64		now = le_origin_now(true);
	int64		last;
	int64		first;
	struct timeval clock;

	/* a sequence that was created anew must not repeat what was handed out */
	last = Max(le_sequence_read(LE_TOKENS), token_floor());
	gettimeofday(&clock, NULL);
	first = le_first_token(last, then, now, &clock);
	le_sequence_set(LE_TOKENS, first + LE_TOKEN_BLOCK - 1);
	if (then != now)
		le_sequence_set(LE_TOKEN_ORIGIN, now);
	return first;
}

/*
 * Return a token greater than any that was ever handed out in this database
 *
 * May write WAL, throw, end the session of a client that has gone, and wait: for
 * other sessions that draw a block, for DDL on the sequence, for synchronous standbys.
 * No LWLock may be held; to keep the tokens of an election in order, the election's
 * lock must be.
 */
int64
le_next_token(void)
{
	Oid			sequence;
	Relation	rel;
	int64		token;

	for (;;)
	{
		sequence = le_sequence_oid(LE_TOKENS);
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
		CHECK_FOR_INTERRUPTS();
	}

	if (RelationIsNewCompat(rel))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot elect a leader in the transaction that created or changed sequence \"%s\"",
						RelationGetRelationName(rel)),
				 errhint("Commit the transaction first.")));
	while (!take_token(sequence, &token))
	{
		int64		first = advance_sequence();

		le_make_durable(XactLastRecEnd);
		offer_tokens(sequence, first, first + LE_TOKEN_BLOCK);
	}
	relation_close(rel, ShareUpdateExclusiveLock);

	/* that may have taken long */
	le_require_client();
	return token;
}
