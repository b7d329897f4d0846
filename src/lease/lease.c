/*-------------------------------------------------------------------------
 *
 * lease/lease.c
 *	  Leases: terms that are bound to no session, but run for a ttl from the
 *	  last renewal.
 *
 * A lease runs as long as the registry has it with a deadline in the future.
 * It begins at the commit of the transaction that took it, which holds the
 * election's lock until then.  While the lease runs, no session needs to hold
 * that lock, and a session that acquires it finds the lease recorded and is
 * not elected.
 *
 * Renewals are in the registry only.  That a lease was taken, its ttl, and
 * that it has ended, is recorded in the table le_leases as well: before a
 * client is informed of it, and before another candidate is elected.  So after
 * a restart, the table tells which leases may still have a holder that relies
 * on them, and none of them is revived beside a successor with a greater
 * token.  Each runs for its full ttl from the time when the table is first
 * read.
 *
 * The table is read into the registry once after each start of the server,
 * under a lock on the table that conflicts with itself, before this database's
 * leases are first asked for or any bid is made.  loaded_table records that.
 * The entries have the table's OID, so that DROP EXTENSION ends the leases
 * that were in it.
 *
 * Order of locks: the election's lock, then its guard lock (see
 * lock.c), then what lease/table.c needs, then the registry's
 * LWLocks.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xlog.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lwlock.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/resowner.h"

#include "lock/lock.h"
#include "tell/tell.h"
#include "term/term.h"
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
set_loaded(Oid table, bool had_terms)
{
	LeDatabase *database = le_registry_lock_database(true);

	database->loaded_table = table;
	database->had_terms = had_terms;
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
 *
 * The session is not terminated meanwhile: the server would tell its client
 * while the table is locked, and wait if it does not read.
 */
static void
load_leases(Relation table)
{
	Oid			oid = RelationGetRelid(table);
	int64		mark;
	bool		had_terms = le_sequence_read(LE_TOKENS, &mark) > 0;
	int			running;

	HOLD_INTERRUPTS();			/* an error ends that */
	le_registry_forget_databases();
	end_dropped_leases(oid);
	le_lease_load(table);

	/* no error between these: the next load would end the leases that run */
	running = le_registry_start_loaded(oid);
	set_loaded(oid, had_terms);
	if (running > 0)
		le_log("%d leases still running in database \"%s\"",
			   running, get_database_name(MyDatabaseId));
	RESUME_INTERRUPTS();
}

/*
 * Read the table unless another session has.  If that fails, unlock it before
 * the client is told: no election has a leader before it was read.
 */
static void
load_once(Relation table)
{
	ResourceOwner owner = CurrentResourceOwner;

	if (is_loaded(RelationGetRelid(table)))
		return;
	PG_TRY();
	{
		load_leases(table);
	}
	PG_CATCH();
	{
		LWLockReleaseAll();
		le_registry_uncharge();
		CurrentResourceOwner = owner;
		UnlockRelation(table, ShareUpdateExclusiveLock);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * Check whether the registry has the database's leases, so that
 * le_leases_ready(false) reads no table
 */
bool
le_leases_are_loaded(void)
{
	Oid			oid = le_lease_table();

	if (likely(oid == ready_table) || RecoveryInProgress())
		return true;
	if (!is_loaded(oid))
		return false;
	ready_table = oid;
	return true;
}

/*
 * Ensure that the registry has the database's leases, and return the OID of
 * the table that has them
 *
 * A table that this transaction has created has no leases and may be rolled
 * back, in which case the leases of the previous one come back.  So with
 * for_bid, this raises an error then.  May wait for another session that reads
 * the table.  May raise an error.
 */
Oid
le_leases_ready(bool for_bid)
{
	Oid			oid = le_lease_table();
	Relation	table;

	if (likely(oid == ready_table) || RecoveryInProgress())
		return oid;

	/* the server's time as a primary counts from now: see origin.c */
	(void) le_registry_primary_since();

	/* no session can have loaded a table that is not committed */
	if (is_loaded(oid))
		return ready_table = oid;

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
		return oid;
	}
	load_once(table);
	table_close(table, ShareUpdateExclusiveLock);
	return ready_table = oid;
}

static const LeLeaseOrder look = {.action = LE_LEASE_LOOK};
static const LeLeaseOrder renew = {.action = LE_LEASE_RENEW};

/*
 * Take the lease, and return its token
 *
 * This subtransaction must just have acquired the election's lock.  On an
 * error, the abort of the transaction undoes everything.
 *
 * The extension may have been replaced while this session waited for the
 * token.  A lease that is inserted into a table which is not loaded would be
 * loaded beside the one that begins here.
 */
int64
le_take_lease(const LeBid *bid, const LeIdentity *identity)
{
	le_lease_lock_table();
	return le_grant_lease(bid, identity, le_leases_ready(true));
}

/*
 * Raise an error unless the user may use the token of a term of the given role
 */
void
le_require_role(const LeElection *election, Oid user, Oid role)
{
	if (!has_privs_of_role(user, role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for the token of election %s, which belongs to another role",
						le_label(election))));
}

