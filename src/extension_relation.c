/*-------------------------------------------------------------------------
 *
 * extension_relation.c
 *	  The extension's own sequences and tables: to find them, to read and write the
 *	  sequences, and to make durable what is written without regard to the
 *	  transaction.
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
#include "utils/fmgrprotos.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "leader_election.h"

#define LE_EXTENSION	"leader_election"

typedef struct LeRelation
{
	const char *name;
	char		kind;
	Oid			oid;			/* invalid until looked up, and when changed */
} LeRelation;

static LeRelation sequences[] = {
	[LE_TOKENS] = {"le_token_seq", RELKIND_SEQUENCE, InvalidOid},
	[LE_TOKEN_ORIGIN] = {"le_token_origin_seq", RELKIND_SEQUENCE, InvalidOid},
	[LE_LEASE_ORIGIN] = {"le_lease_origin_seq", RELKIND_SEQUENCE, InvalidOid},
};
static LeRelation lease_table = {"le_leases", RELKIND_RELATION, InvalidOid};
static LeRelation declaration_table = {"le_declarations", RELKIND_RELATION, InvalidOid};

static void
forget(LeRelation *relation, Oid relid)
{
	if (relid == InvalidOid || relid == relation->oid)
		relation->oid = InvalidOid;
}

/*
 * Forget the OIDs when a relation was dropped or changed
 */
static void
forget_relation(Datum arg pg_attribute_unused(), Oid relid)
{
	for (size_t i = 0; i < lengthof(sequences); i++)
		forget(&sequences[i], relid);
	forget(&lease_table, relid);
	forget(&declaration_table, relid);
}

static Oid
find_relation(LeRelation *relation)
{
	static bool registered = false;
	Oid			schema;
	Oid			oid;

	if (likely(OidIsValid(relation->oid)))
		return relation->oid;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(forget_relation, (Datum) 0);
		registered = true;
	}

	schema = get_extension_schema_compat(get_extension_oid(LE_EXTENSION, false));
	oid = get_relname_relid(relation->name, schema);
	if (!OidIsValid(oid) || get_rel_relkind(oid) != relation->kind)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s\" of extension \"%s\" does not exist",
						relation->name, LE_EXTENSION)));

	return relation->oid = oid;
}

/*
 * Is the extension still there?
 */
bool
le_extension_exists(void)
{
	return OidIsValid(lease_table.oid) || OidIsValid(get_extension_oid(LE_EXTENSION, true));
}

/*
 * Return the OID of the sequence; throws if it is gone
 */
Oid
le_sequence_oid(LeSequence sequence)
{
	return find_relation(&sequences[sequence]);
}

/*
 * Return the OID of the table that leases are written down in; throws if it is gone
 */
Oid
le_lease_table(void)
{
	return find_relation(&lease_table);
}

/*
 * Return the OID of the table of declarations; throws if it is gone
 */
Oid
le_declaration_table(void)
{
	return find_relation(&declaration_table);
}

/*
 * Throw unless the table has so many columns, as the one that came with this library
 */
void
le_require_shape(Relation table, int columns)
{
	if (RelationGetNumberOfAttributes(table) != columns)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" has been altered",
						RelationGetRelationName(table))));
}

/*
 * Open the sequence; if the extension has just been replaced, the new one
 */
static Relation
open_sequence(LeSequence sequence)
{
	Relation	rel;

	while ((rel = try_relation_open(le_sequence_oid(sequence), AccessShareLock)) == NULL)
		CHECK_FOR_INTERRUPTS();
	return rel;
}

/*
 * Return the last value that the sequence has given out
 *
 * From its one tuple: pg_sequence_last_value does not tell where a sequence
 * begins that was restarted.
 */
int64
le_sequence_read(LeSequence sequence)
{
	Relation	rel = open_sequence(sequence);
	Buffer		buffer = ReadBuffer(rel, 0);
	Page		page;
	HeapTupleHeader tuple;
	FormData_pg_sequence_data data;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buffer);
	tuple = (HeapTupleHeader) PageGetItem(page, PageGetItemId(page, FirstOffsetNumber));
	memcpy(&data, (char *) tuple + tuple->t_hoff, sizeof(data));
	UnlockReleaseBuffer(buffer);
	relation_close(rel, AccessShareLock);

	return data.is_called ? data.last_value : data.last_value - 1;
}

/*
 * Make that the last value which the sequence has given out, whatever becomes of the
 * transaction
 *
 * As the sequence's owner, and in a read-only transaction, too: an election is
 * no change of the user's data, just as an advisory lock is none.  On error, the
 * server's own abort restores both.
 */
void
le_sequence_set(LeSequence sequence, int64 value)
{
	Relation	rel = open_sequence(sequence);
	Oid			user;
	int			context;
	bool		read_only = XactReadOnly;

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(rel->rd_rel->relowner,
						   context | SECURITY_LOCAL_USERID_CHANGE);
	XactReadOnly = false;
	DirectFunctionCall2(setval_oid, ObjectIdGetDatum(RelationGetRelid(rel)),
						Int64GetDatum(value));
	XactReadOnly = read_only;
	SetUserIdAndSecContext(user, context);
	relation_close(rel, AccessShareLock);
}

static void
set_synchronous_commit(int level)
{
	synchronous_commit = level;
	assign_synchronous_commit(level, NULL);
}

/*
 * Make sure that the WAL up to there, if anywhere, is remembered by whoever comes
 * after us, however this transaction ends
 *
 * It is waited for on synchronous standbys as a commit would be, and as it is by default
 * where the session asks for less: others depend on it.  If that wait is cancelled, there
 * is the server's warning, and no error.  No LWLock may be held.
 */
void
le_make_durable(XLogRecPtr written)
{
	int			sessions_own = synchronous_commit;

	if (XLogRecPtrIsInvalid(written))
		return;
	XLogFlush(written);

	HOLD_INTERRUPTS();
	if (synchronous_commit < SYNCHRONOUS_COMMIT_REMOTE_FLUSH)
		set_synchronous_commit(SYNCHRONOUS_COMMIT_REMOTE_FLUSH);
	SyncRepWaitForLSN(written, true);
	set_synchronous_commit(sessions_own);
	RESUME_INTERRUPTS();
}
