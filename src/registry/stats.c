/*-------------------------------------------------------------------------
 *
 * registry/stats.c
 *	  Statistics of each election.
 *
 * registry.c says which locks protect what.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "registry/internal.h"

static uint64
time_between(uint64 start, uint64 end)
{
	return end > start ? end - start : 0;
}

/*
 * Return since when the election has been vacant, or now if it is not
 *
 * The recorded term may be a lease that has expired without having been
 * noticed, or that of a silent leader.
 */
static uint64
vacant_from(LeElectionEntry *entry, uint64 now)
{
	uint64		changed_at = entry->tally.changed_at;
	uint64		deadline;

	if (!entry->running)
		return Min(changed_at, now);
	if (entry->expiry.lasts_us == 0 || !le_has_expired(&entry->expiry))
		return now;
	deadline = pg_atomic_read_u64(&entry->expiry.deadline);
	return Max(Min(le_deadline_time(deadline), now), changed_at);
}

/*
 * Return how long the election was led, and how long it was vacant, in the
 * time that is not in its tally yet
 */
static void
time_since_change(LeElectionEntry *entry, uint64 now, uint64 *led, uint64 *vacant)
{
	uint64		from = vacant_from(entry, now);

	*led = entry->running ? time_between(entry->tally.changed_at, from) : 0;
	*vacant = time_between(from, now);
}

/*
 * Restart the statistics from zero.  A term that runs and the current vacancy
 * continue.
 *
 * The time since they began will be added later, so it is subtracted here:
 * these numbers are unsigned.  The caller must hold the partition lock
 * exclusively.
 */
static void
reset_tally(LeElectionEntry *entry, uint64 now)
{
	uint64		led;
	uint64		vacant;

	AssertPartitionLocked();
	time_since_change(entry, now, &led, &vacant);
	le_start_tally(entry, entry->tally.changed_at);
	entry->tally.led_us = -led;
	entry->tally.vacant_us = -vacant;
}

/*
 * Count the time until a term begins, but not the term: it is a lease that was
 * loaded after a restart
 *
 * The caller must hold the partition lock exclusively.  Never raises an error.
 */
void
le_count_loaded(LeElectionEntry *entry)
{
	LeTally    *tally = &entry->tally;
	uint64		now = le_monotonic_us();

	AssertPartitionLocked();
	tally->vacant_us += time_between(tally->changed_at, now);
	tally->changed_at = now;
	entry->running = true;
}

/*
 * Count a term that begins, likewise
 */
void
le_count_begin(LeElectionEntry *entry)
{
	Assert(!entry->running);
	entry->tally.terms++;
	le_count_loaded(entry);
}

/*
 * Count the entry's term as ended at the given time, unless it has been
 * counted so or never began
 *
 * The caller must hold the partition lock exclusively.  Never raises an error.
 */
void
le_count_end(LeElectionEntry *entry, LeEndReason reason, uint64 at)
{
	LeTally    *tally = &entry->tally;

	AssertPartitionLocked();
	if (!entry->running)
		return;
	entry->last_token = entry->token;
	entry->grace_from = le_is_resignation(reason) ? 0 : at;
	tally->ended[reason]++;
	if (entry->scope == LE_SCOPE_LEASE)
		pg_atomic_fetch_add_u64(&le_registry_counters()->leases_over, 1);
	tally->led_us += time_between(tally->changed_at, at);
	tally->changed_at = Max(tally->changed_at, at);
	entry->running = false;
}

/*
 * Check whether the bid that was denied last was for this election as well, by
 * its name, and had the same identity
 */
static bool
is_denied_again(const LeElectionEntry *entry, const LeElection *election,
				const LeIdentity *identity)
{
	return entry->denied_role == GetSessionUserId() &&
		entry->denied_has_client == identity->has_client &&
		strcmp(le_registry_string(entry->denied_identity), identity->string) == 0 &&
		strcmp(le_registry_string(entry->name), election->name) == 0;
}

/*
 * Record a denied bid, unless the entry is that of another election with the
 * same key.  If there is no memory left for the identity, it is unknown.
 */
static void
set_denial(LeElectionEntry *entry, const LeElection *election,
		   const LeIdentity *identity, TimestampTz at)
{
	AssertPartitionLocked();
	if (strcmp(le_registry_string(entry->name), election->name) != 0)
		return;
	le_forget_denial(entry);
	pg_atomic_write_u64(&entry->denied_at, (uint64) at);
	(void) le_registry_store_string(identity->string, &entry->denied_identity);
	entry->denied_has_client = identity->has_client;
	entry->denied_role = GetSessionUserId();
}

/*
 * Count a bid of this session that was denied, unless the election is not
 * known and there is no room for it
 */
