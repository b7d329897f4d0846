/*-------------------------------------------------------------------------
 *
 * campaign.c
 *	  The one algorithm of being elected, and of resigning.
 *
 * A candidate takes the election's lock, in the lock manager's own queue, where
 * it is first come, first served, seen by the deadlock detector and subject to
 * lock_timeout and cancels.  Whoever has the lock, and whose client is still
 * there, is elected: term.c gives it a token and writes the term down.
 *
 * Order of locks: the election's lock, then the lock on the tokens' sequence,
 * then the registry's LWLocks.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "leader_election.h"

/* does the registry show this session as a candidate? */
static bool standing = false;

/*
 * Throw if nobody may bid here
 */
static void
require_primary(void)
{
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot elect a leader during recovery"),
				 errhint("Connect to the primary server.")));
	PreventCommandIfParallelMode("a bid for leadership");
}

/*
 * Throw if this session leads as many elections as it may
 */
static void
require_room(void)
{
	if (!le_leads_fewer_than(le_max_terms_per_session))
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many elections led by this session"),
				 errdetail_plural("A session may lead at most %d election at a time.",
								  "A session may lead at most %d elections at a time.",
								  le_max_terms_per_session,
								  le_max_terms_per_session),
				 errhint("Resign from some, or ask an administrator to raise \"%s\".",
						 "leader_election.max_terms_per_session")));
}

/*
 * Show this session as a candidate
 */
static void
stand(const LeElection *election, const LeIdentity *identity)
{
	LeCandidate candidate = {0};

	candidate.pid = MyProcPid;
	candidate.role = GetSessionUserId();
	candidate.election = election->key;
	candidate.identity = *identity;
	strcpy(candidate.name, election->name);

	standing = true;
	le_registry_add_candidate(&candidate);
}

static void
remove_candidate(void *argument pg_attribute_unused())
{
	le_registry_remove_candidate(MyProcPid);
}

/*
 * Show this session as a candidate no more; also called when a wait fails
 *
 * Does not throw.
 */
void
le_withdraw(void)
{
	if (!standing)
		return;
	standing = false;
	le_catching(remove_candidate, NULL);
}

/*
 * Wait for the election's lock
 *
 * A lock_timeout may strike just after the lock was granted: then it must be heard
 * before anything is made of the lock.
 */
static void
acquire_waiting(const LeElection *election)
{
	(void) le_acquire_for_xact(election, false);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Wait for the election's lock, for wait_ms at most; false if that was too short
 *
 * The server's own lock timeout does the work, in a subtransaction from which we
 * can come back.  A lock_timeout of the user's that is due earlier is an error,
 * as it always is.
 */
static bool
acquire_within(const LeElection *election, int64 wait_ms)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	int			lock_timeout = LockTimeout;
	bool		ours = lock_timeout == 0 || wait_ms < lock_timeout;
	volatile bool acquired = true;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);

	PG_TRY();
	{
		if (ours)
			LockTimeout = (int) wait_ms;
		acquire_waiting(election);
		LockTimeout = lock_timeout;

		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		LockTimeout = lock_timeout;
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;

		if (!ours || error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
			ReThrowError(error);
		FreeErrorData(error);
		acquired = false;
	}
	PG_END_TRY();

	return acquired;
}

/*
 * Take the election's lock for the current subtransaction, or give up
 */
static bool
acquire(const LeElection *election, int64 wait_ms, const LeIdentity *identity)
{
	LeTerm		term;
	bool		acquired = true;

	if (le_acquire_for_xact(election, true))
		return true;

	/* somebody else leads, or stands before us */
	le_registry_remember_key(election);
	if (le_registry_read(&election->key, &term))
		le_refuse_collision(election, term.name);
	if (wait_ms == LE_WAIT_NOT)
		return false;

	stand(election, identity);
	if (wait_ms == LE_WAIT_FOREVER)
		acquire_waiting(election);
	else
		acquired = acquire_within(election, wait_ms);
	le_withdraw();

	/* who died while waiting is never elected */
	if (acquired)
		le_require_client();
	return acquired;
}

/*
 * Make this session the leader of the election, in the scope asked for
 *
 * True if it leads when this returns; asking again while it leads is true, and
 * the term stays the same.  False if somebody else still leads after wait_ms.
 * May wait for the lock, throw, and end the session of a client that has gone.
 */
bool
le_elect(const LeElection *election, LeScope scope, int64 wait_ms,
		 const text *given_identity)
{
	LeHeldTerm *held;
	LeIdentity	identity;

	require_primary();
	le_register_callbacks();

	held = le_held_term(election);
	if (held != NULL)
	{
		if (scope == LE_SCOPE_SESSION)
			le_hold_for_session(held);
		else
			le_hold_for_transaction(held);
		return true;
	}

	require_room();
	if (election->key.lock_class == LE_CLASS_BARE_KEY)
		le_registry_bound_keys();
	le_identity_fill(&identity, given_identity);
	if (!acquire(election, wait_ms, &identity))
		return false;

	le_begin_term(election, scope, &identity);
	return true;
}

/*
 * Tell who tried to resign why that did nothing
 */
static void
warn_not_leader(const LeElection *election)
{
	const char *label = le_election_label(&election->key, election->name);
	LeTerm		term;
	int			pid = 0;
	bool		locked = le_find_holder(election, &pid);
	bool		leads = locked && le_registry_read(&election->key, &term) &&
		term.pid == pid;

	if (leads)
		le_refuse_collision(election, term.name);

	if (leads && pid == MyProcPid)
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("leadership of election %s is bound to this transaction", label),
				 errdetail("It ends with the transaction.")));
	else if (!locked)
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("this session does not lead election %s", label),
				 errdetail("Nobody leads it.")));
	else if (pid == 0)
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("this session does not lead election %s", label),
				 errdetail("A prepared transaction holds its lock.")));
	else if (pid == MyProcPid)
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("this session does not lead election %s", label),
				 errdetail("It holds the key by a plain advisory lock.")));
	else
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("this session does not lead election %s", label),
				 leads ?
				 errdetail("\"%s\" leads it, in the session with process ID %d.",
						   le_identity_shown(&term.identity, term.role), pid) :
				 errdetail("The session with process ID %d holds its lock.", pid),
				 errhint("Session scope belongs to the connection that took it, and a connection pool hands out another one. To lead through a pool, use a lease.")));
}

/*
 * End this session's session-scoped leadership of the election
 *
 * False, with a warning, if it has none.  At once, and for good: a rollback does
 * not bring it back.
 */
bool
le_resign_term(const LeElection *election)
{
	LeHeldTerm *held = le_held_term(election);

	if (held == NULL || !held->session_hold)
	{
		warn_not_leader(election);
		return false;
	}
	le_let_go_for_session(held);
	return true;
}
