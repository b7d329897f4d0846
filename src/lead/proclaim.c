/*-------------------------------------------------------------------------
 *
 * lead/proclaim.c
 *	  Values that leaders publish.
 *
 * A value takes effect at once, however the transaction ends, as a resignation
 * does.  It is in shared memory, in the entry of the term, and ends with the
 * term.  In a lease that the transaction itself has taken, it is seen when the
 * lease is, and is announced by the beginning of the lease.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "tell/tell.h"
#include "lease/lease.h"
#include "lead/lead.h"

/*
 * Raise an error unless the current user may act for the leader in this
 * session's term
 *
 * The term belongs to the session, but not all code that runs in it does.  So
 * the user must have the privileges of the session's user, or be allowed to
 * bid.
 */
void
le_require_own_term(const LeElection *election)
{
	LeBid		bid = {.election = *election,.scope = LE_SCOPE_SESSION};

	if (!has_privs_of_role(GetUserId(), GetSessionUserId()))
		le_require_candidate(&bid);
}

/*
 * Return the token of the term in which the caller may publish a value, or 0,
 * with a warning, if it leads none
 *
 * token is 0 for the term of this session.  Raises an error if the user may
 * not use the term.
 */
static int64
token_to_use(const LeElection *election, int64 token)
{
	LeHeldTerm *held = le_held_term(election);
	LeTerm		term;

	if (held != NULL && (token == 0 || held->token == token))
	{
		if (held->for_session)
		{
			le_require_own_term(election);
			return held->token;
		}
		le_warn_bound_to_transaction(election);
		return 0;
	}
	if (token != 0 && le_may_use_term(election, token, false) &&
		(!le_registry_read(&election->key, &term) || term.scope != LE_SCOPE_TRANSACTION))
		return token;
	le_warn_not_leader(election, token == 0 ? NULL : &token);
	return 0;
}

/*
 * Publish a value, or none any more for NULL.  Return false, with a warning,
 * if the caller does not lead.
 *
 * token is 0 for the term of this session.  Takes effect at once, even if the
 * transaction is rolled back later.  Raises an error if the user may not
 * publish in that term, or if shared memory has no room for the value.
 */
bool
le_publish(const LeElection *election, int64 token, const text *value)
{
	dsa_pointer stored = InvalidDsaPointer;

	le_require_primary();
	PreventCommandIfParallelMode("a proclamation");
	(void) le_leases_ready(false);

	token = token_to_use(election, token);
	if (token == 0)
		return false;
	if (value != NULL && !le_registry_store_string(text_to_cstring(value), &stored))
		le_raise_registry_full();
	le_registry_set_value(&election->key, token, &stored);
	le_registry_free(&stored);
	if (le_find_grant(election) == NULL)
		le_announce_running(&election->key, token, LE_PROCLAIMED);
	return true;
}
