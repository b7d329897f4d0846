/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  Leases: terms that are bound to no session, but run for a ttl from the last
 *	  renewal.
 *
 * A lease runs as long as the registry has it with a deadline in the future.  It
 * begins at the commit of the transaction that took it, which holds the election's
 * lock until then; while it runs, nobody needs to hold that lock, and whoever gets
 * it finds the lease on record and is not elected.
 *
 * Renewals are in the registry only.  That a lease was taken, for which ttl, and
 * that it is over, is written down in the table le_leases as well: before a client is
 * told of it, and before anybody else is elected.
 * So after a restart, the table tells which leases may still have a holder who
 * believes in them: each of these runs for its full ttl from when the table is first
 * looked at.  For each lease that has ended, the table is told before anybody else
 * is elected: so none comes back to life beside a successor with a greater token.
 *
 * The table is read into the registry once after each start of the server, under a
 * lock on the table that conflicts with itself, before this database's leases are
 * first asked for or any bid is made; loaded_table says so.  The entries bear
 * the table's OID: DROP EXTENSION ends the leases that were in it.
 *
 * A lease that ran out in this database may have made room for elections of another one: then
 * the registry has no entry of it, and its row may not be void durably (see registry.c).  Before
 * the next bid, the table is read again, under the same lock.  A committed row that is not void
 * durably and is missing in the registry is one of those, as every lease that is being taken or
 * runs is there.  It is put on record as over, not as running, so the next candidate makes it
 * void as it would any other.  That may happen while others hold election locks: only an
 * election without a term gets one, and a candidate that finds no term on record asks once
 * more whether there was an eviction (le_read_record).
 *
 * Order of locks: the election's lock, then its guard lock (see election_lock.c),
 * then what lease_table.c needs, then the registry's LWLocks.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xlog.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"

#include "leader_election.h"

static const LeLeaseOrder look = {.action = LE_LEASE_LOOK};
static const LeLeaseOrder renew = {.action = LE_LEASE_RENEW};

/* this backend knows that the leases of this table are in the registry */
static Oid	ready_table = InvalidOid;

/* and that none was missing when so many marks of evictions had been made */
static uint64 ready_evictions = 0;

/*
 * Is this the table that leases are written down in?
 *
 * If it seems not to be, we may just not have heard yet that the extension was
 * replaced.
 */
bool
le_is_lease_table(Oid table)
{
	if (likely(table == le_lease_table()))
		return true;
	AcceptInvalidationMessages();
	return table == le_lease_table();
}

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
 * Leave word that the table has been read; marks from after that was begun stay
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
 * Read the table for the first time since the server started, or the extension was created
 */
static void
load_leases(Relation table)
{
	Oid			oid = RelationGetRelid(table);
	uint64		reload = le_registry_reloads(true);
	int			running;

	le_registry_forget_dropped();
	le_end_dropped_leases(oid);
	le_lease_load(table, false);
	running = le_registry_start_loaded(oid);
	set_loaded(oid, reload);
	if (running > 0)
		ereport(LOG_SERVER_ONLY,
				(errmsg_internal("leader_election: %d leases run on in database \"%s\"",
								 running, get_database_name(MyDatabaseId)),
				 errhidestmt(true), errhidecontext(true)));
}

/*
 * Put those leases on record, as over, that were evicted
 */
static void
reload_leases(Relation table)
{
	uint64		reload = le_registry_reloads(true);

	le_lease_load(table, true);
	set_loaded(RelationGetRelid(table), reload);
}

/*
 * See to it that the registry has the database's leases; for_bid, also those that were
 * over and have been evicted
 *
 * A table that this transaction has created has none, and may go with it, and the
 * leases of the one before may come back: then there is no bid.  May wait for another
 * session that reads the table, and throw.
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

	/* from now on we count: see origin.c */
	(void) le_registry_primary_since();

	/* nobody can have loaded a table that is not committed */
	evictions = for_bid ? le_registry_lease_evictions() : ready_evictions;
	if (is_loaded(oid) && !(for_bid && has_evictions()))
	{
		ready_table = oid;
		ready_evictions = evictions;
		return;
	}

	/* if the extension has just been replaced, look for its new table */
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
 * Copy what is on record of the election, for whoever has its lock and is about to lead;
 * false if there is no term, nor has one been evicted whose row may not be void durably
 *
 * May throw, and wait as le_leases_ready does.
 */
