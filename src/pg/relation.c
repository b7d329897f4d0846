/*-------------------------------------------------------------------------
 *
 * pg/relation.c
 *	  The extension's own sequences and tables: look them up, and read and
 *	  write the sequences.
 *
 * The tables are read and written as the server does with its catalogs, which
 * have no index expressions, and whose rows are C structs.  No code of another
 * role runs then, not even that of a table's owner.  The owner can alter the
 * tables, so they are checked for what would corrupt them or crash the server.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/generic_xlog.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/dependency.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_index.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/syscache.h"

#include "pg/pg.h"

#define LE_MAX_COLUMNS	8
#define LE_MAX_KEYS		2

/* A table as the extension has created it */
typedef struct LeShape
{
	int			column_count;
	Oid			types[LE_MAX_COLUMNS];
	bool		not_null;		/* all columns; else, only the primary key */
	int			key_count;
	AttrNumber	keys[LE_MAX_KEYS];	/* the primary key */
	AttrNumber	unique;			/* has a unique index, too; 0: none */
} LeShape;

typedef struct LeRelation
{
	const char *name;
	char		kind;
	LeShape		shape;			/* of a table */
	Oid			oid;			/* invalid: not looked up, or changed since */
	Oid			unaltered;		/* OID of the checked table; likewise */
	Oid			unique_index;	/* of the checked table */
} LeRelation;

static LeRelation relations[] = {
	[LE_TOKENS] = {.name = "le_token_seq",.kind = RELKIND_SEQUENCE},
	[LE_LEASE_ORIGIN] = {.name = "le_lease_origin_seq",.kind = RELKIND_SEQUENCE},
	[LE_LEASES] = {
		.name = "le_leases",
		.kind = RELKIND_RELATION,
		.shape = {
			.column_count = 8,
			.types = {INT8OID, INTERVALOID, TIMESTAMPTZOID, OIDOID, OIDOID, BOOLOID, TEXTOID, TEXTOID},
			.not_null = true,
			.key_count = 2,
			.keys = {7, 1}
		}
	},
	[LE_DECLARATIONS] = {
		.name = "_le_declarations",
		.kind = RELKIND_RELATION,
		.shape = {
			.column_count = 8,
			.types = {TEXTOID, NAMEOID, INTERVALOID, INTERVALOID, BOOLOID, OIDOID, INT8OID, INT8OID},
			.key_count = 1,
			.keys = {1},
			.unique = 8
		}
	},
	[LE_ONCE] = {
		.name = "_le_once_done",
		.kind = RELKIND_RELATION,
		.shape = {
			.column_count = 4,
			.types = {TEXTOID, TIMESTAMPTZOID, INT8OID, OIDOID},
			.not_null = true,
			.key_count = 1,
			.keys = {1}
		}
	}
};

/* number of relcache invalidations seen */
static uint64 changes = 0;

static void
forget_if_is(LeRelation *relation, Oid relid)
{
	if (relid == InvalidOid || relid == relation->oid)
		relation->oid = InvalidOid;
	if (relid == InvalidOid || relid == relation->unaltered)
		relation->unaltered = InvalidOid;
}

/*
 * Forget the OIDs of a relation that was dropped or changed
 */
static void
forget_relation(Datum arg pg_attribute_unused(), Oid relid)
{
	changes++;
	for (size_t i = 0; i < lengthof(relations); i++)
		forget_if_is(&relations[i], relid);
}

/*
 * Return the extension's schema.  Raises an error if the extension does not
 * exist.
 */
Oid
le_extension_schema(void)
{
	return get_extension_schema_compat(get_extension_oid(LE_EXTENSION, false));
}

/*
 * Return the OID of the relation with this name in the extension's schema.
 * Raises an error if there is none that is of the right kind and a member of
 * the extension.
 */
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

	oid = get_relname_relid(relation->name, le_extension_schema());
	if (!OidIsValid(oid) || get_rel_relkind(oid) != relation->kind ||
		getExtensionOfObject(RelationRelationId, oid) != get_extension_oid(LE_EXTENSION, false))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s\" of extension \"%s\" does not exist",
						relation->name, LE_EXTENSION)));

	return relation->oid = oid;
}

/*
 * Check whether the extension still exists
 */
bool
le_extension_exists(void)
{
	return OidIsValid(relations[LE_LEASES].oid) || OidIsValid(get_extension_oid(LE_EXTENSION, true));
}

/*
 * Return the OID of the sequence.  Raises an error if it does not exist.
 */
Oid
le_sequence_oid(LeRelationId sequence)
{
	return find_relation(&relations[sequence]);
}

/*
 * Return the OID of the table in which leases are recorded.  Raises an error
 * if it does not exist.
 */
Oid
le_lease_table(void)
{
	return find_relation(&relations[LE_LEASES]);
}

/*
 * Check the columns' types, and that all collations are "C"
 */
