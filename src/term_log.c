/*-------------------------------------------------------------------------
 *
 * term_log.c
 *	  What the server log says of terms: one line when a term begins, and one when
 *	  it ends.  And what their leader is told.
 *
 * What writes to the log holds interrupts.  ereport looks for them when it is done, and a
 * cancel must not come between one half of a change and the other.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"

#include "leader_election.h"

/* Indexed by LeScope */
static const char *const scope_names[] = {
	[LE_SCOPE_SESSION] = "session",
	[LE_SCOPE_TRANSACTION] = "transaction",
	[LE_SCOPE_LEASE] = "lease",
};

/*
 * Return what a scope is called in SQL and in the log
 */
const char *
le_scope_name(LeScope scope)
{
	return scope_names[scope];
}

/*
 * Log that a term began, in this session
 */
void
le_log_begin(const LeTerm *term)
{
	const char *ttl = "";

	if (!le_log_terms)
		return;
	if (term->scope == LE_SCOPE_LEASE)
		ttl = psprintf(", ttl " INT64_FORMAT " ms", term->ttl_us / 1000);
	HOLD_INTERRUPTS();
	ereport(LOG_SERVER_ONLY,
			(errmsg_internal("leader_election: election %s: term " INT64_FORMAT " began: \"%s\" leads, process %d, %s scope%s",
							 le_election_label(&term->election, term->name),
							 term->token, le_escape_line(term->identity.string),
							 MyProcPid, scope_names[term->scope], ttl),
			 errhidestmt(true), errhidecontext(true)));
	RESUME_INTERRUPTS();
}

/*
 * Log that a term ended, and why
 */
void
le_log_end(const LeTerm *term, LeEndReason reason)
{
	if (!le_log_terms)
		return;
	HOLD_INTERRUPTS();
	ereport(LOG_SERVER_ONLY,
			(errmsg_internal("leader_election: election %s: term " INT64_FORMAT " ended: %s",
							 le_election_label(&term->election, term->name),
							 term->token, le_reason_name(reason)),
			 errhidestmt(true), errhidecontext(true)));
	RESUME_INTERRUPTS();
}

/*
 * Log by whom a leader is deposed, and why, if that was said
 */
void
le_log_deposed(const LeTerm *term, const char *by, const char *why)
{
	const char *colon = why != NULL ? ": " : "";
	const char *line = why != NULL ? le_escape_line(why) : "";

	HOLD_INTERRUPTS();
	ereport(LOG_SERVER_ONLY,
			(errmsg_internal("leader_election: election %s: \"%s\", who leads with token " INT64_FORMAT ", is deposed by role \"%s\", process %d%s%s",
							 le_election_label(&term->election, term->name),
							 le_escape_line(term->identity.string), term->token,
							 le_escape_line(by), MyProcPid, colon, line),
			 errhidestmt(true), errhidecontext(true)));
	RESUME_INTERRUPTS();
}

/*
 * Tell the client, once a transaction, that a lease which it has just taken in a
 * transaction block counts from the commit
 */
void
le_notice_not_begun(const LeElection *election)
{
	if (le_grant_count() > 1 || !IsTransactionBlock())
		return;
	ereport(NOTICE,
			(errmsg("the lease of election %s begins when this transaction commits",
					le_election_label(&election->key, election->name))));
}

/*
 * Tell who takes session scope in a transaction block, once a term, that
 * leadership outlives the block
 */
void
le_notice_outlives(LeHeldTerm *held)
{
	if (held->noticed || !IsTransactionBlock())
		return;
	held->noticed = true;
	ereport(NOTICE,
			(errmsg("leadership of election %s outlives this transaction",
					le_election_label(&held->election.key, held->election.name)),
			 errhint("End the transaction before the work begins: an open one holds back vacuum.")));
}
