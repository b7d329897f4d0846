/*-------------------------------------------------------------------------
 *
 * leader/end_terms.c
 *	  How terms are ended by others than their leaders: those of other
 *	  sessions, and leases.
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
 * All terms of a session are ended at once, and leases one after another, with
 * one wait for all that was written.
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

/*
 * Terminate the process, as pg_terminate_backend() does, if the current user
 * may
 *
 * The server itself refuses roles that may depose roles but have no other
 * privilege.  If the process may not be terminated, the server's function says
 * why, by an error, or by a warning if there is no such process.
 */
static void
terminate_process(int pid)
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
 * Check whether a prepared transaction is guarded in the election
 */
bool
le_has_prepared(const LeElection *election)
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
 * Return the processes whose transactions are guarded and may be terminated
 * for that.  With tell, terminate them.
 *
 * Sessions that the user may not terminate, and prepared transactions, are
 * left alone, with a warning.
 */
static int *
list_to_terminate(const LeElection *election, bool tell, int *count)
{
	int			listed_count;
	int		   *listed = le_list_guarded(election, &listed_count);
	int		   *found = palloc_array(int, listed_count + 1);

	*count = 0;
	for (int i = 0; i < listed_count; i++)
	{
		PGPROC	   *process = BackendPidGetProc(listed[i]);

		if (process == NULL || listed[i] == MyProcPid)
			continue;
		if (le_may_terminate(process->roleId))
		{
			if (tell)
				terminate_process(listed[i]);
			found[(*count)++] = listed[i];
		}
		else if (tell)
			warn_guarded(election, listed[i]);
	}
	if (tell && is_among(0, listed, listed_count))
		warn_prepared(election);
	return found;
}

/*
 * Terminate the sessions whose transactions are guarded, or if that was done,
 * wait until these have ended
 */
static void
terminate_guarded(const LeElection *election, bool wait)
{
	int			count;
	int		   *pids;

	if (!le_guard_is_contended(election))
		return;
	pids = list_to_terminate(election, !wait, &count);
	if (wait)
		le_wait_until_gone(election, pids, count, le_list_guarded, PG_UINT64_MAX);
}

/*
 * Fill in the election of a term
 */
static void
election_of(const LeTerm *term, LeElection *election)
{
	le_election_by_name(election, cstring_to_text(term->name));
}

static void
release_guard(const LeElection *election)
{
	le_release_guard(election, ShareUpdateExclusiveLock);
	le_wake_followers(&election->key);
}

/*
 * End a lease, and the transactions that it guards, and keep its guard lock if
 * another session holds that.  Return false if the lease has ended already.
 *
 * *written is set to up to where the WAL must be made durable.
 */
static bool
end_lease(const LeTerm *term, XLogRecPtr *written)
{
	const LeLeaseOrder depose = {.action = LE_LEASE_DEPOSE};
	LeElection	election;
	bool		ended;

	election_of(term, &election);
	if (le_find_grant(&election) != NULL)
		return false;
	(void) le_acquire_guard(&election, ShareUpdateExclusiveLock, false);
	ended = le_lease_write_end(&election, term->token, &depose, written);
	if (ended)
		terminate_guarded(&election, false);
	if (!ended || !le_guard_is_contended(&election))
		release_guard(&election);
	return ended;
}

/*
 * End the leases among the terms, and the transactions that they guard, wait
 * once until all that is durable, and return how many there were
 */
int
le_end_leases(LeTerm *terms, int count, const char *by, const char *why)
{
	XLogRecPtr	all_written = InvalidXLogRecPtr;
	int			ended = 0;

	for (int i = 0; i < count; i++)
	{
		XLogRecPtr	written;

		CHECK_FOR_INTERRUPTS();
		if (!le_copied_lease_runs(&terms[i]) || !end_lease(&terms[i], &written))
			continue;
		all_written = Max(all_written, written);
		terms[ended++] = terms[i];
	}
	le_make_durable(all_written);
	for (int i = 0; i < ended; i++)
	{
		le_log_end(&terms[i], LE_END_DEPOSED);
		le_log_deposed(&terms[i], by, why);
		le_announce_deposed(&terms[i], by, why);
	}
	for (int i = 0; i < ended; i++)
	{
		LeElection	election;

		election_of(&terms[i], &election);
		if (!le_has_guard(&election))
			continue;
		terminate_guarded(&election, true);
		release_guard(&election);
	}
	return ended;
}

/*
 * Acquire or release the guard lock of each of these elections
 */
static void
lock_guards(const LeTerm *terms, int count, bool take)
{
	for (int i = 0; i < count; i++)
	{
		LeElection	election;

		election_of(&terms[i], &election);
		if (take)
			(void) le_acquire_guard(&election, ShareUpdateExclusiveLock, false);
		else
			release_guard(&election);
	}
}

/*
 * Mark the terms that still run as deposed, move them to the front, and return
 * how many there are
 */
static int
mark_deposed(LeTerm *terms, int count)
{
	int			marked = 0;

	for (int i = 0; i < count; i++)
	{
		LeElection	election;
		LeTerm		running;

		election_of(&terms[i], &election);
		if (le_read_leader(&election, &running) && running.token == terms[i].token &&
			le_registry_set_deposed(&election.key, running.token, true))
			terms[marked++] = running;
	}
	return marked;
}

static void
terminate_marked(const LeTerm *terms, int count)
{
	PG_TRY();
	{
		terminate_process(terms[0].pid);
	}
	PG_CATCH();
	{
		for (int i = 0; i < count; i++)
			(void) le_registry_set_deposed(&terms[i].election, terms[i].token, false);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * End all terms of a session, and the transactions that the given ones guard,
 * and return how many of these there were
 *
 * Its other terms end as with any session.
 */
static int
end_session_terms(LeTerm *terms, int count, const char *by, const char *why)
{
	LeTerm	   *all = palloc_array(LeTerm, count);
	int			marked;

	memcpy(all, terms, count * sizeof(LeTerm));
	lock_guards(all, count, true);
	marked = mark_deposed(terms, count);
	if (marked > 0)
		terminate_marked(terms, marked);
	for (int i = 0; i < marked; i++)
	{
		LeElection	election;

		le_log_deposed(&terms[i], by, why);
		election_of(&terms[i], &election);
		le_wait_until_gone(&election, &terms[i].pid, 1, le_list_holders, PG_UINT64_MAX);
		le_announce_deposed(&terms[i], by, why);
		terminate_guarded(&election, false);
		terminate_guarded(&election, true);
	}
	lock_guards(all, count, false);
	pfree(all);
	return marked;
}

/*
 * Sort by process, and then such that all callers acquire guard locks in the
 * same order
 */
static int
compare_terms(const void *a, const void *b)
{
	const LeTerm *first = a;
	const LeTerm *second = b;

	if (first->pid != second->pid)
		return first->pid < second->pid ? -1 : 1;
	return memcmp(&first->election, &second->election, sizeof(LeElectionKey));
}

/*
 * End the terms among these that sessions lead, session by session, and return
 * how many there were
 *
 * Leases have no process.
 */
int
le_end_sessions(LeTerm *terms, int count, const char *by, const char *why)
{
	int			ended = 0;
	int			next;

	qsort(terms, count, sizeof(LeTerm), compare_terms);
	for (int i = 0; i < count; i = next)
	{
		for (next = i + 1; next < count && terms[next].pid == terms[i].pid;)
			next++;
		if (terms[i].pid != 0)
			ended += end_session_terms(&terms[i], next - i, by, why);
	}
	return ended;
}
