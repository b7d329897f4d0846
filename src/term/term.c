/*-------------------------------------------------------------------------
 *
 * term/term.c
 *	  The terms that this session runs: how they begin, what holds them, and
 *	  how they end.
 *
 * A term runs as long as this session holds the election's lock: at session
 * level in session scope, and otherwise at transaction level.
 *
 * Every term begins at transaction level, whatever scope was asked for, and
 * moves to session level after everything is recorded.  So if anything fails
 * or is canceled before that, the server releases the lock, and
 * le_terms_at_xact_end removes what was recorded: half a term never remains.
 *
 * A term in transaction scope belongs to the subtransaction that asked for it:
 * its resource owner has the lock, and xact_item has its number.
 *
 * The registry's entry is removed before the lock is released.  At the end of
 * a transaction this works because the server calls the extension before it
 * releases the transaction's locks.  It is too late for an error there, so
 * anything that may raise one runs in le_run_safely.  If the lock was released
 * without the extension's knowledge, it may be too late for the entry: then
 * the session that was elected since has removed it.
 *
 * Session-level locks of elections can only be released all at once
 * (pg_advisory_unlock_all, DISCARD ALL), because no application can name their
 * lock class.  So if any term of session scope has lost its lock, the oldest
 * one has.  That makes the check at the end of each transaction cheap.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"

#include "lock/lock.h"
#include "tell/tell.h"
#include "term/term.h"

static HTAB *held_terms = NULL;
static LeHeldTerm *last_found = NULL;	/* NULL: none, or it has ended */
static dlist_head held_for_session = DLIST_STATIC_INIT(held_for_session);

static void end_with_xact(LeXactItem *item);

static LeXactList xact_held = LE_XACT_LIST(xact_held, end_with_xact);

/*
 * Raise an error if this server is in recovery
 */
void
le_require_primary(void)
{
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot elect a leader during recovery"),
				 errhint("Connect to the primary server.")));
}

static void
create_held_terms(void)
{
	HASHCTL		info = {
		.keysize = sizeof(LeElectionKey),
		.entrysize = sizeof(LeHeldTerm)
	};

	held_terms = hash_create("leader_election terms", 32, &info,
							 HASH_ELEM | HASH_BLOBS);
}

/*
 * Return the number of terms that this session runs.  Never raises an error.
 */
int
le_count_held(void)
{
	return held_terms == NULL ? 0 : hash_get_num_entries(held_terms);
}

/*
 * Return the term that this item belongs to
 */
static LeHeldTerm *
of_item(LeXactItem *item)
{
	return (LeHeldTerm *) ((char *) item - offsetof(LeHeldTerm, xact_item));
}

static bool
has_lock(const LeHeldTerm *held)
{
	return LockHeldByMeCompat(&held->election.tag, ExclusiveLock);
}

/* A term that ends, as the argument for le_run_safely */
typedef struct LeEndingTerm
{
	LeElectionKey election;
	int64		token;
	LeEndReason reason;
} LeEndingTerm;

static void
take_off_record(void *argument)
{
	LeEndingTerm *ending = argument;
	LeTerm		ended;

	if (le_registry_end_term(&ending->election, ending->token, ending->reason, &ended))
		le_report_end(&ended, ended.end_reason);
}

/*
 * Forget the term, and remove it from the registry
 *
 * Does not release the lock.  Never raises an error, so that the caller can
 * release the lock afterwards.
 */
static void
end_term(LeHeldTerm *held, LeEndReason reason)
{
	LeEndingTerm ending = {held->election.key, held->token, reason};

	if (held->for_session)
		dlist_delete(&held->session_node);
	else
		le_xact_list_remove(&xact_held, &held->xact_item);
	le_stop_heartbeat(held);
	last_found = NULL;
	hash_search(held_terms, &ending.election, HASH_REMOVE, NULL);

	le_run_safely(take_off_record, &ending);
	if (reason == LE_END_LOCK_RELEASED)
		le_wake_many(&ending.election);
}

