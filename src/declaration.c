/*-------------------------------------------------------------------------
 *
 * declaration.c
 *	  Declared elections: who may stand, and by which rules.
 *
 * A declaration is a row of the table le_declarations, which is an ordinary one: it counts
 * with the commit, comes back with a dump, and is replicated.  It has roles by name, so that
 * one which is missing where a dump is restored keeps no other declaration out.  Each session has a copy of
 * all of them, and reads the table again when it has heard that it has changed.  Whoever
 * changes it tells so by invalidating the table's relcache entry: le_declare() and
 * le_undeclare() do, and a trigger for those who write to it otherwise, such as pg_restore.
 *
 * Bare keys cannot be declared, as nobody can be kept from an advisory lock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "leader_election.h"

#define Anum_le_declarations_name		1
#define Anum_le_declarations_candidates	2
#define Anum_le_declarations_grace		3
#define Anum_le_declarations_max_ttl	4
#define Anum_le_declarations_private	5
#define Natts_le_declarations			5

/* The declarations by name, in a context of their own; NULL: not yet read */
static HTAB *declarations = NULL;
static MemoryContext declaration_context = NULL;
static Oid	read_from = InvalidOid; /* what table they are of; invalid: they
									 * may have changed */
static Oid	reading;			/* what table we are reading */
static bool changed;			/* has it changed since? */

static void
forget_declarations(Datum arg pg_attribute_unused(), Oid relid)
{
	if (relid == InvalidOid || relid == read_from)
		read_from = InvalidOid;
	if (relid == InvalidOid || relid == reading)
		changed = true;
}

/*
 * Return how long the interval is, in microseconds, as the server compares it; -1 for NULL
 */
static int64
interval_us(Datum interval, bool is_null)
{
	Interval   *value = is_null ? NULL : DatumGetIntervalP(interval);

	if (value == NULL)
		return -1;
	return (value->month * (int64) DAYS_PER_MONTH + value->day) * USECS_PER_DAY + value->time;
}

static void
read_row(HTAB *table, HeapTuple tuple, TupleDesc type)
{
	LeDeclaration *declaration;
	char		name[LE_TEXT_SIZE];
	Datum		values[Natts_le_declarations];
	bool		nulls[Natts_le_declarations];

	heap_deform_tuple(tuple, type, values, nulls);
	text_to_cstring_buffer(DatumGetTextPP(values[Anum_le_declarations_name - 1]),
						   name, LE_TEXT_SIZE);
	declaration = hash_search(table, name, HASH_ENTER, NULL);
	declaration->for_everybody = nulls[Anum_le_declarations_candidates - 1];
	if (!declaration->for_everybody)
		declaration->candidates =
			*DatumGetName(values[Anum_le_declarations_candidates - 1]);
	declaration->grace_us = interval_us(values[Anum_le_declarations_grace - 1],
										nulls[Anum_le_declarations_grace - 1]);
	declaration->max_ttl_us = interval_us(values[Anum_le_declarations_max_ttl - 1],
										  nulls[Anum_le_declarations_max_ttl - 1]);
	declaration->private_value = DatumGetBool(values[Anum_le_declarations_private - 1]);
}

/*
 * Read all rows into a new hash table, in that context
 *
 * As of now, at every isolation level.  By a scan that sees all versions of the rows, and
 * has each looked at: so it takes part in no serialization conflict.
 */
