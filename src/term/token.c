/*-------------------------------------------------------------------------
 *
 * term/token.c
 *	  Fencing tokens.
 *
 * Tokens only ever increase, across all elections of the database.  They come
 * from a sequence, in blocks: the sequence's last value is the last token that
 * may have been handed out, and the rest of the current block is in the
 * registry.  A block is durable before its first token is handed out, so that
 * neither a rollback nor a crash of the server takes a token back, while most
 * elections write nothing.
 *
 * A block is drawn, recorded in the registry as drawn, and offered when it is
 * durable.  Each session that needs a token waits for that by itself, and the
 * first one that sees it offers the block.  So a session that gives up loses
 * no block: the next one continues with it.
 *
 * Of a database's block in the registry, next and end only increase, whichever
 * sequence they come from, and each block that is drawn is above them and
 * above the one that was drawn before.  It is written under its partition's
 * LWLock.  A standby draws none, so what is there is of this timeline.
 *
 * A lock on the sequence that conflicts with itself keeps two sessions from
 * drawing the same block.  It is acquired after the election's lock, and no
 * session that holds it acquires an election's lock or waits for standbys.
 *
 * In a transaction that has created or rewritten the sequence no block is
 * drawn, because its rollback would take the block back.
 *
 * The first token is the one for the current time, as is the next one whenever
 * the server may not know all tokens that were handed out: see origin.c.
 * Tokens are less than 2^53, so that they are exact in JSON.  This does not
 * rely on the sequence's bounds, which an administrator may have altered.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/time.h>

#include "access/relation.h"
#include "miscadmin.h"
#include "utils/rel.h"

#include "term/term.h"

#define LE_TOKEN_BLOCK	1024

/*
 * Take the next token of the block.  Return false if the block is used up, or
 * was drawn from another sequence.
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
 * Return the greatest token that may be handed out of what was drawn since the
 * server started, or 0 if nothing was
 */
static int64
token_floor(void)
{
	LeDatabase *database = le_registry_lock_database(false);
	const LeTokenBlock *drawn = &database->drawn;
	int64		end = database->end;

	if (drawn->first != 0)
		end = Max(end, drawn->first + LE_TOKEN_BLOCK);
	le_registry_unlock_database(database);
	return end - 1;
}

/*
 * Find the block that was drawn from the sequence and has not been offered
 * yet.  Return false if there is none.
 */
static bool
find_drawn(Oid sequence, LeTokenBlock *block)
{
	LeDatabase *database = le_registry_lock_database(false);

	*block = database->drawn;
	le_registry_unlock_database(database);
	return block->first != 0 && block->sequence == sequence;
}

/*
 * Record that the block was drawn
 *
 * The caller must hold the lock on the sequence.
 */
static void
note_drawn(const LeTokenBlock *block)
{
	LeDatabase *database = le_registry_lock_database(true);

	database->drawn = *block;
	le_registry_unlock_database(database);
}

/*
 * Offer the tokens of this block, which must be durable, unless another
 * session has done so
 */
static void
offer_tokens(const LeTokenBlock *block)
{
	LeDatabase *database = le_registry_lock_database(true);

	if (database->drawn.first == block->first)
	{
		Assert(block->first >= database->end);
		database->sequence = block->sequence;
		database->next = block->first;
		database->end = block->first + LE_TOKEN_BLOCK;
		database->drawn.first = 0;
	}
	le_registry_unlock_database(database);
}

/*
 * Check whether the current block has any tokens left
 */
static bool
has_tokens(Oid sequence)
{
	LeDatabase *database = le_registry_lock_database(false);
	bool		has = database->sequence == sequence && database->next < database->end;

	le_registry_unlock_database(database);
	return has;
}

/*
 * Advance the sequence by one block
 */
static void
advance_sequence(LeTokenBlock *block)
{
	int64		now = le_origin_now(MyDatabaseId);
	int64		then;
	int64		last;
	struct timeval clock;

	/* a sequence that was set back or created anew must not repeat tokens */
	last = Max(le_sequence_read(LE_TOKENS, &then), token_floor());
	gettimeofday(&clock, NULL);
	block->first = le_first_token(Min(last, LE_TOKEN_MAX), then, now, &clock);
	if (block->first > LE_TOKEN_MAX - LE_TOKEN_BLOCK)
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("there are no more tokens after " INT64_FORMAT, last)));
	block->written = le_sequence_set(LE_TOKENS, block->first + LE_TOKEN_BLOCK - 1, now);
}

/*
 * Draw the next block from the sequence, unless another session has done so
 *
 * One session draws it, and the others wait for it here.  The sequence does
 * not exist any more if the extension was replaced while this session waited
 * to be elected.
 */
static void
draw_block(Oid sequence)
{
	Relation	rel = try_relation_open(sequence, ShareUpdateExclusiveLock);
	LeTokenBlock block = {.sequence = sequence};

	if (rel == NULL)
		return;
	if (RelationIsNewCompat(rel))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot elect a leader in the transaction that created or changed sequence \"%s\"",
						RelationGetRelationName(rel)),
				 errhint("Commit the transaction first.")));
	if (!has_tokens(sequence) && !find_drawn(sequence, &block))
	{
		block.sequence = sequence;
		advance_sequence(&block);
		note_drawn(&block);
	}
	relation_close(rel, ShareUpdateExclusiveLock);
}

/*
 * Return a token greater than all that were ever handed out in this database.
 * Return 0 if that would take a wait for synchronous standbys beyond the given
 * time, by le_monotonic_us; 0 means not to wait for them.
 *
 * May write WAL, raise an error, and end the session if its client is gone.
 * May wait for other sessions that draw a block, for DDL on the sequence, and
 * for synchronous standbys.  The caller must not hold an LWLock.  To keep the
 * tokens of an election in order, the caller must hold the election's lock.
 */
int64
le_next_token(uint64 until)
{
	for (;;)
	{
		Oid			sequence = le_sequence_oid(LE_TOKENS);
		LeTokenBlock block;
		int64		token;

		if (take_token(sequence, &token))
			return token;
		if (find_drawn(sequence, &block))
		{
			if (!le_await_durable(block.written, until))
				return 0;
			offer_tokens(&block);

			/* that may have taken long */
			le_require_client();
		}
		else
			draw_block(sequence);
		CHECK_FOR_INTERRUPTS();
	}
}