/*
 * Return the lease that this transaction has taken, or NULL if there is none.
 * Raises an error if the current user lacks the privileges of its role.
 */
static LeGrant *
find_own_grant(const LeElection *election, int64 token)
{
	LeGrant    *grant = le_xact_has_items() ? le_find_grant(election) : NULL;

	if (grant != NULL && grant->token == token)
		le_require_role(election, GetUserId(), grant->role);
	return grant;
}

/*
 * Apply an action to the lease, and return whether it runs.  Raises an error
 * if the current user lacks the privileges of its role.
 *
 * *old_ttl_us is set to the previous ttl.
 */
static bool
act_on_lease(const LeElection *election, int64 token, const LeLeaseOrder *order,
			 int64 *old_ttl_us)
{
	Oid			table;
	Oid			role;
	LeLeaseAnswer answer;

	do
	{
		role = GetUserId();
		table = le_leases_ready(false);
		answer = le_registry_act_on_lease(election, token, table, order, &role, old_ttl_us);
	} while (answer == LE_LEASE_NOT_RUNNING && !le_is_lease_table(table));

	if (answer == LE_LEASE_OF_ANOTHER_ROLE)
	{
		le_require_role(election, GetUserId(), role);
		answer = le_registry_act_on_lease(election, token, table, order, &role, old_ttl_us);
	}
	return answer == LE_LEASE_DONE;
}

/*
 * Check whether the election is led by the lease with the given token
 */
bool
le_check_own_lease(const LeElection *election, int64 token)
{
	LeGrant    *grant = find_own_grant(election, token);
	int64		ttl_us;

	if (grant != NULL)
		return grant->token == token;
	return act_on_lease(election, token, &look, &ttl_us);
}

/*
 * Give a running lease another ttl.  Return false if it has expired by now.
 *
 * The ttl in the table is never shorter than the one in the registry, so that
 * a client that was promised the longer one has it after a restart, too.
 */
static bool
change_ttl(const LeElection *election, int64 token, int64 ttl_us)
{
	const LeLeaseOrder set_ttl = {.action = LE_LEASE_SET_TTL,.ttl_us = ttl_us};
	int64		old_ttl_us;
	bool		changed;

	le_require_ttl(election, ttl_us);
	(void) le_acquire_guard(election, ShareUpdateExclusiveLock, false);
	changed = act_on_lease(election, token, &look, &old_ttl_us);
	if (changed && ttl_us > old_ttl_us)
		le_make_durable(le_lease_overwrite_ttl(election, token, ttl_us));
	changed = changed &&
		act_on_lease(election, token, &set_ttl, &old_ttl_us);
	if (changed && ttl_us < old_ttl_us)
		le_make_durable(le_lease_overwrite_ttl(election, token, ttl_us));
	le_release_guard(election, ShareUpdateExclusiveLock);
	le_wake_many(&election->key);
	return changed;
}

/*
 * Renew the lease with the given token.  Return false if it does not run.
 *
 * A ttl of 0 leaves the lease's ttl as it is.  A different ttl is recorded in
 * the table before it takes effect.  May raise an error.  With a different
 * ttl, may wait for other changes of the same term, and for synchronous
 * standbys.
 */
bool
le_lease_renew(const LeElection *election, int64 token, int64 ttl_us)
{
	LeGrant    *grant = find_own_grant(election, token);
	int64		old_ttl_us;

	/* a worker lacks the setting of the longest ttl */
	PreventCommandIfParallelMode("a renewal");
	if (grant != NULL)
	{
		if (grant->token != token)
			return false;
		if (ttl_us != 0 && ttl_us != grant->entry->expiry.lasts_us)
		{
			/* no other session uses the lease before it begins */
			le_require_ttl(election, ttl_us);
			(void) le_lease_overwrite_ttl(election, token, ttl_us);
			grant->entry->expiry.lasts_us = ttl_us;
		}
		return true;
	}

	if (!act_on_lease(election, token, &renew, &old_ttl_us))
		return false;
	return ttl_us == 0 || ttl_us == old_ttl_us ||
		change_ttl(election, token, ttl_us);
}

