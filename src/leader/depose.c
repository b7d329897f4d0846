/*-------------------------------------------------------------------------
 *
 * leader/depose.c
 *	  To end another's term.
 *
 * A session that leads is terminated, as by pg_terminate_backend(); a lease is ended.
 * Then the transactions are terminated that are guarded by the term, since they keep the
 * next one from beginning.
 *
 * All of it is done with the election's guard lock, in the mode that is for whoever changes
 * a term (election_lock.c).  So nobody passes it who is about to lead, and whoever holds the
 * guard lock is guarded by the term that is being ended, not by the next one.  That holds
 * where nobody has been guarded before, too, because the mark is set that someone may be.
 * Bare keys are not guarded, and their guard lock would be that of a name: there it is only
 * the token by which a successor is told from whom was to be deposed.
 *
 * All that a role holds is ended in the same way: the terms of a session at once, and leases
 * one after another, with one wait for all that was written.
 *
 * What was done stays done, whatever becomes of the transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "parser/parse_func.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "announce/announce.h"
#include "lease/lease.h"
#include "leader/leader.h"

/* How often we look whether a process has gone: at first, and later */
#define LE_LOOK_SOON_US		500
#define LE_LOOK_AGAIN_US	50000

/*
 * Copy the election's term if it runs; false if nobody leads through the extension
 */
static bool
read_leader(const LeElection *election, LeTerm *term)
{
	int			pid;

	if (!le_registry_read(&election->key, term))
		return false;
	le_refuse_collision(election, term->name);
	if (term->scope == LE_SCOPE_LEASE)
		return le_lease_runs(term);
	return le_find_holder(election, &pid) && pid == term->pid;
}

/*
 * May the current user call le_depose_role()?
 */
static bool
may_depose_roles(void)
{
	char	   *schema = get_namespace_name(get_rel_namespace(le_lease_table()));
	Oid			arguments[] = {REGROLEOID, TEXTOID};
	List	   *name;
	Oid			function;

	if (schema == NULL)
		return false;
	name = list_make1(makeString(schema));
	name = lappend(name, makeString("le_depose_role"));
	function = LookupFuncName(name, lengthof(arguments), arguments, true);
	return OidIsValid(function) &&
		function_aclcheck_compat(function, GetUserId(), ACL_EXECUTE) == ACLCHECK_OK;
}

/*
 * May the current user terminate what belongs to that role?  The server's own rule for
 * its processes; and who may depose roles may
 */
static bool
may_terminate(Oid role)
{
	if (!OidIsValid(role) || superuser_arg(role))
		return superuser();
	return has_privs_of_role(GetUserId(), role) ||
		has_privs_of_role(GetUserId(), ROLE_PG_SIGNAL_BACKEND) || may_depose_roles();
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
					le_election_label(&election->key, election->name)) :
			 errmsg("permission denied to depose the leader of election %s: only roles with the privileges of its role or of \"%s\", or with EXECUTE on %s, may",
					le_election_label(&election->key, election->name),
					"pg_signal_backend", "le_depose_role()")));
}

/*
 * Throw if it is this very session, or transaction, that leads
 */
static void
refuse_own(const LeElection *election)
{
	if (le_held_term(election) == NULL && le_find_grant(election) == NULL)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("cannot depose the leader of election %s, which is this session",
					le_election_label(&election->key, election->name)),
			 errhint("Use %s.", "le_resign()")));
}

/*
 * Terminate the process, if the current user may
 *
 * By a superuser's right, as the server does not know of the right to depose roles.  On error,
 * the server's own abort restores the user.
 */
static void
terminate_process(int pid)
{
	PGPROC	   *process = BackendPidGetProc(pid);
	Oid			user;
	int			context;

	GetUserIdAndSecContext(&user, &context);
	if (process != NULL && may_terminate(process->roleId))
		SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID,
							   context | SECURITY_LOCAL_USERID_CHANGE);
	(void) DirectFunctionCall2(pg_terminate_backend, Int32GetDatum(pid), Int64GetDatum(0));
	SetUserIdAndSecContext(user, context);
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
 * Wait until none of these processes is listed any more
 *
 * May throw, and end the session of a client that has gone.
 */
