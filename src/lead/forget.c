/*-------------------------------------------------------------------------
 *
 * lead/forget.c
 *	  Forgetting elections and their statistics: of one election, or of all in
 *	  this database.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"

#include "lease/lease.h"
#include "lead/lead.h"

/*
 * Forget the election if it is vacant and no session waits for it
 *
 * LockWaiterCount also counts processes that hold the lock.  May raise an
 * error.
 */
static LeForgotten
forget_vacant(const LeElection *election)
{
	(void) le_close_lease(election);
	if (LockWaiterCount(&election->tag) > 0)
		return LE_IN_USE;
	return le_registry_forget(election);
}

/*
 * Forget the election.  Return false if it is not known, or, with a warning,
 * if it is in use.
 */
bool
le_forget_election(const LeElection *election)
{
	LeForgotten answer;

	le_require_primary();
	(void) le_leases_ready(false);

	answer = forget_vacant(election);
	if (answer == LE_IN_USE)
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("election %s is in use and was not forgotten", le_label(election)),
				 errdetail("It is led, or candidates or observers wait for it.")));
	return answer == LE_FORGOTTEN;
}

/*
 * Restart the statistics of this database from zero, and forget the elections
 * that are not in use
 */
void
le_reset_statistics(void)
{
	LeStatistics *rows;
	int			count;

	le_registry_reset_statistics();
	if (RecoveryInProgress())
		return;

	(void) le_leases_ready(false);
	rows = le_registry_list_statistics(&count);
	for (int i = 0; i < count; i++)
	{
		LeElection	election = {.key = rows[i].election};

		CHECK_FOR_INTERRUPTS();
		strcpy(election.name, rows[i].name);
		le_election_tag(&election.key, &election.tag);
		if (rows[i].is_vacant)
			(void) forget_vacant(&election);
	}
	pfree(rows);
}
