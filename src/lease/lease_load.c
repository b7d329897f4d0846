/*-------------------------------------------------------------------------
 *
 * lease/lease_load.c
 *	  Loading of the table le_leases into the registry: after a restart, with a
 *	  new extension, and after an eviction.
 *
 * The table is read into the registry once after each start of the server,
 * under a lock on the table that conflicts with itself, before this database's
 * leases are first asked for or any bid is made.  loaded_table records that.
 * The entries have the table's OID, so that DROP EXTENSION ends the leases
 * that were in it.
 *
 * A lease that expired in this database may have made room for elections of
 * another one.  Then the registry has no entry of it, and its row may not be
 * durably void (see registry.c).  Before the next bid, the table is read
 * again, under the same lock.  A committed row that is not durably void and is
 * missing in the registry is such a lease, since every lease that is being
 * taken or runs is there.  It is recorded as over, not as running, so the next
 * candidate makes it void as it would any other.  That may happen while other
 * sessions hold election locks: only an election without a term gets such an
 * entry, and a candidate that finds no term recorded checks once more whether
 * there was an eviction (le_read_record).
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

/* the number of eviction marks up to which it knows that none is missing */
static uint64 ready_evictions = 0;

static bool
is_loaded(Oid table)
{
	LeDatabase *database = le_registry_lock_database(false);
	bool		loaded = database->loaded_table == table;

	le_registry_unlock_database(database);
	return loaded;
}

static bool
has_evictions(void)
{
	LeDatabase *database = le_registry_lock_database(false);
	bool		evicted = database->leases_evicted != 0;

	le_registry_unlock_database(database);
	return evicted;
}

/*
 * Record that the table has been read.  Marks made since the reading began
 * stay.
 */
static void
set_loaded(Oid table, uint64 reload)
{
	bool		had_terms = le_sequence_read(LE_TOKENS) > 0;
	LeDatabase *database = le_registry_lock_database(true);

	if (database->loaded_table != table)
	{
		database->loaded_table = table;
		database->had_terms = had_terms;
	}
	if (database->leases_evicted <= reload)
		database->leases_evicted = 0;
	le_registry_unlock_database(database);
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
 * Read the table for the first time since the server started, or the extension
 * was created
 */
static void
load_leases(Relation table)
{
	Oid			oid = RelationGetRelid(table);
	uint64		reload = le_registry_reloads(true);
	int			running;

	le_registry_forget_dropped();
	end_dropped_leases(oid);
	le_lease_load(table, false);
	running = le_registry_start_loaded(oid);
	set_loaded(oid, reload);
	if (running > 0)
		ereport(LOG_SERVER_ONLY,
				(errmsg_internal("leader_election: %d leases still running in database \"%s\"",
								 running, get_database_name(MyDatabaseId)),
				 errhidestmt(true), errhidecontext(true)));
}

/*
 * Record the leases that were evicted, as over
 */
static void
reload_leases(Relation table)
{
	uint64		reload = le_registry_reloads(true);

	le_lease_load(table, true);
	set_loaded(RelationGetRelid(table), reload);
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
 * Ensure that the registry has the database's leases; with for_bid, also those
 * that had ended and were evicted
 *
 * A table that this transaction has created has no leases and may be rolled
 * back, in which case the leases of the previous one come back.  So a bid
 * raises an error then.  May wait for another session that reads the table.
 * May raise an error.
 */
void
le_leases_ready(bool for_bid)
{
	Oid			oid = le_lease_table();
	Relation	table;
	uint64		evictions;

	if (likely(oid == ready_table &&
			   (!for_bid || le_registry_lease_evictions() == ready_evictions)) ||
		RecoveryInProgress())
		return;

	/* the server's time as a primary counts from now: see origin.c */
	(void) le_registry_primary_since();

	/* no session can have loaded a table that is not committed */
	evictions = for_bid ? le_registry_lease_evictions() : ready_evictions;
	if (is_loaded(oid) && !(for_bid && has_evictions()))
	{
		ready_table = oid;
		ready_evictions = evictions;
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
	else if (for_bid && has_evictions())
		reload_leases(table);
	table_close(table, ShareUpdateExclusiveLock);
	ready_table = oid;
	ready_evictions = evictions;
}

/*
 * Copy what is recorded of the election, for a session that has its lock and
 * is about to lead.  Return false if there is no term, and none was evicted
 * whose row may not be durably void.
 *
 * May raise an error, and may wait as le_leases_ready does.
 */
bool
le_read_record(const LeElection *election, LeRecord *record)
{
	if (le_registry_read_record(&election->key, record))
		return true;
	if (likely(le_registry_lease_evictions() == ready_evictions))
		return false;
	le_leases_ready(true);
	return le_registry_read_record(&election->key, record);
}
