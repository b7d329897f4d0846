/*-------------------------------------------------------------------------
 *
 * sql/call.c
 *	  The context in which a function was called.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "utils/lsyscache.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "lease/lease.h"
#include "sql/sql.h"
#include "leader_election.h"

/*
 * Raise an error if the function is called by code that the session's user has
 * not asked for, such as an index expression in the ANALYZE of another user's
 * table
 *
 * What it would begin or end belongs to the session, and would outlive the
 * command.
 */
void
le_refuse_restricted(FunctionCallInfo fcinfo)
{
	if (likely(!InSecurityRestrictedOperation()))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("cannot execute %s() within security-restricted operation",
					get_func_name(fcinfo->flinfo->fn_oid))));
}

/*
 * Check whether the portal contains the client's own statement, and not a
 * function's cursor
 *
 * The portals of the simple protocol and of EXECUTE are not visible; cursors
 * are.
 */
static bool
is_of_client(Portal portal)
{
	return !portal->visible ||
		(debug_query_string != NULL && strcmp(portal->sourceText, debug_query_string) == 0);
}

/*
 * Check whether the client's statement itself makes the call, and not a
 * function, procedure or DO block that it runs
 *
 * These run their statements with their own snapshots.
 */
static bool
is_called_at_top_level(void)
{
	Portal		portal = ActivePortal;

	return portal != NULL && portal->queryDesc != NULL && is_of_client(portal) &&
		ActiveSnapshotSet() && GetActiveSnapshot() == portal->queryDesc->snapshot;
}

/*
 * Warn, once per statement, if leadership in transaction scope ends with the
 * statement that bids for it
 *
 * If a function bids, the statement that called it can be the job.
 */
void
le_warn_outside_transaction(const char *function)
{
	static TimestampTz warned = 0;
	TimestampTz statement = GetCurrentStatementStartTimestamp();

	if (IsTransactionBlock() || IsSubTransaction() || !is_called_at_top_level() ||
		warned == statement)
		return;
	warned = statement;
	ereport(WARNING,
			(errcode(ERRCODE_NO_ACTIVE_SQL_TRANSACTION),
			 errmsg("%s can only be used in transaction blocks", function),
			 errdetail("Leadership ends with this statement.")));
}

/*
 * Prepare to return rows, into the result's tuplestore
 *
 * Each row is an array of so many values.  If the result type has more
 * columns, rows would be read past that array.  CREATE OR REPLACE VIEW can add
 * columns to a view whose row type a function returns.
 */
ReturnSetInfo *
le_begin_rows(FunctionCallInfo fcinfo, int columns)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	if (rsinfo->setDesc->natts != columns)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("result type of function %s() has been altered",
						get_func_name(fcinfo->flinfo->fn_oid)),
				 errdetail("It has %d columns instead of %d.",
						   rsinfo->setDesc->natts, columns)));
	return rsinfo;
}

/*
 * Prepare for a function that only reads leases, or renews one
 *
 * The first session that reads them after a start of the server, or with a new
 * extension, may have to announce that leases have ended, and needs callbacks
 * for that.  Other readers have none, so that they do not fail if no timer is
 * left.
 */
void
le_prepare_to_look(void)
{
	if (!le_leases_are_loaded())
		le_register_callbacks();
	le_leases_ready(false);
}
