/*-------------------------------------------------------------------------
 *
 * declaration.c
 *	  Declared elections: who may stand, and by which rules.
 *
 * A declaration is a row of the table le_declarations, which is an ordinary one: it counts
 * with the commit, comes back with a dump, and is replicated.  Each session has a copy of
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
#include "access/xact.h"
#include "catalog/indexing.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "leader_election.h"

#define Anum_le_declarations_name		1
#define Anum_le_declarations_candidates	2
#define Anum_le_declarations_grace		3
#define Anum_le_declarations_max_ttl	4
#define Anum_le_declarations_private	5
#define Natts_le_declarations			5

/* The declarations, by name, in a context of their own; NULL: to be read */
static HTAB *declarations = NULL;
static MemoryContext declaration_context = NULL;
static Oid	read_from = InvalidOid; /* what table they are of */

static void
forget_declarations(Datum arg pg_attribute_unused(), Oid relid)
{
	if (relid == InvalidOid || relid == read_from)
		read_from = InvalidOid;
}

static int64
interval_us(Datum interval)
{
	Interval   *value = DatumGetIntervalP(interval);

	return value->day * USECS_PER_DAY + value->time;
}

static void
read_row(HeapTuple tuple, TupleDesc type)
{
	LeDeclaration *declaration;
	char		name[LE_TEXT_SIZE];
	Datum		values[Natts_le_declarations];
	bool		nulls[Natts_le_declarations];

	heap_deform_tuple(tuple, type, values, nulls);
	text_to_cstring_buffer(DatumGetTextPP(values[Anum_le_declarations_name - 1]),
						   name, LE_TEXT_SIZE);
	declaration = hash_search(declarations, name, HASH_ENTER, NULL);
	declaration->candidates = nulls[Anum_le_declarations_candidates - 1] ? InvalidOid :
		DatumGetObjectId(values[Anum_le_declarations_candidates - 1]);
	declaration->for_everybody = nulls[Anum_le_declarations_candidates - 1];
	declaration->grace_us = nulls[Anum_le_declarations_grace - 1] ? -1 :
		interval_us(values[Anum_le_declarations_grace - 1]);
	declaration->max_ttl_us = nulls[Anum_le_declarations_max_ttl - 1] ? 0 :
		interval_us(values[Anum_le_declarations_max_ttl - 1]);
	declaration->private_value = DatumGetBool(values[Anum_le_declarations_private - 1]);
}

static void
read_rows(Relation table)
{
	SysScanDesc scan = systable_beginscan(table, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		read_row(tuple, RelationGetDescr(table));
	systable_endscan(scan);
}

/*
 * Read the declarations, unless nothing has changed since that was last done
 *
 * May wait for DDL on the table, and throw.
 */
static void
read_declarations(void)
{
	static bool registered = false;
	HASHCTL		info = {
		.keysize = LE_TEXT_SIZE,
		.entrysize = sizeof(LeDeclaration)
	};
	Relation	table;
	Oid			oid;

	AcceptInvalidationMessages();
	if (likely(OidIsValid(read_from)))
		return;
	if (!registered)
	{
		declaration_context = AllocSetContextCreate(TopMemoryContext,
													"leader_election declarations",
													ALLOCSET_SMALL_SIZES);
		CacheRegisterRelcacheCallback(forget_declarations, (Datum) 0);
		registered = true;
	}

	/* if the extension has just been replaced, look for its new table */
	do
	{
		oid = le_declaration_table();
		table = try_table_open(oid, AccessShareLock);
	} while (table == NULL);

	do
	{
		/* what we hear of while we read makes us read again */
		read_from = oid;
		MemoryContextReset(declaration_context);
		info.hcxt = declaration_context;
		declarations = hash_create("leader_election declarations", 32, &info,
								   HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
		PG_TRY();
		{
			read_rows(table);
		}
		PG_CATCH();
		{
			read_from = InvalidOid;
			PG_RE_THROW();
		}
		PG_END_TRY();
	} while (!OidIsValid(read_from));
	table_close(table, AccessShareLock);
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

static bool
is_candidate(const LeDeclaration *declaration)
{
	return declaration->for_everybody ||
		has_privs_of_role(GetUserId(), declaration->candidates);
}

/*
 * Throw because the user may not do that; what is "stand for" or "observe"
 */
static void
refuse(const LeElection *election, const char *what, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied to %s election %s", what,
					le_election_label(&election->key, election->name)),
			 errdetail_internal("%s", detail)));
}

/*
 * Return the role that candidates must be members of, in a sentence
 */
static const char *
describe_candidates(const LeDeclaration *declaration)
{
	const char *role = GetUserNameFromId(declaration->candidates, true);

	if (role == NULL)
		return "It is declared for a role that does not exist any more.";
	return psprintf("It is declared for members of role \"%s\".", role);
}

/*
 * Throw if the election's declaration allows no lease for that long
 */
void
le_require_ttl(const LeElection *election, int64 ttl_us)
{
	const LeDeclaration *declaration = find_declaration(election->name);

	if (declaration == NULL || declaration->max_ttl_us == 0 ||
		ttl_us <= declaration->max_ttl_us)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("ttl is out of range"),
			 errdetail("Election %s is declared with a maximum of " INT64_FORMAT " ms.",
					   le_election_label(&election->key, election->name),
					   declaration->max_ttl_us / 1000)));
}

/*
 * Throw unless the user may make that bid
 */
void
le_require_candidate(const LeBid *bid)
{
	const LeElection *election = &bid->election;
	const LeDeclaration *declaration = find_declaration(election->name);

	if (declaration == NULL && le_declared_only)
		refuse(election, "stand for",
			   "It is not declared, and \"leader_election.declared_only\" is on.");
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
	const LeDeclaration *declaration = find_declaration(election->name);

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
	PreventCommandIfReadOnly(command);
	PreventCommandIfParallelMode(command);
	PreventCommandDuringRecovery(command);
	return table_open(le_declaration_table(), ShareRowExclusiveLock);
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
le_declare_election(const LeElection *election, const Oid *candidates,
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
		values[Anum_le_declarations_candidates - 1] = ObjectIdGetDatum(*candidates);
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
