/*-------------------------------------------------------------------------
 *
 * bid/room.c
 *	  Limits of the number of elections of the server, a database, a role and a
 *	  session.
 *
 * A bid makes room here if it finds none, and fails early if there is none.
 * What it then uses is reserved in registry/limits.c, beside other sessions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "lease/lease.h"
#include "bid/bid.h"

/*
 * Clear away the leases of this database that have ended, what the server
 * knows of databases that were dropped, and the leases of those that have
 * neither a session nor a lease that runs, but at most once a second
 *
 * Other leases of other databases keep their room, so they also keep counting
 * for their roles.  Otherwise a role could fill one database after another.
 */
static void
sweep_for_room(void)
{
	static uint64 swept_at = 0;

	if (le_monotonic_us() - swept_at < USECS_PER_SEC)
		return;
	le_lease_sweep(true);
	le_registry_forget_databases(true);
	swept_at = le_monotonic_us();
}

static bool
fits(pg_atomic_uint32 *counter, int more, int64 most)
{
	return pg_atomic_read_u32(counter) + (int64) more <= most;
}

/*
 * Return how many of the elections that the server may know are reserved for
 * others than all of these
 */
static int
reserved_for_others(const LeElection *elections, int count)
{
	bool		declared = true;

	for (int i = 0; declared && i < count; i++)
		declared = le_is_kept(&elections[i]);
	return le_registry_reserve(declared);
}

/*
 * Raise an error if the server knows too many elections to add these
 *
 * Vacant elections, and leases that have ended, make room.
 */
static void
require_room_on_server(const LeElection *elections, int count)
{
	pg_atomic_uint32 *known = &le_registry_counters()->elections;
	int			reserve = le_max_elections / 10;

	if (likely(fits(known, count + reserve, le_max_elections)))
		return;
	reserve = reserved_for_others(elections, count);
	for (int attempt = 0; !fits(known, count + reserve, le_max_elections); attempt++)
	{
		if (attempt == 2)
			le_raise_server_full(reserve);
		if (attempt == 1)
			sweep_for_room();
		le_registry_bound_elections(count + reserve);
	}
}

/*
 * Raise an error if too many elections are led in this database to lead one of
 * these
 */
static void
require_room_here(const LeElection *elections, int count)
{
	pg_atomic_uint32 *terms = le_registry_terms_here();
	int			reserve = le_max_elections / 10;

	if (likely(fits(terms, 1, le_registry_most_here(reserve))))
		return;
	reserve = reserved_for_others(elections, count);
	if (!fits(terms, 1, le_registry_most_here(reserve)))
		sweep_for_room();
	if (!fits(terms, 1, le_registry_most_here(reserve)))
		le_raise_database_full(reserve);
}

/*
 * Raise an error if so many elections can never be campaigned for at a time
 */
void
le_require_countable(int count)
{
	if (count > le_registry_most_for_role())
		le_raise_role_full();
	if (count > le_max_elections)
		le_raise_server_full(0);
}

static void
require_room_for_role(int more)
{
	pg_atomic_uint32 *used = le_registry_used_by(GetUserId(), NULL);
	int64		most = le_registry_most_for_role();

	if (!fits(used, more, most))
		sweep_for_room();
	if (!fits(used, more, most))
		le_raise_role_full();
}

/*
 * Raise an error if there is no room to watch one more election, on the server
 * or for the current user
 *
 * May wait as le_lease_sweep does.
 */
void
le_require_room_to_watch(const LeElection *election)
{
	require_room_for_role(1);
	require_room_on_server(election, 1);
}

/*
 * Check whether this session leads fewer elections than it may, by terms and
 * uncommitted leases
 */
static bool
leads_few(void)
{
	return le_count_held() + le_grant_count() < le_max_terms_per_session;
}

static void
require_room_in_session(void)
{
	if (leads_few())
		return;
	le_verify_terms(NULL);
	if (leads_few())
		return;
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("too many elections led by this session: at most %d at a time",
					le_max_terms_per_session),
			 errhint("Resign from some, or ask an administrator to raise \"%s\".",
					 "leader_election.max_terms_per_session")));
}

/*
 * Raise an error if this session leads as many elections as it may, the server
 * knows too many to add these, too many are led in this database, or the
 * current user has too many to add the counted ones
 *
 * May wait as le_lease_sweep does.
 */
void
le_require_room(const LeElection *elections, int count, int counted)
{
	if (counted > 0)
		require_room_for_role(counted);
	require_room_on_server(elections, count);
	require_room_here(elections, count);
	require_room_in_session();
}