bool
le_read_record(const LeElection *election, LeTerm *term)
{
	if (le_registry_read(&election->key, term))
		return true;
	if (likely(le_registry_lease_evictions() == ready_evictions))
		return false;
	le_leases_ready(true);
	return le_registry_read(&election->key, term);
}

/*
 * Does this lease, as copied from the registry, run?
 */
bool
le_lease_runs(const LeTerm *term)
{
	return term->token != 0 && term->scope == LE_SCOPE_LEASE &&
		le_is_lease_table(term->lease_table) &&
		term->deadline > le_monotonic_us();
}

/*
 * Throw unless the user may use the token of a term of that role
 */
void
le_require_role(const LeElection *election, Oid user, Oid role)
{
	if (!has_privs_of_role(user, role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for the token of election %s, which is of another role",
						le_election_label(&election->key, election->name))));
}

/*
 * Return the lease that this transaction has taken, or NULL; throw if its role is
 * not ours
 */
static LeGrant *
find_grant(const LeElection *election, int64 token)
{
	LeGrant    *grant = le_find_grant(election);

	if (grant != NULL && grant->token == token)
		le_require_role(election, GetUserId(), grant->role);
	return grant;
}

/*
 * Do something with the lease, if it runs; throw if its role is not ours
 *
 * *old_ttl_us is set to what the ttl has been.
 */
static bool
act(const LeElection *election, int64 token, const LeLeaseOrder *order,
	int64 *old_ttl_us)
{
	Oid			table;
	Oid			role;
	LeLeaseAnswer answer;

	do
	{
		role = GetUserId();
		le_leases_ready(false);
		table = le_lease_table();
		answer = le_registry_lease(election, token, table, order, &role, old_ttl_us);
	} while (answer == LE_LEASE_NOT_RUNNING && !le_is_lease_table(table));

	if (answer == LE_LEASE_OF_ANOTHER_ROLE)
	{
		le_require_role(election, GetUserId(), role);
		answer = le_registry_lease(election, token, table, order, &role, old_ttl_us);
	}
	return answer == LE_LEASE_DONE;
}

/*
 * Is this the token of the lease by which the election is led?
 */
bool
le_lease_is_led(const LeElection *election, int64 token)
{
	LeGrant    *grant = find_grant(election, token);
	int64		ttl_us;

	if (grant != NULL)
		return grant->token == token;
	return act(election, token, &look, &ttl_us);
}

/*
 * Give a running lease another ttl; false if it has run out by now
 *
 * The ttl in the table is never shorter than the one in the registry: whoever was
 * promised the longer one has it after a restart, too.
 */
static bool
change_ttl(const LeElection *election, int64 token, int64 ttl_us)
{
	const LeLeaseOrder set_ttl = {.action = LE_LEASE_SET_TTL,.ttl_us = ttl_us};
	int64		old_ttl_us;
	bool		changed;

	le_require_ttl(election, ttl_us);
	(void) le_acquire_guard(election, ShareUpdateExclusiveLock, false);
	changed = act(election, token, &look, &old_ttl_us);
	if (changed && ttl_us > old_ttl_us)
		le_make_durable(le_lease_overwrite_ttl(election, token, ttl_us));
	changed = changed &&
		act(election, token, &set_ttl, &old_ttl_us);
	if (changed && ttl_us < old_ttl_us)
		le_make_durable(le_lease_overwrite_ttl(election, token, ttl_us));
	le_release_guard(election, ShareUpdateExclusiveLock);
	le_tell_followers(&election->key);
	return changed;
}

/*
 * Renew the lease that has this token; false if none does that still runs
 *
 * A ttl of 0 leaves the lease the one it has.  Another one than it has is written
 * down before it counts.  May throw and, with another ttl, wait for one who is doing
 * the same, and for synchronous standbys.
 */