static HTAB *
read_rows(Relation table, MemoryContext context)
{
	HASHCTL		info = {
		.keysize = LE_TEXT_SIZE,
		.entrysize = sizeof(LeDeclaration),
		.hcxt = context
	};
	HTAB	   *rows = hash_create("leader_election declarations", 32, &info,
								   HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	Snapshot	now = RegisterSnapshot(GetCatalogSnapshot(RelationGetRelid(table)));
	SysScanDesc scan = systable_beginscan(table, InvalidOid, false, SnapshotAny, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		if (table_tuple_satisfies_snapshot(table, scan->slot, now))
			read_row(rows, tuple, RelationGetDescr(table));
	}
	systable_endscan(scan);
	UnregisterSnapshot(now);
	return rows;
}

/*
 * Read the declarations, unless we have heard of no change since that was last done
 *
 * May wait for DDL on the table, and throw.
 */
static void
read_declarations(void)
{
	static bool registered = false;
	MemoryContext context;
	Relation	table;
	HTAB	   *rows;
	Oid			oid;

	if (likely(OidIsValid(read_from)))
		return;
	if (!registered)
	{
		CacheRegisterRelcacheCallback(forget_declarations, (Datum) 0);
		registered = true;
	}

	/* if the extension has just been replaced, look for its new table */
	do
	{
		oid = le_declaration_table();
		table = try_table_open(oid, AccessShareLock);
	} while (table == NULL);
	le_require_unaltered(table, LE_DECLARATIONS);

	/* what we hear of while we read makes us read again */
	context = AllocSetContextCreate(CurrentMemoryContext, "leader_election declarations",
									ALLOCSET_SMALL_SIZES);
	reading = oid;
	do
	{
		MemoryContextReset(context);
		changed = false;
		rows = read_rows(table, context);
	} while (changed);
	table_close(table, AccessShareLock);

	MemoryContextSetParent(context, TopMemoryContext);
	if (declaration_context != NULL)
		MemoryContextDelete(declaration_context);
	declaration_context = context;
	declarations = rows;
	read_from = oid;
}

/*
 * Return the declaration of the election; NULL if it has none
 *
 * Good until the next call of this.
 */
static const LeDeclaration *
find_declaration(const char *name)
{
	if (name[0] == '\0')
		return NULL;
	read_declarations();
	if (likely(hash_get_num_entries(declarations) == 0))
		return NULL;
	return hash_search(declarations, name, HASH_FIND, NULL);
}

/*
 * May the user stand?  For a role that does not exist, only superusers may
 */
static bool
is_candidate(const LeDeclaration *declaration)
{
	Oid			role;

	if (declaration->for_everybody)
		return true;
	role = get_role_oid(NameStr(declaration->candidates), true);
	return OidIsValid(role) ? has_privs_of_role(GetUserId(), role) : superuser();
}

/*
 * Throw because the user may not do that; what is "stand for" or "observe", and why says
 * which election that is
 */
static void
refuse(const LeElection *election, const char *what, const char *why)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied to %s election %s, which is %s", what,
					le_election_label(&election->key, election->name), why)));
}

/*
 * Return for which role the election is declared, in words for refuse
 */
static const char *
describe_candidates(const LeDeclaration *declaration)
{
	const char *role = NameStr(declaration->candidates);

	return psprintf(OidIsValid(get_role_oid(role, true)) ?
					"declared for members of role \"%s\"" :
					"declared for role \"%s\", which does not exist", role);
}

/*
 * Throw if the election's declaration allows no lease for that long
 */
void
le_require_ttl(const LeElection *election, int64 ttl_us)
{
	const LeDeclaration *declaration = find_declaration(election->name);

	if (declaration == NULL || declaration->max_ttl_us < 0 ||
		ttl_us <= declaration->max_ttl_us)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("ttl must be at most " INT64_FORMAT " ms, as election %s is declared",
					declaration->max_ttl_us / 1000,
					le_election_label(&election->key, election->name))));
}

/*
 * Throw unless the user may make that bid
 */
void
le_require_candidate(const LeBid *bid)
{
	const LeElection *election = &bid->election;
	const LeDeclaration *declaration;

	/* in an old transaction, we may not have heard of it */
	AcceptInvalidationMessages();
	declaration = find_declaration(election->name);
	if (declaration == NULL && le_declared_only)
		refuse(election, "stand for",
			   "not declared, while \"leader_election.declared_only\" is on");
	if (declaration == NULL)
		return;
	if (!is_candidate(declaration))
		refuse(election, "stand for", describe_candidates(declaration));
	if (bid->scope == LE_SCOPE_LEASE)
		le_require_ttl(election, bid->ttl_us);
}

