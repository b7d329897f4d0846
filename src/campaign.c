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
 * Take the election's lock for the current subtransaction
 *
 * The lock belongs to the subtransaction itself, not to the portal that runs the
 * statement, so that it can be released, and ends, with the subtransaction.  On
 * error, the server's own abort sets the resource owner anew.
 */
bool
le_acquire_for_xact(const LeElection *election, bool dont_wait)
{
	ResourceOwner portal = CurrentResourceOwner;
	LockAcquireResult result;

	CurrentResourceOwner = CurTransactionResourceOwner;
	result = LockAcquire(&election->tag, ExclusiveLock, false, dont_wait);
	CurrentResourceOwner = portal;

	return result != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Release the lock that le_acquire_for_xact took in this subtransaction
 */
void
le_release_for_xact(const LeElection *election)
{
	ResourceOwner portal = CurrentResourceOwner;

	CurrentResourceOwner = CurTransactionResourceOwner;
	(void) LockRelease(&election->tag, ExclusiveLock, false);
	CurrentResourceOwner = portal;
}

/*
 * Throw if the election shares its key with the one of that name
 */
void
le_refuse_collision(const LeElection *election, const char *name)
{
	if (strcmp(election->name, name) == 0)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_LE_KEY_COLLISION),
			 errmsg("election %s has the same key as election %s",
					le_election_label(&election->key, election->name),
					le_election_label(&election->key, name)),
			 errdetail("Both names have the key " INT64_FORMAT ".",
					   election->key.key),
			 errhint("Rename one of the two elections.")));
}

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

/*
 * Show this session as a candidate no more; also called when a wait fails
 */
void
le_withdraw(void)
{
	if (!standing)
		return;
	standing = false;
	le_registry_remove_candidate(MyProcPid);
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
		(void) le_acquire_for_xact(election, false);
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
	bool		acquired;

	if (le_acquire_for_xact(election, true))
		return true;

	/* somebody else leads, or stands before us */
	le_registry_remember_key(election);
	if (le_registry_read(&election->key, &term))
		le_refuse_collision(election, term.name);
	if (wait_ms == LE_WAIT_NOT)
		return false;

	stand(election, identity);
	if (wait_ms == LE_WAIT_FOR_EVER)
		acquired = le_acquire_for_xact(election, false);
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
 * Find a holder of the election's lock; false if there is none
 *
 * A prepared transaction holds it with the process ID 0.
 */
static bool
find_holder(const LeElection *election, int *pid)
{
	LockData   *locks = GetLockStatusData();

	for (int i = 0; i < locks->nelements; i++)
	{
		LockInstanceData *lock = &locks->locks[i];

		if (lock->holdMask != 0 &&
			memcmp(&lock->locktag, &election->tag, sizeof(LOCKTAG)) == 0)
		{
			*pid = lock->pid;
			return true;
		}
	}
	return false;
}

/*
 * Tell who tried to resign why that did nothing
 */
static void
warn_not_leader(const LeElection *election)
{
	int			pid = 0;
	bool		locked = find_holder(election, &pid);
	LeTerm		term;
	bool		on_record = le_registry_read(&election->key, &term) &&
		locked && term.pid == pid;

	if (on_record)
		le_refuse_collision(election, term.name);

	ereport(WARNING,
			(errcode(ERRCODE_WARNING),
			 on_record && pid == MyProcPid ?
			 errmsg("leadership of election %s is bound to this transaction",
					le_election_label(&election->key, election->name)) :
			 errmsg("this session does not lead election %s",
					le_election_label(&election->key, election->name)),
			 !locked ? errdetail("Nobody leads it.") :
			 pid == 0 ? errdetail("A prepared transaction holds its lock.") :
			 pid == MyProcPid && on_record ?
			 errdetail("It ends with the transaction.") :
			 pid == MyProcPid ?
			 errdetail("It holds the key by a plain advisory lock.") :
			 on_record ?
			 errdetail("\"%s\" leads it, in the session with process ID %d.",
					   le_identity_shown(&term.identity, term.role), pid) :
			 errdetail("The session with process ID %d holds its lock.", pid),
			 locked && pid != 0 && pid != MyProcPid ?
			 errhint("Session scope belongs to the connection that took it, and a connection pool hands out another one. To lead through a pool, use a lease.") : 0));
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

	if (held == NULL || !le_held_for_session(held))
	{
		warn_not_leader(election);
		return false;
	}
	le_let_go_for_session(held);
	return true;
}
