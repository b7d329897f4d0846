/*-------------------------------------------------------------------------
 *
 * leader_election.c
 *	  Module load, settings, and the callbacks at the end of transactions and
 *	  sessions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>
#include <limits.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "utils/guc.h"
#include "utils/resowner.h"

#include "leader_election.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

/*
 * An administrator whose applications elect many times a second may want the
 * beginning and end of each term out of the server log.
 */
bool		le_log_terms = true;

/*
 * Every term takes a slot of the lock table that all sessions share.  Whoever
 * raises this may have to raise max_locks_per_transaction, too.
 */
int			le_max_terms_per_session = 1000;

/*
 * Every transaction that changes who leads sends a notification, which takes a
 * transaction ID and a lock that all such commits share.  Programs that elect
 * thousands of times a second, and whose followers do not listen, may want that off.
 */
bool		le_notify = true;

/*
 * Who has many thousand elections may want to see all of them in the statistics;
 * each takes less than a kilobyte of shared memory.
 */
int			le_max_tracked = 5000;

/*
 * Leases, and the names that one session campaigns for, take no locks.  Whoever fears callers
 * that ask for millions can bound the memory that they take.
 */
int			le_max_elections = 1000 * 1000;

/*
 * A server that is promoted may not know of the last leases that were granted before.
 * It waits until they have run out, whoever has them: so long must be known.  It must
 * be as long on all servers that may be promoted, and not be lowered while longer leases
 * run.
 */
int			le_max_ttl = 60 * 1000;

/*
 * A program that has lost its leadership goes on until it notices.  Who knows how long
 * that takes can leave the job to nobody meanwhile.
 */
int			le_grace_period = 0;

/*
 * How long a client's host may be silent before the session is given up, while it leads or
 * waits; in seconds.  Who waits for long for clients that do not read may want it longer;
 * 0 leaves it to the server's own settings.
 */
int			le_dead_peer_timeout = 15;

/*
 * Who runs the server for others may want to know which elections are held there, and by
 * whom.
 */
bool		le_declared_only = false;

/*
 * By what an application that writes through any connection tells the trigger le_guard
 * who it is: the token of its term; 0: none.
 */
int64		le_session_token = 0;
static char *session_token = NULL;

static bool
check_session_token(char **value, void **extra, GucSource source pg_attribute_unused())
{
	int64		token = 0;

	if (**value != '\0')
	{
		char	   *end;

		errno = 0;
		token = strtoi64(*value, &end, 10);
		if (!isdigit((unsigned char) **value) || errno != 0 || *end != '\0' || token <= 0)
		{
			GUC_check_errdetail("It must be a token, a positive bigint, or empty for none.");
			return false;
		}
	}
	*extra = GucMallocCompat(sizeof(int64));
	if (*extra == NULL)
		return false;
	*(int64 *) *extra = token;
	return true;
}

static void
assign_session_token(const char *value pg_attribute_unused(), void *extra)
{
	le_session_token = *(int64 *) extra;
}

static void
define_limits(void)
{
	DefineCustomIntVariable("leader_election.max_terms_per_session",
							"Sets the maximum number of elections that one session may lead at a time.",
							"Each term takes one slot of the lock table, which all sessions share.",
							&le_max_terms_per_session,
							1000,
							1,
							INT_MAX,
							PGC_SUSET,
							0,
							NULL,
							NULL,
							NULL);

	DefineCustomIntVariable("leader_election.max_elections",
							"Sets the maximum number of elections that the server knows of at a time.",
							"Those that are led, waited for and remembered, of all databases.",
							&le_max_elections,
							1000 * 1000,
							1000,
							INT_MAX / 2,
							PGC_SIGHUP,
							0,
							NULL,
							NULL,
							NULL);

	DefineCustomIntVariable("leader_election.max_tracked",
							"Sets the maximum number of elections that are remembered while nobody leads them.",
							NULL,
							&le_max_tracked,
							5000,
							100,
							INT_MAX / 2,
							PGC_SIGHUP,
							0,
							NULL,
							NULL,
							NULL);

	DefineCustomIntVariable("leader_election.max_ttl",
							"Sets the maximum ttl of a lease.",
							"A server that was promoted grants no lease for as long.",
							&le_max_ttl,
							60 * 1000,
							LE_MIN_TTL_MS,
							LE_MAX_TTL_MS,
							PGC_SIGHUP,
							GUC_UNIT_MS,
							NULL,
							NULL,
							NULL);

	DefineCustomIntVariable("leader_election.dead_peer_timeout",
							"Sets the time in which a client that has vanished is found while it leads or waits.",
							"0 leaves that to the settings tcp_keepalives_idle and the like.",
							&le_dead_peer_timeout,
							15,
							0,
							24 * 60 * 60,
							PGC_USERSET,
							GUC_UNIT_S,
							NULL,
							NULL,
							NULL);
}

