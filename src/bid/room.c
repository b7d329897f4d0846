/*-------------------------------------------------------------------------
 *
 * bid/room.c
 *	  Room for elections that are about to be used.
 *
 * A bid makes room here if it finds none.  What it then uses is reserved where
 * it is used, beside other sessions: see registry/limits.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "lease/lease.h"
#include "bid/bid.h"

/*
 * Clear away the leases of this database that have ended, and what the server
 * knows of databases that were dropped, but at most once a second unless
 * another lease has ended
 *
 * Leases of other databases keep their room, so they also keep counting for
 * their roles.  Otherwise a role could fill one database after another.
 */
static void
sweep_for_room(void)
{
	static uint64 swept_at = 0;
	static uint64 over_before = 0;
	uint64		over = pg_atomic_read_u64(&le_registry_counters()->leases_over);

	if (over == over_before && le_monotonic_us() - swept_at < USECS_PER_SEC)
		return;
	over_before = over;
	le_lease_sweep(true);
	le_registry_forget_databases();
	swept_at = le_monotonic_us();
}

static bool
fits(pg_atomic_uint32 *counter, int more, int64 most)
{
	return pg_atomic_read_u32(counter) + (int64) more <= most;
}

/*
 * Make room on the server for so many more elections, if it has none
 *
 * Vacant elections, and leases that have ended, make room.
 */
static void
make_room_on_server(int count)
{
	pg_atomic_uint32 *known = &le_registry_counters()->elections;
	int			reserve = le_registry_reserve(false);

	for (int attempt = 0; attempt < 2 && !fits(known, count + reserve, le_max_elections); attempt++)
	{
		if (attempt == 1)
			sweep_for_room();
		le_registry_bound_elections(count + reserve);
	}
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
 * Make room for so many more elections, one of which is to be led, if the
 * server, the database or the current user's role has none.  "counted" of them
 * count for that role.
 *
 * That may take a transaction ID and lock le_leases until the end of the
 * transaction, so it comes before a commit if a wait follows.  May wait as
 * le_lease_sweep does.
 */
void
le_make_room_to_wait(int count, int counted)
{
	make_room_on_server(count);
	if (!fits(le_registry_terms_here(), 1,
			  le_registry_most_here(le_registry_reserve(false))) ||
		!le_registry_role_fits(counted))
		sweep_for_room();
}

/*
 * Make room likewise, where the bid follows at once
 *
 * What is then used is reserved where it is used, in registry/limits.c, and
 * that fails if there is no room after all.  Raises an error if this session
 * leads as many elections as it may.  May wait as le_lease_sweep does.
 */
void
le_make_room(int count, int counted)
{
	le_make_room_to_wait(count, counted);
	require_room_in_session();
}

/*
 * Make room to observe one more election, on the server and for the current
 * user
 *
 * As le_make_room_to_wait.
 */
void
le_make_room_to_observe(void)
{
	make_room_on_server(1);
	if (!le_registry_role_fits(1))
		sweep_for_room();
}
