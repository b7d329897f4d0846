/*-------------------------------------------------------------------------
 *
 * leader/depose.c
 *	  Deposing leaders: of one election, or all of a role.
 *
 * end_terms.c says how their terms are ended.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "announce/announce.h"
#include "lease/lease.h"
#include "leader/internal.h"

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
	LeTerm		term;
	bool		deposed;

	le_require_primary();
	(void) le_leases_ready(false);
	refuse_own(election);

	if (!le_read_leader(election, &term))
	{
		le_warn_not_deposed(election, NULL);
		return false;
	}

	/*
	 * check this first: an unprivileged caller must not block other sessions
	 */
	require_right(election, term.role);
	le_registry_mark_guarded();
	deposed = le_end_sessions(&term, 1, by, why) + le_end_leases(&term, 1, by, why) > 0;
	if (!deposed)
		le_warn_not_deposed(election, le_identity_shown(&term.identity, term.role));
	return deposed;
}

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
	ended = le_end_sessions(terms, count, by, why);
	terms = list_terms_of(role, &count);
	return ended + le_end_leases(terms, count, by, why);
}