/*
 * End the lease with the given token, as the order says, and record that in
 * the table.  Return false if it does not run.
 *
 * Takes effect at once, however the transaction ends.  The caller must hold
 * the guard lock, which keeps a successor from being elected before that is
 * recorded.  *written is set to up to where the WAL must be made durable
 * before the end is reported; a successor does so itself.
 */
bool
le_lease_write_end(const LeElection *election, int64 token, const LeLeaseOrder *order,
				   XLogRecPtr *written)
{
	int64		ttl_us;

	Assert(le_has_guard(election));
	le_lease_lock_table();
	if (!act_on_lease(election, token, order, &ttl_us))
		return false;
	*written = le_lease_overwrite_ttl(election, token, 0);
	le_registry_set_voided(&election->key, token, *written);

	/* now, as the caller may fail before it releases the guard lock */
	le_wake_many(&election->key);
	return true;
}

/*
 * If the election's lease has expired and that is not recorded yet, record and
 * report it.  Return false if a lease runs.
 */
bool
le_close_lease(const LeElection *election)
{
	LeTerm		term;
	bool		expired;

	if (!le_registry_read(&election->key, &term) || term.scope != LE_SCOPE_LEASE ||
		!le_deadline_is_time(term.deadline))
		return true;
	if (!le_registry_close_lease(&election->key, term.token, &expired))
		return false;
	if (expired)
		le_report_end(&term, LE_END_EXPIRED);
	return true;
}

/*
 * Resign from the lease with the given token.  Return false if it does not
 * run.
 */
bool
le_lease_resign(const LeElection *election, int64 token)
{
	static const LeLeaseOrder end = {.action = LE_LEASE_END};
	LeGrant    *grant = find_own_grant(election, token);
	LeTerm		term;
	int64		ttl_us;
	XLogRecPtr	written;
	bool		ended;

	if (grant != NULL)
	{
		if (grant->token != token)
			return false;
		(void) le_lease_overwrite_ttl(election, token, 0);
		le_give_up_grant(grant);
		return true;
	}

	if (!act_on_lease(election, token, &look, &ttl_us))
		return false;
	(void) le_acquire_guard(election, ShareUpdateExclusiveLock, false);
	ended = le_lease_write_end(election, token, &end, &written);
	if (ended)
	{
		le_make_durable(written);
		if (le_registry_read(&election->key, &term) && term.token == token)
			le_report_end(&term, LE_END_RESIGNED);
	}
	le_release_guard(election, ShareUpdateExclusiveLock);
	if (ended)
		le_wake_many(&election->key);
	return ended;
}

/*
 * Sleep until the election's lease has ended, or until the given time.  May
 * return earlier: see le_sleep.
 *
 * The caller must hold the election's lock, as the first candidate in line.
 * So the lease stays recorded.
 */
void
le_lease_wait(const LeElection *election, uint64 until)
{
	LeElectionEntry *entry = le_registry_find_lease(&election->key);
	uint64		deadline;

	Assert(le_has_lock(&election->key));
	if (entry == NULL)
		return;
	ConditionVariablePrepareToSleep(&entry->changed);
	deadline = Min(pg_atomic_read_u64(&entry->expiry.deadline), until);
	if (deadline > le_monotonic_us())
		le_sleep(&entry->changed, deadline, LE_SLEEP_LEASE);
	ConditionVariableCancelSleep();
}

/*
 * Check whether the lease with the given token runs, whichever role took it.
 * *role, unless NULL, is set to that role.
 */
bool
le_lease_runs_for_any(const LeElection *election, int64 token, Oid *role)
{
	LeGrant    *grant = le_find_grant(election);
	Oid			taken_by = InvalidOid;
	int64		ttl_us;
	bool		running;

	if (grant != NULL)
	{
		taken_by = grant->role;
		running = grant->token == token;
	}
	else
	{
		running = le_registry_act_on_lease(election, token, le_leases_ready(false), &look,
										   &taken_by, &ttl_us) != LE_LEASE_NOT_RUNNING;
	}
	if (role != NULL)
		*role = taken_by;
	return running;
}
