/*-------------------------------------------------------------------------
 *
 * registry/entry.c
 *	  A single entry of an election: copy it, and start its statistics.
 *
 * registry.c says which locks protect what.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "registry/internal.h"

/*
 * Return the reason that applies to a term which is being ended for the given
 * one
 *
 * If a term has both lost its lock and become silent, the one that was seen
 * first applies.  A leader that resigns while it is deposed is deposed, as the
 * session that does so says.  The caller must hold the partition lock
 * exclusively.
 */
LeEndReason
le_true_reason(LeElectionEntry *entry, LeEndReason reason)
{
	bool		seen = entry->silent || le_found_expired(&entry->expiry);

	AssertPartitionLocked();
	if ((seen || reason != LE_END_LOCK_RELEASED) &&
		le_entry_close_silent(entry, entry->token))
		return LE_END_SILENT;
	return entry->deposed ? LE_END_DEPOSED : reason;
}

/*
 * Forget which bid was denied last
 *
 * The caller must hold the partition lock exclusively.  Never raises an error.
 */
void
le_forget_denial(LeElectionEntry *entry)
{
	AssertPartitionLocked();
	pg_atomic_write_u64(&entry->denied_at, 0);
	le_registry_free(&entry->denied_identity);
}

/*
 * Start the statistics from zero, at the given time.  Likewise.
 */
void
le_start_tally(LeElectionEntry *entry, uint64 at)
{
	LeTally    *tally = &entry->tally;

	le_forget_denial(entry);
	memset(tally, 0, sizeof(LeTally));
	tally->changed_at = at;
	pg_atomic_init_u64(&tally->denied, 0);
	pg_atomic_init_u64(&tally->rolled_back, 0);
	pg_atomic_init_u64(&tally->longest_wait_us, 0);
}

/*
 * Return the number of sessions that wait to lead the election
 */
int
le_count_candidates(LeElectionEntry *entry)
{
	return pg_atomic_read_u32(&entry->pins[LE_IN_LINE]) +
		pg_atomic_read_u32(&entry->pins[LE_MANY]);
}

/*
 * Copy what the entry tells of its term, and of the last one
 *
 * The caller must hold the partition lock.  Never raises an error.
 */
void
le_copy_entry(LeTerm *term, LeElectionEntry *entry)
{
	AssertPartitionLocked();
	term->election = entry->election;
	term->token = entry->token;
	term->scope = entry->scope;
	term->pid = entry->pid;
	term->role = entry->role;
	term->lease_table = entry->lease_table;
	term->voided_at = entry->voided_at;
	term->since = entry->since;
	term->lasts_us = entry->expiry.lasts_us;
	term->expired = entry->scope == LE_SCOPE_LEASE && le_has_expired(&entry->expiry);
	term->deadline = pg_atomic_read_u64(&entry->expiry.deadline);
	term->renewals = pg_atomic_read_u64(&entry->expiry.renewals);
	term->silent = le_entry_close_silent(entry, entry->token);
	term->lock_gone = entry->lock_gone;
	term->has_value = DsaPointerIsValid(entry->value);
	term->end_known = entry->last_token != 0 || entry->grace_from_known;
	term->grace_from = entry->grace_from;
	term->begun_token = entry->running ? entry->token : entry->last_token;
	term->candidates = le_count_candidates(entry);
	term->identity.has_client = entry->identity_has_client;
	strcpy(term->identity.string, le_registry_string(entry->identity));
	strcpy(term->name, le_registry_string(entry->name));
}
