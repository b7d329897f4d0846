/*-------------------------------------------------------------------------
 *
 * base/declaration.c
 *	  Declared elections: who may stand, and by which rules.
 *
 * A declaration is a row of the table le_declarations, which is an ordinary one: it counts
 * with the commit, comes back with a dump, and is replicated.  It has roles by name, so that
 * one which is missing where a dump is restored keeps no other declaration out.  Each session has a copy of
 * all of them, and reads the table again when it has heard that it has changed.  Whoever
 * changes it tells so by invalidating the table's relcache entry: le_declare() and
 * le_undeclare() do, and a trigger for those who write to it otherwise, such as pg_restore.
 *
 * Two names may have the same key, and it takes seconds to find the other one.  So an election
 * that is not declared, but has the key of one that is, is refused wherever it could keep
 * the declared one from being led or observed: the copy is looked up by key.
 *
 * A role may be dropped, and its name given to another.  So the row also has the role's OID,
 * and where that counts: the cluster and the database, as a hash.  Elsewhere, where the row
 * was restored, the name decides; so it does where a row was written without them.
 *
 * The registry marks the entries of declared elections, which it never evicts.  Each session
 * marks an entry that it adds or uses; the first that reads a change marks all of them.
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
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "commands/trigger.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/internal.h"

/* By which rules an election is held, if they are declared */
typedef struct LeDeclaration
{
	char		name[LE_TEXT_SIZE]; /* hash key; must be first */
	bool		for_everybody;
	NameData	candidates;		/* else: the role whose members may stand */
	Oid			role;			/* the OID that it must have; invalid: any */
	int64		grace_us;		/* -1: as set */
	int64		max_ttl_us;		/* -1: as set */
	bool		private_value;	/* only they may see what the leader publishes */
	bool		kept;			/* by the registry, see le_is_kept */
} LeDeclaration;

/* A declared name by its key; if several have it, any of them */
typedef struct LeDeclaredKey
{
	int64		key;			/* hash key; must be first */
	const LeDeclaration *declaration;
} LeDeclaredKey;

/* The declarations by name and by key, in a context of their own; NULL: not yet read */
static HTAB *declarations = NULL;
static HTAB *declared_keys = NULL;
static MemoryContext declaration_context = NULL;
static Oid	read_from = InvalidOid; /* what table they are of; invalid: they
									 * may have changed */
static Oid	reading;			/* what table we are reading */
static bool changed;			/* has it changed since? */
static TransactionId written_by = InvalidTransactionId; /* our last one that has
														 * written to it */
static bool uncommitted;		/* is what we know known to us only? */

/*
 * Called with a number that stands for the declared names, whenever these have been read
 * on a primary, as committed; may raise an error
 *
 * The registry marks the entries of declared elections then.
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

/*
 * Return what tells this database from those where the OID of a role may mean another one: a
 * hash that is positive
 */
int64
le_origin_of_roles(void)
{
	uint64		place[2] = {GetSystemIdentifier(), MyDatabaseId};

	return (int64) (hash_bytes_extended((unsigned char *) place, sizeof(place), 0) >> 1);
}

static void
read_declaration(HTAB *by_name, HTAB *by_key, HeapTuple tuple, TupleDesc type)
{
	LeDeclaration *declaration;
	LeElection	election;
	Datum		values[Natts_le_declarations];
	bool		nulls[Natts_le_declarations];
	text	   *name;

	heap_deform_tuple(tuple, type, values, nulls);
	name = DatumGetTextPP(values[Anum_le_declarations_name - 1]);
	if (VARSIZE_ANY_EXHDR(name) == 0 || VARSIZE_ANY_EXHDR(name) > LE_TEXT_MAX)
		return;
	le_election_by_name(&election, name);
	declaration = hash_search(by_name, election.name, HASH_ENTER, NULL);
	((LeDeclaredKey *) hash_search(by_key, &election.key.key, HASH_ENTER, NULL))->declaration =
		declaration;
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
	declaration->kept = hash_get_num_entries(by_name) <= le_max_elections_per_role;
}

/*
 * Read all rows into new hash tables, in that context; return the one by name
 *
 * As of now, at every isolation level.  By a scan that sees all versions of the rows, and
 * has each looked at: so it takes part in no serialization conflict.
 */
