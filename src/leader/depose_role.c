/*-------------------------------------------------------------------------
 *
 * leader/depose_role.c
 *	  Deposing roles: end all terms of a role.
 *
 * This works as depose.c does for one election: all terms of a session at
 * once, and leases one after another, with one wait for all that was written.
 * Bare keys are not guarded, and their guard lock would be that of a name.
 * For them, only the token distinguishes a successor from the leader that is
 * to be deposed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"

#include "announce/announce.h"
#include "term/term.h"
#include "lease/lease.h"
#include "leader/internal.h"

/*
 * Return this database's terms that belong to the given role and not to this
 * session
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
 * End a lease, and the transactions that it guards.  Return false if it has
 * ended already.
 *
 * *written is set to up to where the WAL must be made durable.
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
		le_terminate_guarded(&election);
	le_release_guard(&election, ShareUpdateExclusiveLock);
	if (ended)
		le_wake_followers(&election.key);
	return ended;
}

/*
 * End the leases among the terms, wait once until all that is durable, and
 * return how many there were
 */
static int
end_leases(LeTerm *terms, int count, const char *by, const char *why)
{
	XLogRecPtr	all_written = InvalidXLogRecPtr;
	int			ended = 0;

	for (int i = 0; i < count; i++)
	{
		XLogRecPtr	written;
		LeTerm		now;

		CHECK_FOR_INTERRUPTS();
		if (terms[i].scope != LE_SCOPE_LEASE ||
			!le_registry_read(&terms[i].election, &now) || now.token != terms[i].token ||
			!le_copied_lease_runs(&now) || !end_lease(&terms[i], by, why, &written))
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
 * Acquire or release the guard lock of each of these elections that has one
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
 * Mark the terms that still run as deposed, move them to the front, and return
 * how many there are
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
		if (le_read_leader(&election, &running) && running.token == terms[i].token &&
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
		le_terminate_process(terms[0].pid);
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
 * End all terms of a session, and the transactions that they guard, and return
 * how many there were.  The given terms must be all of its terms.
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
		le_wait_until_gone(&election, &terms[i].pid, 1, le_list_holders, PG_UINT64_MAX);
		if (election.key.lock_class != LE_CLASS_BARE_KEY && le_guard_is_contended(&election))
			le_terminate_guarded(&election);
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
 * End the terms among these that sessions lead, session by session, and return
 * how many there were
 *
 * Leases have no process.
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
 * End all terms of the given role in this database, except those of this
 * session, and return how many there were
 *
 * Returns after they have ended and nothing that they guard keeps the next
 * ones from beginning.  May raise an error, wait, and end the session if its
 * client is gone; what was done by then stays done.
 */
int
le_depose_all(Oid role, const char *why)
{
	const char *by = GetUserNameFromId(GetUserId(), false);
	const char *of = GetUserNameFromId(role, false);
	LeTerm	   *terms;
	int			count;
	int			ended;

	if (!le_may_terminate(role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to depose role \"%s\"", of),
				 superuser_arg(role) ?
				 errdetail("Only superusers may depose a superuser.") : 0));
	le_require_primary();
	PreventCommandIfParallelMode("le_depose_role()");
	(void) le_leases_ready(false);
	le_registry_mark_guarded();

	/* sessions first, as they may be about to take more leases */
	terms = list_terms_of(role, &count);
	ended = end_sessions(terms, count, by, why);
	terms = list_terms_of(role, &count);
	return ended + end_leases(terms, count, by, why);
}
