/*-------------------------------------------------------------------------
 *
 * bid/campaign_many.c
 *	  Campaigns for any of many elections, on one connection.
 *
 * Such a candidate is in no queue.  It bids for an election without waiting
 * whenever that may have become free, of which wake.c notifies it.  Its bids
 * overtake no candidate in the queue of the election's lock.  The end of a
 * lease is not reported, so the candidate remembers when the lease that denied
 * its bid expires.  A leader may also lose its lock in the middle of a
 * transaction, by pg_advisory_unlock_all(), which wakes no candidate.  So the
 * candidate checks each second whether the locks of sessions and transactions
 * are still held, without acquiring them, and bids for those that are free.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "lock/lock.h"
#include "lease/lease.h"
#include "lead/lead.h"
#include "bid/bid.h"

/*
 * When to try again an election that seemed free but was denied, at first and
 * in the long run: another session may be about to be elected and fail, or a
 * prepared transaction may be committed by a session that does not know of
 * this one
 */
#define LE_BUSY_US			(20 * INT64CONST(1000))
#define LE_BUSY_LONG_US		USECS_PER_SEC

/*
 * When to check again an election that must stay vacant, as that may be
 * changed
 */
#define LE_VACANT_US		(5 * USECS_PER_SEC)

/* One of the elections, by its key */
typedef struct LeManyEntry
{
	int64		key;			/* hash key; must be first */
	int			index;			/* in the array of elections */
} LeManyEntry;

typedef struct LeManyCampaign
{
	LeBid	   *bid;
	LeIdentity	identity;
	LeElection *elections;		/* each only once, and none that this session
								 * leads */
	int			count;
	uint64	   *look_at;		/* when to bid again, unless woken before */
	bool	   *by_lock;		/* was it led by a session or transaction? */
	HTAB	   *by_key;			/* LeManyEntry */
	uint64		place;			/* in the ring of releases */
	ConditionVariable *release;
	uint64		give_up_at;
	Oid			lease_table;	/* whose leases have been seen */
} LeManyCampaign;

/*
 * The entries of elections that this session follows, in TopMemoryContext;
 * NULL: none
 */
static LeElectionEntry **followed = NULL;
static int	followed_count;

/*
 * Stop following; also called when a campaign fails.  Never raises an error.
 */
void
le_stop_following(void)
{
	if (followed != NULL)
	{
		while (followed_count > 0)
			le_registry_unwatch(followed[--followed_count], LE_MANY);
		pg_atomic_fetch_sub_u32(&le_registry_counters()->followers, 1);
		pfree(followed);
		followed = NULL;
	}
	le_registry_uncharge(PG_UINT32_MAX);
}

/*
 * Follow the elections, which are reserved.  Raises an error if the server has
 * no room for them.
 */
static void
follow_all(LeManyCampaign *campaign)
{
	followed_count = 0;
	followed = MemoryContextAllocHuge(TopMemoryContext,
									  campaign->count * sizeof(LeElectionEntry *));
	pg_atomic_fetch_add_u32(&le_registry_counters()->followers, 1);
	for (int i = 0; i < campaign->count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		followed[followed_count] = le_registry_watch(&campaign->elections[i], LE_MANY);
		followed_count++;
	}
	campaign->release = le_follow_from(&campaign->place);
}

/*
 * Return when to check next for lost locks: all elections at once, each
 * second, at a time that depends on the process
 */
static uint64
next_lock_look(uint64 now)
{
	uint64		phase = MyProcPid % 1000 * INT64CONST(1000);

	return ((now + phase) / LE_LOCK_LOOK_US + 1) * LE_LOCK_LOOK_US - phase;
}

/*
 * Return when to look again at an election whose bid was denied, unless woken
 * before
 *
 * *by_lock is set to whether it is led as long as a session or transaction
 * holds its lock.
 */
