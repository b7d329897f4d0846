/*-------------------------------------------------------------------------
 *
 * registry/terms.c
 *	  Terms in the registry: read, begin, end and list them, and their values.
 *
 * registry.c says which locks protect what.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "miscadmin.h"

#include "registry/internal.h"

/*
 * Copy what is recorded of the election.  Return false if no term is recorded.
 *
 * The recorded term may be that of a leader that has just lost its lock, or a
 * lease that has ended.
 */
bool
le_registry_read(const LeElectionKey *key, LeTerm *term)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, false);

	if (entry == NULL)
	{
		memset(term, 0, sizeof(LeTerm));
		return false;
	}
	le_copy_entry(term, entry);
	le_registry_unlock_entry(entry);
	return term->token != 0;
}

static void
fill_entry(LeElectionEntry *entry, const LeTerm *term, dsa_pointer identity)
{
	entry->token = term->token;
	entry->scope = term->scope;
	entry->pid = term->pid;
	entry->role = term->role;
	entry->lease_table = term->lease_table;
	entry->since = term->since;
	entry->voided_at = InvalidXLogRecPtr;
	entry->lock_gone = false;
	entry->silent = false;
	entry->deposed = false;
	entry->identity_has_client = term->identity.has_client;
	entry->identity = identity;
	entry->expiry.lasts_us = term->lasts_us;
	pg_atomic_write_u64(&entry->expiry.deadline, term->deadline);
	pg_atomic_write_u64(&entry->expiry.renewals, term->renewals);
	if (term->scope != LE_SCOPE_LEASE)
		le_count_begin(entry);
}

/*
 * Remove the term from its entry
 *
 * terms_here counts the terms of the entry's database, unless it is NULL.  The
 * caller must hold the partition lock exclusively.  This frees shared memory,
 * which acquires no other lock than the area's.
 */
void
le_remove_term(LeElectionEntry *entry, LeEndReason reason, pg_atomic_uint32 *terms_here)
{
	uint64		now = le_monotonic_us();

	AssertPartitionLocked();
	/* it may have expired long ago */
	if (entry->expiry.lasts_us != 0)
		now = Min(now, le_deadline_time(pg_atomic_read_u64(&entry->expiry.deadline)));
	le_count_end(entry, reason, now);
	le_uncount_term(entry);
	entry->token = 0;
	le_registry_free(&entry->identity);
	le_registry_free(&entry->value);
	pg_atomic_fetch_sub_u32(&le_registry_counters()->terms, 1);
	if (terms_here != NULL)
		pg_atomic_fetch_sub_u32(terms_here, 1);
}

/*
 * Record a term in place of the one that is recorded, and return the entry
 * with its partition locked
 *
 * The term is counted in its database, and for its role.  A lease that
 * is loaded from the table is recorded whatever the limits are.
 */
static LeElectionEntry *
put_term(const LeTerm *term, bool loaded)
{
	pg_atomic_uint32 *terms_here = le_registry_terms_here();
	int			reserved = le_registry_reserve(term->declared);
	LeElectionEntry *entry;
	dsa_pointer identity;
	int64		most_for_role = loaded ? PG_UINT32_MAX : le_registry_most_for_role();
	int64		most_here = loaded ? PG_INT32_MAX : le_registry_most_here(reserved);
	uint32		most_on_server = loaded ? PG_UINT32_MAX : (uint32) (le_max_elections - reserved);

	/* a copied database has the ended leases of roles that never were there */
	le_charge_term(!loaded ? GetUserId() : term->deadline == LE_DEADLINE_OVER ?
				   BOOTSTRAP_SUPERUSERID : term->role, most_for_role);
	entry = le_registry_lock_or_add_within(&term->election, term->name, term->declared,
										   most_on_server);
	if (entry == NULL)
		le_raise_server_full(reserved);
	if (entry->token != 0)
		le_remove_term(entry, le_true_reason(entry, LE_END_LOCK_RELEASED), terms_here);
	le_registry_adopt_entry(entry, term->name);
	if (!le_registry_store_string(term->identity.string, &identity))
	{
		le_registry_unlock_entry(entry);
		le_raise_registry_full();
	}
	if (!le_count_within(terms_here, 1, most_here))
	{
		le_registry_free(&identity);
		le_registry_unlock_entry(entry);
		le_raise_database_full(reserved);
	}

	le_count_term(entry);
	fill_entry(entry, term, identity);
	pg_atomic_fetch_add_u32(&le_registry_counters()->terms, 1);
	ConditionVariableBroadcast(&entry->changed);
	return entry;
}

/*
 * Record a term that begins, or a lease that will, and return its entry
 *
 * The caller must hold the election's lock, and no term may be recorded (see
 * le_clear_record).  The entry of a lease stays in place until the end of the
 * transaction, and that of a term with a heartbeat while LE_BEATING pins
 * it.
 */
LeElectionEntry *
le_registry_begin_term(const LeTerm *term)
{
	LeElectionEntry *entry;

	Assert(le_has_lock(&term->election));
	entry = put_term(term, false);
	if (term->scope != LE_SCOPE_LEASE && term->lasts_us != 0)
		pg_atomic_fetch_add_u32(&entry->pins[LE_BEATING], 1);
	le_registry_unlock_entry(entry);
	return entry;
}

