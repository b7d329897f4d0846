/*-------------------------------------------------------------------------
 *
 * lease/grant.c
 *	  The leases that the current transaction has taken, until it ends.
 *
 * Until then the transaction holds the election's lock, no other transaction
 * sees the row in le_leases, and the registry's entry says
 * LE_DEADLINE_UNCOMMITTED: no other session uses the lease.  When the
 * transaction has committed, the lease is given its deadline.  When the
 * transaction or the savepoint is rolled back, the lease is marked as over.
 * Either is one store to an address that was looked up before, which cannot
 * fail.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "tell/tell.h"
#include "term/term.h"
#include "lease/lease.h"

/* in TopTransactionContext */
static void drop_grant(LeXactItem *item);

static LeXactList grants = LE_XACT_LIST(grants, drop_grant);

/*
 * Return the number of leases that this transaction has taken, whose locks it
 * holds
 */
int
le_grant_count(void)
{
	return grants.count;
}

/*
 * Return the election's first grant, or the one after the given one, or NULL
 * if there are no more
 */
static LeGrant *
next_grant(const LeElection *election, LeGrant *after)
{
	return (LeGrant *) le_xact_list_next(&grants, &election->key, (LeXactItem *) after);
}

/*
 * Return the lease of the election that this transaction has taken, or NULL if
 * there is none
 *
 * Raises an error if it is of another election with the same key.
 */
LeGrant *
le_find_grant(const LeElection *election)
{
	LeGrant    *grant = NULL;

	while ((grant = next_grant(election, grant)) != NULL)
	{
		if (!grant->given_up)
		{
			le_refuse_collision(election, grant->election.name);
			return grant;
		}
	}
	return NULL;
}

static void
forget_grant(LeGrant *grant)
{
	le_xact_list_remove(&grants, &grant->item);
	pfree(grant);
}

/*
 * Forget the given-up leases of the election that this subtransaction has
 * taken: the lock that it keeps now belongs to the new lease
 */
static void
forget_given_up(const LeElection *election)
{
	LeGrant    *next = next_grant(election, NULL);
	LeGrant    *grant;

	while ((grant = next) != NULL)
	{
		next = next_grant(election, grant);
		if (grant->given_up && grant->item.subxact == GetCurrentSubTransactionId())
			forget_grant(grant);
	}
}

/*
 * Take the lease, which is recorded in the given table, and return its token.
 * Called by le_take_lease.
 */
int64
le_grant_lease(const LeBid *bid, const LeIdentity *identity, Oid table)
{
	LeTerm		term;
	LeGrant    *grant;

	le_fill_term(&term, bid, identity);
	term.pid = 0;
	term.role = GetUserId();
	term.lease_table = table;
	term.lasts_us = bid->lasts_us;
	term.deadline = LE_DEADLINE_UNCOMMITTED;

	forget_given_up(&bid->election);
	le_lease_delete_void(&bid->election);
	le_lease_insert(&term);

	grant = MemoryContextAlloc(TopTransactionContext, sizeof(LeGrant));
	grant->election = bid->election;
	grant->token = term.token;
	grant->role = term.role;

	/* only the lock is left if there is no room for the entry */
	grant->given_up = true;
	le_xact_list_add(&grants, &grant->item, &bid->election.key);
	grant->entry = le_registry_begin_term(&term);
	grant->given_up = false;

	/* even if the session has turned synchronous_commit off */
	ForceSyncCommit();
	return term.token;
}

/*
 * Give up the lease that this transaction took.  Never raises an error.
 *
 * The transaction keeps the election's lock.
 */
void
le_give_up_grant(LeGrant *grant)
{
	pg_atomic_write_u64(&grant->entry->expiry.deadline, LE_DEADLINE_OVER);
	pg_atomic_fetch_add_u64(&le_registry_counters()->leases_over, 1);
	grant->given_up = true;
}

/*
 * Give up the lease, as it is rolled back, and forget it: the lock is about to
 * be released, and with it the claim to the entry, which may then be reused
 */
static void
drop_grant(LeXactItem *item)
{
	LeGrant    *grant = (LeGrant *) item;

	if (!grant->given_up)
	{
		pg_atomic_fetch_add_u64(&grant->entry->tally.rolled_back, 1);
		le_give_up_grant(grant);
	}
	le_wake_many(&grant->election.key);
	forget_grant(grant);
}

static void
begin_on_record(void *argument)
{
	LeGrant    *grant = argument;
	LeTerm		term;

	if (le_registry_begin_lease(&grant->election.key, grant->token,
								le_log_terms ? &term : NULL) && le_log_terms)
		le_log_begin(&term);
}

static void
begin_grant(LeXactItem *item)
{
	LeGrant    *grant = (LeGrant *) item;
	pg_atomic_uint64 *deadline = &grant->entry->expiry.deadline;

	if (!grant->given_up)
	{
		/* before any session sees it run */
		le_run_safely(begin_on_record, grant);

		/*
		 * if that has failed: the election's lock is held, so the entry is
		 * still that of this lease
		 */
		if (!le_deadline_is_committed(pg_atomic_read_u64(deadline)))
			pg_atomic_write_u64(deadline,
								le_deadline_after(le_monotonic_us(), grant->entry->expiry.lasts_us));
	}
	else
		le_wake_many(&grant->election.key);
	forget_grant(grant);
}

/*
 * Refuse to prepare a transaction that has taken a lease
 *
 * The session that commits it later could not begin the lease, and without a
 * lease, the lock would be held in vain until then.
 */
void
le_grants_before_prepare(void)
{
	LeGrant    *grant;

	if (dlist_is_empty(&grants.items))
		return;
	grant = (LeGrant *) dlist_head_element(LeXactItem, node, &grants.items);
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot PREPARE a transaction that has taken the lease of election %s",
					le_label(&grant->election)),
			 errhint("Take the lease in a separate transaction.")));
}

static void
announce_with_commit(LeXactItem *item)
{
	LeGrant    *grant = (LeGrant *) item;

	if (!grant->given_up)
		le_announce_running(&grant->election.key, grant->token, LE_ELECTED);
}

/*
 * Announce the leases that begin with the current commit
 */
void
le_grants_before_commit(void *unused pg_attribute_unused())
{
	le_xact_list_each(&grants, announce_with_commit);
}

/*
 * Begin the leases of a transaction that has committed.  Never raises an
 * error.
 */
void
le_grants_at_commit(void)
{
	le_xact_list_each(&grants, begin_grant);
}
