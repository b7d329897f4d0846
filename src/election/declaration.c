/*-------------------------------------------------------------------------
 *
 * election/declaration.c
 *	  Declared elections: which roles may bid, and under which rules; and how
 *	  that is declared.
 *
 * A declaration is a row of the table _le_declarations, which is an ordinary
 * table: a change takes effect at commit, is part of a dump, and is
 * replicated.  A row names its role by name, so that a role that is missing
 * where a dump is restored affects no other declaration.  Each bid looks its
 * election up, as of now; a renewal, a guard of the leader and le_am_leader do
 * not.
 *
 * Two names may have the same key, and such a name can be computed within
 * seconds.  Therefore, an election that is not declared, but has the key of
 * one that is, is refused wherever it could keep the declared one from being
 * led or observed.  So rows are looked up by key, which is a column of its own
 * and unique.
 *
 * A role may be dropped, and its name given to another one.  So the row also
 * has the role's OID, and the place where that OID is valid: the cluster and
 * the database, as a hash.  In another place, where the row was restored, the
 * name decides.  It also decides if the row was written without OID and place.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "election/election.h"

#define Anum_le_declarations_name		1
#define Anum_le_declarations_candidates	2
#define Anum_le_declarations_grace		3
#define Anum_le_declarations_max_ttl	4
#define Anum_le_declarations_private	5
#define Anum_le_declarations_role		6
#define Anum_le_declarations_origin		7
#define Anum_le_declarations_key		8	/* generated from the name */
#define Natts_le_declarations			8

/* The declared rules of an election */
typedef struct LeDeclaration
{
	char		name[LE_TEXT_SIZE];
	bool		for_everybody;
	NameData	candidates;		/* else: the role whose members may bid */
	Oid			role;			/* the OID that this role must have; invalid:
								 * any */
	int64		grace_us;		/* -1: by the setting */
	int64		max_ttl_us;		/* -1: by the setting */
	bool		private_value;	/* only candidates may see the value */
} LeDeclaration;

/*
 * Return the length of the interval in microseconds, as the server compares
 * intervals, or -1 for NULL
 */
static int64
interval_us(Datum interval, bool is_null)
{
	Interval   *value = is_null ? NULL : DatumGetIntervalP(interval);

	if (value == NULL)
		return -1;
	return (value->month * (int64) DAYS_PER_MONTH + value->day) * USECS_PER_DAY + value->time;
}

/*
 * Return a positive hash that identifies the cluster and database, in which
 * the OID of a role is valid
 */
static int64
origin_of_roles(void)
{
	uint64		place[2] = {GetSystemIdentifier(), MyDatabaseId};

	return (int64) (hash_bytes_extended((unsigned char *) place, sizeof(place), 0) >> 1);
}

/*
 * Read a row.  Return false if its name is not valid.
 */
static bool
read_declaration(LeDeclaration *declaration, HeapTuple tuple, TupleDesc type)
{
	Datum		values[Natts_le_declarations];
	bool		nulls[Natts_le_declarations];
	text	   *name;

	heap_deform_tuple(tuple, type, values, nulls);
	name = DatumGetTextPP(values[Anum_le_declarations_name - 1]);
	if (VARSIZE_ANY_EXHDR(name) == 0 || VARSIZE_ANY_EXHDR(name) > LE_TEXT_MAX)
		return false;
	text_to_cstring_buffer(name, declaration->name, LE_TEXT_SIZE);
	declaration->for_everybody = nulls[Anum_le_declarations_candidates - 1];
	if (!declaration->for_everybody)
		declaration->candidates =
			*DatumGetName(values[Anum_le_declarations_candidates - 1]);
	declaration->role = InvalidOid;
	if (!nulls[Anum_le_declarations_role - 1] && !nulls[Anum_le_declarations_origin - 1] &&
		DatumGetInt64(values[Anum_le_declarations_origin - 1]) == origin_of_roles())
		declaration->role = DatumGetObjectId(values[Anum_le_declarations_role - 1]);
	declaration->grace_us = interval_us(values[Anum_le_declarations_grace - 1],
										nulls[Anum_le_declarations_grace - 1]);
	declaration->max_ttl_us = interval_us(values[Anum_le_declarations_max_ttl - 1],
										  nulls[Anum_le_declarations_max_ttl - 1]);
	declaration->private_value = DatumGetBool(values[Anum_le_declarations_private - 1]);
	return true;
}

/*
 * Look up the declaration with the election's key.  Return false if there is
 * none.
 *
 * The row is read as of now, at every isolation level.  The scan sees all
 * versions of the row, each of which is then checked for visibility.
 * Therefore, it takes part in no serialization conflict.  May wait for DDL on
 * the table.  May raise an error.
 */
static bool
look_up_declaration(const LeElectionKey *key, LeDeclaration *declaration)
{
	Relation	table = le_open_table(LE_DECLARATIONS, AccessShareLock);
	Snapshot	now;
	ScanKeyData scan_key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	/* usually nothing is declared: save the snapshot and the scan */
	if (RelationGetNumberOfBlocks(table) == 0)
	{
		table_close(table, AccessShareLock);
		return false;
	}
	now = RegisterSnapshot(GetCatalogSnapshot(RelationGetRelid(table)));
	ScanKeyInit(&scan_key, Anum_le_declarations_key, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(key->key));
	scan = systable_beginscan(table, le_unique_index(LE_DECLARATIONS), true, SnapshotAny, 1,
							  &scan_key);
	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
		found = table_tuple_satisfies_snapshot(table, scan->slot, now) &&
			read_declaration(declaration, tuple, RelationGetDescr(table));
	systable_endscan(scan);
	UnregisterSnapshot(now);
	table_close(table, AccessShareLock);
	return found;
}

