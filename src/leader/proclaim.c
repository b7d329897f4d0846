/*-------------------------------------------------------------------------
 *
 * leader/proclaim.c
 *	  Values that leaders publish.
 *
 * A value takes effect when the transaction that proclaims it commits, and
 * only if the term runs then.  Until then it is in this backend's list.
 * Before the commit, it is copied to shared memory, where there may be no room
 * for it, and the commit fails if the term has ended.  After the commit, the
 * registry's entry is made to point to it, which cannot fail.  If the term
 * ends in between, the value has ended with it.
 *
 * The list has at most one value for each term and subtransaction, with those
 * of inner subtransactions after those of outer ones.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "announce/announce.h"
#include "lease/lease.h"
#include "leader/leader.h"

/* A value that this transaction publishes */
typedef struct LeProclamation
{
	LeXactItem	item;
	LeElection	election;
	int64		token;
	dsa_pointer stored;			/* invalid: not yet, or no value */
	char	   *value;			/* NULL: publishes none any more */
} LeProclamation;

/* in TopTransactionContext */
static void forget_proclamation(LeXactItem *item);

static LeXactList proclamations = LE_XACT_LIST(proclamations, forget_proclamation);

/*
 * Check whether the term runs, as this session's or as a lease
 */
static bool
is_led(const LeElection *election, int64 token)
{
	LeHeldTerm *held = le_held_term(election);

	if (held != NULL && held->token == token)
		return held->for_session;
	return le_lease_runs_for_any(election, token, NULL);
}

/*
 * Raise an error unless the current user may act for the leader in this
 * session's term
 *
 * The term belongs to the session, but not all code that runs in it does.  So
 * the user must have the privileges of the session's user, or be allowed to
 * bid.
 */
void
le_require_own_term(const LeElection *election)
{
	LeBid		bid = {.election = *election,.scope = LE_SCOPE_SESSION};

	if (!has_privs_of_role(GetUserId(), GetSessionUserId()))
		le_require_candidate(&bid);
}

/*
 * Return the token of the term in which the caller may publish a value, or 0,
 * with a warning, if it leads none
 *
 * token is 0 for the term of this session.  Raises an error if the user may
 * not publish in that term, or may not use the lease.
 */
static int64
token_to_use(const LeElection *election, int64 token)
{
	LeHeldTerm *held = le_held_term(election);

	if (held != NULL && (token == 0 || held->token == token))
	{
		if (held->for_session)
		{
			le_require_own_term(election);
			return held->token;
		}
		le_warn_bound_to_transaction(election);
		return 0;
	}
	if (token != 0 && le_check_own_lease(election, token))
		return token;
	le_warn_not_leader(election, token == 0 ? NULL : &token);
	return 0;
}

static void
free_stored(void *argument)
{
	le_registry_free(argument);
}

/*
 * Forget a value that is not published.  Never raises an error.
 */
static void
forget_proclamation(LeXactItem *item)
{
	LeProclamation *proclamation = (LeProclamation *) item;

	le_xact_list_remove(&proclamations, item);
	if (DsaPointerIsValid(proclamation->stored))
		le_run_safely(free_stored, &proclamation->stored);
	if (proclamation->value != NULL)
		pfree(proclamation->value);
	pfree(proclamation);
}

/*
 * Return the first value that is published in the given term, or the one after
 * the given one, or NULL if there are no more
 */
static LeProclamation *
next_proclamation(const LeElectionKey *election, int64 token, LeProclamation *after)
{
	LeXactItem *item = (LeXactItem *) after;

	while ((item = le_xact_list_next(&proclamations, election, item)) != NULL)
	{
		LeProclamation *proclamation = (LeProclamation *) item;

		if (proclamation->token == token)
			return proclamation;
	}
	return NULL;
}

/*
 * Forget the value that the given one replaces
 */
