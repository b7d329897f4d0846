/*-------------------------------------------------------------------------
 *
 * term/term.c
 *	  The terms that this session runs: how they begin, what holds them, and
 *	  how they end.
 *
 * A term runs as long as this session holds the election's lock.  The session
 * may hold it at session level, at transaction level, or both, as with
 * pg_advisory_lock.  The term lasts until the last hold is released.
 *
 * Every term begins at transaction level, whatever scope was asked for, and
 * session scope is added after everything is recorded.  So if anything fails
 * or is canceled before that, the server releases the lock, and
 * le_terms_at_xact_end removes what was recorded: half a term never remains.
 *
 * A transaction-level hold belongs to the subtransaction that asked for it:
 * its resource owner has the lock, and xact_item has its number.
 *
 * The registry's entry is removed before the lock is released.  At the end of
 * a transaction this works because the server calls the extension before it
 * releases the transaction's locks.  It is too late for an error there, so
 * anything that may raise one runs in le_run_safely.  If the lock was released
 * without the extension's knowledge, it may be too late for the entry: then
 * the session that was elected since has removed it.
 *
 * The session level may also be released alone, while the transaction level
 * stays.  verify_holds brings a term in line with the lock manager before
 * anything is reported or done about it.
 *
 * Session-level locks of elections can only be released all at once
 * (pg_advisory_unlock_all, DISCARD ALL), because no application can name their
 * lock class.  So if any term that the session holds has lost its lock, the
 * oldest one has.  That makes the check at the end of each transaction cheap.
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

#include "announce/announce.h"
#include "term/term.h"

static HTAB *held_terms = NULL;
static LeHeldTerm *last_found = NULL;	/* NULL: none, or it has ended */
static dlist_head session_held = DLIST_STATIC_INIT(session_held);

static void drop_xact_hold(LeXactItem *item);

static LeXactList xact_held = LE_XACT_LIST(xact_held, drop_xact_hold);

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
 * Return the term that owns this transaction-level hold
 */
static LeHeldTerm *
of_item(LeXactItem *item)
{
	return (LeHeldTerm *) ((char *) item - offsetof(LeHeldTerm, xact_item));
}

static void
forget_xact_hold(LeHeldTerm *held)
{
	le_xact_list_remove(&xact_held, &held->xact_item);
	held->xact_hold = false;
}

static void
forget_session_hold(LeHeldTerm *held)
{
	dlist_delete(&held->session_node);
	held->session_hold = false;
}

/*
 * Narrow a term with both holds to transaction scope.  A silent term only
 * loses its session-level hold.
 */
static void
narrow_to_transaction(LeHeldTerm *held)
{
	if (le_registry_set_scope(&held->election.key, held->token, LE_SCOPE_TRANSACTION))
		le_stop_heartbeat(held);
	forget_session_hold(held);
}

/*
 * Bring the term's holds in line with the lock manager.  Return false if none
 * is left.
 */
static bool
verify_holds(LeHeldTerm *held)
{
	bool		session_level;

	/*
	 * common case: only the extension can have acquired it, at session level
	 */
	if (!held->xact_hold)
		return LockHeldByMeCompat(&held->election.tag, ExclusiveLock);

	if (!le_lock_unbroken(&held->election, &session_level))
		return false;
	if (held->session_hold && !session_level)
	{
		if (!held->xact_hold)
			return false;
		narrow_to_transaction(held);
	}
	return true;
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

	if (held->session_hold)
		forget_session_hold(held);
	if (held->xact_hold)
		le_xact_list_remove(&xact_held, &held->xact_item);
	le_stop_heartbeat(held);
	last_found = NULL;
	hash_search(held_terms, &ending.election, HASH_REMOVE, NULL);

	le_run_safely(take_off_record, &ending);
	if (reason == LE_END_LOCK_RELEASED)
		le_wake_followers(&ending.election);
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
	if (!verify_holds(held))
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
	return !dlist_is_empty(&session_held);
}

/*
 * Add the hold of the subtransaction that has just acquired the lock, for
 * which there must be room.  Never raises an error.
 */
static void
add_xact_hold(LeHeldTerm *held)
{
	held->xact_hold = true;
	le_xact_list_add(&xact_held, &held->xact_item, &held->election.key);
}

/*
 * Hold the term at session level, and announce it
 */
static void
add_session_hold(LeHeldTerm *held)
{
	Assert(!held->session_hold);
	le_acquire_for_session(&held->election);
	held->session_hold = true;
	dlist_push_tail(&session_held, &held->session_node);
	le_watch_client(true);
	le_announce_running(&held->election.key, held->token, LE_ELECTED);
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
}

/*
 * Notify a session that is elected in session scope in a transaction block,
 * once per term, that leadership outlives the block
 */