/*
 * Record a lease that was found in the table, unless the registry knows a
 * later term
 *
 * Called by the session that loads the table, before any session can bid.
 * Entries of an earlier load that failed are overwritten.
 *
 * There can be any number of rows of leases that have ended: a sweep for room
 * that is rolled back leaves them, and a copied database has those of the
 * original.  They are only recorded to be deleted, so not beyond the number of
 * elections that are remembered.
 */
void
le_registry_load_lease(const LeTerm *term)
{
	LeTerm		known;

	if (term->deadline == LE_DEADLINE_OVER &&
		pg_atomic_read_u32(&le_registry_counters()->elections) >= (uint32) le_max_tracked)
		return;
	if (le_registry_read(&term->election, &known) && known.token > term->token)
		return;
	le_registry_unlock_entry(put_term(term, true));
}

/*
 * Remove the term with the given token.  Return false if it is no longer
 * recorded.
 *
 * *ended, unless NULL, is set to a copy of the term with the reason of its
 * end.  Call this before releasing the election's lock.  If the lock is gone
 * already, the token protects a successor's term.
 */
bool
le_registry_end_term(const LeElectionKey *key, int64 token, LeEndReason reason,
					 LeTerm *ended)
{
	pg_atomic_uint32 *terms_here = le_registry_terms_here();
	LeElectionEntry *entry = le_registry_lock_term(key, token, true);

	if (entry == NULL)
		return false;
	reason = le_true_reason(entry, reason);
	if (ended != NULL)
	{
		le_copy_entry(ended, entry);
		ended->end_reason = reason;
	}
	le_remove_term(entry, reason, terms_here);
	ConditionVariableBroadcast(&entry->changed);
	le_registry_unlock_entry(entry);
	return true;
}

/*
 * Record the end of the WAL which says that the lease with the given token is
 * over
 *
 * Its row is void from now on, so that no other backend makes it void again.
 * The caller must hold the guard lock.
 */
void
le_registry_set_voided(const LeElectionKey *key, int64 token, XLogRecPtr voided_at)
{
	LeElectionEntry *entry = le_registry_lock_term(key, token, true);

	if (entry == NULL)
		return;
	entry->voided_at = voided_at;
	le_registry_unlock_entry(entry);
}

/*
 * Return the token below which the election has no row in le_leases, after
 * raising it to the given one, if that is greater
 *
 * The caller must hold the election's lock.
 */
int64
le_registry_first_row(const LeElectionKey *key, int64 raise_to)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, raise_to != 0);
	int64		first;

	Assert(le_has_lock(key));
	if (entry == NULL)
		return 0;
	first = Max(entry->first_row, raise_to);
	if (raise_to != 0)
		entry->first_row = first;
	le_registry_unlock_entry(entry);
	return first;
}

/*
 * Record that the term with the given token has lost its lock, which was just
 * seen free.  Return false if the term is no longer recorded.
 *
 * Apart from such terms, a term is recorded only while its lock is held.
 */
bool
le_registry_mark_lost(const LeElectionKey *key, int64 token)
{
	LeElectionEntry *entry = le_registry_lock_term(key, token, true);
	bool		lost;

	if (entry == NULL)
		return false;
	lost = entry->scope != LE_SCOPE_LEASE;
	if (lost)
	{
		entry->lock_gone = true;
		ConditionVariableBroadcast(&entry->changed);
	}
	le_registry_unlock_entry(entry);
	return lost;
}

/*
 * Record that le_depose is about to end the term with the given token, or that
 * it does not after all.  Return false if the term no longer runs.
 */
bool
le_registry_set_deposed(const LeElectionKey *key, int64 token, bool deposed)
{
	LeElectionEntry *entry = le_registry_lock_term(key, token, true);
	bool		leads;

	if (entry == NULL)
		return false;
	leads = entry->running;
	if (leads)
		entry->deposed = deposed;
	le_registry_unlock_entry(entry);
	return leads;
}

/*
 * Make *value, in shared memory, the value that the leader with the given
 * token publishes, if that term is recorded
 *
 * *value is set to what the caller must free then.
 */
void
le_registry_set_value(const LeElectionKey *key, int64 token, dsa_pointer *value)
{
	LeElectionEntry *entry = le_registry_lock_term(key, token, true);
	dsa_pointer old;

	if (entry == NULL)
		return;
	old = entry->value;
	entry->value = *value;
	*value = old;
	ConditionVariableBroadcast(&entry->changed);
	le_registry_unlock_entry(entry);
}

/*
 * Copy the value that the leader with the given token publishes.  Return false
 * if there is none.
 */
bool
le_registry_copy_value(const LeElectionKey *key, int64 token, char *value)
{
	LeElectionEntry *entry = le_registry_lock_term(key, token, false);
	bool		found;

	if (entry == NULL)
		return false;
	found = DsaPointerIsValid(entry->value);
	if (found)
		strcpy(value, le_registry_string(entry->value));
	le_registry_unlock_entry(entry);
	return found;
}

static bool
copy_shown(void *entry, void *row)
{
	LeElectionEntry *shown = entry;
	LeTerm	   *term = row;

	if (shown->election.database != MyDatabaseId || shown->token == 0)
		return false;
	if (term != NULL)
	{
		le_copy_entry(term, shown);
		le_copy_denial(&term->last_denied, shown);
	}
	return true;
}

/*
 * Return copies of this database's terms, including leases that have ended
 */
LeTerm *
le_registry_list_terms(int *count)
{
	return le_registry_list(le_registry_table(LE_ELECTION_TABLE), sizeof(LeTerm), copy_shown, count);
}
