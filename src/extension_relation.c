/*-------------------------------------------------------------------------
 *
 * extension_relation.c
 *	  The extension's own sequences and tables: to find them, to read and write the
 *	  sequences, and to make durable what is written without regard to the
 *	  transaction.
 *
 * The tables are read and written as the server does with its catalogs, which have
 * neither rules nor index expressions, and whose rows are C structs.  So a table must be
 * just as the extension has created it: its owner can alter it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/dependency.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "storage/bufmgr.h"
#include "utils/fmgrprotos.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/syscache.h"

#include "leader_election.h"

#define LE_EXTENSION	"leader_election"

/* A column as the extension has created it */
typedef struct LeColumn
{
	Oid			type;
	bool		not_null;
	Oid			collation;		/* invalid: any */
} LeColumn;

#define LE_MAX_COLUMNS	8
#define LE_MAX_KEYS		2

/* A table as the extension has created it */
typedef struct LeShape
{
	int			column_count;
	LeColumn	columns[LE_MAX_COLUMNS];
	int			key_count;
	AttrNumber	keys[LE_MAX_KEYS];	/* the primary key */
} LeShape;

static const LeShape shape_of_leases = {
	8,
	{
		{INT8OID, true, InvalidOid},
		{INTERVALOID, true, InvalidOid},
		{TIMESTAMPTZOID, true, InvalidOid},
		{OIDOID, true, InvalidOid},
		{OIDOID, true, InvalidOid},
		{BOOLOID, true, InvalidOid},
		{TEXTOID, true, C_COLLATION_OID},
		{TEXTOID, true, InvalidOid}
	},
	2, {7, 1}
};

static const LeShape shape_of_declarations = {
	5,
	{
		{TEXTOID, true, C_COLLATION_OID},
		{NAMEOID, false, InvalidOid},
		{INTERVALOID, false, InvalidOid},
		{INTERVALOID, false, InvalidOid},
		{BOOLOID, true, InvalidOid}
	},
	1, {1}
};

typedef struct LeRelation
{
	const char *name;
	char		kind;
	const LeShape *shape;		/* of a table */
	Oid			oid;			/* invalid until looked up, and when changed */
	Oid			unaltered;		/* found to have that shape; likewise */
} LeRelation;

static LeRelation sequences[] = {
	[LE_TOKENS] = {.name = "le_token_seq",.kind = RELKIND_SEQUENCE},
	[LE_TOKEN_ORIGIN] = {.name = "le_token_origin_seq",.kind = RELKIND_SEQUENCE},
	[LE_LEASE_ORIGIN] = {.name = "le_lease_origin_seq",.kind = RELKIND_SEQUENCE},
};
static LeRelation tables[] = {
	[LE_LEASES] = {
		.name = "le_leases",.kind = RELKIND_RELATION,.shape = &shape_of_leases
	},
	[LE_DECLARATIONS] = {
		.name = "le_declarations",.kind = RELKIND_RELATION,.shape = &shape_of_declarations
	},
};

/* how often a relation was changed, of those that we have looked at */
static uint64 changes = 0;

static void
forget(LeRelation *relation, Oid relid)
{
	if (relid == InvalidOid || relid == relation->oid)
		relation->oid = InvalidOid;
	if (relid == InvalidOid || relid == relation->unaltered)
		relation->unaltered = InvalidOid;
}

/*
 * Forget the OIDs when a relation was dropped or changed
 */
static void
forget_relation(Datum arg pg_attribute_unused(), Oid relid)
{
	changes++;
	for (size_t i = 0; i < lengthof(sequences); i++)
		forget(&sequences[i], relid);
	for (size_t i = 0; i < lengthof(tables); i++)
		forget(&tables[i], relid);
}

/*
 * Return the OID of the relation: the one of that name in the extension's schema, if it is
 * of that kind, and a member of the extension; else invalid
 */
static Oid
look_up(const LeRelation *relation)
{
	Oid			extension = get_extension_oid(LE_EXTENSION, false);
	Oid			oid = get_relname_relid(relation->name,
										get_extension_schema_compat(extension));

	if (OidIsValid(oid) && get_rel_relkind(oid) == relation->kind &&
		getExtensionOfObject(RelationRelationId, oid) == extension)
		return oid;
	return InvalidOid;
}

