/*-------------------------------------------------------------------------
 *
 * lead/resign.c
 *	  Resignation.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "lease/lease.h"
#include "lead/lead.h"

/*
 * End this session's leadership of the election in session scope.  Return
 * false, with a warning, if it has none.
 *
 * Takes effect at once, even if the transaction is rolled back later.
 */
bool
le_resign_term(const LeElection *election)
{
	LeHeldTerm *held = le_held_term(election);

	if (held == NULL)
	{
		(void) le_leases_ready(false);
		le_warn_not_leader(election, NULL);
		return false;
	}
	if (!held->for_session)
	{
		le_warn_bound_to_transaction(election);
		return false;
	}
	le_let_go_for_session(held);
	return true;
}

/*
 * End all of this session's leadership in session scope, and return the number
 * of terms
 */
int
le_resign_terms(void)
{
	return le_let_go_all_for_session();
}

/*
 * End the election's lease with the given token.  Return false, with a
 * warning, if no such lease runs.
 *
 * Takes effect at once, even if the transaction is rolled back later.
 */
bool
le_resign_by_token(const LeElection *election, int64 token)
{
	le_require_primary();
	PreventCommandIfParallelMode("a resignation by token");
	if (le_lease_resign(election, token))
		return true;
	le_warn_not_leader(election, &token);
	return false;
}