static void
wait_until_gone(const LeElection *election, const int *pids, int count,
				int *(*list) (const LeElection *election, int *count))
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
		if (gone)
			return;
		le_sleep(NULL, le_monotonic_us() + sleep_us, LE_SLEEP_DEPOSE);
		CHECK_FOR_INTERRUPTS();
		sleep_us = Min(2 * sleep_us, LE_LOOK_AGAIN_US);
	}
}

/*
 * Terminate the session that leads, or end the lease; false if it does not run any more
 */
static bool
end_leader(const LeElection *election, const LeTerm *term)
{
	const LeLeaseOrder depose = {.action = LE_LEASE_DEPOSE};

	if (term->scope == LE_SCOPE_LEASE)
		return le_lease_end(election, term->token, &depose);
	terminate_process(term->pid);
	return true;
}

/*
 * The same, and write down who does it, and why, for the session that announces it
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
 * Return the identifiers of the prepared transactions that are guarded in the election;
 * NULL if there are none
 *
 * By the lock on its own transaction ID, a transaction is known.  Operators are named with
 * their schema, as the caller's search_path counts.
 */
static char *
list_prepared(const LeElection *election)
{
	static const char *const query =
		"SELECT pg_catalog.string_agg(pg_catalog.quote_literal(p.gid), ', ' ORDER BY p.gid)"
		" FROM pg_catalog.pg_locks g, pg_catalog.pg_locks t, pg_catalog.pg_prepared_xacts p"
		" WHERE (g.locktype, g.mode, g.database, g.classid, g.objid, g.objsubid)"
		" OPERATOR(pg_catalog.=) ('advisory', 'RowShareLock', $1, $2, $3, $4)"
		" AND g.granted AND g.pid IS NULL AND t.locktype OPERATOR(pg_catalog.=) 'transactionid'"
		" AND t.virtualtransaction OPERATOR(pg_catalog.=) g.virtualtransaction"
		" AND t.transactionid OPERATOR(pg_catalog.=) p.transaction";
	Oid			types[] = {OIDOID, OIDOID, OIDOID, INT2OID};
	Datum		values[] = {
		ObjectIdGetDatum(election->key.database),
		ObjectIdGetDatum((uint32) (election->key.key >> 32)),
		ObjectIdGetDatum((uint32) election->key.key),
		Int16GetDatum(LE_CLASS_GUARD)
	};
	MemoryContext caller = CurrentMemoryContext;
	char	   *list = NULL;

	if (election->key.lock_class == LE_CLASS_BARE_KEY)
		return NULL;
	SPI_connect();
	if (SPI_execute_with_args(query, lengthof(values), types, values, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not look for prepared transactions");
	list = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	if (list != NULL)
		list = MemoryContextStrdup(caller, le_escape_line(list));
	SPI_finish();
	return list;
}

/*
 * Warn that the caller may not terminate a process, whose transaction keeps the next term
 * from beginning
 */
static void
warn_guarded(const LeElection *election, int pid)
{
	ereport(WARNING,
			(errmsg("could not terminate process %d, which is still guarded by the term of election %s that has ended",
					pid, le_election_label(&election->key, election->name)),
			 errdetail("The next term begins when its transaction has ended.")));
}

/*
 * Warn that prepared transactions, if any, keep the next term from beginning
 */
static void
warn_prepared(const LeElection *election)
{
	char	   *prepared = list_prepared(election);

	if (prepared == NULL)
		return;
	ereport(WARNING,
			(errmsg("a prepared transaction is still guarded by the term of election %s that has ended",
					le_election_label(&election->key, election->name)),
			 errdetail("The next term waits for: %s.", prepared),
			 errhint("End it by COMMIT PREPARED or ROLLBACK PREPARED.")));
}

/*
 * Terminate the sessions whose transactions are guarded, and wait until these have ended
 *
 * Those that the user may not terminate, and those that are prepared, are left alone, with
 * a warning.
 */
static void
terminate_guarded(const LeElection *election)
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
		if (!may_terminate(process->roleId))
			warn_guarded(election, listed[i]);
		else
		{
			terminate_process(listed[i]);
			told[told_count++] = listed[i];
		}
	}
	if (any_prepared)
		warn_prepared(election);
	wait_until_gone(election, told, told_count, le_list_guarded);
}

