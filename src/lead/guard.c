/*-------------------------------------------------------------------------
 *
 * lead/guard.c
 *	  Guarded transactions: all that they write is written within a term.
 *
 * A guarded transaction holds the election's guard lock, shared, to its end.
 * A candidate passes through that lock before its term begins: it acquires the
 * lock exclusively, after it has acquired the election's lock and no earlier
 * term is recorded that could still be taken for a running one, and before the
 * new term is recorded (succession.c).  So if a transaction has acquired the
 * guard lock and then found its term running, no new term begins before the
 * transaction has ended.  If a candidate passed the lock before that, the
 * transaction finds its term ended.
 *
 * None of this depends on a snapshot, so it holds at every isolation level.
 *
 * A term may end while transactions are guarded by it.  Before they commit or
 * are prepared, they check the term once more, and fail if it has ended.  If
 * it ends just after that check, the lock delays the next term until they have
 * ended.  A prepared transaction keeps its locks, even across a restart.
 *
 * If no transaction has been guarded since the server started, candidates skip
 * the lock.  For this, the registry has a mark, which is set before the lock
 * is acquired, and which a candidate checks when no earlier term is recorded
 * any more.  So either the candidate sees the mark, or the transaction finds
 * its term ended.
 *
 * The list has one guard for each election and token, that of the outermost
 * subtransaction which has it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/inval.h"
#include "utils/memutils.h"

#include "lock/lock.h"
#include "lease/lease.h"
#include "lead/lead.h"

/* A guard of the transaction */
typedef struct LeGuard
{
	LeXactItem	item;			/* of the subtransaction that holds the lock */
	LeElection	election;
	int64		token;
} LeGuard;

/* in TopTransactionContext */
static void drop_guard(LeXactItem *item);

static LeXactList guards = LE_XACT_LIST(guards, drop_guard);

/*
 * Return the transaction's guard by the term with the given token, or with a
 * token of 0 any guard of the election; NULL if there is none
 */
static LeGuard *
find_guard(const LeElection *election, int64 token)
{
	LeXactItem *item = NULL;

	while ((item = le_xact_list_next(&guards, &election->key, item)) != NULL)
	{
		LeGuard    *guard = (LeGuard *) item;

		if (token == 0 || guard->token == token)
			return guard;
	}
	return NULL;
}

/*
 * Return the token of the term of the election by which the transaction is
 * guarded already, or 0 if there is none
 */
int64
le_guarded_by(const LeElection *election)
{
	LeGuard    *guard = find_guard(election, 0);

	if (guard == NULL)
		return 0;
	le_refuse_collision(election, guard->election.name);
	return guard->token;
}

/*
 * Check whether the term with the given token runs, in any session and scope
 *
 * *role is set to the term's role, or InvalidOid if it is this session's term.
 */
static bool
term_runs(const LeElection *election, int64 token, Oid *role)
{
	LeHeldTerm *held = le_held_term(election);
	LeTerm		term;
	int			holder;

	*role = InvalidOid;
	if (held != NULL)
		return held->token == token;
	if (!le_extension_exists())
		return false;
	if (le_lease_runs_for_any(election, token, role))
		return true;

	/*
	 * Another session's term: the lock manager is authoritative.  The lock is
	 * looked at first, as a session that has lost the lock removes its record
	 * before it acquires the lock again.
	 */
	holder = le_probe_holder(election);
	if (holder == LE_NO_HOLDER || !le_registry_read(&election->key, &term) ||
		term.token != token || term.scope == LE_SCOPE_LEASE || term.silent ||
		strcmp(term.name, election->name) != 0)
		return false;
	*role = term.role;
	return holder == term.pid || holder == LE_IDLE_HOLDER;
}

/*
 * Return the user that writes, or that asks for a guard
 *
 * The server runs the cascades of a foreign key as the owner of the table.  In
 * a trigger there, the user of the session counts, as changed by SET ROLE.
 * The owner has not asked for the write.  Nor has, as far as this can be known
 * there, the owner of a function that has caused the cascade.
 */
static Oid
writing_user(bool in_trigger)
{
	return in_trigger && InNoForceRLSOperation() ? GetOuterUserId() : GetUserId();
}

