/*-------------------------------------------------------------------------
 *
 * lead/other_client.c
 *	  Clients that share a session or a token, distinguished by their
 *	  identities.
 *
 * A connection pool, or a pooler in transaction mode, hands one session to
 * many clients in turn.  To the lock manager they are one.  So a client that
 * passes an identity leads only if the term was begun under that identity.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lease/lease.h"
#include "lead/lead.h"

/*
 * Check whether the term with the given token is led under the given identity,
 * NULL for any
 *
 * If not, *as is set to the identity that leads, as part of a message.  Also
 * returns true if the term is not recorded.  May raise an error.
 */
bool
le_is_led_as(const LeElection *election, int64 token, const text *identity, const char **as)
{
	LeTerm		term;
	size_t		length;

	if (likely(identity == NULL))
		return true;
	if (!le_registry_read(&election->key, &term) || term.token != token)
		return true;
	length = VARSIZE_ANY_EXHDR(identity);
	if (strlen(term.identity.string) == length &&
		memcmp(term.identity.string, VARDATA_ANY(identity), length) == 0)
		return true;
	*as = psprintf("as \"%s\"",
				   le_escape_line(le_identity_shown(&term.identity, term.role)));
	return false;
}

/*
 * Check whether the lease with the given token runs under another identity
 * than the given one; NULL matches any
 *
 * If so, *as is set to the lease's identity, as part of a message.  Raises an
 * error if the current user lacks the privileges of its role.
 */
static bool
is_leased_as_another(const LeElection *election, int64 token, const text *identity,
					 const char **as)
{
	if (likely(identity == NULL))
		return false;

	/* what is not in the registry yet cannot be compared */
	(void) le_leases_ready(false);
	return !le_is_led_as(election, token, identity, as) && le_check_own_lease(election, token);
}

/*
 * Check whether the lease with the given token runs, under the given identity,
 * NULL for any
 *
 * Raises an error if the current user lacks the privileges of its role.
 */
bool
le_is_leased_as(const LeElection *election, int64 token, const text *identity)
{
	const char *as;

	return le_check_own_lease(election, token) &&
		!is_leased_as_another(election, token, identity, &as);
}

/*
 * Warn a client that this session leads under another identity
 */
void
le_warn_held_as(const LeElection *election, const char *as)
{
	ereport(WARNING,
			(errcode(ERRCODE_WARNING),
			 errmsg("this session leads election %s %s", le_label(election), as),
			 errhint("%s", LE_HINT_SHARED_SESSION)));
}

static void
warn_leased_as(const LeElection *election, const char *as)
{
	ereport(WARNING,
			(errcode(ERRCODE_WARNING),
			 errmsg("the lease with this token leads election %s %s", le_label(election), as),
			 errhint("Pass the identity under which the lease was taken, or none.")));
}

/*
 * Renew the lease with the given token, as the bid asks.  Return false if no
 * such lease runs, or, with a warning, if it runs under another identity than
 * that of the bid.
 *
 * May raise an error, and may wait as le_lease_renew does.
 */
bool
le_renew_by_bid(const LeBid *bid, int64 token)
{
	const char *as;

	if (!is_leased_as_another(&bid->election, token, bid->identity, &as))
		return le_lease_renew(&bid->election, token, bid->lasts_us);
	warn_leased_as(&bid->election, as);
	return false;
}

/*
 * Check whether a client with the given identity, NULL for any, may resign
 * from the given term.  Warn if not.
 *
 * token is 0 for the session's own term.  Also returns true if there is
 * nothing to resign from.  May raise an error.
 */
bool
le_may_resign_as(const LeElection *election, int64 token, const text *identity)
{
	LeHeldTerm *held;
	const char *as;

	if (identity == NULL)
		return true;
	if (token != 0)
	{
		le_require_primary();
		if (!is_leased_as_another(election, token, identity, &as))
			return true;
		warn_leased_as(election, as);
		return false;
	}
	held = le_held_term(election);
	if (held == NULL || le_is_led_as(election, held->token, identity, &as))
		return true;
	le_warn_held_as(election, as);
	return false;
}
