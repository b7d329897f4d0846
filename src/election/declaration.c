/*-------------------------------------------------------------------------
 *
 * election/declaration.c
 *	  Declared elections: which roles may bid, and under which rules.
 *
 * A declaration is a row of the table le_declarations, which is an ordinary
 * table: a change takes effect at commit, is part of a dump, and is
 * replicated.  A row names its role by name, so that a role that is missing
 * where a dump is restored affects no other declaration.  Each session has a
 * copy of all declarations, and reads the table again after it has been
 * notified of a change.  A session that changes the table notifies the others
 * by invalidating the table's relcache entry: le_declare() and le_undeclare()
 * do so, and a trigger does it for other writers, such as pg_restore.
 *
 * Two names may have the same key, and such a name can be computed within
 * seconds.  Therefore, an election that is not declared, but has the key of
 * one that is, is refused wherever it could keep the declared one from being
 * led or observed.  So the copy is looked up by key.
 *
 * A role may be dropped, and its name given to another one.  So the row also
 * has the role's OID, and the place where that OID is valid: the cluster and
 * the database, as a hash.  In another place, where the row was restored, the
 * name decides.  It also decides if the row was written without OID and place.
 *
 * The registry marks the entries of declared elections, which it does not
 * evict, within the limits of le_set_declared and le_is_kept.  Each session
 * marks an entry that it adds or uses; the first session that reads a change
 * marks all of them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/acl.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "election/internal.h"

/* The declared rules of an election */
typedef struct LeDeclaration
{
	int64		key;			/* of the election: hash key; must be first */
	char		name[LE_TEXT_SIZE];
	bool		for_everybody;
	NameData	candidates;		/* else: the role whose members may bid */
	Oid			role;			/* the OID that this role must have; invalid:
								 * any */
	int64		grace_us;		/* -1: by the setting */
	int64		max_ttl_us;		/* -1: by the setting */
	bool		private_value;	/* only candidates may see the value */
	bool		kept;			/* in the registry, while it is vacant */
} LeDeclaration;

/* The declarations, in their own context; NULL: not yet read */
static HTAB *declarations = NULL;
static MemoryContext declaration_context = NULL;
static Oid	read_from = InvalidOid; /* the table that they were read from;
									 * invalid: they may have changed */
static Oid	reading;			/* the table that is being read */
static bool changed;			/* has it changed since? */
static TransactionId written_by = InvalidTransactionId; /* this session's last
														 * transaction that has
														 * written to it */
static bool uncommitted;		/* does the copy have changes of this
								 * transaction? */

/*
 * Called with a number that identifies the set of declared names, whenever
 * committed declarations have been read on a primary.  May raise an error.
 *
 * The registry then marks the entries of declared elections.
 */
void		(*le_declarations_read_hook) (uint64 declarations) = NULL;

static void
forget_declarations(Datum arg pg_attribute_unused(), Oid relid)
{
	if (relid == InvalidOid || relid == read_from)
		read_from = InvalidOid;
	if (relid == InvalidOid || relid == reading)
		changed = true;
}

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
int64
le_origin_of_roles(void)
{
	uint64		place[2] = {GetSystemIdentifier(), MyDatabaseId};

	return (int64) (hash_bytes_extended((unsigned char *) place, sizeof(place), 0) >> 1);
}

/*
 * Raise an error if there are more declarations than the server may know
 * elections.  Each session has a copy of them.
 */
static void
require_few_declarations(long count)
{
	if (count > le_max_elections)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many declared elections: at most %d in a database", le_max_elections),
				 errhint("Remove some by \"le_undeclare\", or ask an administrator to raise \"%s\".",
						 "leader_election.max_elections")));
}

/*
 * Raise the same error if the table has too many rows
 *
 * Rows of transactions that still run count, so that of several sessions which
 * insert at the same time none overlooks the others.
 */
static void
bound_declarations(Relation table)
{
	SnapshotData dirty;
	SysScanDesc scan;
	long		count = 0;

	/* so that an insertion of one row seldom reads all others */
	if (RelationGetNumberOfBlocks(table) * (int64) MaxHeapTuplesPerPage <= le_max_elections)
		return;
	InitDirtySnapshot(dirty);
	scan = systable_beginscan(table, InvalidOid, false, &dirty, 0, NULL);
	while (HeapTupleIsValid(systable_getnext(scan)))
		require_few_declarations(++count);
	systable_endscan(scan);
}

/*
 * Read one row.  If several names have the same key, the first one counts.
 */