static void
define_rules(void)
{
	DefineCustomIntVariable("leader_election.grace_period",
							"Sets how long an election stays vacant after a term that ended without resignation.",
							"In that time, who has led can notice and stop.",
							&le_grace_period,
							0,
							0,
							LE_MAX_TTL_MS,
							PGC_SUSET,
							GUC_UNIT_MS,
							NULL,
							NULL,
							NULL);

	DefineCustomBoolVariable("leader_election.declared_only",
							 "Closes all elections that are not declared.",
							 NULL,
							 &le_declared_only,
							 false,
							 PGC_SUSET,
							 0,
							 NULL,
							 NULL,
							 NULL);
}

static void
define_reports(void)
{
	DefineCustomBoolVariable("leader_election.log_terms",
							 "Logs the beginning and the end of each term.",
							 NULL,
							 &le_log_terms,
							 true,
							 PGC_SUSET,
							 0,
							 NULL,
							 NULL,
							 NULL);

	DefineCustomBoolVariable("leader_election.notify",
							 "Announces changes on the channel \"leader_election\".",
							 NULL,
							 &le_notify,
							 true,
							 PGC_USERSET,
							 0,
							 NULL,
							 NULL,
							 NULL);
}

/*
 * Throw if the client has set what only administrators may set
 *
 * As the library may not have been loaded when the session began, the server took it.  It
 * would drop it now, and with it what the administrator has set.
 */
static void
refuse_settings_of_client(void)
{
	static const char *const restricted[] = {
		"leader_election.declared_only",
		"leader_election.grace_period",
		"leader_election.log_terms",
		"leader_election.max_elections",
		"leader_election.max_terms_per_session",
		"leader_election.max_tracked",
		"leader_election.max_ttl",
	};

	if (strcmp(GetConfigOption("is_superuser", false, false), "on") == 0)
		return;
	for (size_t i = 0; i < lengthof(restricted); i++)
	{
		if (GucSourceCompat(restricted[i]) == PGC_S_CLIENT)
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied to set parameter \"%s\"", restricted[i]),
					 errhint("Connect without it.")));
	}
}

/*
 * Define the settings
 */
void
_PG_init(void)
{
	refuse_settings_of_client();
	define_limits();
	define_rules();
	define_reports();
	DefineCustomStringVariable("leader_election.token",
							   "Sets the token by which the trigger le_guard knows the leader.",
							   "Empty: the session must lead itself.",
							   &session_token,
							   "",
							   PGC_USERSET,
							   0,
							   check_session_token,
							   assign_session_token,
							   NULL);

	MarkGUCPrefixReserved("leader_election");
}

/*
 * Run the action; false if it has thrown an error, which is forgotten
 *
 * It must not leave anything to clean up but LWLocks.  No LWLock may be held by the
 * caller.  At the end of a session this is in vain, because the server makes every
 * error fatal there.
 */
bool
le_try(void (*action) (void *), void *argument)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	uint32		interrupts_held = InterruptHoldoffCount;
	uint32		cancels_held = QueryCancelHoldoffCount;
	volatile bool done = true;

	PG_TRY();
	{
		action(argument);
	}
	PG_CATCH();
	{
		LWLockReleaseAll();
		MemoryContextSwitchTo(context);
		FlushErrorState();
		CurrentResourceOwner = owner;
		InterruptHoldoffCount = interrupts_held;
		QueryCancelHoldoffCount = cancels_held;
		done = false;
	}
	PG_END_TRY();

	return done;
}

/*
 * Run the action, and let nothing that it throws get further than the log
 *
 * For callbacks from the end of a transaction: an error would take down the
 * server after a commit, and come again and again in an abort.
 */
void
le_catching(void (*action) (void *), void *argument)
{
	if (le_try(action, argument))
		return;
	HOLD_INTERRUPTS();
	ereport(LOG_SERVER_ONLY,
			(errmsg_internal("leader_election: could not bring the registry up to date"),
			 errhidestmt(true), errhidecontext(true)));
	RESUME_INTERRUPTS();
}

/*
 * A wait has failed: leave nothing of it behind.  Does not throw
 */
static void
stop_waiting(void)
{
	le_withdraw();
	le_stop_following();
	le_stop_observing();
}

/*
 * Go on looking after the client of a session that leads or waits, and of no other.  Does
 * not throw
 */
