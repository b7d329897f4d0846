/*-------------------------------------------------------------------------
 *
 * registry/limits.c
 *	  Limits of the number of elections that the server knows, of those that
 *	  are led in a database, and of those that are counted for a role.
 *
 * A limit is reserved before it is used, in one atomic step that fails if
 * there is no room.  So no number of sessions exceeds it together.  What is
 * reserved is given back when it is no longer used, or when the session turns
 * out not to use it; nothing that can raise an error comes in between.
 *
 * The server counts the entries of elections.  A new entry is reserved by the
 * backend that has just added it, under the entry's lock, and is deleted again
 * if there is no room.  A database counts its terms, and may have half as
 * many as the server may know elections.
 * For a role count the terms that it begins and its leases, and the elections
 * that its sessions observe, or campaign for as one of many.  Superusers, and
 * leases that are loaded from their table, count, but have no limit.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "registry/internal.h"

/*
 * Add to the counter, unless the sum would be above the limit.  Never raises
 * an error.
 */
bool
le_count_within(pg_atomic_uint32 *counter, uint32 more, int64 most)
{
	uint32		value = pg_atomic_read_u32(counter);

	do
	{
		if (value + (int64) more > most)
			return false;
	} while (!pg_atomic_compare_exchange_u32(counter, &value, value + more));
	return true;
}

/*
 * Return how many of the elections that the server may know are reserved for
 * others than the current user's, which are declared or not: a tenth for
 * declared elections and superusers, and half of that for superusers
 */
int
le_registry_reserve(bool declared)
{
	if (superuser())
		return 0;
	return declared ? le_max_elections / 20 : le_max_elections / 10;
}

/*
 * Return how many elections may be led in this database, if so many of those
 * that the server may know are reserved for others
 */
int
le_registry_most_here(int reserved)
{
	return (le_max_elections - reserved) / 2;
}

static void
raise_full(const char *message, int reserved)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg_internal("%s", message),
			 reserved == 0 ? 0 :
			 errdetail("Of these, %d are reserved for declared elections and superusers.",
					   reserved),
			 errhint("An administrator can raise \"%s\".", "leader_election.max_elections")));
}

void
le_raise_server_full(int reserved)
{
	raise_full(psprintf("too many elections: the server knows of at most %d at a time",
						le_max_elections), reserved);
	pg_unreachable();
}

void
le_raise_database_full(int reserved)
{
	int			most = le_registry_most_here(0);

	raise_full(psprintf("too many elections led in this database: at most %d at a time, which is half of what the server may know of",
						most), most - le_registry_most_here(reserved));
	pg_unreachable();
}

void
le_raise_role_full(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("too many elections for role \"%s\": at most %d at a time",
					GetUserNameFromId(GetUserId(), false), le_max_elections_per_role),
			 errdetail("Its terms count, its leases until they are cleared away after their end, and what its sessions observe, or campaign for as one of many."),
			 errhint("Resign from some, or ask an administrator to raise \"%s\".",
					 "leader_election.max_elections_per_role")));
}

/*
 * Return how many elections are to count for the current user at most
 */
int64
le_registry_most_for_role(void)
{
	return superuser() ? PG_INT32_MAX : le_max_elections_per_role;
}

/* What this session has reserved for a role, to pin elections */
static pg_atomic_uint32 *charged_to = NULL;
static uint32 charged = 0;

/*
 * Count a term for its role, unless the role then has more than "most"
 *
 * If this session pins elections for that role, the term takes the place of
 * one of them: a campaign for many has won it.  The caller must hold the
 * partition lock exclusively.  Never raises an error.
 */
bool
le_count_term(LeElectionEntry *entry, dsa_pointer used, int64 most)
{
	pg_atomic_uint32 *counter = dsa_get_address(le_registry_area(), used);

	AssertPartitionLocked();
	Assert(!DsaPointerIsValid(entry->used));
	if (charged > 0 && charged_to == counter)
		charged--;
	else if (!le_count_within(counter, 1, most))
		return false;
	entry->used = used;
	return true;
}

/*
 * Count the entry's term, which is about to be removed, no longer
 *
 * A lease that has ended counts until then, since it takes room.  The caller
 * must hold the partition lock exclusively.
 */
void
le_uncount_term(LeElectionEntry *entry)
{
	AssertPartitionLocked();
	pg_atomic_fetch_sub_u32(dsa_get_address(le_registry_area(), entry->used), 1);
	entry->used = InvalidDsaPointer;
}

/*
 * Reserve room for so many elections that this session is about to pin, for
 * the current user, or raise an error
 *
 * le_registry_uncharge gives back those that are left.
 */
void
le_registry_charge(uint32 count)
{
	int64		most = le_registry_most_for_role();

	Assert(charged == 0);
	charged_to = le_registry_used_by(GetUserId(), NULL);
	if (!le_count_within(charged_to, count, most))
		le_raise_role_full();
	charged = count;
}

/*
 * Give back what this session has reserved.  Never raises an error.
 */
void
le_registry_uncharge(void)
{
	if (charged == 0)
		return;
	pg_atomic_fetch_sub_u32(charged_to, charged);
	charged = 0;
}
