/*-------------------------------------------------------------------------
 *
 * leader/depose.c
 *	  Deposing leaders: end the terms of other sessions.
 *
 * A session that leads is terminated, as by pg_terminate_backend(), and a
 * lease is ended.  Then the transactions that are guarded by the term are
 * terminated, since they keep the next term from beginning.
 *
 * All of this is done while holding the election's guard lock, in the mode for
 * changes of a term (election_lock.c).  So no candidate can be elected
 * meanwhile, and a transaction that holds the guard lock is guarded by the
 * term that is being ended, not by the next one.  This holds even if no
 * transaction was guarded before, because the mark that one may be is set
 * first.
 *
 * What was done stays done, however the transaction ends.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "catalog/pg_authid.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/syscache.h"

#include "announce/announce.h"
#include "lease/lease.h"
#include "leader/internal.h"

/* How often to check whether a process has ended: at first, and later */
#define LE_LOOK_SOON_US		500
#define LE_LOOK_AGAIN_US	50000

/*
 * Copy the election's term if it runs, or is silent and its session still
 * holds the lock.  Return false if there is none.
 */
bool
le_read_leader(const LeElection *election, LeTerm *term)
{
	if (!le_registry_read(&election->key, term))
		return false;
	le_refuse_collision(election, term->name);
	if (term->scope == LE_SCOPE_LEASE)
		return le_copied_lease_runs(term);
	return le_holds_lock(election, term->pid);
}

/*
 * Check whether the current user may call le_depose_role()
 */
static bool
may_depose_roles(void)
{
	const Oid	types[] = {REGROLEOID, TEXTOID};
	oidvector  *arguments = buildoidvector(types, lengthof(types));
	Oid			function = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid,
										   CStringGetDatum("le_depose_role"),
										   PointerGetDatum(arguments),
										   ObjectIdGetDatum(le_extension_schema()));

	return OidIsValid(function) && le_is_member(ProcedureRelationId, function) &&
		function_aclcheck_compat(function, GetUserId(), ACL_EXECUTE) == ACLCHECK_OK;
}

/*
 * Check whether the current user may terminate the sessions and leases of the
 * given role: by the server's own rule for processes, or as a user that may
 * depose roles
 */
bool
le_may_terminate(Oid role)
{
	if (!OidIsValid(role) || superuser_arg(role))
		return superuser();
	return has_privs_of_role(GetUserId(), role) ||
		has_privs_of_role(GetUserId(), ROLE_PG_SIGNAL_BACKEND) || may_depose_roles();
}

static void
require_right(const LeElection *election, Oid role)
{
	if (le_may_terminate(role))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 superuser_arg(role) ?
			 errmsg("permission denied to depose the leader of election %s, which is a superuser",
					le_label(election)) :
			 errmsg("permission denied to depose the leader of election %s: only roles with the privileges of its role or of \"%s\", or with EXECUTE on %s, may",
					le_label(election),
					"pg_signal_backend", "le_depose_role()")));
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
 * Terminate the process, as pg_terminate_backend() does, if the current user
 * may
 *
 * The server itself refuses roles that may depose roles but have no other
 * privilege.  If the process may not be terminated, the server's function says
 * why, by an error, or by a warning if there is no such process.
 */
void
le_terminate_process(int pid)
{
	PGPROC	   *process = BackendPidGetProc(pid);

	if (process == NULL || !le_may_terminate(process->roleId))
		(void) DirectFunctionCall2(pg_terminate_backend, Int32GetDatum(pid), Int64GetDatum(0));
	else if (kill(-pid, SIGTERM) != 0)
		ereport(WARNING,
				(errmsg("could not send signal to process %d: %m", pid)));
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
 * time, by le_monotonic_us
 *
 * May raise an error, and ends the session if its client is gone.
 */
void
le_wait_until_gone(const LeElection *election, const int *pids, int count,
				   int *(*list) (const LeElection *election, int *count), uint64 until)
{
	uint64		sleep_us = LE_LOOK_SOON_US;

	for (;;)
	{
		int			listed_count;
		int		   *listed = list(election, &listed_count);
		bool		gone = true;

		for (int i = 0; gone && i < count; i++)
			gone = !is_among(pids[i], listed, listed_count);
		pfree(listed);
		if (gone || le_monotonic_us() >= until)
			return;
		le_sleep(NULL, le_monotonic_us() + sleep_us, LE_SLEEP_DEPOSE);
		CHECK_FOR_INTERRUPTS();
		sleep_us = Min(2 * sleep_us, LE_LOOK_AGAIN_US);
	}
}

/*
 * Terminate the session that leads, or end the lease.  Return false if the
 * term no longer runs.
 */
static bool
end_leader(const LeElection *election, const LeTerm *term)
{
	const LeLeaseOrder depose = {.action = LE_LEASE_DEPOSE};

	if (term->scope == LE_SCOPE_LEASE)
		return le_lease_end(election, term->token, &depose);
	le_terminate_process(term->pid);
	return true;
}

/*
 * Do the same, and record by which role and for what reason, for the session
 * that announces it
 */
static bool
end_marked(const LeElection *election, const LeTerm *term, const char *by, const char *why)
{
	volatile bool ended = false;

	if (!le_registry_set_deposed(&election->key, term->token, by, why))
		return false;
	PG_TRY();
	{
		ended = end_leader(election, term);
	}
	PG_FINALLY();
	{
		if (!ended)
			(void) le_registry_set_deposed(&election->key, term->token, NULL, NULL);
	}
	PG_END_TRY();
	return ended;
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
void
le_terminate_guarded(const LeElection *election)
{
	int			listed_count;
	int		   *listed = le_list_guarded(election, &listed_count);
	int		   *told = palloc_array(int, listed_count + 1);
	int			told_count = 0;
	bool		any_prepared = false;

	for (int i = 0; i < listed_count; i++)
	{
		PGPROC	   *process = listed[i] == 0 ? NULL : BackendPidGetProc(listed[i]);

		any_prepared = any_prepared || listed[i] == 0;
		if (process == NULL || listed[i] == MyProcPid)
			continue;
		if (!le_may_terminate(process->roleId))
			warn_guarded(election, listed[i]);
		else
		{
			le_terminate_process(listed[i]);
			told[told_count++] = listed[i];
		}
	}
	if (any_prepared)
		warn_prepared(election);
	le_wait_until_gone(election, told, told_count, le_list_guarded, PG_UINT64_MAX);
}

/*
 * End the term with the given token, and the transactions that it guards.
 * Return false if it has ended already.
 */
static bool
depose_term(const LeElection *election, int64 token, const char *why)
{
	const char *by = GetUserNameFromId(GetUserId(), false);
	LeTerm		term;

	if (!le_read_leader(election, &term) || term.token != token)
		return false;
	if (!end_marked(election, &term, by, why))
		return false;

	le_log_deposed(&term, by, why);
	if (term.scope != LE_SCOPE_LEASE)
		le_wait_until_gone(election, &term.pid, 1, le_list_holders, PG_UINT64_MAX);
	le_terminate_guarded(election);
	return true;
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
	LeTerm		term;
	bool		deposed;

	le_require_primary();
	(void) le_leases_ready(false);
	refuse_own(election);

	if (!le_read_leader(election, &term))
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
	deposed = depose_term(election, term.token, why);
	le_release_guard(election, ShareUpdateExclusiveLock);
	le_wake_followers(&election->key);
	if (!deposed)
		le_warn_not_deposed(election, le_identity_shown(&term.identity, term.role),
							has_prepared(election));
	return deposed;
}
