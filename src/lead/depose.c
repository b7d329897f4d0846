/*-------------------------------------------------------------------------
 *
 * lead/depose.c
 *	  Deposing leaders.
 *
 * A session that leads is terminated, as by pg_terminate_backend(), and a
 * lease is ended.  Then the transactions that are guarded by the term are
 * terminated, since they keep the next term from beginning.
 *
 * All of this is done while holding the election's guard lock, in the mode for
 * changes of a term (lock.c).  So no candidate can be elected
 * meanwhile, and a transaction that holds the guard lock is guarded by the
 * term that is being ended, not by the next one.  This holds even if no
 * transaction was guarded before, because the mark that one may be is set
 * first.
 *
 * Until the end of a lease is durable, no other candidate is elected.  What
 * was done stays done, however the transaction ends.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

#include "lock/lock.h"
#include "tell/tell.h"
#include "lease/lease.h"
#include "lead/lead.h"

/* How often to check whether a process has ended: at first, and later */
#define LE_LOOK_SOON_US		500
#define LE_LOOK_AGAIN_US	50000

/*
 * Check whether the term runs, or is silent and its session still holds the
 * lock
 */
static bool
leads(const LeElection *election, const LeTerm *term)
{
	if (term->scope == LE_SCOPE_LEASE)
		return le_copied_lease_runs(term);
	return le_holds_lock(election, term->pid);
}

/*
 * Copy the election's term if it leads, in this sense.  Return false if there
 * is none.
 */
static bool
read_leader(const LeElection *election, LeTerm *term)
{
	if (!le_registry_read(&election->key, term))
		return false;
	le_refuse_collision(election, term->name);
	return leads(election, term);
}

/*
 * Check whether the current user may terminate the sessions and leases of the
 * given role: by the server's own rule for processes
 */
static bool
may_terminate(Oid role)
{
	if (!OidIsValid(role) || superuser_arg(role))
		return superuser();
	return has_privs_of_role(GetUserId(), role) ||
		has_privs_of_role(GetUserId(), ROLE_PG_SIGNAL_BACKEND);
}

/*
 * Terminate the process.  Raises an error if the current user may not, and
 * warns if there is no such process.
 */
static void
terminate_process(int pid)
{
	(void) DirectFunctionCall2(pg_terminate_backend, Int32GetDatum(pid), Int64GetDatum(0));
}

static bool
is_among(int pid, const int *pids, int count)
{
	for (int i = 0; i < count; i++)
	{
		if (pids[i] == pid)
			return true;
	}
	return false;
}

/*
 * Wait until none of these processes is listed any more, or until the given
 * time, by le_monotonic_us.  Return how many are left, and leave only these in
 * the array.
 *
 * May raise an error, and ends the session if its client is gone.
 */
int
le_wait_until_gone(const LeElection *election, int *pids, int count,
				   int *(*list) (const LeElection *election, int *count), uint64 until)
{
	uint64		sleep_us = LE_LOOK_SOON_US;

	for (;;)
	{
		int			listed_count;
		int		   *listed = list(election, &listed_count);
		int			left = 0;

		for (int i = 0; i < count; i++)
		{
			if (is_among(pids[i], listed, listed_count))
				pids[left++] = pids[i];
		}
		pfree(listed);
		count = left;
		if (count == 0 || le_monotonic_us() >= until)
			return count;
		le_sleep(NULL, le_monotonic_us() + sleep_us, LE_SLEEP_DEPOSE);
		CHECK_FOR_INTERRUPTS();
		sleep_us = Min(2 * sleep_us, LE_LOOK_AGAIN_US);
	}
}

/*
 * Wait until none of these processes, which have been terminated, is listed
 * any more.  Likewise.
 *
 * The server's message for the first signal may wait for a client that does
 * not read.  Another signal ends the session without it.
 */
static void
terminate_until_gone(const LeElection *election, int *pids, int count,
					 int *(*list) (const LeElection *election, int *count))
{
	while ((count = le_wait_until_gone(election, pids, count, list,
									   le_monotonic_us() + USECS_PER_SEC)) > 0)
	{
		for (int i = 0; i < count; i++)
			terminate_process(pids[i]);
	}
}

/*
 * Check whether a prepared transaction is guarded in the election
 */
static bool
has_prepared(const LeElection *election)
{
	int			count;
	int		   *pids = le_list_guarded(election, &count);

	return is_among(0, pids, count);
}

/*
 * Warn that the caller may not terminate a process whose transaction keeps the
 * next term from beginning
 */
static void
warn_guarded(const LeElection *election, int pid)
{
	ereport(WARNING,
			(errmsg("permission denied to terminate process %d", pid),
			 errdetail("Its transaction is guarded by the previous term of election %s. The next term begins after that transaction has ended.",
					   le_label(election))));
}

/*
 * Warn that prepared transactions keep the next term from beginning
 */
