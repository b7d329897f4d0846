/*-------------------------------------------------------------------------
 *
 * bid/campaign_many.c
 *	  Campaigns for any of many elections, on one connection.
 *
 * Such a candidate is in no queue.  It bids for an election without waiting
 * whenever that was released (registry/wakeup.c).  Its bids overtake no
 * candidate in the queue of the election's lock.  The end of a lease wakes no
 * candidate, so this one remembers when the lease that denied its bid expires.
 * A leader may also lose its lock in the middle of a transaction, by
 * pg_advisory_unlock_all(), which wakes no candidate.  So the candidate checks
 * each second whether the locks of sessions and transactions are still held,
 * without acquiring them, and bids for those that are free.
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
 * in the long run: its lock is about to be released, another session may be
 * about to be elected and fail, or a prepared transaction may be committed by
 * a session that does not know of this one
 */
#define LE_BUSY_US			INT64CONST(1000)
#define LE_BUSY_LONG_US		USECS_PER_SEC

/*
 * When to check again an election that must stay vacant, as that may be
 * changed
 */
#define LE_VACANT_US		(5 * USECS_PER_SEC)

typedef struct LeManyCampaign
{
	LeBid	   *bid;
	LeIdentity	identity;
	LeElection *elections;		/* each only once, and none that this session
								 * leads */
	int			count;
	uint64		wake_at;		/* unless woken before */
	uint64		give_up_at;
	Oid			lease_table;	/* whose leases have been seen */
} LeManyCampaign;

/* One of the elections that this session waits for */
typedef struct LeChoice
{
	LeElectionEntry *entry;
	uint32		releases;		/* of the entry, that the last bid knew of */
	bool		by_lock;		/* was it led by a session or transaction? */
	uint64		released_at;	/* when the last release was seen */
	uint64		look_at;		/* when to bid again, unless released before */
} LeChoice;

/* in TopMemoryContext; NULL: none */
static LeChoice *choices = NULL;
static int	choice_count;

/*
 * Wait for many elections no longer; also called when a campaign fails.  Never
 * raises an error.
 */
void
le_leave_many(void)
{
	if (choices != NULL)
	{
		while (choice_count > 0)
			le_registry_unpin(choices[--choice_count].entry, LE_MANY);
		pg_atomic_fetch_sub_u32(&le_registry_counters()->many, 1);
		pfree(choices);
		choices = NULL;
	}
	le_registry_uncharge();
}

/*
 * Have other sessions wake this one when one of the elections, which are
 * reserved, is released.  Raises an error if the server has no room for them.
 */
