/*-------------------------------------------------------------------------
 *
 * registry/terms.c
 *	  The terms in the registry: to read, begin and end them, and what observers see of
 *	  them.
 *
 * registry.c says which locks protect what.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "registry/internal.h"

/*
 * Copy what is on record of the election; false when no term is
 *
 * The term on record may be that of a leader that has just lost its lock, or a lease that
 * is over.
 */
bool
le_registry_read_record(const LeElectionKey *key, LeRecord *record)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, false);

	if (entry == NULL)
	{
		memset(record, 0, sizeof(LeRecord));
		return false;
	}
	le_copy_entry(&record->term, entry);
	record->successor = entry->successor;
	record->end_known = entry->last_token != 0 || entry->lost_at_known;
	record->lost_at = entry->lost_at;
	le_registry_unlock_entry(entry);
	return record->term.token != 0;
}

/*
 * Copy the election's term likewise
 */
bool
le_registry_read(const LeElectionKey *key, LeTerm *term)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, false);
	bool		found;

	if (entry == NULL)
		return false;
	found = entry->token != 0;
	if (found)
		le_copy_entry(term, entry);
	le_registry_unlock_entry(entry);
	return found;
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
	entry->lost = false;
	entry->silent = false;
	entry->terminated = false;
	entry->ends_in_place = false;
	entry->announces = term->announces;
	entry->successor = 0;
	entry->identity_has_client = term->identity.has_client;
	entry->identity = identity;
	entry->expiry.ttl_us = term->ttl_us;
	pg_atomic_write_u64(&entry->expiry.deadline, term->deadline);
	pg_atomic_write_u64(&entry->expiry.renewals, term->renewals);
	if (term->scope != LE_SCOPE_LEASE)
		le_count_begin(entry);
}

/*
 * Return why the term is over that is being ended for that reason
 *
 * Where its lock was lost, it counts which of the two was seen first.
 */
static LeEndReason
true_reason(LeElectionEntry *entry, LeEndReason reason)
{
	if (entry->silent ||
		(reason != LE_END_LOCK_RELEASED && le_entry_close_silent(entry, entry->token)))
		return LE_END_SILENT;
	if (reason == LE_END_SESSION && DsaPointerIsValid(entry->deposed_by))
		return LE_END_DEPOSED;
	return reason;
}

/*
 * Take the term off the record
 *
 * The entry's partition is locked exclusively.  Frees shared memory under it, which
 * takes no other lock than the area's.
 */
void
le_remove_term(LeElectionEntry *entry, LeEndReason reason)
{
	uint64		now = le_monotonic_us();

	AssertPartitionLockedExclusively();
	/* it may have run out long ago */
	if (entry->expiry.ttl_us != 0)
		now = Min(now, pg_atomic_read_u64(&entry->expiry.deadline));
	le_count_end(entry, reason, now);
	le_news_keep(entry);
	entry->token = 0;
	le_registry_free(&entry->identity);
	le_registry_free(&entry->value);
	pg_atomic_fetch_sub_u32(&le_registry_counters()->terms, 1);
	if (DsaPointerIsValid(entry->used))
		pg_atomic_fetch_sub_u32(dsa_get_address(le_registry_area(), entry->used), 1);
	entry->used = InvalidDsaPointer;
}

/*
 * Write down a term in the place of the one that is on record, and return its entry with
 * its partition locked; if_missing, only if there is none, nor has been a later one
 *
 * A lease counts for its role.  *before, unless NULL, is set to what this session is to
 * announce first.
 */
