/*-------------------------------------------------------------------------
 *
 * base/declare.c
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

#include "base/internal.h"

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
	le_declarations_written(table);
	table_close(table, NoLock);
	CommandCounterIncrement();
}

/* A row to be written, and which of its columns are given */
typedef struct LeNewRow
{
	Datum		values[Natts_le_declarations];
	bool		nulls[Natts_le_declarations];
	bool		given[Natts_le_declarations];
} LeNewRow;

static void
give_column(LeNewRow *row, int column, Datum value)
{
	row->values[column - 1] = value;
	row->nulls[column - 1] = false;
	row->given[column - 1] = true;
}

/*
 * Return the row, either a new one or a changed copy of the old one
 */
static HeapTuple
form_row(Relation table, HeapTuple old, LeNewRow *row)
{
	if (old == NULL)
		return heap_form_tuple(RelationGetDescr(table), row->values, row->nulls);
	return heap_modify_tuple(old, RelationGetDescr(table), row->values, row->nulls, row->given);
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
	HeapTuple	old = le_find_row(table, election->name, NULL);
	HeapTuple	tuple;
	LeNewRow	row;

	/* the table is locked, so no other session is declaring */
	le_require_own_key(election);
	if (old == NULL)
		le_require_room_to_declare();
	memset(row.nulls, true, sizeof(row.nulls));
	memset(row.given, false, sizeof(row.given));
	give_column(&row, Anum_le_declarations_name, CStringGetTextDatum(election->name));
	if (candidates != NULL)
	{
		Oid			role = get_role_oid(NameStr(*candidates), false);

		give_column(&row, Anum_le_declarations_candidates, NameGetDatum(candidates));
		give_column(&row, Anum_le_declarations_role, ObjectIdGetDatum(role));
		give_column(&row, Anum_le_declarations_origin, Int64GetDatum(le_origin_of_roles()));
	}
	if (grace != NULL)
		give_column(&row, Anum_le_declarations_grace, IntervalPGetDatum(grace));
	if (max_ttl != NULL)
		give_column(&row, Anum_le_declarations_max_ttl, IntervalPGetDatum(max_ttl));
	if (old == NULL || private_value != NULL)
		give_column(&row, Anum_le_declarations_private,
					BoolGetDatum(private_value != NULL && *private_value));

	tuple = form_row(table, old, &row);
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
