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

#include "miscadmin.h"

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
	entry = le_registry_insert(LE_DATABASE_TABLE, &database, &found);
	if (!found)
	{
		memset(entry, 0, sizeof(LeDatabase));
		entry->database = database;
		entry->next = entry->end = 1;
		pg_atomic_init_u32(&entry->terms, 0);
		pg_atomic_init_u32(&entry->leases_begun, 0);
		ConditionVariableInit(&entry->wakeup);
	}
	return entry;
}

void
le_registry_unlock_database(LeDatabase *entry)
{
	dshash_release_lock(le_registry_table(LE_DATABASE_TABLE), entry);
}

/*
 * Return the counter of the terms in this database.  Never raises an error in
 * a session that has recorded a term.
 *
 * It is neither moved nor freed while a session is connected to the database,
 * so it can be changed under any lock.
 */
pg_atomic_uint32 *
le_registry_terms_here(void)
{
	static pg_atomic_uint32 *terms = NULL;

	if (unlikely(terms == NULL))
	{
		LeDatabase *database = le_registry_lock_database(false);

		terms = &database->terms;
		le_registry_unlock_database(database);
	}
	return terms;
}

/*
 * Record that the registry is about to forget an election of the given
 * database, whose last term ended at the given time without resignation
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
 * The registry knows nothing of the time before this server first used it.
 */
uint64
le_registry_forgotten_at(void)
{
	LeDatabase *database = le_registry_lock_database(false);
	bool		had_terms = database->had_terms;
	uint64		forgotten_at = database->forgotten_at;

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
 * Return the counter of the terms in that database, or NULL if the registry
 * does not know it
 *
 * The caller must hold the lock that keeps its OID from being reused, and no
 * other session may remove the database's entry meanwhile.
 */
pg_atomic_uint32 *
le_registry_terms_of(Oid oid)
{
	LeDatabase *database = dshash_find(le_registry_table(LE_DATABASE_TABLE), &oid, false);

	if (database == NULL)
		return NULL;
	le_registry_unlock_database(database);
	return &database->terms;
}

/*
 * Remove the entry of a database that was dropped
 */
void
le_registry_forget_database(Oid database)
{
	(void) dshash_delete_key(le_registry_table(LE_DATABASE_TABLE), &database);
}
