/*-------------------------------------------------------------------------
 *
 * term/term.c
 *	  The terms that this session runs: how they begin, what holds them, and how
 *	  they end.
 *
 * A term runs as long as this session holds the election's lock.  It may hold it
 * at session level, at transaction level, or both, just as with
 * pg_advisory_lock; the term lasts until the last hold is let go.
 *
 * Every term begins at transaction level, whatever was asked for, and session
 * scope is added when all is written down.  So if anything fails or is cancelled
 * before, the server releases the lock, and le_terms_at_xact_end removes what was
 * written down: no exit leaves half a term.
 *
 * A transaction-level hold belongs to the subtransaction that asked for it: that
 * one's resource owner has the lock, and xact_item bears its number.
 *
 * The registry's entry is removed before the lock is let go.  At the end of a
 * transaction this works because the server calls us before it releases the
 * transaction's locks.  It is too late to throw there: so nothing that can is done
 * but in le_run_safely.  Where the lock went away behind our back, it may be too
 * late: then whoever was elected since has removed the entry.
 *
 * Not only may a lock go away behind our back: so may its session level alone,
 * while the transaction level stays; and a bare key's lock may be released and
 * taken again by the application itself, with another leader in between.
 * verify_holds brings a term in line with the lock manager before anything is
 * said or done about it.
 *
 * Session-level locks on names can only go all at once (pg_advisory_unlock_all,
 * DISCARD ALL), because no application can name their lock class.  So of the
 * terms held for the session, in the order in which they came to be, the first
 * has lost its lock if any has; that makes the check at the end of each
 * transaction cheap.  Bare keys can go one by one, and are all looked at.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"

#include "announce/announce.h"
#include "term/term.h"

static HTAB *held_terms = NULL;
static dlist_head names_held = DLIST_STATIC_INIT(names_held);
static dlist_head keys_held = DLIST_STATIC_INIT(keys_held);
static dlist_head xact_held = DLIST_STATIC_INIT(xact_held);

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
 * Return the term whose hold by the transaction that is
 */
static LeHeldTerm *
of_item(LeXactItem *item)
{
	return (LeHeldTerm *) ((char *) item - offsetof(LeHeldTerm, xact_item));
}

static void
forget_xact_hold(LeHeldTerm *held)
{
	dlist_delete(&held->xact_item.node);
	held->xact_hold = false;
}

static void
forget_session_hold(LeHeldTerm *held)
{
	dlist_delete(&held->session_node);
	held->session_hold = false;
}

/*
 * Narrow a term with both holds to the transaction; but one whose leader is silent stays so
 */
static void
narrow_to_transaction(LeHeldTerm *held)
{
	if (le_held_is_silent(held))
	{
		forget_session_hold(held);
		return;
	}

	/* first, as its timer must not find a term without a heartbeat */
	le_stop_heartbeat(held);
	le_registry_set_scope(&held->election.key, held->token,
						  LE_SCOPE_TRANSACTION);
	forget_session_hold(held);
}

/*
 * Bring the term's holds in line with the lock manager; false if none is left
 */
static bool
verify_holds(LeHeldTerm *held)
{
	bool		session_level;

	/* the common case: only we can have taken it, and only for the session */
	if (held->election.key.lock_class != LE_CLASS_BARE_KEY && !held->xact_hold)
		return le_has_lock(&held->election.key);

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

/* A term that ends, as le_run_safely passes it on */
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
	LeNews		news;

	if (!le_registry_end_term(&ending->election, ending->token, ending->reason, &news))
		return;
	le_log_end(&news.term, news.term.end_reason);

	/* the beginning is on the list, or was sent */
	news.what &= LE_NEWS_END;
	le_announce_news(&news, LE_DUTY_OWN, false);
}

/*
 * Forget the term and take it off the record
 *
 * Leaves the lock alone.  Does not throw, so that the lock can be let go after it.
 */
static void
end_term(LeHeldTerm *held, LeEndReason reason)
{
	LeEndingTerm ending = {held->election.key, held->token, reason};

	if (held->session_hold)
		dlist_delete(&held->session_node);
	if (held->xact_hold)
		dlist_delete(&held->xact_item.node);
	le_stop_heartbeat(held);
	hash_search(held_terms, &ending.election, HASH_REMOVE, NULL);

	le_run_safely(take_off_record, &ending);
	if (reason == LE_END_LOCK_RELEASED)
		le_wake_followers(&ending.election);
}

/*
 * End a term that is silent, and let go of its lock
 *
 * Where the transaction holds that, too, both stay as they are until it ends.  Ends the
 * session if that was told to go.
 */
static void
end_silent(LeHeldTerm *held)
{
	LeElection	election = held->election;

	if (held->xact_hold)
		return;
	le_claim_end(held);
	end_term(held, LE_END_SILENT);
	le_release_for_session(&election);
}

/*
 * Raise an error if this transaction holds the election's lock by a term that is silent
 *
 * A new term cannot begin on that hold, which the transaction cannot let go.
 */