static void
enter_many(const LeManyCampaign *campaign)
{
	choice_count = 0;
	choices = MemoryContextAllocExtended(TopMemoryContext, campaign->count * sizeof(LeChoice),
										 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	pg_atomic_fetch_add_u32(&le_registry_counters()->many, 1);
	for (int i = 0; i < campaign->count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		choices[i].entry = le_registry_pin(&campaign->elections[i], LE_MANY);
		choice_count++;
		choices[i].releases = pg_atomic_read_u32(&choices[i].entry->releases);
		choices[i].released_at = le_monotonic_us();
	}
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
 * Set when to bid again for an election whose bid was denied
 */
static void
look_again(const LeBid *bid, LeChoice *choice)
{
	LeSituation situation = {.lease_counts = true};
	LeDecision	decision;

	(void) le_registry_read(&bid->election.key, &situation.term);
	situation.now = le_monotonic_us();
	decision = le_decide(&situation);
	choice->by_lock = decision.obstacle == LE_LED_BY_LOCK;
	choice->look_at = decision.until;
	if (choice->by_lock)
		choice->look_at = next_lock_look(situation.now);
	if (choice->by_lock || decision.obstacle == LE_LEASE_RUNS)
		return;
	if (decision.obstacle == LE_LEASE_OVER)
		choice->released_at = Max(choice->released_at, decision.until);
	le_look_at_vacancy(bid, &situation);
	decision = le_decide_vacant(&situation);
	if (decision.obstacle != LE_MAY_LEAD)
		choice->look_at = Min(decision.until, situation.now + LE_VACANT_US);
	else
		choice->look_at = situation.now +
			Min(LE_BUSY_US + situation.now - choice->released_at, LE_BUSY_LONG_US);
}

/*
 * Check whether to bid for one of the elections now
 *
 * One whose lock is not free is left, unless it was released.
 */
static bool
is_due(const LeManyCampaign *campaign, int index, uint64 now)
{
	LeChoice   *choice = &choices[index];
	uint32		releases = pg_atomic_read_u32(&choice->entry->releases);

	if (releases != choice->releases)
	{
		choice->releases = releases;
		choice->released_at = now;
		return true;
	}
	if (choice->look_at > now)
		return false;
	if (!choice->by_lock || !le_lock_is_busy(&campaign->elections[index]))
		return true;
	choice->look_at = next_lock_look(now);
	return false;
}

/*
 * Bid for one of the elections.  Return the token, or 0.
 */
static int64
bid_for(LeManyCampaign *campaign, int index)
{
	int64		token;

	campaign->bid->election = campaign->elections[index];
	token = le_run_bid(campaign->bid, &campaign->identity, false);
	if (token != 0)
		return token;
	campaign->elections[index].declared = campaign->bid->election.declared;
	if (choices != NULL)
		look_again(campaign->bid, &choices[index]);
	return 0;
}

/*
 * Bid for the elections whose time has come, and at first for all.  Return the
 * place of the one that was won, with its token, or -1.
 */
static int
bid_for_due(LeManyCampaign *campaign, int64 *token)
{
	uint64		now = le_monotonic_us();
	Oid			lease_table = le_lease_table();

	/* leases end with the extension that they were taken from */
	bool		replaced = campaign->lease_table != lease_table;

	campaign->lease_table = lease_table;
	campaign->wake_at = campaign->give_up_at;

	/* for standbys, in all these bids */
	campaign->bid->patience_until = Min(now + LE_TRY_WAITS_US, campaign->give_up_at);
	for (int i = 0; i < campaign->count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (choices == NULL || replaced || is_due(campaign, i, now))
		{
			*token = bid_for(campaign, i);
			if (*token != 0)
				return i;
		}
		if (choices != NULL)
			campaign->wake_at = Min(campaign->wake_at, choices[i].look_at);
	}
	return -1;
}

/* One of the elections, by its key */
typedef struct LeManyEntry
{
	int64		key;			/* hash key; must be first */
	int			index;			/* in the array of elections */
} LeManyEntry;

/*
 * Remove duplicates from the elections, and those that this session leads
 * already
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
	HTAB	   *by_key = hash_create("leader_election campaign", given, &info,
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
		choice = hash_search(by_key, &election->key.key, HASH_ENTER, &found);
		if (found)
			le_refuse_collision(election, campaign->elections[choice->index].name);
		else
		{
			choice->index = campaign->count;
			campaign->elections[campaign->count++] = *election;
		}
	}
	hash_destroy(by_key);
}

/*
 * Sleep and bid until elected.  Return -1 if that takes until give_up_at.
 */
static int
wait_for_any(LeManyCampaign *campaign, int64 *token)
{
	ConditionVariable *wakeup = le_registry_wakeup();
	int			won;

	ConditionVariablePrepareToSleep(wakeup);
	won = bid_for_due(campaign, token);
	while (won < 0 && le_monotonic_us() < campaign->give_up_at)
	{
		InvalidateCatalogSnapshotConditionally();
		le_sleep(wakeup, campaign->wake_at, LE_SLEEP_CAMPAIGN);
		AcceptInvalidationMessages();
		(void) le_leases_ready(true);
		won = bid_for_due(campaign, token);
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
	le_make_room(count, count);
	le_identity_fill(&campaign.identity, bid->identity);
	choose(&campaign);
	campaign.give_up_at = PG_UINT64_MAX;
	le_registry_charge(campaign.count);
	won = bid_for_due(&campaign, token);
	if (won < 0 && bid->wait_ms != LE_NO_WAIT)
	{
		if (bid->wait_ms != LE_WAIT_FOREVER)
			give_up_at = start + bid->wait_ms * 1000;
		if (LockTimeout > 0)
			lock_timeout_at = start + LockTimeout * INT64CONST(1000);
		enter_many(&campaign);
		if (campaign.count > 0)
			le_enter_for_many(elections, campaign.count, &campaign.identity);
		campaign.give_up_at = Min(give_up_at, lock_timeout_at);
		won = wait_for_any(&campaign, token);
		if (won < 0 && lock_timeout_at < give_up_at)
			le_raise_lock_timeout();
		le_withdraw();
	}
	le_leave_many();
	if (won < 0)
	{
		count_failure(&campaign, le_monotonic_us() - start);
		return NULL;
	}
	le_registry_count_wait(&elections[won].key, le_monotonic_us() - start);
	return &elections[won];
}
