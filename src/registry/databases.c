/*-------------------------------------------------------------------------
 *
 * registry/databases.c
 *	  Per-database state in the registry.
 *
 * registry.c says which locks protect what.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "utils/syscache.h"

#include "registry/internal.h"

/*
 * Return this database's entry with its partition locked
 *
 * The caller must release it by le_registry_unlock_database, and may only read
 * and write the entry in between.
 */
LeDatabase *
le_registry_lock_database(bool exclusive)
{
	Oid			database = MyDatabaseId;
	LeDatabase *entry;
	bool		found;

	entry = dshash_find(le_registry_table(LE_DATABASE_TABLE), &database, exclusive);
	if (entry != NULL)
		return entry;

	/* an added entry is locked exclusively, which also suits a reader */
	entry = dshash_find_or_insert(le_registry_table(LE_DATABASE_TABLE), &database, &found);
	if (!found)
	{
		memset(entry, 0, sizeof(LeDatabase));
		entry->database = database;
		entry->next = entry->end = 1;
		pg_atomic_init_u32(&entry->terms, 0);
		pg_atomic_init_u32(&entry->leases_begun, 0);
		ConditionVariableInit(&entry->release);
	}
	return entry;
}

void
le_registry_unlock_database(LeDatabase *entry)
{
	dshash_release_lock(le_registry_table(LE_DATABASE_TABLE), entry);
}

/*
 * Return the owner of this database
 */
static Oid
get_owner(void)
{
	HeapTuple	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
	Oid			owner = BOOTSTRAP_SUPERUSERID;

	if (HeapTupleIsValid(tuple))
	{
		owner = ((Form_pg_database) GETSTRUCT(tuple))->datdba;
		ReleaseSysCache(tuple);
	}
	return owner;
}

/*
 * Choose where the terms of this database are counted, unless that was done
 *
 * The databases of one owner are counted together, so that an owner of several
 * does not take the place of all others.  Those of superusers are counted one
 * by one.  A change of the owner takes effect with the next start of the
 * server, as the terms are uncounted where they were counted.
 */
static void
choose_counter(void)
{
	Oid			owner = get_owner();
	dsa_pointer counter = InvalidDsaPointer;
	LeDatabase *database;

	if (!superuser_arg(owner))
		(void) le_registry_used_by(owner, &counter);
	database = le_registry_lock_database(true);
	if (!database->has_counter)
		database->counter_of_owner = counter;
	database->has_counter = true;
	le_registry_unlock_database(database);
}

/*
 * Return the counter of the terms in the given database, or in all of its
 * owner.  May raise an error.
 *
 * It is neither moved nor freed while a session is connected to the database,
 * or none can be, so it can be changed under any lock.
 */
pg_atomic_uint32 *
le_registry_terms_of(Oid oid)
{
	LeDatabase *database = dshash_find(le_registry_table(LE_DATABASE_TABLE), &oid, false);
	pg_atomic_uint32 *terms;
	dsa_pointer counter;

	if (database == NULL)
		return NULL;
	terms = &database->terms;
	counter = database->counter_of_owner;
	le_registry_unlock_database(database);
	if (!DsaPointerIsValid(counter))
		return terms;
	return &((LeRoleCounter *) dsa_get_address(le_registry_area(), counter))->terms_of_owner;
}

/*
 * Return that of this database.  Never raises an error in a session that has
 * recorded a term.
 */
pg_atomic_uint32 *
le_registry_terms_here(void)
{
	static pg_atomic_uint32 *terms = NULL;

	if (unlikely(terms == NULL))
	{
		choose_counter();
		terms = le_registry_terms_of(MyDatabaseId);
	}
	return terms;
}

/*
 * Record that the registry is about to forget an election of the given
 * database whose last term ended at the given time without resignation
 *
 * The database has no entry if it was dropped, and just forgotten.
 */
void
le_registry_forget_end(Oid database, uint64 grace_from)
{
	LeDatabase *entry = dshash_find(le_registry_table(LE_DATABASE_TABLE), &database, true);

	if (entry == NULL)
		return;
	entry->forgotten_at = Max(entry->forgotten_at, grace_from);
	le_registry_unlock_database(entry);
}

/*
 * Return the latest time at which the last term of an election that the
 * registry does not know may have ended without resignation, or 0 if there can
 * be no such term
 *
 * The registry knows nothing of the time before this server first used it.  A
 * declared election was not evicted since its entry was marked, unless there
 * were too many of them.
 */
uint64
le_registry_forgotten_at(bool kept)
{
	bool		known = kept && pg_atomic_read_u32(&le_registry_counters()->unkept) == 0;
	LeDatabase *database = le_registry_lock_database(false);
	bool		had_terms = database->had_terms;
	uint64		forgotten_at = known ? database->kept_forgotten_at : database->forgotten_at;

	le_registry_unlock_database(database);
	return had_terms ? Max(forgotten_at, le_registry_primary_since()) : forgotten_at;
}

static bool
copy_oid(void *entry, void *row)
{
	if (row != NULL)
		*(Oid *) row = ((LeDatabase *) entry)->database;
	return true;
}

/*
 * Return the databases that have an entry, in palloc'd memory
 */
Oid *
le_registry_list_databases(int *count)
{
	return le_registry_list(le_registry_table(LE_DATABASE_TABLE), sizeof(Oid), copy_oid, count);
}

/*
 * Record that the leases of the database, all of which are over, are about to
 * be removed from the registry
 *
 * The caller must hold the lock that keeps sessions from beginning in the
 * database, which has none.
 */
void
le_registry_unload_leases(Oid oid)
{
	LeDatabase *database = dshash_find(le_registry_table(LE_DATABASE_TABLE), &oid, true);

	if (database == NULL)
		return;
	if (OidIsValid(database->loaded_table))
		database->all_over = true;
	database->loaded_table = InvalidOid;
	le_registry_unlock_database(database);
}

/*
 * Remove the entry of a database that was dropped
 */
void
le_registry_forget_database(Oid database)
{
	(void) dshash_delete_key(le_registry_table(LE_DATABASE_TABLE), &database);
}