/*
 * Look up the declaration of the election.  Return false if it has none.
 *
 * Raises an error if another election with the same key is declared.
 */
static bool
find_declaration(const LeElection *election, LeDeclaration *declaration)
{
	bool		found = look_up_declaration(&election->key, declaration);

	if (found)
		le_refuse_collision(election, declaration->name);
	return found;
}

/*
 * Return the OID of the role whose members may bid, or InvalidOid if it no
 * longer exists
 */
static Oid
candidates_of(const LeDeclaration *declaration)
{
	Oid			role = get_role_oid(NameStr(declaration->candidates), true);

	return OidIsValid(declaration->role) && role != declaration->role ? InvalidOid : role;
}

/*
 * Check whether the current user may bid.  If the declared role does not
 * exist, only superusers may.
 */
static bool
is_candidate(const LeDeclaration *declaration)
{
	Oid			role;

	if (declaration->for_everybody)
		return true;
	role = candidates_of(declaration);
	return OidIsValid(role) ? has_privs_of_role(GetUserId(), role) : superuser();
}

/*
 * Raise an error because the current user lacks a privilege.  "what" is "bid
 * for" or "observe", and "why" describes the election.
 */
static void
refuse_user(const LeElection *election, const char *what, const char *why)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied to %s election %s, which is %s", what,
					le_label(election), why)));
}

/*
 * Describe the role for which the election is declared, for refuse_user
 */
static const char *
describe_candidates(const LeDeclaration *declaration)
{
	const char *role = NameStr(declaration->candidates);

	return psprintf(OidIsValid(candidates_of(declaration)) ?
					"declared for role \"%s\"" :
					OidIsValid(get_role_oid(role, true)) ?
					"declared for a role that had the name \"%s\" and does not exist any more" :
					"declared for role \"%s\", which does not exist", role);
}

static void
require_ttl_of(const LeElection *election, const LeDeclaration *declaration, int64 ttl_us)
{
	if (declaration->max_ttl_us < 0 || ttl_us <= declaration->max_ttl_us)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("ttl must be at most " INT64_FORMAT " ms, as election %s is declared",
					declaration->max_ttl_us / 1000,
					le_label(election))));
}

/*
 * Raise an error if the election's declaration does not allow a lease with
 * this ttl
 */
void
le_require_ttl(const LeElection *election, int64 ttl_us)
{
	LeDeclaration declaration;

	if (find_declaration(election, &declaration))
		require_ttl_of(election, &declaration, ttl_us);
}

/*
 * Raise an error unless the current user may make the bid, and note the rules
 * that apply to it
 */
void
le_require_candidate(LeBid *bid)
{
	LeElection *election = &bid->election;
	LeDeclaration declaration;

	election->declared = find_declaration(election, &declaration);
	bid->grace_us = le_grace_period * INT64CONST(1000);
	if (!election->declared)
	{
		if (le_declared_only)
			refuse_user(election, "bid for",
						"not declared, while \"leader_election.declared_only\" is on");
		return;
	}
	if (!is_candidate(&declaration))
		refuse_user(election, "bid for", describe_candidates(&declaration));
	if (bid->scope == LE_SCOPE_LEASE)
		require_ttl_of(election, &declaration, bid->lasts_us);
	if (declaration.grace_us >= 0)
		bid->grace_us = declaration.grace_us;
}

/*
 * Raise an error if the election has the same key as another, declared one
 */
void
le_require_own_key(const LeElection *election)
{
	LeDeclaration declaration;

	(void) find_declaration(election, &declaration);
}

/*
 * Raise an error unless the current user may observe the value that the
 * election's leader publishes
 */
void
le_require_observer(LeElection *election)
{
	LeDeclaration declaration;

	election->declared = find_declaration(election, &declaration);
	if (election->declared && declaration.private_value && !is_candidate(&declaration))
		refuse_user(election, "observe", describe_candidates(&declaration));
}

/*
 * Check whether the current user may see the value published by the
 * election's leader
 */
bool
le_may_observe(const LeElectionKey *election)
{
	LeDeclaration declaration;

	return !look_up_declaration(election, &declaration) || !declaration.private_value ||
		is_candidate(&declaration);
}

/*
 * Open the table to write to it
 *
 * Only one session writes at a time, and no other has a row locked.  The rows
 * are read as they are now, which takes part in no serialization conflict.
 */
static Relation
open_declarations(const char *command)
{
	PreventCommandIfReadOnly(command);
	PreventCommandIfParallelMode(command);
	PreventCommandDuringRecovery(command);
	return le_open_table(LE_DECLARATIONS, ExclusiveLock);
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
	HeapTuple	old = le_find_row(table, election->name, SnapshotSelf);
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
		set_column(&row, Anum_le_declarations_origin, Int64GetDatum(origin_of_roles()));
	}
	if (grace != NULL)
		set_column(&row, Anum_le_declarations_grace, IntervalPGetDatum(grace));
	if (max_ttl != NULL)
		set_column(&row, Anum_le_declarations_max_ttl, IntervalPGetDatum(max_ttl));
	if (private_value != NULL)
		set_column(&row, Anum_le_declarations_private, BoolGetDatum(*private_value));

	le_write_row(table, old == NULL ? NULL : &old->t_self,
				 heap_form_tuple(type, row.values, row.nulls));
	close_declarations(table);
}

/*
 * Remove the declaration of the election.  Return false if it has none.
 */
bool
le_undeclare_election(const LeElection *election)
{
	Relation	table = open_declarations("le_undeclare()");
	HeapTuple	old = le_find_row(table, election->name, SnapshotSelf);

	if (old != NULL)
		le_write_row(table, &old->t_self, NULL);
	close_declarations(table);
	return old != NULL;
}
