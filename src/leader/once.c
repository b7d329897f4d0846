/*-------------------------------------------------------------------------
 *
 * leader/once.c
 *	  Jobs that are due at points in time, each of which is done once.
 *
 * A leader's transaction that does a job records the time for which the job
 * was due.  The guard of that transaction (guard.c) keeps that of a former
 * leader from committing beside it.  The row is part of the transaction, as
 * the rest of the job is.  After the commit, both exist on each server that
 * has the transaction.  After a rollback neither does, so that the next leader
 * does the job.
 *
 * A second transaction of the same leader waits for the row, and then finds
 * that the job is done.  One with an older snapshot gets a serialization
 * failure.
 *
 * The table is read and written by SQL, as its owner: other roles may not
 * write to it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "leader/leader.h"

/*
 * How far in the future a job may be due, as the clocks of programs differ.
 * The limit matters, since a recorded time keeps all earlier jobs from being
 * done.
 */
#define LE_DUE_AHEAD_US		USECS_PER_HOUR

/*
 * Run a statement on the table, whose name is inserted into it, as the owner
 * of the table.  Return the number of rows.
 *
 * An altered table is refused: with another type, a rule or a trigger, a job
 * could be taken for done that is not.  SPI must be connected.  On error, the
 * server's own abort restores the user.
 */
static uint64
run_as_owner(LOCKMODE mode, const char *statement, int count, Oid *types, Datum *values)
{
	Relation	table = le_open_table(LE_ONCE, mode);
	char	   *name = quote_qualified_identifier(get_namespace_name(RelationGetNamespace(table)),
												  RelationGetRelationName(table));
	Oid			user;
	int			context;

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(table->rd_rel->relowner, context | SECURITY_LOCAL_USERID_CHANGE);
	if (SPI_execute_with_args(psprintf(statement, name), count, types, values, NULL, false, 1) < 0)
		elog(ERROR, "could not use table %s", name);
	SetUserIdAndSecContext(user, context);
	table_close(table, NoLock);
	return SPI_processed;
}

static void
require_sane_due(TimestampTz due)
{
	if (TIMESTAMP_NOT_FINITE(due))
		ereport(ERROR,
				(errcode(ERRCODE_DATETIME_FIELD_OVERFLOW),
				 errmsg("the time for which a job is due must be finite")));
	if (due > GetCurrentTimestamp() + LE_DUE_AHEAD_US)
		ereport(ERROR,
				(errcode(ERRCODE_DATETIME_FIELD_OVERFLOW),
				 errmsg("the time for which a job is due must be at most one hour from now")));
}

/*
 * Return the time for which the last completed job was due.  *found is false
 * if there is none.
 */
TimestampTz
le_last_done(const LeElection *election, bool *found)
{
	Oid			types[] = {TEXTOID};
	Datum		values[] = {CStringGetTextDatum(election->name)};
	TimestampTz due = 0;
	bool		is_null;

	SPI_connect();
	*found = run_as_owner(AccessShareLock,
						  "SELECT due FROM %s WHERE name OPERATOR(pg_catalog.=) $1",
						  lengthof(types), types, values) > 0;
	if (*found)
		due = DatumGetTimestampTz(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
												1, &is_null));
	SPI_finish();
	return due;
}

/*
 * Return the number of elections for which the role has recorded a job
 */
static int64
count_of_role(Oid role)
{
	Oid			types[] = {OIDOID};
	Datum		values[] = {ObjectIdGetDatum(role)};
	bool		is_null;

	(void) run_as_owner(AccessShareLock,
						"SELECT count(*) FROM %s WHERE role OPERATOR(pg_catalog.=) $1",
						lengthof(types), types, values);
	return DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &is_null));
}

/*
 * Raise an error if the election has no row yet, and the role has as many as
 * it may have
 */
static void
require_room(const LeElection *election)
{
	Oid			role = GetUserId();
	bool		found;
	int64		count;

	if (superuser())
		return;
	(void) le_last_done(election, &found);
	if (found)
		return;
	SPI_connect();
	count = count_of_role(role);
	SPI_finish();
	if (count >= le_max_elections_per_role)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many elections with jobs that role \"%s\" has done: at most %d",
						GetUserNameFromId(role, false), le_max_elections_per_role),
				 errhint("Ask an administrator to delete rows of \"%s\", or to raise \"%s\".",
						 "le_once_done", "leader_election.max_elections_per_role")));
}

/*
 * Record that the job for the given time is done, by this transaction, which
 * is guarded by the term with the given token.  Return false if that job, or a
 * later one, is done already.
 *
 * Raises an error if the term does not run or belongs to another role, or if
 * the snapshot of the transaction is too old.  May wait, for the guard and for
 * another transaction that does the same.
 */
bool
le_do_once(const LeElection *election, TimestampTz due, int64 token)
{
	Oid			types[] = {TEXTOID, TIMESTAMPTZOID, INT8OID, OIDOID};
	Datum		values[] = {
		CStringGetTextDatum(election->name),
		TimestampTzGetDatum(due),
		Int64GetDatum(token),
		ObjectIdGetDatum(GetUserId())
	};
	LeHeldTerm *held = le_held_term(election);
	bool		first;

	require_sane_due(due);
	if (held != NULL && held->token == token)
		le_require_own_term(election);
	if (!le_guard_transaction(election, token, false))
		le_raise_not_leader(election, token == 0 ? "this session" :
							psprintf("token " INT64_FORMAT, token));
	require_room(election);
	SPI_connect();
	first = run_as_owner(RowExclusiveLock,
						 "INSERT INTO %s AS done VALUES ($1, $2, $3, $4)"
						 " ON CONFLICT (name) DO UPDATE"
						 " SET due = excluded.due, token = excluded.token, role = excluded.role"
						 " WHERE done.due OPERATOR(pg_catalog.<) excluded.due",
						 lengthof(types), types, values) > 0;
	SPI_finish();
	return first;
}