static void
read_declaration(HTAB *rows, HeapTuple tuple, TupleDesc type)
{
	LeDeclaration *declaration;
	LeElection	election;
	bool		found;
	Datum		values[Natts_le_declarations];
	bool		nulls[Natts_le_declarations];
	text	   *name;

	heap_deform_tuple(tuple, type, values, nulls);
	name = DatumGetTextPP(values[Anum_le_declarations_name - 1]);
	if (VARSIZE_ANY_EXHDR(name) == 0 || VARSIZE_ANY_EXHDR(name) > LE_TEXT_MAX)
		return;
	le_election_by_name(&election, name);
	declaration = hash_search(rows, &election.key.key, HASH_ENTER, &found);
	if (found)
		return;
	strcpy(declaration->name, election.name);
	declaration->for_everybody = nulls[Anum_le_declarations_candidates - 1];
	if (!declaration->for_everybody)
		declaration->candidates =
			*DatumGetName(values[Anum_le_declarations_candidates - 1]);
	declaration->role = InvalidOid;
	if (!nulls[Anum_le_declarations_role - 1] && !nulls[Anum_le_declarations_origin - 1] &&
		DatumGetInt64(values[Anum_le_declarations_origin - 1]) == le_origin_of_roles())
		declaration->role = DatumGetObjectId(values[Anum_le_declarations_role - 1]);
	declaration->grace_us = interval_us(values[Anum_le_declarations_grace - 1],
										nulls[Anum_le_declarations_grace - 1]);
	declaration->max_ttl_us = interval_us(values[Anum_le_declarations_max_ttl - 1],
										  nulls[Anum_le_declarations_max_ttl - 1]);
	declaration->private_value = DatumGetBool(values[Anum_le_declarations_private - 1]);

	/*
	 * in each database, a tenth of what the server may know, since the owner
	 * of a database can declare very many
	 */
	declaration->kept = hash_get_num_entries(rows) <= le_max_elections / 10;
}

/*
 * Read all rows into a new hash table in the given context
 *
 * The rows are read as of now, at every isolation level.  The scan sees all
 * versions of the rows, each of which is then checked for visibility.
 * Therefore, it takes part in no serialization conflict.  Most databases have
 * no declarations, so the hash table is small at first: room for 32 would take
 * 20 kB in each session.
 */
static HTAB *
read_rows(Relation table, MemoryContext context)
{
	HASHCTL		info = {
		.keysize = sizeof(int64),
		.entrysize = sizeof(LeDeclaration),
		.hcxt = context
	};
	HTAB	   *rows = hash_create("leader_election declarations", 1, &info,
								   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	Snapshot	now = RegisterSnapshot(GetCatalogSnapshot(RelationGetRelid(table)));
	SysScanDesc scan = systable_beginscan(table, InvalidOid, false, SnapshotAny, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		if (table_tuple_satisfies_snapshot(table, scan->slot, now))
		{
			CHECK_FOR_INTERRUPTS();
			read_declaration(rows, tuple, RelationGetDescr(table));
			require_few_declarations(hash_get_num_entries(rows));
		}
	}
	systable_endscan(scan);
	UnregisterSnapshot(now);
	return rows;
}

/*
 * Return a number that identifies the set of declared names that the registry
 * keeps, or 0 if there are none
 */
static uint64
fingerprint(void)
{
	HASH_SEQ_STATUS status;
	LeDeclaration *declaration;
	uint64		sum = 0;

	hash_seq_init(&status, declarations);
	while ((declaration = hash_seq_search(&status)) != NULL)
	{
		if (declaration->kept)
			sum += hash_bytes_extended((unsigned char *) declaration->name,
									   strlen(declaration->name), 0) | 1;
	}
	return sum;
}

/*
 * Replace the declarations that this session knows
 */
static void
replace_declarations(MemoryContext context, HTAB *rows, Oid table)
{
	MemoryContextSetParent(context, TopMemoryContext);
	if (declaration_context != NULL)
		MemoryContextDelete(declaration_context);
	declaration_context = context;
	declarations = rows;
	read_from = table;
}

/*
 * Check whether this transaction has changed the table
 */
static bool
have_changed(Relation table)
{
	return table->rd_createSubid != InvalidSubTransactionId ||
		(TransactionIdIsValid(written_by) && written_by == GetTopTransactionIdIfAny());
}

/*
 * Read the declarations
 *
 * May wait for DDL on the table.  May raise an error.
 */
static void
read_now(void)
{
	MemoryContext context;
	Relation	table;
	HTAB	   *rows;
	Oid			oid;

	table = le_open_table(LE_DECLARATIONS, AccessShareLock);
	oid = RelationGetRelid(table);

	/* if a change is reported while reading, read again */
	context = AllocSetContextCreate(CurrentMemoryContext, "leader_election declarations",
									ALLOCSET_SMALL_SIZES);
	reading = oid;
	do
	{
		MemoryContextReset(context);
		changed = false;
		rows = read_rows(table, context);
	} while (changed);
	replace_declarations(context, rows, oid);
	uncommitted = have_changed(table);
	if (!RecoveryInProgress() && !uncommitted)
		le_declarations_read_hook(fingerprint());
	table_close(table, AccessShareLock);
}

/*
 * Read the declarations if they may have changed since this session last did
 *
 * If they change while this session marks the entries of the registry, another
 * session may have marked them by the change already.  So this one does it
 * again, and sees the change.
 */
static void
read_declarations(void)
{
	static bool callback_registered = false;

	if (likely(OidIsValid(read_from)))
		return;
	if (!callback_registered)
	{
		CacheRegisterRelcacheCallback(forget_declarations, (Datum) 0);
		callback_registered = true;
	}
	read_now();
	AcceptInvalidationMessages();
	if (!OidIsValid(read_from))
		read_now();
}

/*
 * Return the declaration with the election's key, or NULL if there is none
 *
 * Uses the copy as it is.  Never raises an error.
 */
static const LeDeclaration *
look_up_declaration(const LeElectionKey *key)
{
	if (hash_get_num_entries(declarations) == 0)
		return NULL;
	return hash_search(declarations, &key->key, HASH_FIND, NULL);
}

/*
 * Return the declaration of the election, or NULL if it has none
 *
 * The result is valid until the next call.  Raises an error if another
 * election with the same key is declared.
 */
static const LeDeclaration *
find_declaration(const LeElection *election)
{
	const LeDeclaration *declaration;

	read_declarations();
	declaration = look_up_declaration(&election->key);
	if (declaration != NULL)
		le_refuse_collision(election, declaration->name);
	return declaration;
}

/*
 * Check whether this session knows if the registry keeps the election of that
 * name (see le_is_kept).  If so, set *kept, otherwise leave it alone.  Never
 * raises an error.
 */
bool
le_knows_kept(const LeElectionKey *key, const char *name, bool *kept)
{
	const LeDeclaration *declaration;

	if (!OidIsValid(read_from) || uncommitted)
		return false;
	declaration = look_up_declaration(key);
	*kept = declaration != NULL && strcmp(declaration->name, name) == 0 && declaration->kept;
	return true;
}

/*
 * Return whether the registry keeps the election, because it is declared
 *
 * Raises an error if another election with the same key is declared.
 */
bool
le_is_kept(const LeElection *election)
{
	const LeDeclaration *declaration = find_declaration(election);

	return declaration != NULL && declaration->kept;
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

/*
 * Raise an error if the election's declaration does not allow a lease with
 * this ttl
 */
void
le_require_ttl(const LeElection *election, int64 ttl_us)
{
	const LeDeclaration *declaration = find_declaration(election);

	if (declaration == NULL || declaration->max_ttl_us < 0 ||
		ttl_us <= declaration->max_ttl_us)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("ttl must be at most " INT64_FORMAT " ms, as election %s is declared",
					declaration->max_ttl_us / 1000,
					le_label(election))));
}

