/*-------------------------------------------------------------------------
 *
 * registry/databases.c
 *	  What the registry keeps for each database.
 *
 * registry.c says which locks protect what.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "registry/internal.h"

static LeDatabase *
lock_database(Oid database, bool exclusive)
{
	LeDatabase *entry;
	bool		found;

	entry = dshash_find(le_registry_database_table(), &database, exclusive);
	if (entry != NULL)
		return entry;

	/* an entry that was just added is locked exclusively, which will do, too */
	entry = dshash_find_or_insert(le_registry_database_table(), &database, &found);
	if (!found)
	{
		memset(entry, 0, sizeof(LeDatabase));
		entry->database = database;
		entry->next = entry->end = 1;
		pg_atomic_init_u32(&entry->leases_begun, 0);
		pg_atomic_init_u32(&entry->sweep_after, 0);
		ConditionVariableInit(&entry->release);
	}
	return entry;
}

/*
 * Return this database's entry with its partition locked
 *
 * To be given back by le_registry_unlock_database, with nothing but reading and
 * writing it in between.
 */
LeDatabase *
le_registry_lock_database(bool exclusive)
{
	return lock_database(MyDatabaseId, exclusive);
}

void
le_registry_unlock_database(LeDatabase *entry)
{
	dshash_release_lock(le_registry_database_table(), entry);
}

/*
 * Mark the database: its leases are about to be evicted, until the next table is read again
 */
void
le_registry_mark_evicted(Oid database, uint64 reloads)
{
	LeDatabase *entry;
	bool		is_new;

	entry = dshash_find(le_registry_database_table(), &database, true);
	if (entry == NULL)
		return;
	is_new = entry->leases_evicted != reloads + 1;
	entry->leases_evicted = reloads + 1;
	dshash_release_lock(le_registry_database_table(), entry);
	if (is_new)
		le_registry_count_lease_eviction();
}

/*
 * The registry is about to forget an election of that database whose last term ended
 * then, without resignation
 */
void
le_registry_forget_end(Oid database, uint64 lost_at)
{
	LeDatabase *entry = lock_database(database, true);

	entry->forgotten_at = Max(entry->forgotten_at, lost_at);
	le_registry_unlock_database(entry);
}

/*
 * Return when the last term of an election that the registry does not know may have
 * ended without resignation, at the latest; 0: no such term can have
 *
 * The registry knows nothing of what was before it was first used by this server.  A
 * declared election was never evicted.
 */
uint64
le_registry_forgotten_at(bool declared)
{
	LeDatabase *database = le_registry_lock_database(false);
	bool		had_terms = database->had_terms;
	uint64		forgotten_at = declared ? 0 : database->forgotten_at;

	le_registry_unlock_database(database);
	return had_terms ? Max(forgotten_at, le_registry_primary_since()) : forgotten_at;
}

/*
 * Copy the databases of which there is an entry to palloc'd memory
 */
Oid *
le_registry_list_databases(int *count)
{
	dshash_seq_status status;
	LeDatabase *entry;
	int			capacity = 64;
	Oid		   *oids;

	for (;;)
	{
		oids = palloc_array(Oid, capacity);
		*count = 0;
		dshash_seq_init(&status, le_registry_database_table(), false);
		while ((entry = dshash_seq_next(&status)) != NULL)
		{
			if (*count < capacity)
				oids[*count] = entry->database;
			(*count)++;
		}
		dshash_seq_term(&status);
		if (*count <= capacity)
			return oids;
		pfree(oids);
		capacity = *count + 64;
	}
}

/*
 * Remove the entry of a database, which was dropped
 */
void
le_registry_forget_database(Oid database)
{
	(void) dshash_delete_key(le_registry_database_table(), &database);
}
