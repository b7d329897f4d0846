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
 * Order of locks: the election's lock, then its guard lock (see
 * election_lock.c), then what lease_table.c needs, then the registry's
 * LWLocks.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/acl.h"

#include "announce/announce.h"
#include "term/term.h"
#include "lease/lease.h"

static const LeLeaseOrder look = {.action = LE_LEASE_LOOK};
static const LeLeaseOrder renew = {.action = LE_LEASE_RENEW};

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
	LeGrant    *grant = le_find_grant(election);

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
		le_leases_ready(false);
		table = le_lease_table();
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
	le_wake_followers(&election->key);
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
	le_wake_followers(&election->key);
	return true;
}

/*
 * Report that a lease was ended for the given reason.  Return false if it is
 * no longer recorded.
 *
 * In that case, a successor announces its end.
 */
bool
le_lease_report_end(const LeElectionKey *key, int64 token, LeEndReason reason)
{
	LeTerm		term;

	if (!le_registry_read(key, &term) || term.token != token)
		return false;
	le_report_end(&term, reason);
	return true;
}

/*
 * End the lease likewise, durably, and report that
 */
bool
le_lease_end(const LeElection *election, int64 token, const LeLeaseOrder *order)
{
	XLogRecPtr	written;

	if (!le_lease_write_end(election, token, order, &written))
		return false;
	le_make_durable(written);
	(void) le_lease_report_end(&election->key, token,
							   order->action == LE_LEASE_END ? LE_END_RESIGNED : LE_END_DEPOSED);
	return true;
}

/*
 * Resign from the lease with the given token, in favor of the given process,
 * if any.  Return false if the lease does not run.
 */
bool
le_lease_resign(const LeElection *election, int64 token, int successor)
{
	const LeLeaseOrder end = {.action = LE_LEASE_END,.successor = successor};
	LeGrant    *grant = find_own_grant(election, token);
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

	if (!act_on_lease(election, token, &look, &ttl_us))
		return false;
	(void) le_acquire_guard(election, ShareUpdateExclusiveLock, false);
	ended = le_lease_end(election, token, &end);
	le_release_guard(election, ShareUpdateExclusiveLock);
	if (ended)
		le_wake_followers(&election->key);
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
		le_leases_ready(false);
		running = le_registry_act_on_lease(election, token, le_lease_table(), &look, &taken_by,
										   &ttl_us) != LE_LEASE_NOT_RUNNING;
	}
	if (role != NULL)
		*role = taken_by;
	return running;
}
