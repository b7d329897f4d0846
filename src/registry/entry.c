/*-------------------------------------------------------------------------
 *
 * registry/entry.c
 *	  A single entry of an election: find, lock and copy it, and check whether
 *	  its term is silent.
 *
 * registry.c says which locks protect what.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "registry/internal.h"

/*
 * Return the election's entry with its partition locked, or NULL if there is
 * none
 */
LeElectionEntry *
le_registry_lock_entry(const LeElectionKey *key, bool exclusive)
{
	return dshash_find(le_registry_election_table(), key, exclusive);
}

void
le_registry_unlock_entry(LeElectionEntry *entry)
{
	dshash_release_lock(le_registry_election_table(), entry);
}

/*
 * Check whether the term with the given token is silent, and if so, ensure
 * that it stays so: see heartbeats.c
 *
 * The caller must hold the partition lock, or watch the entry.  Never raises
 * an error.  Called in a signal handler as well.
 */
bool
le_entry_close_silent(LeElectionEntry *entry, int64 token)
{
	uint64		deadline = pg_atomic_read_u64(&entry->expiry.deadline);

	while (entry->token == token && !entry->silent)
	{
		if (token == 0 || entry->scope == LE_SCOPE_LEASE || entry->expiry.ttl_us == 0 ||
			!le_deadline_is_over(deadline, le_monotonic_us()))
			return false;
		if (pg_atomic_compare_exchange_u64(&entry->expiry.deadline, &deadline, deadline - 1))
			entry->silent = true;
	}
	return entry->token == token && entry->silent;
}

/*
 * Copy the entry's term
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
	term->ttl_us = entry->expiry.ttl_us;
	term->deadline = pg_atomic_read_u64(&entry->expiry.deadline);
	term->renewals = pg_atomic_read_u64(&entry->expiry.renewals);
	term->silent = le_entry_close_silent(entry, entry->token);
	term->has_value = DsaPointerIsValid(entry->value);
	term->announces = entry->announces;
	term->followers = entry->watchers[LE_FOLLOWER];
	term->identity.has_client = entry->identity_has_client;
	strcpy(term->identity.string, le_registry_string(entry->identity));
	strcpy(term->name, le_registry_string(entry->name));
}