/*
 * Return the token in the setting, for a trigger, or 0 if code of a role that
 * lacks the privileges of the writing user has set it
 */
int64
le_presented_token(void)
{
	Oid			set_by = le_session_token.set_by;

	return !OidIsValid(set_by) || has_privs_of_role(set_by, writing_user(true)) ?
		le_session_token.token : 0;
}

/*
 * Check whether the term with the given token runs.  Raises an error if the
 * user may not use it.
 *
 * The user is checked each time, as it may differ from the user for which the
 * transaction was guarded: after SET ROLE, within and after a SECURITY DEFINER
 * function, in a cascade, and in triggers that are deferred to the commit.  A
 * term of this session belongs to the session, whatever the user.
 */
bool
le_may_use_term(const LeElection *election, int64 token, bool in_trigger)
{
	Oid			role;

	if (!term_runs(election, token, &role))
		return false;
	if (OidIsValid(role))
		le_require_role(election, writing_user(in_trigger), role);
	return true;
}

/*
 * Raise an error if one more guard would take more slots of the lock table
 * than a session may
 */
static void
require_few(void)
{
	if (guards.count >= (uint32) le_max_terms_per_session)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many guards in this transaction: at most %d at a time",
						le_max_terms_per_session),
				 errhint("Use several transactions, or ask an administrator to raise \"%s\".",
						 "leader_election.max_terms_per_session")));
}

/*
 * Ensure that no new term of the election begins before this transaction has
 * ended, and that it commits only if the term with the given token still runs.
 * Return false if that term does not run now.
 *
 * May wait for a candidate that is just beginning a new term.  May raise an
 * error.
 */
bool
le_guard_transaction(const LeElection *election, int64 token, bool in_trigger)
{
	LeTerm		term;
	LeGuard    *guard;

	le_require_primary();
	PreventCommandIfParallelMode("a guard");
	(void) le_leases_ready(false);
	if (find_guard(election, token) != NULL)
		return token != 0 && le_may_use_term(election, token, in_trigger);

	/* a token that does not lead must not cause a bid to be denied */
	(void) le_registry_read(&election->key, &term);
	if (!le_term_is_led(&term, token))
	{
		le_require_own_key(election);
		return false;
	}

	/*
	 * nor must a user that may not use the token, which any role can see: the
	 * lock would be held until the client has read the error
	 */
	if (le_held_term(election) == NULL)
		le_require_role(election, writing_user(in_trigger), term.role);
	require_few();

	guard = MemoryContextAlloc(TopTransactionContext, sizeof(LeGuard));
	guard->election = *election;
	guard->token = token;
	le_registry_mark_guarded();
	(void) le_acquire_guard(election, RowShareLock, false);

	/* the extension may have been replaced, too */
	AcceptInvalidationMessages();
	if (!le_may_use_term(election, token, in_trigger))
	{
		le_release_guard(election, RowShareLock);
		le_wake_many(&election->key);
		pfree(guard);
		return false;
	}
	le_xact_list_add(&guards, &guard->item, &election->key);
	return true;
}

/*
 * Raise an error if a term by which the transaction is guarded has ended
 *
 * Called before a commit, and before the transaction is prepared.
 */
void
le_guards_before_commit(void)
{
	dlist_iter	iter;
	Oid			role;

	if (dlist_is_empty(&guards.items))
		return;
	AcceptInvalidationMessages();
	dlist_foreach(iter, &guards.items)
	{
		LeGuard    *guard = (LeGuard *) dlist_container(LeXactItem, node, iter.cur);

		if (!term_runs(&guard->election, guard->token, &role))
			le_raise_over(&guard->election, guard->token);
	}
}

static void
forget_guard(LeXactItem *item)
{
	le_xact_list_remove(&guards, item);
	pfree((LeGuard *) item);
}

/*
 * Forget a guard that is rolled back, for example because its term has ended,
 * and wake those that the guard lock keeps from beginning the next one
 */
static void
drop_guard(LeXactItem *item)
{
	LeElectionKey election = item->election;

	forget_guard(item);
	le_wake_many(&election);
}

/*
 * Forget the guards of a transaction that has ended, or was prepared.  Never
 * raises an error.
 */
void
le_guards_at_xact_end(void)
{
	le_xact_list_each(&guards, forget_guard);
}