static uint64
look_again_at(const LeBid *bid, bool *by_lock)
{
	LeSituation situation = {.lease_counts = true};
	LeDecision	decision;
	uint64		vacant_us = LE_BUSY_LONG_US;

	(void) le_registry_read_record(&bid->election.key, &situation.record);
	situation.now = le_monotonic_us();
	decision = le_decide(&situation);
	*by_lock = decision.obstacle == LE_LED_BY_LOCK;
	if (*by_lock)
		return next_lock_look(situation.now);
	if (decision.obstacle == LE_LEASE_RUNS)
		return decision.until;
	if (decision.obstacle == LE_LEASE_OVER)
		vacant_us = situation.now - decision.until;
	le_look_at_vacancy(bid, &situation);
	decision = le_decide_vacant(&situation);
	if (decision.obstacle != LE_MAY_LEAD)
		return Min(decision.until, situation.now + LE_VACANT_US);
	return situation.now + Min(LE_BUSY_US + vacant_us, LE_BUSY_LONG_US);
}

/*
 * Bid for one of the elections.  Return the token, or 0.
 */
static int64
bid_for(LeManyCampaign *campaign, int index)
{
	campaign->bid->election = campaign->elections[index];
	if (le_acquire_now(campaign->bid))
	{
		/* the lease is about to be counted */
		if (campaign->bid->scope == LE_SCOPE_LEASE)
			le_registry_uncharge(1);
		return le_begin_elected(campaign->bid, &campaign->identity);
	}
	campaign->look_at[index] = look_again_at(campaign->bid, &campaign->by_lock[index]);
	return 0;
}

/*
 * Bid for one of the elections whose time has come.  Return the token, or 0.
 *
 * Does not bid if the lock is not free.
 */
static int64
look_at(LeManyCampaign *campaign, int index, uint64 now)
{
	if (campaign->by_lock[index] && le_lock_is_busy(&campaign->elections[index]))
	{
		campaign->look_at[index] = next_lock_look(now);
		return 0;
	}
	return bid_for(campaign, index);
}

/*
 * Set until when standbys are waited for, in all the bids that follow
 */
static void
be_patient(LeManyCampaign *campaign)
{
	campaign->bid->patience_until = Min(le_monotonic_us() + LE_TRY_WAITS_US,
										campaign->give_up_at);
}

static int
bid_for_all(LeManyCampaign *campaign, int64 *token)
{
	be_patient(campaign);
	campaign->lease_table = le_lease_table();
	for (int i = 0; i < campaign->count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		*token = bid_for(campaign, i);
		if (*token != 0)
			return i;
	}
	return -1;
}

/*
 * Bid for the elections that were reported, and for those whose time has come
 */
static int
bid_for_some(LeManyCampaign *campaign, int64 *token)
{
	int64		keys[LE_RELEASES];
	int			count = le_releases_since(&campaign->place, keys);
	uint64		now = le_monotonic_us();

	/* leases end with the extension that they were taken from */
	if (count < 0 || campaign->lease_table != le_lease_table())
		return bid_for_all(campaign, token);
	be_patient(campaign);
	for (int i = 0; i < count; i++)
	{
		LeManyEntry *choice = hash_search(campaign->by_key, &keys[i], HASH_FIND, NULL);

		if (choice == NULL)
			continue;
		*token = bid_for(campaign, choice->index);
		if (*token != 0)
			return choice->index;
	}
	for (int i = 0; i < campaign->count; i++)
	{
		if (campaign->look_at[i] > now)
			continue;
		*token = look_at(campaign, i, now);
		if (*token != 0)
			return i;
	}
	return -1;
}

static uint64
next_look(const LeManyCampaign *campaign)
{
	uint64		next = PG_UINT64_MAX;

	for (int i = 0; i < campaign->count; i++)
		next = Min(next, campaign->look_at[i]);
	return next;
}

/*
 * Remove duplicates from the elections, and those that this session leads
 * already, and index the others by their keys
 */