static void
warn_prepared(const LeElection *election)
{
	ereport(WARNING,
			(errmsg("a prepared transaction is still guarded by the previous term of election %s",
					le_label(election)),
			 errdetail("The next term begins after that transaction has ended."),
			 errhint("End it by COMMIT PREPARED or ROLLBACK PREPARED. \"%s\" lists prepared transactions.",
					 "pg_prepared_xacts")));
}

/*
 * Terminate the sessions whose transactions are guarded, and wait until these
 * have ended
 *
 * Sessions that the user may not terminate, and prepared transactions, are
 * left alone, with a warning.
 */
static void
terminate_guarded(const LeElection *election)
{
	int			listed_count;
	int			count = 0;
	int		   *pids;

	if (!le_guard_is_contended(election))
		return;
	pids = le_list_guarded(election, &listed_count);
	if (is_among(0, pids, listed_count))
		warn_prepared(election);
	for (int i = 0; i < listed_count; i++)
	{
		PGPROC	   *process = BackendPidGetProc(pids[i]);

		if (process == NULL || pids[i] == MyProcPid)
			continue;
		if (!may_terminate(process->roleId))
			warn_guarded(election, pids[i]);
		else
		{
			terminate_process(pids[i]);
			pids[count++] = pids[i];
		}
	}
	terminate_until_gone(election, pids, count, le_list_guarded);
}

/*
 * End a lease.  Return false if it has ended already.
 *
 * *written is set to up to where the WAL must be made durable.
 */
static bool
end_lease(const LeElection *election, const LeTerm *term, XLogRecPtr *written)
{
	const LeLeaseOrder depose = {.action = LE_LEASE_DEPOSE};

	if (!le_lease_write_end(election, term->token, &depose, written))
		return false;
	le_log_end(term, LE_END_DEPOSED);
	return true;
}

/*
 * Terminate the session that leads.  Return false if its term has ended
 * already.
 */
static bool
end_session(const LeElection *election, const LeTerm *term)
{
	if (!le_registry_set_deposed(&election->key, term->token, true))
		return false;
	PG_TRY();
	{
		terminate_process(term->pid);
	}
	PG_CATCH();
	{
		(void) le_registry_set_deposed(&election->key, term->token, false);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return true;
}

/*
 * End the term if it runs, wait until its session has released the lock, and
 * report that.  Return false if it does not run.
 *
 * The caller must hold the guard lock.
 */
static bool
end_running(const LeElection *election, int64 token, const char *by, const char *why,
			XLogRecPtr *written)
{
	LeTerm		term;

	if (!le_registry_read(&election->key, &term) || term.token != token ||
		!leads(election, &term) ||
		!(term.pid == 0 ? end_lease(election, &term, written) : end_session(election, &term)))
		return false;
	le_log_deposed(&term, by, why);
	if (term.pid != 0)
		terminate_until_gone(election, &term.pid, 1, le_list_holders);
	le_announce_deposed(&term, by, why);
	return true;
}

static void
require_right(const LeElection *election, Oid role)
{
	if (may_terminate(role))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 superuser_arg(role) ?
			 errmsg("permission denied to depose the leader of election %s, which is a superuser",
					le_label(election)) :
			 errmsg("permission denied to depose the leader of election %s: only roles with the privileges of its role or of \"%s\" may",
					le_label(election), "pg_signal_backend")));
}

/*
 * Raise an error if this session or transaction itself leads
 */
static void
refuse_own(const LeElection *election)
{
	if (le_held_term(election) == NULL && le_find_grant(election) == NULL)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("cannot depose the leader of election %s, which is this session",
					le_label(election)),
			 errhint("Use %s.", "le_resign()")));
}

/*
 * End the term of the election's leader.  Return false, with a warning, if
 * there is none.
 *
 * Returns after the term has ended and nothing that it guards keeps the next
 * one from beginning.  May raise an error, wait, and end the session if its
 * client is gone; what was done by then stays done.
 */
bool
le_depose_leader(const LeElection *election, const char *why)
{
	const char *by = GetUserNameFromId(GetUserId(), false);
	XLogRecPtr	written = InvalidXLogRecPtr;
	LeTerm		term;
	bool		deposed;

	le_require_primary();
	PreventCommandIfParallelMode("le_depose()");
	(void) le_leases_ready(false);
	refuse_own(election);

	if (!read_leader(election, &term))
	{
		le_warn_not_deposed(election, NULL, has_prepared(election));
		return false;
	}

	/*
	 * check this first: an unprivileged caller must not block other sessions
	 */
	require_right(election, term.role);
	le_registry_mark_guarded();
	(void) le_acquire_guard(election, ShareUpdateExclusiveLock, false);
	deposed = end_running(election, term.token, by, why, &written);
	if (deposed)
		terminate_guarded(election);
	le_release_guard(election, ShareUpdateExclusiveLock);
	le_wake_many(&election->key);
	le_make_durable(written);
	if (!deposed)
		le_warn_not_deposed(election, le_identity_shown(&term.identity, term.role),
							has_prepared(election));
	return deposed;
}