/*
 * Return this session's running term of the election, or NULL if there is none
 *
 * Raises an error if this session leads another election with the same key.
 * Ends the session if the term is silent.
 */
LeHeldTerm *
le_held_term(const LeElection *election)
{
	LeHeldTerm *held;

	if (le_count_held() == 0)
		return NULL;
	held = last_found;
	if (held == NULL || memcmp(&held->election.key, &election->key, sizeof(LeElectionKey)) != 0)
		held = hash_search(held_terms, &election->key, HASH_FIND, NULL);
	if (held == NULL)
		return NULL;
	last_found = held;
	if (!has_lock(held))
	{
		end_term(held, LE_END_LOCK_RELEASED);
		return NULL;
	}
	if (le_held_is_silent(held))
		le_raise_silent(held);
	le_refuse_collision(election, held->election.name);
	return held;
}

/*
 * Check whether this session leads any election in session scope.  Never
 * raises an error.
 */
bool
le_leads_for_session(void)
{
	return !dlist_is_empty(&held_for_session);
}

/*
 * Fill in a term that is about to begin
 */
void
le_fill_term(LeTerm *term, const LeBid *bid, const LeIdentity *identity)
{
	memset(term, 0, sizeof(LeTerm));
	term->election = bid->election.key;
	term->token = bid->token;
	term->scope = bid->scope;
	term->pid = MyProcPid;
	term->role = GetSessionUserId();
	term->since = GetCurrentTimestamp();
	term->identity = *identity;
	strcpy(term->name, bid->election.name);
	term->declared = bid->election.declared;
}

/*
 * Notify a session whose term begins that it ends later, or sooner, than a
 * user of the other scope would expect
 */
static void
notice_end(const LeHeldTerm *held)
{
	if (held->for_session && IsTransactionBlock())
		ereport(NOTICE,
				(errmsg("leadership of election %s outlives this transaction",
						le_label(&held->election)),
				 errhint("End the transaction before the work begins: an open one holds back vacuum.")));
	else if (!held->for_session && !IsTransactionBlock())
		ereport(NOTICE,
				(errmsg("leadership of election %s ends with this statement",
						le_label(&held->election)),
				 errhint("Bid and work in one transaction block.")));
}

/*
 * Begin a term, and return its token
 *
 * This subtransaction must just have acquired the election's lock.  If an
 * error is raised before the session holds it, the abort of the transaction
 * undoes everything.
 */
int64
le_begin_term(const LeBid *bid, const LeIdentity *identity)
{
	LeTerm		term;
	LeHeldTerm *held;
	LeElectionEntry *entry;

	if (held_terms == NULL)
		create_held_terms();

	le_fill_term(&term, bid, identity);
	term.lasts_us = bid->lasts_us;
	term.deadline = le_deadline_after(le_monotonic_us(), bid->lasts_us);

	le_xact_list_reserve(&xact_held);
	held = hash_search(held_terms, &bid->election.key, HASH_ENTER, NULL);
	held->election = bid->election;
	held->token = term.token;
	held->for_session = false;
	held->entry = NULL;
	le_xact_list_add(&xact_held, &held->xact_item, &held->election.key);

	entry = le_registry_begin_term(&term);
	if (term.lasts_us != 0)
		le_start_heartbeat(held, entry);
	le_log_begin(&term);

	if (bid->scope == LE_SCOPE_SESSION)
	{
		le_acquire_for_session(&held->election);
		le_xact_list_remove(&xact_held, &held->xact_item);
		held->for_session = true;
		dlist_push_tail(&held_for_session, &held->session_node);
		le_watch_client(true);
		le_announce_running(&held->election.key, held->token, LE_ELECTED);
		le_release_for_xact(&bid->election);
	}
	notice_end(held);
	return term.token;
}

/*
 * End the term that this transaction was about to begin, if any, and release
 * the election's lock, if no running term has it
 *
 * Never raises an error.
 */