/*
 * Throw unless the user may observe what the election's leader publishes
 */
void
le_require_observer(const LeElection *election)
{
	const LeDeclaration *declaration;

	AcceptInvalidationMessages();
	declaration = find_declaration(election->name);
	if (declaration != NULL && declaration->private_value && !is_candidate(declaration))
		refuse(election, "observe", describe_candidates(declaration));
}

/*
 * May the user see what the leader of the election with that name publishes?
 */
bool
le_may_observe(const char *name)
{
	const LeDeclaration *declaration = find_declaration(name);

	return declaration == NULL || !declaration->private_value || is_candidate(declaration);
}

/*
 * Return the grace period of the election, in microseconds
 */
int64
le_grace_of(const LeElection *election)
{
	const LeDeclaration *declaration = find_declaration(election->name);

	if (declaration != NULL && declaration->grace_us >= 0)
		return declaration->grace_us;
	return le_grace_period * INT64CONST(1000);
}

/*
 * Find the row of that election, with the table locked; NULL if there is none
 */
static HeapTuple
find_row(Relation table, const char *name)
{
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_le_declarations_name, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(name));
	scan = systable_beginscan(table, RelationGetPrimaryKeyIndexCompat(table), true, NULL,
							  1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		tuple = heap_copytuple(tuple);
	systable_endscan(scan);
	return tuple;
}

/*
 * Open the table to write to it
 *
 * One session at a time writes, and no snapshot of ours is too old to see the last one's.
 */
static Relation
open_table(const char *command)
{
	Relation	table;

	PreventCommandIfReadOnly(command);
	PreventCommandIfParallelMode(command);
	PreventCommandDuringRecovery(command);
	table = table_open(le_declaration_table(), ShareRowExclusiveLock);
	le_require_unaltered(table, LE_DECLARATIONS);
	return table;
}

static void
close_table(Relation table)
{
	CacheInvalidateRelcache(table);
	table_close(table, NoLock);
	CommandCounterIncrement();
}

/*
 * Declare the election, or give it another declaration; NULL for what is not declared
 */
void
le_declare_election(const LeElection *election, Name candidates,
					const Interval *grace, const Interval *max_ttl, bool private_value)
{
	Relation	table = open_table("le_declare()");
	HeapTuple	old = find_row(table, election->name);
	HeapTuple	tuple;
	Datum		values[Natts_le_declarations] = {0};
	bool		nulls[Natts_le_declarations] = {0};

	values[Anum_le_declarations_name - 1] = CStringGetTextDatum(election->name);
	nulls[Anum_le_declarations_candidates - 1] = candidates == NULL;
	if (candidates != NULL)
		values[Anum_le_declarations_candidates - 1] = NameGetDatum(candidates);
	nulls[Anum_le_declarations_grace - 1] = grace == NULL;
	values[Anum_le_declarations_grace - 1] = IntervalPGetDatum(grace);
	nulls[Anum_le_declarations_max_ttl - 1] = max_ttl == NULL;
	values[Anum_le_declarations_max_ttl - 1] = IntervalPGetDatum(max_ttl);
	values[Anum_le_declarations_private - 1] = BoolGetDatum(private_value);

	tuple = heap_form_tuple(RelationGetDescr(table), values, nulls);
	if (old == NULL)
		CatalogTupleInsert(table, tuple);
	else
		CatalogTupleUpdate(table, &old->t_self, tuple);
	close_table(table);
}

/*
 * Remove the declaration of the election; false if it has none
 */
bool
le_undeclare_election(const LeElection *election)
{
	Relation	table = open_table("le_undeclare()");
	HeapTuple	old = find_row(table, election->name);

	if (old != NULL)
		CatalogTupleDelete(table, &old->t_self);
	close_table(table);
	return old != NULL;
}

/*
 * Somebody has written to the table
 */
void
le_declarations_written(Relation table)
{
	CacheInvalidateRelcache(table);
}
