/*-------------------------------------------------------------------------
 *
 * election/declare.c
 *	  Changes of declarations: all that writes to the table of declarations.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "election/internal.h"

/*
 * Open the table to write to it
 *
 * Only one session writes at a time, and the rows are read with a snapshot
 * that sees the previous writer's changes.
 */
static Relation
open_declarations(const char *command)
{
	PreventCommandIfReadOnly(command);
	PreventCommandIfParallelMode(command);
	PreventCommandDuringRecovery(command);
	return le_open_table(LE_DECLARATIONS, ShareRowExclusiveLock);
}

static void
close_declarations(Relation table)
{
	table_close(table, NoLock);
	CommandCounterIncrement();
}

/* A row to be written */
typedef struct LeNewRow
{
	Datum		values[Natts_le_declarations];
	bool		nulls[Natts_le_declarations];
} LeNewRow;

static void
set_column(LeNewRow *row, int column, Datum value)
{
	row->values[column - 1] = value;
	row->nulls[column - 1] = false;
}

/*
 * Declare the election, or change its declaration.  An argument that is NULL
 * is not declared, or stays as it is.
 *
 * Raises an error if another election with the same key is declared.
 */
void
le_declare_election(const LeElection *election, Name candidates,
					const Interval *grace, const Interval *max_ttl,
					const bool *private_value)
{
	Relation	table = open_declarations("le_declare()");
	TupleDesc	type = RelationGetDescr(table);
	HeapTuple	old = le_find_row(table, election->name, NULL);
	HeapTuple	tuple;
	LeNewRow	row;

	/* the table is locked, so no other session is declaring */
	le_require_own_key(election);
	memset(row.nulls, true, sizeof(row.nulls));
	set_column(&row, Anum_le_declarations_name, CStringGetTextDatum(election->name));
	set_column(&row, Anum_le_declarations_private, BoolGetDatum(false));
	set_column(&row, Anum_le_declarations_key, Int64GetDatum(election->key.key));
	if (old != NULL)
		heap_deform_tuple(old, type, row.values, row.nulls);
	if (candidates != NULL)
	{
		Oid			role = get_role_oid(NameStr(*candidates), false);

		set_column(&row, Anum_le_declarations_candidates, NameGetDatum(candidates));
		set_column(&row, Anum_le_declarations_role, ObjectIdGetDatum(role));
		set_column(&row, Anum_le_declarations_origin, Int64GetDatum(le_origin_of_roles()));
	}
	if (grace != NULL)
		set_column(&row, Anum_le_declarations_grace, IntervalPGetDatum(grace));
	if (max_ttl != NULL)
		set_column(&row, Anum_le_declarations_max_ttl, IntervalPGetDatum(max_ttl));
	if (private_value != NULL)
		set_column(&row, Anum_le_declarations_private, BoolGetDatum(*private_value));

	tuple = heap_form_tuple(type, row.values, row.nulls);
	if (old == NULL)
		CatalogTupleInsert(table, tuple);
	else
		CatalogTupleUpdate(table, &old->t_self, tuple);
	close_declarations(table);
}

/*
 * Remove the declaration of the election.  Return false if it has none.
 */
bool
le_undeclare_election(const LeElection *election)
{
	Relation	table = open_declarations("le_undeclare()");
	HeapTuple	old = le_find_row(table, election->name, NULL);

	if (old != NULL)
		CatalogTupleDelete(table, &old->t_self);
	close_declarations(table);
	return old != NULL;
}
