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
 * leases that are loaded from their table, count, but have no limit.  Loaded
 * leases that have ended count for no role but the bootstrap superuser.
 *
 * A role has an entry with a counter.  The counter is raised under the entry's
 * partition lock, and decreased without it.  From time to time, entries whose
 * counter is 0 are removed, under the exclusive lock, so that roles that come
 * and go leave nothing behind.
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

/* After so many roles were added, those that are not used are forgotten */
#define LE_ROLES_ADDED	100

/*
 * Forget the roles for which nothing counts any more
 *
 * The exclusive lock excludes that one is counted for meanwhile.
 */
static void
forget_roles(void)
{
	dshash_seq_status status;
	LeRole	   *role;

	dshash_seq_init(&status, le_registry_table(LE_ROLE_TABLE), true);
	while ((role = dshash_seq_next(&status)) != NULL)
	{
		if (pg_atomic_read_u32(dsa_get_address(le_registry_area(), role->counter)) > 0)
			continue;
		le_registry_free(&role->counter);
		dshash_delete_current(&status);
	}
	dshash_seq_term(&status);
}

/*
 * Add the role, and return its entry with the partition locked
 */
static LeRole *
add_role(Oid oid)
{
	uint32		added = pg_atomic_fetch_add_u32(&le_registry_counters()->roles_added, 1);
	dsa_pointer counter;
	LeRole	   *role;
	bool		found;

	if (added % LE_ROLES_ADDED == 0)
		forget_roles();
	counter = le_registry_allocate(sizeof(pg_atomic_uint32));
	if (!DsaPointerIsValid(counter))
		le_raise_registry_full();
	pg_atomic_init_u32(dsa_get_address(le_registry_area(), counter), 0);
	role = le_registry_insert(LE_ROLE_TABLE, &oid, &found);
	if (found)
		le_registry_free(&counter);
	else
		role->counter = counter;
	return role;
}

/*
 * Check whether so many more elections may count for the current user
 */
bool
le_registry_role_fits(uint32 more)
{
	dshash_table *table = le_registry_table(LE_ROLE_TABLE);
	Oid			oid = GetUserId();
	LeRole	   *role = dshash_find(table, &oid, false);
	int64		used = 0;

	if (role != NULL)
	{
		used = pg_atomic_read_u32(dsa_get_address(le_registry_area(), role->counter));
		dshash_release_lock(table, role);
	}
	return used + more <= le_registry_most_for_role();
}

/* What this session has reserved for a role */
typedef struct LeCharge
{
	Oid			role;
	dsa_pointer counter;
	pg_atomic_uint32 *used;
	uint32		count;
} LeCharge;

static LeCharge pins;			/* to pin elections */
static LeCharge next_term;

/*
 * Reserve room for so many elections that are to count for a role, or raise an
 * error if these are more than "most"
 */
static void
charge(LeCharge *what, Oid oid, uint32 count, int64 most)
{
	dshash_table *table = le_registry_table(LE_ROLE_TABLE);
	LeRole	   *role = dshash_find(table, &oid, false);
	bool		fits;

	Assert(what->count == 0);
	if (role == NULL)
		role = add_role(oid);
	what->role = oid;
	what->counter = role->counter;
	what->used = dsa_get_address(le_registry_area(), role->counter);
	fits = le_count_within(what->used, count, most);
	if (fits)
		what->count = count;
	dshash_release_lock(table, role);
	if (!fits)
		le_raise_role_full();
}

/*
 * Reserve room for a term that is about to be recorded, or raise an error
 *
 * If this session pins elections for that role, the term takes the place of
 * one of them: a campaign for many has won it.
 */
void
le_charge_term(Oid role, int64 most)
{
	if (pins.count > 0 && pins.role == role)
	{
		next_term = pins;
		next_term.count = 1;
		pins.count--;
	}
	else
		charge(&next_term, role, 1, most);
}

/*
 * Count the term for which room was reserved
 *
 * The caller must hold the partition lock exclusively.  Never raises an error.
 */
void
le_count_term(LeElectionEntry *entry)
{
	AssertPartitionLocked();
	Assert(next_term.count == 1 && !DsaPointerIsValid(entry->used));
	entry->used = next_term.counter;
	next_term.count = 0;
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
	charge(&pins, GetUserId(), count, le_registry_most_for_role());
}

static void
give_back(LeCharge *what)
{
	if (what->count > 0)
		pg_atomic_fetch_sub_u32(what->used, what->count);
	what->count = 0;
}

/*
 * Give back what this session has reserved.  Never raises an error.
 */
void
le_registry_uncharge(void)
{
	give_back(&pins);
	give_back(&next_term);
}