static void
notice_outlives(LeHeldTerm *held)
{
	if (held->noticed || !IsTransactionBlock())
		return;
	held->noticed = true;
	ereport(NOTICE,
			(errmsg("leadership of election %s outlives this transaction",
					le_label(&held->election)),
			 errhint("End the transaction before the work begins: an open one holds back vacuum.")));
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
	held->noticed = false;
	held->session_hold = false;
	held->entry = NULL;
	add_xact_hold(held);

	entry = le_registry_begin_term(&term);
	if (term.lasts_us != 0)
		le_start_heartbeat(held, entry);
	le_log_begin(&term);

	if (bid->scope == LE_SCOPE_SESSION)
	{
		add_session_hold(held);
		le_release_for_xact(&bid->election);
		forget_xact_hold(held);
		notice_outlives(held);
	}
	return term.token;
}

/*
 * Give the running term another heartbeat
 *
 * Does nothing if the term has that heartbeat already, or for 0: a bid is no
 * heartbeat.
 */
static void
set_heartbeat(LeHeldTerm *held, int64 heartbeat_us)
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
 * Hold the running term at session level, too, with the given heartbeat, or 0
 * to leave it as it is
 */
void
le_hold_for_session(LeHeldTerm *held, int64 heartbeat_us)
{
	/* first, so that after an error no term in session scope lacks it */
	set_heartbeat(held, heartbeat_us);
	if (held->session_hold)
		return;
	(void) le_registry_set_scope(&held->election.key, held->token, LE_SCOPE_SESSION);
	add_session_hold(held);
	notice_outlives(held);
}

/*
 * Hold the running term at transaction level, too, unless it is
 */
void
le_hold_for_transaction(LeHeldTerm *held)
{
	if (held->xact_hold)
		return;
	le_xact_list_reserve(&xact_held);
	(void) le_acquire_for_xact(&held->election, true);
	add_xact_hold(held);
}

/*
 * Release the session's hold, which ends the term unless the transaction holds
 * it, too
 */
void
le_let_go_for_session(LeHeldTerm *held)
{
	LeElection	election = held->election;

	Assert(held->session_hold);
	if (!held->xact_hold)
		end_term(held, LE_END_RESIGNED);
	else
		narrow_to_transaction(held);
	le_release_for_session(&election);
}

/*
 * Release all the session's holds, after calling the function for each, and
 * return how many there were
 */
int
le_let_go_all_for_session(void (*before) (const LeHeldTerm *held))
{
	dlist_mutable_iter iter;
	int			count = 0;

	dlist_foreach_modify(iter, &session_held)
	{
		LeHeldTerm *held = dlist_container(LeHeldTerm, session_node, iter.cur);

		if (!verify_holds(held))
			end_term(held, LE_END_LOCK_RELEASED);
		else if (le_held_is_silent(held))
			le_raise_silent(held);
		else if (held->session_hold)
		{
			before(held);
			le_let_go_for_session(held);
			count++;
		}
	}
	return count;
}

/*
 * Release the transaction's hold; the server is about to release its lock
 */
static void
drop_xact_hold(LeXactItem *item)
{
	LeHeldTerm *held = of_item(item);

	if (held->session_hold)
		forget_xact_hold(held);
	else
		end_term(held, proc_exit_inprogress ? LE_END_SESSION : LE_END_TRANSACTION);
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

static void
end_if_lost(LeXactItem *item)
{
	LeHeldTerm *held = of_item(item);

	if (!verify_holds(held))
		end_term(held, LE_END_LOCK_RELEASED);
}

/*
 * End the terms that have lost their lock, and bring the holds of the others
 * in line
 *
 * If the oldest one has its lock, all of them have.  May raise an error; then
 * the next call does the rest.
 */
void
le_verify_terms(void *unused pg_attribute_unused())
{
	dlist_mutable_iter iter;

	if (xact_held.count > 0)
		le_xact_list_each(&xact_held, end_if_lost);
	dlist_foreach_modify(iter, &session_held)
	{
		LeHeldTerm *held = dlist_container(LeHeldTerm, session_node, iter.cur);

		if (!verify_holds(held))
			end_term(held, LE_END_LOCK_RELEASED);
		else if (held->session_hold)
			break;
	}
}

/*
 * End the terms that end with the transaction.  Never raises an error.
 */
void
le_terms_at_xact_end(void)
{
	le_xact_list_each(&xact_held, drop_xact_hold);
}

/*
 * End all terms, and release their locks
 */
void
le_terms_at_exit(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &session_held)
	{
		LeHeldTerm *held = dlist_container(LeHeldTerm, session_node, iter.cur);
		LeElection	election = held->election;
		bool		has_lock = le_has_lock(&election.key);

		if (le_held_is_silent(held))
			le_log_silence(held);
		end_term(held, has_lock ? LE_END_SESSION : LE_END_LOCK_RELEASED);
		if (has_lock)
			le_release_for_session(&election);
	}
}