/*
 * End the term with that token, and what is guarded by it; false if it is over already
 */
static bool
depose_term(const LeElection *election, int64 token, const char *why)
{
	const char *by = GetUserNameFromId(GetUserId(), false);
	LeTerm		term;

	if (!read_leader(election, &term) || term.token != token)
		return false;
	if (!end_marked(election, &term, by, why))
		return false;

	le_log_deposed(&term, by, why);
	if (term.scope != LE_SCOPE_LEASE)
		wait_until_gone(election, &term.pid, 1, le_list_holders);
	if (election->key.lock_class != LE_CLASS_BARE_KEY)
		terminate_guarded(election);
	return true;
}

/*
 * End the term of whoever leads the election; false, with a warning, if nobody does
 *
 * Returns when the term is over and nothing that it guards keeps the next one from
 * beginning.  May throw, wait, and end the session of a client that has gone; what was done
 * by then stays done.
 */
bool
le_depose_leader(const LeElection *election, const char *why)
{
	bool		guarded = election->key.lock_class != LE_CLASS_BARE_KEY;
	LeTerm		term;
	bool		deposed;

	le_require_primary();
	le_leases_ready(false);
	refuse_own(election);

	if (!read_leader(election, &term))
	{
		le_warn_not_deposed(election, NULL, list_prepared(election));
		return false;
	}

	/* who may not is to keep nobody waiting */
	require_right(election, term.role);
	if (guarded)
	{
		le_registry_mark_guarded();
		(void) le_acquire_guard(election, ShareUpdateExclusiveLock, false);
	}
	deposed = depose_term(election, term.token, why);
	if (guarded)
	{
		le_release_guard(election, ShareUpdateExclusiveLock);
		le_wake_followers(&election->key);
	}
	if (!deposed)
		le_warn_not_deposed(election, le_identity_shown(&term.identity, term.role),
							list_prepared(election));
	return deposed;
}

/*
 * Fill in the election of a term
 */
static void
election_of(const LeTerm *term, LeElection *election)
{
	if (term->election.lock_class == LE_CLASS_BARE_KEY)
		le_election_by_key(election, term->election.key);
	else
		le_election_by_name(election, cstring_to_text(term->name));
}

/*
 * Return this database's terms that belong to that role and not to this session
 */
static LeTerm *
list_terms_of(Oid role, int *count)
{
	int			all;
	LeTerm	   *terms = le_registry_list_terms(&all);

	*count = 0;
	for (int i = 0; i < all; i++)
	{
		if (terms[i].token != 0 && terms[i].role == role && terms[i].pid != MyProcPid)
			terms[(*count)++] = terms[i];
	}
	return terms;
}

/*
 * End a lease, and what is guarded by it; false if it is over already
 *
 * *written is set to where the WAL is to be made durable.
 */
static bool
end_lease(const LeTerm *term, const char *by, const char *why, XLogRecPtr *written)
{
	const LeLeaseOrder depose = {.action = LE_LEASE_DEPOSE};
	LeElection	election;
	bool		ended;

	election_of(term, &election);
	if (le_find_grant(&election) != NULL)
		return false;
	(void) le_acquire_guard(&election, ShareUpdateExclusiveLock, false);
	ended = le_registry_set_deposed(&election.key, term->token, by, why) &&
		le_lease_write_end(&election, term->token, &depose, written);
	if (ended && le_guard_is_contended(&election))
		terminate_guarded(&election);
	le_release_guard(&election, ShareUpdateExclusiveLock);
	if (ended)
		le_wake_followers(&election.key);
	return ended;
}

/*
 * End the leases among the terms, and wait for all together until that is durable; return
 * how many there were
 */
static int
end_leases(LeTerm *terms, int count, const char *by, const char *why)
{
	XLogRecPtr	all_written = InvalidXLogRecPtr;
	int			ended = 0;

	for (int i = 0; i < count; i++)
	{
		XLogRecPtr	written;

		CHECK_FOR_INTERRUPTS();
		if (terms[i].scope != LE_SCOPE_LEASE || !le_lease_runs(&terms[i]) ||
			!end_lease(&terms[i], by, why, &written))
			continue;
		all_written = Max(all_written, written);
		terms[ended++] = terms[i];
	}
	le_make_durable(all_written);
	for (int i = 0; i < ended; i++)
	{
		if (!le_lease_report_end(&terms[i].election, terms[i].token, LE_END_DEPOSED))
			le_log_end(&terms[i], LE_END_DEPOSED);
		le_log_deposed(&terms[i], by, why);
	}
	return ended;
}

