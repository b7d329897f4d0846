/*-------------------------------------------------------------------------
 *
 * lead/silence.c
 *	  Leaders with a heartbeat, as seen by other sessions: give a heartbeat for
 *	  one, and wait for the end of one that is silent.
 *
 * The term of a silent leader has ended, but its session still holds the
 * election's lock until it has ended itself: see term/heartbeat.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lock/lock.h"
#include "lease/lease.h"
#include "lead/lead.h"

/*
 * Wait until the given time, by le_monotonic_us, for the session of a silent
 * leader to release the election's lock
 *
 * May raise an error, and ends the session if its client is gone.
 */
void
le_await_silent(const LeElection *election, const LeTerm *silent, uint64 until)
{
	int			pid = silent->pid;

	(void) le_wait_until_gone(election, &pid, 1, le_list_holders, until);
}

/*
 * Give a heartbeat in the term with the given token, in any session.  Return
 * false if it has ended.
 *
 * Raises an error if the current user may not use the token, or it is that of
 * a lease.
 */
bool
le_beat_by_token(const LeElection *election, int64 token)
{
	LeHeldTerm *held = le_held_term(election);
	LeTerm		term;

	if (held != NULL)
	{
		le_require_own_term(election);
		return held->token == token && le_beat(held);
	}
	if (!le_extension_exists() || !le_registry_read(&election->key, &term) ||
		term.token != token)
		return false;
	le_refuse_collision(election, term.name);
	le_require_role(election, GetUserId(), term.role);
	if (term.scope == LE_SCOPE_LEASE && !le_copied_lease_runs(&term))
		return false;
	if (term.scope == LE_SCOPE_LEASE)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("election %s is led by a lease, which has no heartbeat",
						le_label(election)),
				 errhint("Use %s.", "le_renew()")));
	return le_holds_lock(election, term.pid) && le_registry_beat(&election->key, token);
}
