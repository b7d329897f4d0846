/*-------------------------------------------------------------------------
 *
 * bid/candidate.c
 *	  This session as a candidate, as visible to other sessions while it waits.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "bid/bid.h"

/*
 * does the registry show this session as a candidate, since when, and for
 * which election?
 */
static bool is_listed = false;
static uint64 entered_at;
static LeElectionKey entered_for;	/* all zero: many elections */
static LeElectionEntry *in_line = NULL; /* the entry that it pins, or NULL */

static void
enter(const LeElection *election, const LeIdentity *identity, const int64 *keys, int count)
{
	LeCandidate candidate = {0};

	candidate.pid = MyProcPid;
	candidate.role = GetSessionUserId();
	candidate.election = election->key;
	candidate.waits_for = LE_WAITS_FOR_LEADER;
	candidate.since = GetCurrentTimestamp();
	candidate.identity = *identity;
	candidate.keys = InvalidDsaPointer;
	strcpy(candidate.name, election->name);

	is_listed = true;
	le_registry_add_candidate(&candidate, keys, count);
	le_watch_client(le_leads_for_session());
}

/*
 * Show this session as a candidate for one election, in line
 */
void
le_enter_line(const LeElection *election, const LeIdentity *identity)
{
	entered_at = le_monotonic_us();
	entered_for = election->key;
	enter(election, identity, NULL, 0);

	/* so that the views count it */
	in_line = le_registry_pin(election, LE_IN_LINE);
}

/*
 * Show this session as a candidate for many elections
 */
void
le_enter_for_many(const LeElection *elections, int count, const LeIdentity *identity)
{
	int64	   *keys = MemoryContextAllocHuge(CurrentMemoryContext, count * sizeof(int64));

	for (int i = 0; i < count; i++)
		keys[i] = elections[i].key.key;
	memset(&entered_for, 0, sizeof(entered_for));
	enter(&elections[0], identity, keys, count);
	pfree(keys);
}

/*
 * Check whether this session waits to be elected
 */
bool
le_is_candidate(void)
{
	return is_listed;
}

/*
 * If this session is a candidate, show what it waits for
 */
void
le_show_wait(LeWait waits_for)
{
	if (is_listed)
		le_registry_set_wait(waits_for);
}

static void
remove_candidate(void *argument pg_attribute_unused())
{
	le_registry_remove_candidate();
	if (entered_for.lock_class != 0)
		le_registry_count_wait(&entered_for, le_monotonic_us() - entered_at);
}

/*
 * Stop showing this session as a candidate; also called when a wait fails.
 * Never raises an error.
 */
void
le_withdraw(void)
{
	if (!is_listed)
		return;
	is_listed = false;
	if (in_line != NULL)
		le_registry_unpin(in_line, LE_IN_LINE);
	in_line = NULL;
	le_run_safely(remove_candidate, NULL);
}