static Oid
find_relation(LeRelation *relation)
{
	static bool registered = false;
	Oid			oid;

	if (likely(OidIsValid(relation->oid)))
		return relation->oid;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(forget_relation, (Datum) 0);
		registered = true;
	}

	oid = look_up(relation);
	if (!OidIsValid(oid))
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
	return OidIsValid(tables[LE_LEASES].oid) || OidIsValid(get_extension_oid(LE_EXTENSION, true));
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
	return find_relation(&tables[LE_LEASES]);
}

/*
 * Return the OID of the table of declarations; throws if it is gone
 */
Oid
le_declaration_table(void)
{
	return find_relation(&tables[LE_DECLARATIONS]);
}

static bool
has_columns(TupleDesc type, const LeShape *shape)
{
	if (type->natts != shape->column_count)
		return false;
	for (int i = 0; i < type->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(type, i);
		const LeColumn *expected = &shape->columns[i];

		if (column->attisdropped || column->atttypid != expected->type ||
			(expected->not_null && !column->attnotnull) ||
			(OidIsValid(expected->collation) && column->attcollation != expected->collation))
			return false;
	}
	return true;
}

/*
 * Is that an index on the key's columns and nothing else, which can be kept up to date as
 * those of catalogs are?  *primary is set if it is the primary key
 */
static bool
is_on_key(Oid index, const LeShape *shape, bool *primary)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	Form_pg_index form;
	bool		on_key;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_index) GETSTRUCT(tuple);
	on_key = form->indnatts == shape->key_count && form->indimmediate &&
		!form->indisexclusion && heap_attisnull(tuple, Anum_pg_index_indpred, NULL);
	for (int i = 0; on_key && i < shape->key_count; i++)
		on_key = form->indkey.values[i] == shape->keys[i];
	if (form->indisprimary)
		*primary = form->indisvalid && form->indisready;
	ReleaseSysCache(tuple);
	return on_key;
}

/*
 * Has the table its primary key, and no other index but copies of that, as REINDEX
 * CONCURRENTLY makes them?
 */
static bool
has_key(Relation table, const LeShape *shape)
{
	List	   *indexes = RelationGetIndexList(table);
	ListCell   *cell;
	bool		primary = false;
	bool		all_on_key = true;

	foreach(cell, indexes)
		all_on_key = all_on_key && is_on_key(lfirst_oid(cell), shape, &primary);
	list_free(indexes);
	return all_on_key && primary;
}

static bool
is_inherited(Relation table)
{
	Oid			oid = RelationGetRelid(table);

	return table->rd_rel->relispartition || has_superclass(oid) ||
		(table->rd_rel->relhassubclass && find_inheritance_children(oid, NoLock) != NIL);
}

/*
 * Return what is wrong with the table, in a sentence; NULL if it is as the extension has
 * created it
 */
static const char *
find_alteration(Relation table, const LeShape *shape)
{
	if (!has_columns(RelationGetDescr(table), shape))
		return "Its columns are not those that the extension has created.";
	if (table->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
		return "It is not permanent.";
	if (table->rd_rel->relam != HEAP_TABLE_AM_OID)
		return "Its access method is not heap.";
	if (!has_key(table, shape))
		return "Its indexes are not those that the extension has created.";
	if (table->rd_rules != NULL)
		return "It has rules.";
	if (is_inherited(table))
		return "It takes part in inheritance or partitioning.";
	return NULL;
}

static void
throw_altered(Relation rel, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("relation \"%s\" has been altered", RelationGetRelationName(rel)),
			 errdetail_internal("%s", detail)));
}

/*
 * Raise an error unless the table is as the extension has created it
 *
 * Looks at it once after each change.  The caller has locked it: what is written by its
 * struct must not be altered before.
 */
void
le_require_unaltered(Relation table, LeTable which)
{
	LeRelation *relation = &tables[which];
	Oid			oid = RelationGetRelid(table);
	uint64		changes_before = changes;
	const char *detail;

	if (likely(relation->unaltered == oid))
		return;
	detail = find_alteration(table, relation->shape);
	if (detail != NULL)
		throw_altered(table, detail);
	if (changes == changes_before)
		relation->unaltered = oid;
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
	if (rel->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
		throw_altered(rel, "It is not permanent.");
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