void
le_abandon_term(const LeElection *election)
{
	LeXactItem *item = le_xact_list_next(&xact_held, &election->key, NULL);

	if (item != NULL)
		end_term(of_item(item), LE_END_TRANSACTION);
	else if (le_count_held() > 0 &&
			 hash_search(held_terms, &election->key, HASH_FIND, NULL) != NULL)
		return;
	if (le_has_lock(&election->key))
		le_release_for_xact(election);
}

/*
 * Give the running term another heartbeat
 *
 * Does nothing if the term has that heartbeat already, or for 0: a bid is no
 * heartbeat.
 */
void
le_set_heartbeat(LeHeldTerm *held, int64 heartbeat_us)
{
	LeElectionEntry *entry;

	if (heartbeat_us == 0 ||
		(held->entry != NULL && held->entry->expiry.lasts_us == heartbeat_us))
		return;
	entry = le_registry_set_heartbeat(&held->election.key, held->token, heartbeat_us);
	if (entry != NULL)
		le_start_heartbeat(held, entry);
}

/*
 * End a term of session scope
 */
void
le_let_go_for_session(LeHeldTerm *held)
{
	LeElection	election = held->election;

	Assert(held->for_session);
	end_term(held, LE_END_RESIGNED);
	le_release_for_session(&election);
}

/*
 * End all terms of session scope, and return how many there were
 */
int
le_let_go_all_for_session(void)
{
	dlist_mutable_iter iter;
	int			count = 0;

	dlist_foreach_modify(iter, &held_for_session)
	{
		LeHeldTerm *held = dlist_container(LeHeldTerm, session_node, iter.cur);

		if (!has_lock(held))
			end_term(held, LE_END_LOCK_RELEASED);
		else if (le_held_is_silent(held))
			le_raise_silent(held);
		else
		{
			le_let_go_for_session(held);
			count++;
		}
	}
	return count;
}

/*
 * End a term of transaction scope; the server is about to release its lock
 */
static void
end_with_xact(LeXactItem *item)
{
	LeElectionKey election = item->election;

	end_term(of_item(item), proc_exit_inprogress ? LE_END_SESSION : LE_END_TRANSACTION);
	le_wake_many(&election);
}

/*
 * Refuse to prepare a transaction that leads an election
 *
 * A prepared transaction has no session that could lead.
 */
void
le_terms_before_prepare(void)
{
	LeHeldTerm *held;

	if (dlist_is_empty(&xact_held.items))
		return;
	held = of_item(dlist_head_element(LeXactItem, node, &xact_held.items));
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot PREPARE a transaction that leads election %s",
					le_label(&held->election)),
			 errhint("Use session scope, or commit without PREPARE TRANSACTION.")));
}

/*
 * End the terms that have lost their lock: if any has, the oldest one has
 *
 * May raise an error; then the next call does the rest.
 */
void
le_verify_terms(void *unused pg_attribute_unused())
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &held_for_session)
	{
		LeHeldTerm *held = dlist_container(LeHeldTerm, session_node, iter.cur);

		if (has_lock(held))
			break;
		end_term(held, LE_END_LOCK_RELEASED);
	}
}

/*
 * End the terms that end with the transaction.  Never raises an error.
 */
void
le_terms_at_xact_end(void)
{
	le_xact_list_each(&xact_held, end_with_xact);
}

/*
 * End all terms, and release their locks
 */
void
le_terms_at_exit(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &held_for_session)
	{
		LeHeldTerm *held = dlist_container(LeHeldTerm, session_node, iter.cur);
		LeElection	election = held->election;
		bool		locked = le_has_lock(&election.key);

		if (le_held_is_silent(held))
			le_log_silence(held);
		end_term(held, locked ? LE_END_SESSION : LE_END_LOCK_RELEASED);
		if (locked)
			le_release_for_session(&election);
	}
}