bool
le_lease_renew(const LeElection *election, int64 token, int64 ttl_us)
{
	LeGrant    *grant = find_grant(election, token);
	int64		old_ttl_us;

	if (grant != NULL)
	{
		if (grant->token != token)
			return false;
		if (ttl_us != 0 && ttl_us != grant->entry->lease.ttl_us)
		{
			/* only this transaction makes anything of it before it begins */
			le_require_ttl(election, ttl_us);
			(void) le_lease_overwrite_ttl(election, token, ttl_us);
			grant->entry->lease.ttl_us = ttl_us;
		}
		return true;
	}

	if (!act(election, token, &renew, &old_ttl_us))
		return false;
	return ttl_us == 0 || ttl_us == old_ttl_us ||
		change_ttl(election, token, ttl_us);
}

/*
 * End the lease that has this token, as the order says, and write that down; false if none
 * does that still runs
 *
 * At once, whatever becomes of the transaction.  To be called with the guard lock, which
 * keeps a successor from being elected before the table knows.  *written is set to where the
 * WAL is to be made durable before anybody is told; a successor does so itself.
 */
bool
le_lease_write_end(const LeElection *election, int64 token, const LeLeaseOrder *order,
				   XLogRecPtr *written)
{
	int64		ttl_us;

	le_lease_lock_table();
	if (!act(election, token, order, &ttl_us))
		return false;
	*written = le_lease_overwrite_ttl(election, token, 0);
	le_registry_note_void(&election->key, token, *written);

	/* now, as the caller may fail before it releases the guard lock */
	le_tell_followers(&election->key);
	return true;
}

/*
 * Tell of a lease that was ended for that reason; false if it is off the record already
 *
 * Then a successor announces its end.
 */
bool
le_lease_tell_end(const LeElectionKey *key, int64 token, LeEndReason reason)
{
	LeNews		news;

	if (!le_registry_read_ended(key, token, &news))
		return false;
	le_log_end(&news.term, reason);
	le_announce_news(&news, LE_DUTY_OWN, false);
	return true;
}

/*
 * End the lease likewise, durably, and tell of it
 */
bool
le_lease_end(const LeElection *election, int64 token, const LeLeaseOrder *order)
{
	XLogRecPtr	written;

	if (!le_lease_write_end(election, token, order, &written))
		return false;
	le_make_durable(written);
	(void) le_lease_tell_end(&election->key, token,
							 order->action == LE_LEASE_END ? LE_END_RESIGNED : LE_END_DEPOSED);
	return true;
}

/*
 * Resign from the lease that has this token, in favour of that process, if any; false if
 * none does that still runs
 */
bool
le_lease_resign(const LeElection *election, int64 token, int successor)
{
	const LeLeaseOrder end = {.action = LE_LEASE_END,.successor = successor};
	LeGrant    *grant = find_grant(election, token);
	int64		ttl_us;
	bool		ended;

	if (grant != NULL)
	{
		if (grant->token != token)
			return false;
		(void) le_lease_overwrite_ttl(election, token, 0);
		le_give_up_grant(grant);
		return true;
	}

	if (!act(election, token, &look, &ttl_us))
		return false;
	(void) le_acquire_guard(election, ShareUpdateExclusiveLock, false);
	ended = le_lease_end(election, token, &end);
	le_release_guard(election, ShareUpdateExclusiveLock);
	if (ended)
		le_tell_followers(&election->key);
	return ended;
}

/*
 * Sleep until the election's lease is over, or that time has come; but maybe not as
 * long, see le_sleep
 *
 * To be called with the election's lock, by the first candidate in line; so the
 * lease stays on record.
 */
void
le_lease_wait(const LeElection *election, uint64 until)
{
	LeElectionEntry *entry = le_registry_find_lease(&election->key);
	uint64		deadline;

	if (entry == NULL)
		return;
	ConditionVariablePrepareToSleep(&entry->changed);
	deadline = Min(pg_atomic_read_u64(&entry->lease.deadline), until);
	if (deadline > le_monotonic_us())
		le_sleep(&entry->changed, deadline, LE_SLEEP_LEASE);
	ConditionVariableCancelSleep();
}

/*
 * Does the lease with that token run, whoever took it?  *role, unless NULL, is set to
 * who did
 */
bool
le_lease_is_running(const LeElection *election, int64 token, Oid *role)
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
		le_leases_ready(false);
		running = le_registry_lease(election, token, le_lease_table(), &look, &taken_by,
									&ttl_us) != LE_LEASE_NOT_RUNNING;
	}
	if (role != NULL)
		*role = taken_by;
	return running;
}