static void
choose(LeManyCampaign *campaign)
{
	HASHCTL		info = {
		.keysize = sizeof(int64),
		.entrysize = sizeof(LeManyEntry),
		.hcxt = CurrentMemoryContext
	};
	int			given = campaign->count;

	campaign->by_key = hash_create("leader_election campaign", given, &info,
								   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	campaign->count = 0;
	for (int i = 0; i < given; i++)
	{
		LeElection *election = &campaign->elections[i];
		LeManyEntry *choice;
		bool		found;

		CHECK_FOR_INTERRUPTS();
		if (le_held_term(election) != NULL || le_find_grant(election) != NULL)
			continue;
		choice = hash_search(campaign->by_key, &election->key.key, HASH_ENTER, &found);
		if (found)
			le_refuse_collision(election, campaign->elections[choice->index].name);
		else
		{
			choice->index = campaign->count;
			campaign->elections[campaign->count++] = *election;
		}
	}
}

/*
 * Sleep and bid until elected.  Return -1 if that takes until give_up_at.
 */
static int
wait_for_any(LeManyCampaign *campaign, int64 *token)
{
	int			won;

	ConditionVariablePrepareToSleep(campaign->release);
	won = bid_for_all(campaign, token);
	while (won < 0 && le_monotonic_us() < campaign->give_up_at)
	{
		InvalidateCatalogSnapshotConditionally();
		le_sleep(campaign->release, Min(next_look(campaign), campaign->give_up_at),
				 LE_SLEEP_CAMPAIGN);
		AcceptInvalidationMessages();
		(void) le_leases_ready(true);
		won = bid_for_some(campaign, token);
	}
	ConditionVariableCancelSleep();
	return won;
}

/*
 * Count the denial and the wait for the elections that were not won
 */
static void
count_failure(const LeManyCampaign *campaign, uint64 waited_us)
{
	for (int i = 0; i < campaign->count; i++)
	{
		le_registry_count_denial(&campaign->elections[i], &campaign->identity);
		le_registry_count_wait(&campaign->elections[i].key, waited_us);
	}
}

/*
 * Lead the first of these elections that can be led, in the bid's
 * scope
 *
 * Return that election, with its token in *token, or NULL if that takes longer
 * than the bid waits.  Elections that this session leads already are skipped.
 * If lock_timeout is due earlier, that raises an error, as if for one lock.
 * May wait, raise an error, and end the session if its client is gone.
 * Changes the array of elections.
 */
const LeElection *
le_elect_any(LeBid *bid, LeElection *elections, int count, int64 *token)
{
	LeManyCampaign campaign = {.bid = bid,.elections = elections,.count = count};
	uint64		start = le_monotonic_us();
	uint64		give_up_at = PG_UINT64_MAX;
	uint64		lock_timeout_at = PG_UINT64_MAX;
	int			won;

	if (count > 0)
		bid->election = elections[0];	/* for messages */
	le_prepare_to_bid(bid);
	le_require_room(elections, count, count);
	le_identity_fill(&campaign.identity, bid->identity);
	choose(&campaign);
	campaign.look_at = MemoryContextAllocHuge(CurrentMemoryContext,
											  count * sizeof(uint64));
	campaign.by_lock = MemoryContextAllocHuge(CurrentMemoryContext,
											  count * sizeof(bool));
	campaign.give_up_at = PG_UINT64_MAX;
	le_registry_charge(campaign.count);
	won = bid_for_all(&campaign, token);
	if (won < 0 && bid->wait_ms != LE_NO_WAIT)
	{
		if (bid->wait_ms != LE_WAIT_FOREVER)
			give_up_at = start + bid->wait_ms * 1000;
		if (LockTimeout > 0)
			lock_timeout_at = start + LockTimeout * INT64CONST(1000);
		follow_all(&campaign);
		if (campaign.count > 0)
			le_stand_for_many(elections, campaign.count, &campaign.identity);
		campaign.give_up_at = Min(give_up_at, lock_timeout_at);
		won = wait_for_any(&campaign, token);
		if (won < 0 && lock_timeout_at < give_up_at)
			le_raise_lock_timeout();
		le_withdraw();
	}
	le_stop_following();
	if (won < 0)
	{
		count_failure(&campaign, le_monotonic_us() - start);
		return NULL;
	}
	le_registry_count_wait(&elections[won].key, le_monotonic_us() - start);
	return &elections[won];
}