void
le_refuse_silent_hold(const LeElection *election)
{
	LeHeldTerm *held = NULL;

	if (held_terms != NULL)
		held = hash_search(held_terms, &election->key, HASH_FIND, NULL);
	if (held != NULL && le_held_is_silent(held))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot bid for election %s in the transaction that has led it",
						le_election_label(&election->key, election->name)),
				 errdetail("Its term is over, as no heartbeat has come in time, and the transaction holds the lock."),
				 errhint("End the transaction, and bid again.")));
}

/*
 * Return this session's running term of the election, or NULL
 *
 * Throws if it leads another election that has the same key.
 */
LeHeldTerm *
le_held_term(const LeElection *election)
{
	LeHeldTerm *held;

	if (held_terms == NULL)
		return NULL;
	held = hash_search(held_terms, &election->key, HASH_FIND, NULL);
	if (held == NULL)
		return NULL;
	if (!verify_holds(held))
	{
		end_term(held, LE_END_LOCK_RELEASED);
		return NULL;
	}
	if (le_held_is_silent(held))
	{
		end_silent(held);
		return NULL;
	}
	le_refuse_collision(election, held->election.name);
	return held;
}

/*
 * End the terms of the list that have lost their lock
 *
 * Of the names, if the first has its lock, then so have all.
 */
static void
end_lost(dlist_head *list)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, list)
	{
		LeHeldTerm *held = dlist_container(LeHeldTerm, session_node, iter.cur);

		if (!verify_holds(held))
			end_term(held, LE_END_LOCK_RELEASED);
		else if (list == &names_held && held->session_hold)
			break;
	}
}

/*
 * Does this session lead anything in session scope?  Does not throw
 */
bool
le_leads_for_session(void)
{
	return !dlist_is_empty(&names_held) || !dlist_is_empty(&keys_held);
}

/*
 * Count the terms that this session runs.  Never throws
 */
int
le_count_held(void)
{
	return held_terms == NULL ? 0 : hash_get_num_entries(held_terms);
}

/*
 * Add the hold of the subtransaction that has just got the lock
 */
static void
add_xact_hold(LeHeldTerm *held)
{
	held->xact_hold = true;
	held->xact_item.subxact = GetCurrentSubTransactionId();
	dlist_push_tail(&xact_held, &held->xact_item.node);
}

/*
 * Hold the term for the session
 */
static void
add_session_hold(LeHeldTerm *held)
{
	Assert(!held->session_hold);
	le_acquire_for_session(&held->election);
	held->session_hold = true;
	dlist_push_tail(held->election.key.lock_class == LE_CLASS_BARE_KEY ?
					&keys_held : &names_held, &held->session_node);
	le_watch_client();
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
	term->announces = le_notify;
	term->identity = *identity;
	strcpy(term->name, bid->election.name);
}

/*
 * Tell who takes session scope in a transaction block, once a term, that
 * leadership outlives the block
 */
static void
notice_outlives(LeHeldTerm *held)
{
	if (held->noticed || !IsTransactionBlock())
		return;
	held->noticed = true;
	ereport(NOTICE,
			(errmsg("leadership of election %s outlives this transaction",
					le_election_label(&held->election.key, held->election.name)),
			 errhint("End the transaction before the work begins: an open one holds back vacuum.")));
}

/*
 * Begin a term; this subtransaction has just been granted the election's lock
 *
 * Returns its token.  On an error before the session holds it, the abort of the
 * transaction undoes all of it.
 */
