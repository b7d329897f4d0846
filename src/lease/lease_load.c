/*-------------------------------------------------------------------------
 *
 * lease/lease_load.c
 *	  Loading of the table le_leases into the registry: after a restart, and
 *	  with a new extension.
 *
 * The table is read into the registry once after each start of the server,
 * under a lock on the table that conflicts with itself, before this database's
 * leases are first asked for or any bid is made.  loaded_table records that.
 * The entries have the table's OID, so that DROP EXTENSION ends the leases
 * that were in it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xlog.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"

#include "announce/announce.h"
#include "lease/lease.h"

/* the table whose leases this backend knows to be in the registry */
static Oid	ready_table = InvalidOid;

static bool
is_loaded(Oid table)
{
	LeDatabase *database = le_registry_lock_database(false);
	bool		loaded = database->loaded_table == table;

	le_registry_unlock_database(database);
	return loaded;
}

/*
 * Record that the table has been read
 */
static void
set_loaded(Oid table)
{
	bool		had_terms = le_sequence_read(LE_TOKENS) > 0;
	LeDatabase *database = le_registry_lock_database(true);

	database->loaded_table = table;
	database->all_over = false;
	database->had_terms = had_terms;
	le_registry_unlock_database(database);
}

/*
 * Check whether all leases of this database's table are over, since that was
 * found before they were removed from the registry
 */
static bool
are_all_over(void)
{
	LeDatabase *database = le_registry_lock_database(false);
	bool		all_over = database->all_over;

	le_registry_unlock_database(database);
	return all_over;
}

/*
 * Return why this recorded term has ended, of which nothing else is left: its
 * lock was released without the extension's knowledge, or it is a lease that
 * has expired, or was dropped with the extension
 */
static LeEndReason
why_stale(const LeTerm *term)
{
	if (term->scope != LE_SCOPE_LEASE)
		return LE_END_LOCK_RELEASED;
	return le_deadline_runs(term->deadline, le_monotonic_us()) ?
		LE_END_EXTENSION_DROPPED : LE_END_EXPIRED;
}

/*
 * Remove such a term from the registry.  Report its end, unless that was done
 * or the term never began.
 */
void
le_end_stale(const LeTerm *term)
{
	LeEndReason reason = why_stale(term);
	LeTerm		ended;

	if (!le_registry_end_term(&term->election, term->token, reason, &ended))
		return;
	if (ended.scope != LE_SCOPE_LEASE || le_deadline_is_time(ended.deadline))
		le_report_end(&ended, ended.end_reason);
}

/*
 * End this database's leases that are recorded in a table other than this one,
 * which is committed: their extension was dropped
 */
static void
end_dropped_leases(Oid lease_table)
{
	int			count;
	LeTerm	   *terms = le_registry_list_terms(&count);

	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (terms[i].token != 0 && terms[i].scope == LE_SCOPE_LEASE &&
			terms[i].lease_table != lease_table)
			le_end_stale(&terms[i]);
	}
}

/*
 * Read the table for the first time since the server started, the extension
 * was created, or its leases were forgotten
 */
static void
load_leases(Relation table)
{
	Oid			oid = RelationGetRelid(table);
	int			running;

	le_registry_forget_databases(false);
	end_dropped_leases(oid);
	le_lease_load(table, are_all_over());
	running = le_registry_start_loaded(oid);
	set_loaded(oid);
	if (running > 0)
		ereport(LOG_SERVER_ONLY,
				(errmsg_internal("leader_election: %d leases still running in database \"%s\"",
								 running, get_database_name(MyDatabaseId)),
				 errhidestmt(true), errhidecontext(true)));
}

/*
 * Check whether the registry has the database's leases, so that
 * le_leases_ready(false) reads no table
 */
bool
le_leases_are_loaded(void)
{
	Oid			oid = le_lease_table();

	return oid == ready_table || RecoveryInProgress() || is_loaded(oid);
}

/*
 * Ensure that the registry has the database's leases
 *
 * A table that this transaction has created has no leases and may be rolled
 * back, in which case the leases of the previous one come back.  So with
 * for_bid, this raises an error then.  May wait for another session that reads
 * the table.  May raise an error.
 */
void
le_leases_ready(bool for_bid)
{
	Oid			oid = le_lease_table();
	Relation	table;

	if (likely(oid == ready_table) || RecoveryInProgress())
		return;

	/* the server's time as a primary counts from now: see origin.c */
	(void) le_registry_primary_since();

	/* no session can have loaded a table that is not committed */
	if (is_loaded(oid))
	{
		ready_table = oid;
		return;
	}

	/* if the extension has just been replaced, use its new table */
	while ((table = try_table_open(oid, ShareUpdateExclusiveLock)) == NULL)
		oid = le_lease_table();
	if (table->rd_createSubid != InvalidSubTransactionId)
	{
		if (for_bid)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("cannot elect a leader in the transaction that created table \"%s\"",
							RelationGetRelationName(table)),
					 errhint("Commit the transaction first.")));
		table_close(table, ShareUpdateExclusiveLock);
		return;
	}
	if (!is_loaded(oid))
		load_leases(table);
	table_close(table, ShareUpdateExclusiveLock);
	ready_table = oid;
}