static LeElectionEntry *
put_term(const LeTerm *term, bool if_missing, LeNews *before)
{
	LeElectionEntry *entry;
	dsa_pointer identity;
	dsa_pointer used = InvalidDsaPointer;

	if (term->scope == LE_SCOPE_LEASE)
		(void) le_registry_used_by(term->role, &used);
	entry = le_registry_lock_or_add(&term->election, term->name);
	if (if_missing && (entry->token != 0 || entry->last_token >= term->token))
		return entry;
	if (entry->token != 0)
		le_remove_term(entry, true_reason(entry, LE_END_LOCK_RELEASED));
	le_registry_rename_entry(entry, term->name);
	if (!le_registry_store_string(term->identity.string, &identity))
	{
		le_registry_unlock_entry(entry);
		le_throw_registry_full();
	}

	if (before != NULL)
		le_news_take(before, entry);
	fill_entry(entry, term, identity);
	if (before != NULL)
		le_news_begin(entry);
	entry->used = used;
	if (DsaPointerIsValid(used))
		pg_atomic_fetch_add_u32(dsa_get_address(le_registry_area(), used), 1);
	pg_atomic_fetch_add_u32(&le_registry_counters()->terms, 1);
	ConditionVariableBroadcast(&entry->changed);
	return entry;
}

/*
 * Write down a term that begins, and copy what is to be announced before it; return its
 * entry if it has a heartbeat, else NULL
 *
 * The election's lock must be held, and none be on record (see le_clear_record).  That
 * entry stays where it is until LE_BEATING watches it no more.
 */
LeElectionEntry *
le_registry_begin_term(const LeTerm *term, LeNews *before)
{
	LeElectionEntry *entry;
	bool		beats = term->ttl_us != 0;

	Assert(le_has_lock(&term->election));
	entry = put_term(term, false, before);
	if (beats)
		entry->watchers[LE_BEATING]++;
	le_registry_unlock_entry(entry);
	return beats ? entry : NULL;
}

/*
 * Write down a lease that will begin, and set *kept, unless NULL, to its entry
 *
 * The same must hold; but one that is loaded takes the place of what it was loaded as
 * before.
 */
void
le_registry_add_lease(const LeTerm *term, LeElectionEntry **kept)
{
	LeElectionEntry *entry = put_term(term, false, NULL);

	if (kept != NULL)
		*kept = entry;
	le_registry_unlock_entry(entry);
}

/*
 * Put a lease that is over, and whose entry was evicted, on record again; nothing if
 * the registry knows better
 */
void
le_registry_restore_lease(const LeTerm *term)
{
	le_registry_unlock_entry(put_term(term, true, NULL));
}

/*
 * Remove the term with that token; false when it was not on record any more
 *
 * It is copied, unless news is NULL, with why it ended and what is now to be announced.
 * To be called before the election's lock is let go; where it has gone already, the
 * token keeps a successor's term safe.
 */
bool
le_registry_end_term(const LeElectionKey *key, int64 token, LeEndReason reason,
					 LeNews *news)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, true);
	bool		ended;

	if (entry == NULL)
		return false;
	ended = entry->token == token;
	if (ended)
	{
		bool		counts = entry->counted && entry->announces;

		reason = true_reason(entry, reason);
		if (news != NULL)
		{
			le_copy_entry(&news->term, entry);
			news->term.end_reason = reason;
			le_copy_deposition(news, entry);
		}
		le_remove_term(entry, reason);
		if (news != NULL)
			news->what = counts ? entry->news : 0;
		ConditionVariableBroadcast(&entry->changed);
	}
	le_registry_unlock_entry(entry);
	return ended;
}

static dsa_pointer
store_if_any(const char *string)
{
	dsa_pointer stored = InvalidDsaPointer;

	if (string != NULL && !le_registry_store_string(string, &stored))
		le_throw_registry_full();
	return stored;
}

static void
swap_pointers(dsa_pointer *one, dsa_pointer *other)
{
	dsa_pointer old = *one;

	*one = *other;
	*other = old;
}

/*
 * Note up to where the WAL says that the lease with that token is over
 *
 * Its row is void from now on, so that none writes that down again.  To be called with the
 * guard lock.
 */
void
le_registry_set_voided(const LeElectionKey *key, int64 token, XLogRecPtr voided_at)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, true);

	if (entry == NULL)
		return;
	if (entry->token == token)
		entry->voided_at = voided_at;
	le_registry_unlock_entry(entry);
}

/*
 * Note that the term with that token has lost its lock, which was just seen free; false
 * if it is off the record already
 *
 * A term is on record only while its lock is held, unless the lock was lost.
 */