/*
 * Raise an error unless the current user may make the bid
 */
void
le_require_candidate(const LeBid *bid)
{
	const LeElection *election = &bid->election;
	const LeDeclaration *declaration;

	/* in an old transaction, a change may not have been noticed yet */
	AcceptInvalidationMessages();
	declaration = find_declaration(election);
	if (declaration == NULL && le_declared_only)
		refuse_user(election, "bid for",
					"not declared, while \"leader_election.declared_only\" is on");
	if (declaration == NULL)
		return;
	if (!is_candidate(declaration))
		refuse_user(election, "bid for", describe_candidates(declaration));
	if (bid->scope == LE_SCOPE_LEASE)
		le_require_ttl(election, bid->lasts_us);
}

/*
 * Raise an error if the election has the same key as another, declared one
 */
void
le_require_own_key(const LeElection *election)
{
	(void) find_declaration(election);
}

/*
 * Raise an error unless the current user may observe the value that the
 * election's leader publishes
 */
void
le_require_observer(const LeElection *election)
{
	const LeDeclaration *declaration;

	AcceptInvalidationMessages();
	declaration = find_declaration(election);
	if (declaration != NULL && declaration->private_value && !is_candidate(declaration))
		refuse_user(election, "observe", describe_candidates(declaration));
}

/*
 * Check whether the current user may see the value published by the
 * election's leader
 */
bool
le_may_observe(const LeElectionKey *election)
{
	const LeDeclaration *declaration;

	AcceptInvalidationMessages();
	read_declarations();
	declaration = look_up_declaration(election);
	return declaration == NULL || !declaration->private_value || is_candidate(declaration);
}

/*
 * Return the grace period of the election, in microseconds
 */
int64
le_grace_of(const LeElection *election)
{
	const LeDeclaration *declaration = find_declaration(election);

	if (declaration != NULL && declaration->grace_us >= 0)
		return declaration->grace_us;
	return le_grace_period * INT64CONST(1000);
}

/*
 * Note that this transaction has written to the table, and notify all sessions
 *
 * With "inserted", raises an error if there are too many rows.
 */
void
le_declarations_written(Relation table, bool inserted)
{
	CacheInvalidateRelcache(table);
	written_by = GetTopTransactionIdIfAny();
	if (inserted)
		bound_declarations(table);
}
