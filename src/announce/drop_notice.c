/*-------------------------------------------------------------------------
 *
 * announce/drop_notice.c
 *	  A notice of DROP EXTENSION about the elections that are led.
 *
 * This uses the server's hook, in sessions that have loaded the library.  An
 * event trigger would work in all sessions, but if the library were missing,
 * every DROP EXTENSION in the database would fail, also that of other
 * extensions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/objectaccess.h"
#include "catalog/pg_extension.h"
#include "miscadmin.h"

#include "announce/announce.h"

typedef struct LeTermCounts
{
	int			sessions;
	int			leases;
} LeTermCounts;

static object_access_hook_type previous_hook = NULL;

/*
 * Count the terms of this database that the registry knows
 *
 * Does not read the catalog, as the extension is being dropped.  May raise an
 * error.
 */
static void
count_terms(void *argument)
{
	LeTermCounts *counts = argument;
	uint64		now = le_monotonic_us();
	int			count;
	LeTerm	   *terms = le_registry_list_terms(&count);

	for (int i = 0; i < count; i++)
	{
		if (terms[i].token == 0)
			continue;
		if (terms[i].scope != LE_SCOPE_LEASE)
			counts->sessions++;
		else if (le_deadline_runs(terms[i].deadline, now))
			counts->leases++;
	}
	if (terms != NULL)
		pfree(terms);
}

/*
 * Report how many elections are led, and what happens to them
 *
 * A failure here must not keep the extension from being dropped.
 */
static void
notice_leaders(void)
{
	LeTermCounts counts = {0};

	if (!le_try(count_terms, &counts) || counts.sessions + counts.leases == 0)
		return;
	ereport(NOTICE,
			(errmsg("elections are led in this database: %d by sessions, %d by leases",
					counts.sessions, counts.leases),
			 errdetail("Sessions keep their locks, and continue to lead if the extension is created again. Leases end when the drop is committed.")));
}

static void
at_object_access(ObjectAccessType access, Oid class, Oid object, int sub_object, void *arg)
{
	if (previous_hook != NULL)
		previous_hook(access, class, object, sub_object, arg);
	if (access == OAT_DROP && class == ExtensionRelationId && le_is_extension(object))
		notice_leaders();
}

/*
 * Install the hook in this session
 */
void
le_watch_drops(void)
{
	previous_hook = object_access_hook;
	object_access_hook = at_object_access;
}