static void
update_watch(void)
{
	if (le_leads_for_session() || le_is_candidate())
		le_watch_client();
	else
		le_unwatch_client();
}

/*
 * Keep this session's terms in step with the end of its transactions
 *
 * At XACT_EVENT_COMMIT and XACT_EVENT_ABORT the transaction's locks are still
 * held: see term.c for why that matters.  Before a commit it is not too late to
 * throw; after it, and in an abort, it is.
 */
static void
at_xact_event(XactEvent event, void *arg pg_attribute_unused())
{
	switch (event)
	{
		case XACT_EVENT_PRE_PREPARE:
			le_terms_before_prepare();
			le_grants_before_prepare();
			le_proclamations_before_prepare();
			le_verify_terms(NULL);
			le_guards_before_commit();
			break;
		case XACT_EVENT_PREPARE:
			le_guards_at_xact_end();
			le_announcements_ask();
			update_watch();
			break;
		case XACT_EVENT_PRE_COMMIT:
			le_verify_terms(NULL);
			le_guards_before_commit();
			le_catching(le_terms_before_commit, NULL);
			le_catching(le_grants_before_commit, NULL);
			le_proclamations_before_commit();
			le_announcements_before_commit();
			break;
		case XACT_EVENT_COMMIT:
			le_terms_at_xact_end();
			le_grants_at_commit();
			le_guards_at_xact_end();
			le_proclamations_at_commit();
			le_announcements_at_commit();
			update_watch();
			break;
		case XACT_EVENT_ABORT:
			stop_waiting();
			le_terms_not_committed();
			le_catching(le_verify_terms, NULL);
			le_terms_at_xact_end();
			le_grants_at_abort();
			le_guards_at_xact_end();
			le_proclamations_at_abort(InvalidSubTransactionId);
			le_announcements_at_abort();
			update_watch();
			break;
		default:
			break;
	}
}

/*
 * Keep this session's terms in step with the end of its subtransactions
 */
static void
at_subxact_event(SubXactEvent event, SubTransactionId mine,
				 SubTransactionId parent, void *arg pg_attribute_unused())
{
	switch (event)
	{
		case SUBXACT_EVENT_COMMIT_SUB:
			le_terms_at_subxact_commit(mine, parent);
			le_grants_at_subxact_commit(mine, parent);
			le_guards_at_subxact_commit(mine, parent);
			le_proclamations_at_subxact_commit(mine, parent);
			break;
		case SUBXACT_EVENT_ABORT_SUB:
			stop_waiting();
			le_catching(le_verify_terms, NULL);
			le_terms_at_subxact_abort(mine);
			le_grants_at_subxact_abort(mine);
			le_guards_at_subxact_abort(mine);

			/* the error has stopped all timers */
			if (le_leads_for_session())
				le_watch_client();
			le_proclamations_at_abort(mine);
			break;
		default:
			break;
	}
}

/*
 * Tell who waits that locks have been released
 *
 * Called for statements as well.  The resource owner is on its way out: what is mapped
 * now must not belong to it.
 */
static void
at_release(ResourceReleasePhase phase, bool is_commit, bool is_top_level,
		   void *arg pg_attribute_unused())
{
	ResourceOwner owner = CurrentResourceOwner;

	if (phase != RESOURCE_RELEASE_AFTER_LOCKS)
		return;
	CurrentResourceOwner = NULL;
	le_locks_released(is_commit, is_top_level);
	CurrentResourceOwner = owner;

	/*
	 * each error has stopped all timers, and we hear nothing of the block's
	 * end
	 */
	if (TransactionBlockStatusCode() == 'E')
		le_announcements_ask();
}

/*
 * End this session's terms before the server releases its locks
 *
 * A FATAL error can bring us here from within a transaction, with LWLocks held.
 * Aborting it first is what the server is about to do itself.
 */
static void
before_exit(int code pg_attribute_unused(), Datum arg pg_attribute_unused())
{
	AbortOutOfAnyTransaction();
	le_terms_at_exit();
	le_announcements_at_exit();
}

/*
 * Register the callbacks, once, in a backend that bids, observes, publishes a value,
 * is guarded, or resigns from a lease
 *
 * A backend that never calls the extension, or only asks who leads, has none.
 */
void
le_register_callbacks(void)
{
	static bool registered = false;

	if (registered)
		return;

	before_shmem_exit(before_exit, (Datum) 0);
	RegisterXactCallback(at_xact_event, NULL);
	RegisterSubXactCallback(at_subxact_event, NULL);
	RegisterResourceReleaseCallback(at_release, NULL);
	le_register_announcements();
	registered = true;
}