static HTAB *
read_rows(Relation table, MemoryContext context, HTAB **by_key)
{
	HASHCTL		info = {
		.keysize = LE_TEXT_SIZE,
		.entrysize = sizeof(LeDeclaration),
		.hcxt = context
	};
	HASHCTL		key_info = {
		.keysize = sizeof(int64),
		.entrysize = sizeof(LeDeclaredKey),
		.hcxt = context
	};
	HTAB	   *rows = hash_create("leader_election declarations", 32, &info,
								   HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	Snapshot	now = RegisterSnapshot(GetCatalogSnapshot(RelationGetRelid(table)));
	SysScanDesc scan = systable_beginscan(table, InvalidOid, false, SnapshotAny, 0, NULL);
	HeapTuple	tuple;

	*by_key = hash_create("leader_election declared keys", 32, &key_info,
						  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		if (table_tuple_satisfies_snapshot(table, scan->slot, now))
			read_declaration(rows, *by_key, tuple, RelationGetDescr(table));
	}
	systable_endscan(scan);
	UnregisterSnapshot(now);
	return rows;
}

/*
 * Return a number that stands for the names that are declared; 0: none
 */
static uint64
fingerprint(void)
{
	HASH_SEQ_STATUS status;
	LeDeclaration *declaration;
	uint64		sum = 0;

	hash_seq_init(&status, declarations);
	while ((declaration = hash_seq_search(&status)) != NULL)
		sum += hash_bytes_extended((unsigned char *) declaration->name,
								   strlen(declaration->name), 1) | 1;
	return sum;
}

/*
 * Make these the declarations that this session knows, in place of those before
 */
static void
replace_declarations(MemoryContext context, HTAB *by_name, HTAB *by_key, Oid table)
{
	MemoryContextSetParent(context, TopMemoryContext);
	if (declaration_context != NULL)
		MemoryContextDelete(declaration_context);
	declaration_context = context;
	declarations = by_name;
	declared_keys = by_key;
	read_from = table;
}

/*
 * Has this transaction changed the table?
 */
static bool
have_changed(Relation table)
{
	return table->rd_createSubid != InvalidSubTransactionId ||
		(TransactionIdIsValid(written_by) && written_by == GetTopTransactionIdIfAny());
}

/*
 * Read the declarations, unless we have heard of no change since that was last done
 *
 * May wait for DDL on the table, and throw.
 */
static void
read_declarations(void)
{
	static bool callback_registered = false;
	MemoryContext context;
	Relation	table;
	HTAB	   *rows;
	HTAB	   *by_key;
	Oid			oid;

	if (likely(OidIsValid(read_from)))
		return;
	if (!callback_registered)
	{
		CacheRegisterRelcacheCallback(forget_declarations, (Datum) 0);
		callback_registered = true;
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
		rows = read_rows(table, context, &by_key);
	} while (changed);
	replace_declarations(context, rows, by_key, oid);
	uncommitted = have_changed(table);
	if (!RecoveryInProgress() && !uncommitted)
		le_declarations_read_hook(fingerprint());
	table_close(table, AccessShareLock);
}

/*
 * Return the declaration that has the election's key, preferably of its name; NULL if none
 *
 * From the copy as it is.  Never throws.
 */
static const LeDeclaration *
look_up_declaration(const LeElectionKey *key, const char *name)
{
	const LeDeclaredKey *declared;
	const LeDeclaration *by_name = NULL;

	if (key->lock_class != LE_CLASS_ELECTION || hash_get_num_entries(declarations) == 0)
		return NULL;
	declared = hash_search(declared_keys, &key->key, HASH_FIND, NULL);
	if (likely(declared == NULL))
		return NULL;
	if (strcmp(declared->declaration->name, name) != 0)
		by_name = hash_search(declarations, name, HASH_FIND, NULL);
	return by_name != NULL ? by_name : declared->declaration;
}

/*
 * Return the declaration of the election; NULL if it has none
 *
 * Throws if another election that has the same key is declared.  Good until the next call
 * of this.
 */
static const LeDeclaration *
find_declaration(const LeElection *election)
{
	const LeDeclaration *declaration;

	read_declarations();
	declaration = look_up_declaration(&election->key, election->name);
	if (declaration != NULL)
		le_refuse_collision(election, declaration->name);
	return declaration;
}

/*
 * Does this session know whether the registry keeps the election of that name, see
 * le_is_kept?  *kept is set if so, and left alone if not.  Never throws
 */
bool
le_knows_kept(const LeElectionKey *key, const char *name, bool *kept)
{
	const LeDeclaration *declaration;

	if (!OidIsValid(read_from) || uncommitted)
		return false;
	declaration = look_up_declaration(key, name);
	*kept = declaration != NULL && declaration->kept &&
		strcmp(declaration->name, name) == 0;
	return true;
}

/*
 * Check whether the registry keeps the election, because it is declared
 *
 * Of each database it keeps as many as a role may have: the owner of a database can
 * declare elections without end.  Raises an error if another election that has the same
 * key is declared.
 */
bool
le_is_kept(const LeElection *election)
{
	const LeDeclaration *declaration = find_declaration(election);

	return declaration != NULL && declaration->kept;
}

/*
 * Return the OID of the role whose members may stand; invalid if it does not exist any more
 */
static Oid
candidates_of(const LeDeclaration *declaration)
{
	Oid			role = get_role_oid(NameStr(declaration->candidates), true);

	return OidIsValid(declaration->role) && role != declaration->role ? InvalidOid : role;
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
	role = candidates_of(declaration);
	return OidIsValid(role) ? has_privs_of_role(GetUserId(), role) : superuser();
}

/*
 * Throw because the user may not do that; what is "stand for" or "observe", and why says
 * which election that is
 */
static void
refuse_user(const LeElection *election, const char *what, const char *why)
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

	return psprintf(OidIsValid(candidates_of(declaration)) ?
					"declared for role \"%s\"" :
					OidIsValid(get_role_oid(role, true)) ?
					"declared for a role that had the name \"%s\" and does not exist any more" :
					"declared for role \"%s\", which does not exist", role);
}

/*
 * Throw if the election's declaration allows no lease for that long
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
	declaration = find_declaration(election);
	if (declaration == NULL && le_declared_only)
		refuse_user(election, "stand for",
					"not declared, while \"leader_election.declared_only\" is on");
	if (declaration == NULL)
		return;
	if (!is_candidate(declaration))
		refuse_user(election, "stand for", describe_candidates(declaration));
	if (bid->scope == LE_SCOPE_LEASE)
		le_require_ttl(election, bid->ttl_us);
}

/*
 * Throw if the election has the key of another one, which is declared
 */
void
le_require_own_key(const LeElection *election)
{
	(void) find_declaration(election);
}

/*
 * Throw unless the user may observe what the election's leader publishes
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
 * May the user see what the leader of the election with that name publishes?
 */
bool
le_may_observe(const char *name)
{
	const LeDeclaration *declaration;

	read_declarations();
	declaration = hash_search(declarations, name, HASH_FIND, NULL);
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
 * Somebody has written to the table
 */
void
le_declarations_written(Relation table)
{
	CacheInvalidateRelcache(table);
	written_by = GetTopTransactionIdIfAny();
}