bool
le_registry_mark_lost(const LeElectionKey *key, int64 token)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, true);
	bool		lost;

	if (entry == NULL)
		return false;
	lost = entry->token == token && entry->scope != LE_SCOPE_LEASE;
	if (lost)
	{
		entry->lost = true;
		ConditionVariableBroadcast(&entry->changed);
	}
	le_registry_unlock_entry(entry);
	return lost;
}

/*
 * Note which role is about to end the term with that token, and why, if that was said; or,
 * without a role, that none is after all.  False when it does not run any more
 */
bool
le_registry_set_deposed(const LeElectionKey *key, int64 token, const char *by,
						const char *why)
{
	dsa_pointer by_stored = store_if_any(by);
	dsa_pointer why_stored = store_if_any(why);
	LeElectionEntry *entry = le_registry_lock_entry(key, true);
	bool		leads = entry != NULL && entry->token == token && entry->counted;

	if (leads)
	{
		swap_pointers(&entry->deposed_by, &by_stored);
		swap_pointers(&entry->deposed_why, &why_stored);
	}
	if (entry != NULL)
		le_registry_unlock_entry(entry);
	le_registry_free(&by_stored);
	le_registry_free(&why_stored);
	return leads;
}

/*
 * Change what the term with that token is bound to
 *
 * Only a session's has a heartbeat.
 */
void
le_registry_set_scope(const LeElectionKey *key, int64 token, LeScope scope)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, true);

	if (entry == NULL)
		return;
	if (entry->token == token)
	{
		entry->scope = scope;
		if (scope == LE_SCOPE_TRANSACTION)
			entry->expiry.ttl_us = 0;
	}
	le_registry_unlock_entry(entry);
}

/*
 * See what observers are told of the election, whose entry is there
 *
 * A lease may be of an extension that was dropped since.
 */
void
le_registry_look(const LeElectionKey *key, LeObservation *seen)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, false);
	bool		is_lease = entry->scope == LE_SCOPE_LEASE;
	uint64		deadline = pg_atomic_read_u64(&entry->expiry.deadline);
	bool		led = entry->token != 0 &&
		(is_lease ? le_deadline_runs(deadline, le_monotonic_us()) :
		 !entry->lost && !le_entry_close_silent(entry, entry->token));
	int64		last_token = entry->counted ? entry->token : entry->last_token;

	seen->token = led ? entry->token : -Max(last_token, 1);
	seen->by_lock = led && !is_lease;
	seen->deadline = led && entry->expiry.ttl_us != 0 ? deadline : 0;
	seen->lease_table = led && is_lease ? entry->lease_table : InvalidOid;
	seen->expired = !led && is_lease && entry->counted;
	seen->owed = !led && le_news_owed(entry);
	seen->role = entry->role;
	seen->identity.has_client = entry->identity_has_client;
	strcpy(seen->identity.string, le_registry_string(entry->identity));
	strcpy(seen->name, le_registry_string(entry->name));
	seen->has_value = led && DsaPointerIsValid(entry->value);
	if (seen->has_value)
		strcpy(seen->value, le_registry_string(entry->value));
	le_registry_unlock_entry(entry);
}

/*
 * Make *value, in shared memory, what the leader with that token publishes, if it
 * leads
 *
 * What is to be freed now is put in its place.
 */
void
le_registry_set_value(const LeElectionKey *key, int64 token, dsa_pointer *value)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, true);

	if (entry == NULL)
		return;
	if (entry->token == token)
	{
		dsa_pointer old = entry->value;

		entry->value = *value;
		*value = old;
		ConditionVariableBroadcast(&entry->changed);
	}
	le_registry_unlock_entry(entry);
}

/*
 * Copy what the leader with that token publishes; false if there is nothing
 */
bool
le_registry_copy_value(const LeElectionKey *key, int64 token, char *value)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, false);
	bool		found;

	if (entry == NULL)
		return false;
	found = entry->token == token && DsaPointerIsValid(entry->value);
	if (found)
		strcpy(value, le_registry_string(entry->value));
	le_registry_unlock_entry(entry);
	return found;
}