static void
forget_earlier(const LeProclamation *later, SubTransactionId subxact)
{
	LeProclamation *earlier = NULL;

	do
		earlier = next_proclamation(&later->item.election, later->token, earlier);
	while (earlier != NULL && (earlier == later || earlier->item.subxact != subxact));
	if (earlier != NULL)
		forget_proclamation(&earlier->item);
}

/*
 * Publish a value, or none any more for NULL, with the commit of this
 * transaction.  Return false, with a warning, if the caller does not lead.
 *
 * token is 0 for the term of this session.
 */
bool
le_publish(const LeElection *election, int64 token, const text *value)
{
	LeProclamation *proclamation;
	MemoryContext caller;

	le_require_primary();
	PreventCommandIfParallelMode("a proclamation");
	(void) le_leases_ready(false);

	token = token_to_use(election, token);
	if (token == 0)
		return false;

	caller = MemoryContextSwitchTo(TopTransactionContext);
	proclamation = palloc0_object(LeProclamation);
	proclamation->election = *election;
	proclamation->token = token;
	proclamation->stored = InvalidDsaPointer;
	if (value != NULL)
		proclamation->value = text_to_cstring(value);
	MemoryContextSwitchTo(caller);
	le_xact_list_add(&proclamations, &proclamation->item, &election->key);
	forget_earlier(proclamation, proclamation->item.subxact);
	return true;
}

/*
 * Forget what was to be published in a term that its leader has resigned from
 */
void
le_unpublish(const LeElection *election, int64 token)
{
	LeProclamation *next = next_proclamation(&election->key, token, NULL);
	LeProclamation *proclamation;

	while ((proclamation = next) != NULL)
	{
		next = next_proclamation(&election->key, token, proclamation);
		forget_proclamation(&proclamation->item);
	}
}

/*
 * Refuse to prepare a transaction that publishes a value
 */
void
le_proclamations_before_prepare(void)
{
	LeProclamation *proclamation;

	if (dlist_is_empty(&proclamations.items))
		return;
	proclamation = (LeProclamation *) dlist_head_element(LeXactItem, node,
														 &proclamations.items);
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot PREPARE a transaction that publishes a value for election %s",
					le_label(&proclamation->election))));
}

/*
 * Prepare to publish a value with the current commit.  Raises an error if that
 * is not possible.
 */
static void
prepare_proclamation(LeProclamation *proclamation)
{
	LeElection *election = &proclamation->election;

	if (!is_led(election, proclamation->token))
		le_raise_over(election, proclamation->token,
					  "The transaction publishes a value as its leader.");
	if (proclamation->value != NULL &&
		!le_registry_store_string(proclamation->value, &proclamation->stored))
		le_raise_registry_full();
	le_announce_running(&election->key, proclamation->token, LE_PROCLAIMED);
}

/*
 * Prepare to publish the transaction's values with the current commit
 */
void
le_proclamations_before_commit(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &proclamations.items)
		prepare_proclamation((LeProclamation *) dlist_container(LeXactItem, node, iter.cur));
}

static void
publish(void *argument)
{
	LeProclamation *proclamation = argument;

	le_registry_set_value(&proclamation->election.key, proclamation->token,
						  &proclamation->stored);
}

static void
publish_and_forget(LeXactItem *item)
{
	le_run_safely(publish, item);
	forget_proclamation(item);
}

/*
 * Publish the transaction's values.  Never raises an error.
 */
void
le_proclamations_at_commit(void)
{
	le_xact_list_each(&proclamations, publish_and_forget);
}

/*
 * Let a subtransaction's values, which are about to be passed to its parent,
 * replace those of the same terms there
 */
void
le_proclamations_at_subxact_commit(SubTransactionId mine, SubTransactionId parent)
{
	dlist_node *node = le_xact_list_first_of(&proclamations, mine);

	for (; node != &proclamations.items.head; node = node->next)
		forget_earlier((LeProclamation *) dlist_container(LeXactItem, node, node), parent);
}