/*
 * Take or release the guard lock of each of these elections that has one
 */
static void
lock_guards(const LeTerm *terms, int count, bool take)
{
	for (int i = 0; i < count; i++)
	{
		LeElection	election;

		if (terms[i].election.lock_class == LE_CLASS_BARE_KEY)
			continue;
		election_of(&terms[i], &election);
		if (take)
			(void) le_acquire_guard(&election, ShareUpdateExclusiveLock, false);
		else
		{
			le_release_guard(&election, ShareUpdateExclusiveLock);
			le_wake_followers(&election.key);
		}
	}
}

/*
 * Mark the terms that still run as deposed, and move them to the front; return how many
 */
static int
mark_deposed(LeTerm *terms, int count, const char *by, const char *why)
{
	int			marked = 0;

	for (int i = 0; i < count; i++)
	{
		LeElection	election;
		LeTerm		running;

		election_of(&terms[i], &election);
		if (read_leader(&election, &running) && running.token == terms[i].token &&
			le_registry_set_deposed(&election.key, running.token, by, why))
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
			(void) le_registry_set_deposed(&terms[i].election, terms[i].token, NULL, NULL);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * End the terms of a session, which are all of these, and what is guarded by them; return
 * how many there were
 */
static int
end_session_terms(LeTerm *terms, int count, const char *by, const char *why)
{
	LeTerm	   *all = palloc_array(LeTerm, count);
	int			marked;

	memcpy(all, terms, count * sizeof(LeTerm));
	lock_guards(all, count, true);
	marked = mark_deposed(terms, count, by, why);
	if (marked > 0)
		terminate_marked(terms, marked);
	for (int i = 0; i < marked; i++)
	{
		LeElection	election;

		le_log_deposed(&terms[i], by, why);
		election_of(&terms[i], &election);
		wait_until_gone(&election, &terms[i].pid, 1, le_list_holders);
		if (election.key.lock_class != LE_CLASS_BARE_KEY && le_guard_is_contended(&election))
			terminate_guarded(&election);
	}
	lock_guards(all, count, false);
	pfree(all);
	return marked;
}

static int
compare_pids(const void *a, const void *b)
{
	return ((const LeTerm *) a)->pid - ((const LeTerm *) b)->pid;
}

/*
 * End the terms among these that sessions lead, session by session; return how many
 *
 * The terms of leases have no process.
 */
static int
end_sessions(LeTerm *terms, int count, const char *by, const char *why)
{
	int			ended = 0;
	int			next;

	qsort(terms, count, sizeof(LeTerm), compare_pids);
	for (int i = 0; i < count; i = next)
	{
		for (next = i + 1; next < count && terms[next].pid == terms[i].pid;)
			next++;
		if (terms[i].pid != 0)
			ended += end_session_terms(&terms[i], next - i, by, why);
	}
	return ended;
}

/*
 * End all terms of that role in this database, but for this session's; return how many there
 * were
 *
 * Returns when they are over and nothing that they guard keeps the next ones from
 * beginning.  May throw, wait, and end the session of a client that has gone; what was done
 * by then stays done.
 */
int
le_depose_all(Oid role, const char *why)
{
	const char *by = GetUserNameFromId(GetUserId(), false);
	const char *of = GetUserNameFromId(role, false);
	LeTerm	   *terms;
	int			count;
	int			ended;

	if (!may_terminate(role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to depose role \"%s\"", of),
				 superuser_arg(role) ?
				 errdetail("It is a superuser: only superusers may do that.") : 0));
	le_require_primary();
	PreventCommandIfParallelMode("le_depose_role()");
	le_leases_ready(false);
	le_registry_mark_guarded();

	/* sessions first, as they may be about to take more */
	terms = list_terms_of(role, &count);
	ended = end_sessions(terms, count, by, why);
	terms = list_terms_of(role, &count);
	return ended + end_leases(terms, count, by, why);
}