static bool
has_columns(TupleDesc type, const LeShape *shape)
{
	if (type->natts != shape->column_count)
		return false;
	for (int i = 0; i < type->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(type, i);

		if (column->attisdropped || column->atttypid != shape->types[i] ||
			column->atttypmod != -1 || (shape->not_null && !column->attnotnull) ||
			(OidIsValid(column->attcollation) && column->attcollation != C_COLLATION_OID))
			return false;
	}
	return true;
}

/*
 * Check whether the index is on these columns and nothing else, so that it can
 * be maintained as those of catalogs are
 */
static bool
is_on(Form_pg_index index, HeapTuple tuple, const AttrNumber *columns, int count)
{
	if (index->indnatts != count || !index->indimmediate || index->indisexclusion ||
		!heap_attisnull(tuple, Anum_pg_index_indpred, NULL))
		return false;
	for (int i = 0; i < count; i++)
		if (index->indkey.values[i] != columns[i])
			return false;
	return true;
}

/*
 * Check whether the index is on the key's columns, or on the unique one.  If
 * it is the primary key, and usable, *primary is set to its OID; if it is
 * unique on the other column, *unique is.
 */
static bool
is_expected(Oid oid, const LeShape *shape, Oid *primary, Oid *unique)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(oid));
	Form_pg_index index;
	bool		usable;
	bool		on_key;
	bool		on_unique;

	if (!HeapTupleIsValid(tuple))
		return false;
	index = (Form_pg_index) GETSTRUCT(tuple);
	usable = index->indisvalid && index->indisready;
	on_key = is_on(index, tuple, shape->keys, shape->key_count);
	on_unique = shape->unique != 0 && is_on(index, tuple, &shape->unique, 1);
	if (usable && on_key && index->indisprimary)
		*primary = oid;
	if (usable && on_unique && index->indisunique)
		*unique = oid;
	ReleaseSysCache(tuple);
	return on_key || on_unique;
}

/*
 * Check whether the table has its indexes, and no others except copies of
 * them, which REINDEX CONCURRENTLY makes.  *unique is set to the unique one.
 */
static bool
has_indexes(Relation table, const LeShape *shape, Oid *unique)
{
	List	   *indexes = RelationGetIndexList(table);
	ListCell   *cell;
	Oid			primary = InvalidOid;
	bool		all_expected = true;

	*unique = InvalidOid;
	foreach(cell, indexes)
		all_expected = all_expected && is_expected(lfirst_oid(cell), shape, &primary, unique);
	list_free(indexes);
	return all_expected && OidIsValid(primary) && (shape->unique == 0 || OidIsValid(*unique));
}

/*
 * Return a sentence about how the table was altered such that it cannot be
 * read and written as a catalog, or NULL if it can
 */
static const char *
find_alteration(Relation table, const LeShape *shape, Oid *unique)
{
	if (!has_columns(RelationGetDescr(table), shape))
		return "Its columns are not those that the extension has created.";
	if (table->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
		return "It is not permanent.";
	if (table->rd_rel->relam != HEAP_TABLE_AM_OID)
		return "Its access method is not heap.";
	if (!has_indexes(table, shape, unique))
		return "Its indexes are not those that the extension has created.";
	return NULL;
}

static void
raise_altered(Relation rel, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("relation \"%s\" has been altered", RelationGetRelationName(rel)),
			 errdetail_internal("%s", detail)));
}

/*
 * Raise an error unless the table is as the extension has created it
 *
 * The table is checked once after each change that this session has heard of.
 * The caller must have locked it, so that it cannot be altered before it is
 * used.  Only CREATE INDEX CONCURRENTLY does not conflict with the lock, so a
 * caller that has waited for something else checks again before it inserts or
 * updates a row: the server would evaluate an index's expressions.
 */
void
le_require_unaltered(Relation table, LeRelationId which)
{
	LeRelation *relation = &relations[which];
	Oid			oid = RelationGetRelid(table);

	while (unlikely(relation->unaltered != oid))
	{
		uint64		changes_before = changes;
		const char *detail = find_alteration(table, &relation->shape, &relation->unique_index);

		if (detail != NULL)
			raise_altered(table, detail);
		if (changes == changes_before)
			relation->unaltered = oid;
	}
}

/*
 * Return the OID of the table's other unique index
 *
 * The caller must have opened the table by le_open_table, and not have
 * accepted invalidations since.
 */
Oid
le_unique_index(LeRelationId table)
{
	return relations[table].unique_index;
}

/*
 * Open a table of the extension, which must be as the extension has created
 * it.  If the extension is replaced while this waits for the lock, opens the
 * new table.  Raises an error if the table does not exist or was altered.
 */
Relation
le_open_table(LeRelationId which, LOCKMODE mode)
{
	Relation	table;

	while ((table = try_table_open(find_relation(&relations[which]), mode)) == NULL)
		CHECK_FOR_INTERRUPTS();
	le_require_unaltered(table, which);
	return table;
}