int64
le_begin_term(const LeBid *bid, const LeIdentity *identity)
{
	LeTerm		term;
	LeNews		before;
	LeHeldTerm *held;
	LeElectionEntry *entry;

	if (held_terms == NULL)
		create_held_terms();

	le_fill_term(&term, bid, identity);
	term.ttl_us = bid->ttl_us;
	term.deadline = le_monotonic_us() + bid->ttl_us;

	held = hash_search(held_terms, &bid->election.key, HASH_ENTER, NULL);
	held->election = bid->election;
	held->token = term.token;
	held->noticed = false;
	held->announced = false;
	held->session_hold = false;
	held->entry = NULL;
	add_xact_hold(held);

	entry = le_registry_begin_term(&term, &before);
	if (entry != NULL)
		le_start_heartbeat(held, entry);
	le_announce_news(&before, LE_DUTY_TAKEN, false);
	le_log_begin(&term);
	le_announce_begin(&term, false);

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
 * Have the running term end without a heartbeat for so long
 *
 * Nothing if that is what it has, or for 0: to ask for it again is no heartbeat.
 */
static void
set_heartbeat(LeHeldTerm *held, int64 heartbeat_us)
{
	LeElectionEntry *entry;

	if (heartbeat_us == 0 ||
		(held->entry != NULL && held->entry->expiry.ttl_us == heartbeat_us))
		return;
	entry = le_registry_set_heartbeat(&held->election.key, held->token, heartbeat_us);
	if (entry != NULL)
		le_start_heartbeat(held, entry);
}

/*
 * Hold the running term for the session, too, with that heartbeat, 0 for what it has
 */
void
le_hold_for_session(LeHeldTerm *held, int64 heartbeat_us)
{
	bool		outlives = !held->session_hold;

	/* first, so that an error leaves no session's term without it */
	set_heartbeat(held, heartbeat_us);
	if (!outlives)
		return;
	le_registry_set_scope(&held->election.key, held->token, LE_SCOPE_SESSION);
	add_session_hold(held);
	notice_outlives(held);
}

/*
 * Hold the running term for this transaction, too; nothing if it is
 */
void
le_hold_for_transaction(LeHeldTerm *held)
{
	if (held->xact_hold)
		return;
	(void) le_acquire_for_xact(&held->election, true);
	add_xact_hold(held);
}

/*
 * Let go of the session's hold, and so end the term unless the transaction
 * holds it, too
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

static int
let_go_list(dlist_head *list, void (*before) (const LeHeldTerm *held))
{
	dlist_mutable_iter iter;
	int			count = 0;

	dlist_foreach_modify(iter, list)
	{
		LeHeldTerm *held = dlist_container(LeHeldTerm, session_node, iter.cur);

		if (!verify_holds(held))
			end_term(held, LE_END_LOCK_RELEASED);
		else if (le_held_is_silent(held))
			end_silent(held);
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
 * Let go of all the session's holds, each after the function was called for it; return how
 * many there were
 */
int
le_let_go_all_for_session(void (*before) (const LeHeldTerm *held))
{
	return let_go_list(&names_held, before) + let_go_list(&keys_held, before);
}

/*
 * Let go of the transaction's hold; the server is about to release its lock
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
 * Refuse to prepare a transaction that holds leadership
 *
 * A prepared transaction has no session that could be its leader.
 */
void
le_terms_before_prepare(void)
{
	LeHeldTerm *held;

	if (dlist_is_empty(&xact_held))
		return;
	held = of_item(dlist_head_element(LeXactItem, node, &xact_held));
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot PREPARE a transaction that leads election %s",
					le_election_label(&held->election.key, held->election.name)),
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
 * End the terms that have lost their lock, and bring the others' holds in line
 *
 * May throw; then the rest is left for the next time.
 */
void
le_verify_terms(void *unused pg_attribute_unused())
{
	le_xact_list_each(&xact_held, end_if_lost);
	end_lost(&names_held);
	end_lost(&keys_held);
}

static void
announce_end_with_commit(LeXactItem *item)
{
	LeHeldTerm *held = of_item(item);
	LeNews		news;

	if (held->session_hold ||
		!le_registry_end_foreseen(&held->election.key, held->token, &news))
		return;
	held->announced = true;
	le_announce_news(&news, LE_DUTY_OWN, true);
}

/*
 * Announce the terms that the commit at hand is about to end
 */
void
le_terms_before_commit(void *unused pg_attribute_unused())
{
	le_xact_list_each(&xact_held, announce_end_with_commit);
}

static void
undo_announcement(void *argument)
{
	LeHeldTerm *held = argument;

	le_registry_end_unforeseen(&held->election.key, held->token);
}

static void
undo_announced_end(LeXactItem *item)
{
	LeHeldTerm *held = of_item(item);

	if (held->announced)
		le_run_safely(undo_announcement, held);
	held->announced = false;
}

/*
 * The commit has failed, and with it went the announcements.  Does not throw
 */
void
le_terms_not_committed(void)
{
	le_xact_list_each(&xact_held, undo_announced_end);
}

/*
 * End the terms that end with the transaction.  Does not throw
 */
void
le_terms_at_xact_end(void)
{
	le_xact_list_each(&xact_held, drop_xact_hold);
}

/*
 * Pass a subtransaction's holds on to its parent
 */
void
le_terms_at_subxact_commit(SubTransactionId mine, SubTransactionId parent)
{
	le_xact_list_commit(&xact_held, mine, parent);
}

/*
 * Let go of a subtransaction's holds.  Does not throw
 */
void
le_terms_at_subxact_abort(SubTransactionId mine)
{
	le_xact_list_abort(&xact_held, mine, drop_xact_hold);
}

static void
end_at_exit(dlist_head *list)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, list)
	{
		LeHeldTerm *held = dlist_container(LeHeldTerm, session_node, iter.cur);
		LeElection	election = held->election;
		bool		has_lock = le_has_lock(&election.key);

		end_term(held, has_lock ? LE_END_SESSION : LE_END_LOCK_RELEASED);
		if (has_lock)
			le_release_for_session(&election);
	}
}

/*
 * End all terms, and release their locks, so that what is announced after it is true
 */
void
le_terms_at_exit(void)
{
	end_at_exit(&names_held);
	end_at_exit(&keys_held);
}