void
le_registry_count_denial(const LeElection *election, const LeIdentity *identity)
{
	TimestampTz now = GetCurrentTimestamp();
	LeElectionEntry *entry = le_registry_lock_entry(&election->key, false);

	if (entry != NULL && is_denied_again(entry, election, identity))
		pg_atomic_write_u64(&entry->denied_at, (uint64) now);
	else
	{
		if (entry != NULL)
			le_registry_unlock_entry(entry);
		entry = le_registry_lock_or_add_within(&election->key, election->name, election->declared,
											   le_max_elections - le_registry_reserve(election->declared));
		if (entry == NULL)
			return;
		set_denial(entry, election, identity, now);
	}
	pg_atomic_fetch_add_u64(&entry->tally.denied, 1);
	le_registry_unlock_entry(entry);
}

/*
 * Record how long a candidate has waited
 */
void
le_registry_count_wait(const LeElectionKey *key, uint64 waited_us)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, false);
	uint64		longest;

	if (entry == NULL)
		return;
	longest = pg_atomic_read_u64(&entry->tally.longest_wait_us);
	while (longest < waited_us &&
		   !pg_atomic_compare_exchange_u64(&entry->tally.longest_wait_us, &longest,
										   waited_us))
		;
	le_registry_unlock_entry(entry);
}

/*
 * Copy which bid for the election was denied last
 *
 * The caller must hold the partition lock.  Never raises an error.
 */
void
le_copy_denial(LeDenial *denial, LeElectionEntry *entry)
{
	AssertPartitionLocked();
	denial->at = (TimestampTz) pg_atomic_read_u64(&entry->denied_at);
	denial->role = entry->denied_role;
	denial->identity.has_client = entry->denied_has_client;
	strcpy(denial->identity.string, le_registry_string(entry->denied_identity));
}

static void
copy_statistics(LeStatistics *row, LeElectionEntry *entry)
{
	LeTally    *tally = &entry->tally;
	uint64		led;
	uint64		vacant;

	row->election = entry->election;
	strcpy(row->name, le_registry_string(entry->name));
	row->terms = tally->terms;
	memcpy(row->ended, tally->ended, sizeof(row->ended));
	row->denied = pg_atomic_read_u64(&tally->denied);
	le_copy_denial(&row->last_denied, entry);
	row->rolled_back = pg_atomic_read_u64(&tally->rolled_back);
	row->longest_wait_us = pg_atomic_read_u64(&tally->longest_wait_us);
	row->candidates = le_count_candidates(entry);

	time_since_change(entry, le_monotonic_us(), &led, &vacant);

	/* a term that has ended, which was not noticed yet */
	if (entry->running && entry->expiry.lasts_us != 0 && le_has_expired(&entry->expiry))
		row->ended[entry->scope == LE_SCOPE_LEASE ? LE_END_EXPIRED : LE_END_SILENT]++;

	/* a reset may have read the clock after this function did */
	row->led_us = Max((int64) (tally->led_us + led), 0);
	row->vacant_us = Max((int64) (tally->vacant_us + vacant), 0);
	row->is_vacant = !entry->running || vacant > 0;
	row->vacant_for_us = vacant;
}

static bool
copy_known(void *entry, void *row)
{
	LeElectionEntry *known = entry;

	if (known->election.database != MyDatabaseId)
		return false;
	if (row != NULL)
		copy_statistics(row, known);
	return true;
}

/*
 * Return the statistics of this database's elections
 */
LeStatistics *
le_registry_list_statistics(int *count)
{
	return le_registry_list(le_registry_table(LE_ELECTION_TABLE), sizeof(LeStatistics), copy_known,
							count);
}

/*
 * Restart all statistics of this database from zero.  Remove the entries that
 * tell nothing else: nothing keeps them in place, and the last term, if there
 * was one, was resigned.
 */
void
le_registry_reset_statistics(void)
{
	dshash_seq_status status;
	LeElectionEntry *entry;
	LeDatabase *database;
	uint64		now = le_monotonic_us();

	dshash_seq_init(&status, le_registry_table(LE_ELECTION_TABLE), true);
	while ((entry = dshash_seq_next(&status)) != NULL)
	{
		if (entry->election.database != MyDatabaseId)
			continue;
		if (entry->token == 0 && entry->grace_from == 0 && !entry->declared &&
			!le_entry_is_pinned(entry))
		{
			le_empty_entry(entry);
			dshash_delete_current(&status);
		}
		else
			reset_tally(entry, now);
	}
	dshash_seq_term(&status);

	database = le_registry_lock_database(true);
	database->stats_reset = GetCurrentTimestamp();
	le_registry_unlock_database(database);
}

/*
 * Return when this database's statistics were last reset, or 0 if they were
 * not since the server started
 */
TimestampTz
le_registry_stats_reset(void)
{
	LeDatabase *database = le_registry_lock_database(false);
	TimestampTz reset = database->stats_reset;

	le_registry_unlock_database(database);
	return reset;
}
