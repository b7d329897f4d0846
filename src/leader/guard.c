/*-------------------------------------------------------------------------
 *
 * leader/guard.c
 *	  Guarded transactions: what they write is written inside a term.
 *
 * A guarded transaction holds the election's guard lock, shared, to its end.  Whoever
 * begins a new term passes through that lock: he takes it exclusively, when he has
 * the election's lock and nothing of an earlier term is on record that could still
 * be taken for a running one, and before the new term is on record (succession.c).
 * So for a transaction that has got the guard lock and then found its term running,
 * no new term begins before it has ended.  Where he had passed before it got the lock,
 * it finds the term over.  (A lease that has run out is over, marked as such or not:
 * only who has read the clock in time can still renew it, and then it is no way clear.)
 *
 * None of this looks at a snapshot: it holds at every isolation level.
 *
 * A term may end while transactions are guarded by it.  Before they commit or are
 * prepared, they look once more, and fail if so.  Should it end just after that, then
 * the lock keeps the next one waiting until they are through.  A prepared transaction
 * keeps its locks, even over a restart.
 *
 * Where nobody has been guarded since the server started, there is no lock to pass: the
 * registry has a mark that is set before the lock is taken, and looked at when nothing is
 * left on record.  So either the one sees the mark, or the other finds his term over.
 *
 * The list has one guard for each election and token, that of the outermost
 * subtransaction which has it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/inval.h"
#include "utils/memutils.h"

#include "announce/announce.h"
#include "lease/lease.h"
#include "leader/leader.h"

/* What the transaction is guarded by */
typedef struct LeGuard
{
	LeXactItem	item;			/* of the subtransaction that holds the lock */
	LeElection	election;
	int64		token;
} LeGuard;

/* in TopTransactionContext */
static LeXactTable guards;

/*
 * Return the guard of the transaction by that term, or, with a token of 0, by any of
 * the election; NULL: none
 */
static LeGuard *
find_guard(const LeElection *election, int64 token)
{
	LeXactItem *item = NULL;

	while ((item = le_xact_table_next(&guards, &election->key, item)) != NULL)
	{
		LeGuard    *guard = (LeGuard *) item;

		if (token == 0 || guard->token == token)
			return guard;
	}
	return NULL;
}

/*
 * Return the token of the term of that election by which the transaction is guarded
 * already; 0: none
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
 * Does the term with that token run, in whatever session and scope?
 *
 * *role is set to whose it is; invalid if this session's.
 */
static bool
term_runs(const LeElection *election, int64 token, Oid *role)
{
	LeHeldTerm *held = le_held_term(election);
	LeTerm		term;

	*role = InvalidOid;
	if (held != NULL)
		return held->token == token;
	if (!le_extension_exists())
		return false;
	if (le_lease_is_running(election, token, role))
		return true;

	/* another session's: the lock manager is the truth */
	if (!le_registry_read(&election->key, &term) || term.token != token ||
		term.scope == LE_SCOPE_LEASE || strcmp(term.name, election->name) != 0 ||
		term.silent)
		return false;
	*role = term.role;
	return le_holds_lock(election, term.pid);
}

/*
 * Return the user who writes, or asks for a guard
 *
 * The server runs the cascades of a foreign key as the owner of the table.  To a trigger
 * there, it is the user of the session who writes, by SET ROLE if need be: the owner has
 * not asked for it, nor has the owner of a function that has caused the cascade, as far as
 * can be seen there.
 */
static Oid
writing_user(bool in_trigger)
{
	return in_trigger && InNoForceRLSOperation() ? GetOuterUserId() : GetUserId();
}

/*
 * Does the term with that token run?  Raises an error if the user may not use it
 *
 * The user is looked at each time, as it may be another one than the user for whom the
 * transaction has been guarded: after SET ROLE, within and after a function that runs with
 * its owner's rights, in a cascade, and in triggers that are deferred to the commit.  A
 * term of this session's own is the session's, whatever the user.
 */
static bool
may_use_term(const LeElection *election, int64 token, bool in_trigger)
{
	Oid			role;

	if (!term_runs(election, token, &role))
		return false;
	if (OidIsValid(role))
		le_require_role(election, writing_user(in_trigger), role);
	return true;
}

/*
 * Let no new term of the election begin before this transaction has ended, and see
 * to it that it commits only if the one with that token still runs; false if that
 * does not run now
 *
 * May wait for one who is just about to begin a new term, and throw.
 */
bool
le_guard_transaction(const LeElection *election, int64 token, bool in_trigger)
{
	LeRecord	record;
	LeGuard    *guard;

	le_require_primary();
	PreventCommandIfParallelMode("a guard");
	le_leases_ready(false);
	le_require_own_key(election);
	if (find_guard(election, token) != NULL)
		return token != 0 && may_use_term(election, token, in_trigger);

	/* nobody is to be denied because of a token that does not lead */
	(void) le_registry_read_record(&election->key, &record);
	if (!le_record_is_led(&record, token, le_monotonic_us()))
		return false;

	guard = MemoryContextAlloc(TopTransactionContext, sizeof(LeGuard));
	guard->election = *election;
	guard->token = token;
	le_registry_mark_guarded();

	/* who is denied because of it is to hear of its end, however that comes */
	le_track_lock(election, token);
	(void) le_acquire_guard(election, RowShareLock, false);

	/* the extension may have been replaced, too */
	AcceptInvalidationMessages();
	if (!may_use_term(election, token, in_trigger))
	{
		le_release_guard(election, RowShareLock);
		le_wake_followers(&election->key);
		pfree(guard);
		return false;
	}
	le_xact_table_add(&guards, &guard->item, &election->key);
	return true;
}

/*
 * Throw if a term by which the transaction is guarded is over
 *
 * To be called before a commit, and before the transaction is prepared.
 */
void
le_guards_before_commit(void)
{
	dlist_iter	iter;
	Oid			role;

	if (guards.count == 0)
		return;
	AcceptInvalidationMessages();
	dlist_foreach(iter, &guards.items)
	{
		LeGuard    *guard = (LeGuard *) dlist_container(LeXactItem, node, iter.cur);

		if (!term_runs(&guard->election, guard->token, &role))
			ereport(ERROR,
					(errcode(ERRCODE_LE_NOT_LEADER),
					 errmsg("token " INT64_FORMAT " does not lead election %s any more",
							guard->token,
							le_election_label(&guard->election.key,
											  guard->election.name)),
					 errdetail("The transaction is guarded by it.")));
	}
}

static void
forget_guard(LeXactItem *item)
{
	le_xact_table_remove(&guards, item);
	pfree((LeGuard *) item);
}

/*
 * Forget the guards of a transaction that is over, or was prepared.  Does not throw
 */
void
le_guards_at_xact_end(void)
{
	le_xact_list_each(&guards.items, forget_guard);
}

/*
 * Pass a subtransaction's guards on to its parent
 */
void
le_guards_at_subxact_commit(SubTransactionId mine, SubTransactionId parent)
{
	le_xact_list_commit(&guards.items, mine, parent);
}

/*
 * Forget a subtransaction's guards: the server releases its locks.  Does not throw
 */
void
le_guards_at_subxact_abort(SubTransactionId mine)
{
	le_xact_list_abort(&guards.items, mine, forget_guard);
}
