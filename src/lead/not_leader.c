/*-------------------------------------------------------------------------
 *
 * lead/not_leader.c
 *	  Messages for sessions that do not lead.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "lock/lock.h"
#include "lease/lease.h"
#include "lead/lead.h"

static const char *
describe_identity(const LeTerm *term)
{
	return le_escape_line(le_identity_shown(&term->identity, term->role));
}

/*
 * Return a sentence that describes the leader of the election, but not its
 * token.  *hint is set to what can be done about it, or NULL; to for_lease if
 * it is led by a lease.
 */
static const char *
describe_leader(const LeElection *election, const char *for_lease, const char **hint)
{
	LeGrant    *grant = le_find_grant(election);
	LeTerm		term;
	int			pid = 0;
	bool		on_record = le_registry_read(&election->key, &term);

	*hint = NULL;
	if (grant != NULL)
		return psprintf("This transaction has taken its lease, with token " INT64_FORMAT ".",
						grant->token);
	if (on_record && le_copied_lease_runs(&term))
	{
		le_refuse_collision(election, term.name);
		*hint = for_lease;
		return psprintf("\"%s\" leads it, by a lease.", describe_identity(&term));
	}
	if (!le_find_holder(election, &pid))
		return "The election is vacant.";

	on_record = on_record && term.pid == pid;
	if (on_record)
		le_refuse_collision(election, term.name);
	if (pid == MyProcPid && on_record)
		return "This session leads it, without a lease.";
	if (pid == MyProcPid)
		return "The election stays vacant until this transaction has ended.";

	*hint = "Session scope belongs to the connection that took it, and a connection pool hands out another one. To lead through a pool, use a lease.";
	if (on_record)
		return psprintf(term.silent ?
						"\"%s\" has led it, in the session with process ID %d, and is silent." :
						"\"%s\" leads it, in the session with process ID %d.",
						describe_identity(&term), pid);
	return psprintf("The session with process ID %d holds its lock.", pid);
}

/*
 * Check whether the term with the given token has ended, rather than not begun
 * yet, or being that of another session
 */
static bool
term_is_over(const LeElection *election, int64 token)
{
	LeGrant    *grant = le_find_grant(election);
	LeTerm		term;

	if (grant != NULL && grant->token == token)
		return false;
	return !le_registry_read(&election->key, &term) || term.token != token ||
		term.silent || (term.scope == LE_SCOPE_LEASE && !le_copied_lease_runs(&term));
}

static void
report_not_leader(int level, const LeElection *election, const int64 *token,
				  const char *for_lease)
{
	const char *hint;
	const char *detail = describe_leader(election, for_lease, &hint);

	if (token != NULL && term_is_over(election, *token))
		hint = LE_HINT_OVER;
	ereport(level,
			(errcode(level == ERROR ? ERRCODE_LE_NOT_LEADER : ERRCODE_WARNING),
			 errmsg("%s does not lead election %s",
					token == NULL ? "this session" : psprintf("token " INT64_FORMAT, *token),
					le_label(election)),
			 errdetail_internal("%s", detail),
			 hint != NULL ? errhint("%s", hint) : 0));
}

/*
 * Warn a caller that acted as the leader but does not lead, and report the
 * leader.  The token is what the caller has passed; NULL: none.
 */
void
le_warn_not_leader(const LeElection *election, const int64 *token)
{
	report_not_leader(WARNING, election, token, "To end a lease, pass its token.");
}

/*
 * Raise an error with the same message, for a caller that must lead
 */
void
le_raise_not_leader(const LeElection *election, const int64 *token)
{
	report_not_leader(ERROR, election, token,
					  "To act as its leader, pass the token of the lease, or set \"leader_election.token\" to it.");
	pg_unreachable();
}

/*
 * Raise an error because the term has ended that guards a transaction which is
 * about to commit
 */
void
le_raise_over(const LeElection *election, int64 token)
{
	ereport(ERROR,
			(errcode(ERRCODE_LE_NOT_LEADER),
			 errmsg("token " INT64_FORMAT " does not lead election %s any more", token,
					le_label(election)),
			 errdetail("The transaction is guarded by it."),
			 errhint("%s", LE_HINT_OVER)));
}

/*
 * Warn a caller that has deposed no leader
 *
 * If identity is NULL, there was none.  Otherwise, it is that of a leader that
 * no longer leads.  "prepared" says that a prepared transaction is guarded in
 * the election.
 */
void
le_warn_not_deposed(const LeElection *election, const char *identity, bool prepared)
{
	const char *label = le_label(election);
	const char *hint;

	ereport(WARNING,
			(errcode(ERRCODE_WARNING),
			 identity == NULL ? errmsg("election %s has no leader to depose", label) :
			 errmsg("\"%s\" does not lead election %s any more",
					le_escape_line(identity), label),
			 errdetail_internal("%s%s", describe_leader(election, NULL, &hint),
								prepared ?
								" The next term waits for the end of a prepared transaction." : "")));
}

/*
 * Warn a session that leads in transaction scope only that this is not enough
 */
void
le_warn_bound_to_transaction(const LeElection *election)
{
	ereport(WARNING,
			(errcode(ERRCODE_WARNING),
			 errmsg("leadership of election %s is bound to this transaction",
					le_label(election)),
			 errdetail("It ends with the transaction.")));
}
