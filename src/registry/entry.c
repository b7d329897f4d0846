/*-------------------------------------------------------------------------
 *
 * registry/entry.c
 *	  An entry of the registry: to find and lock it, and to copy its term.
 *
 * registry.c says which locks protect what.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "registry/internal.h"

/*
 * Return the entry of the election, with its partition locked; NULL if none
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
 * Copy the entry, whose partition is locked.  Never throws
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