/*
 * Return a copy of the row with this name, or NULL if there is none.  The name
 * is the table's primary key, and its first column.
 *
 * The caller must have locked the table.
 */
HeapTuple
le_find_row(Relation table, const char *name, Snapshot snapshot)
{
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_TEXTEQ, CStringGetTextDatum(name));
	scan = systable_beginscan(table, RelationGetPrimaryKeyIndexCompat(table), true, snapshot,
							  1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		tuple = heap_copytuple(tuple);
	systable_endscan(scan);
	return tuple;
}

/*
 * Open the sequence.  If the extension has just been replaced, opens the new
 * one.
 */
static Relation
open_sequence(LeRelationId sequence, LOCKMODE mode)
{
	Relation	rel;

	while ((rel = try_relation_open(le_sequence_oid(sequence), mode)) == NULL)
		CHECK_FOR_INTERRUPTS();
	if (rel->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
		raise_altered(rel, "It is not permanent.");
	return rel;
}

/*
 * Return the data of a sequence, which is one page with one row
 */
static FormData_pg_sequence_data *
get_sequence_data(Page page)
{
	HeapTupleHeader tuple = (HeapTupleHeader) PageGetItem(page, PageGetItemId(page, FirstOffsetNumber));

	return (FormData_pg_sequence_data *) ((char *) tuple + tuple->t_hoff);
}

/*
 * Return the last value that the sequence has given out.  Set *mark to the
 * mark that was written with it, or to 0 or less if the server has written the
 * sequence since.
 *
 * Reads its row, because pg_sequence_last_value does not tell where a
 * restarted sequence begins.
 */
int64
le_sequence_read(LeRelationId sequence, int64 *mark)
{
	Relation	rel = open_sequence(sequence, AccessShareLock);
	Buffer		buffer = ReadBuffer(rel, 0);
	FormData_pg_sequence_data data;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	data = *get_sequence_data(BufferGetPage(buffer));
	UnlockReleaseBuffer(buffer);
	relation_close(rel, AccessShareLock);

	*mark = -data.log_cnt;
	return data.is_called ? data.last_value : data.last_value - 1;
}

/*
 * Set the last value that the sequence has given out, however the transaction
 * ends.  Return up to where the WAL must be made durable for that.
 *
 * The mark, which is positive or 0 for none, is written where the server
 * counts the values that nextval() may give out without writing WAL.  As there
 * are less than none, nextval() writes WAL, and with it the true number.
 * setval(), ALTER SEQUENCE and the restore of a dump write 0.
 *
 * This is allowed in a read-only transaction, and does not depend on the
 * user's privileges: like an advisory lock, an election is no change of the
 * user's data.  This does what setval() does, with one exception.  setval()
 * gives the transaction an ID, so that its commit waits for synchronous
 * standbys, and a bid that was denied would wait for them after all.
 */
XLogRecPtr
le_sequence_set(LeRelationId sequence, int64 value, int64 mark)
{
	Relation	rel = open_sequence(sequence, RowExclusiveLock);
	Buffer		buffer;
	GenericXLogState *wal;
	FormData_pg_sequence_data *data;
	XLogRecPtr	written;

	buffer = ReadBuffer(rel, 0);
	wal = GenericXLogStart(rel);	/* allocates, and may fail */
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);

	/* nextval() leaves other values in the buffer than WAL replays */
	data = get_sequence_data(GenericXLogRegisterBuffer(wal, buffer,
													   GENERIC_XLOG_FULL_IMAGE));
	data->last_value = value;
	data->is_called = true;
	data->log_cnt = -mark;
	written = GenericXLogFinish(wal);
	UnlockReleaseBuffer(buffer);
	relation_close(rel, RowExclusiveLock);
	return written;
}

/* A row to be written */
typedef struct LeWrite
{
	Relation	table;
	ItemPointer old;			/* NULL: none */
	HeapTuple	row;			/* NULL: none */
} LeWrite;

static void
write_row(void *argument)
{
	const LeWrite *write = argument;

	if (write->row == NULL)
		table_tuple_try_delete_compat(write->table, write->old);
	else if (write->old == NULL)
		CatalogTupleInsert(write->table, write->row);
	else
		CatalogTupleUpdate(write->table, write->old, write->row);
}

/*
 * Write the row in place of the old one, or as a new one (NULL), or delete the
 * old one, if the row is NULL and no other transaction is about to
 *
 * At SERIALIZABLE, the server raises the error that ends the transaction with
 * the page locked.  Other roles may have rows on that page.
 */
void
le_write_row(Relation table, ItemPointer old, HeapTuple row)
{
	LeWrite		write = {.table = table,.old = old,.row = row};

	if (IsolationIsSerializable())
		le_in_subtransaction(write_row, &write);
	else
		write_row(&write);
}
