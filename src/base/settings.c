/*-------------------------------------------------------------------------
 *
 * base/settings.c
 *	  The settings, and who may set them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>
#include <limits.h>

#include "utils/acl.h"
#include "utils/guc.h"

#include "base/base.h"

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
 * Counts for the terms that begin in the session, also where another session ends them.
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
 * Leases, and the names that one session campaigns for, take no locks.  So the memory that they
 * take is bounded for all, and what one role can use up of it.
 */
int			le_max_elections = 100 * 1000;
int			le_max_elections_per_role = 10 * 1000;

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
			GUC_check_errmsg("parameter \"%s\" must be a token, which is a positive bigint, or empty: \"%s\"",
							 "leader_election.token", *value);
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
define_limits_of_session(void)
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

	DefineCustomIntVariable("leader_election.max_elections_per_role",
							"Sets the maximum number of running leases and watched elections of a role.",
							"Superusers are exempt.",
							&le_max_elections_per_role,
							10 * 1000,
							1,
							INT_MAX / 2,
							PGC_SUSET,
							0,
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
define_limits_of_server(void)
{
	DefineCustomIntVariable("leader_election.max_elections",
							"Sets the maximum number of elections that the server knows of at a time.",
							"Those that are led, waited for and remembered, of all databases; a tenth is reserved for declared elections and superusers.",
							&le_max_elections,
							100 * 1000,
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

/* What only administrators may set: at any time, or in the server's configuration only */
static const struct
{
	const char *name;
	GucContext	context;
}			restricted[] = {
	{"leader_election.declared_only", PGC_SUSET},
	{"leader_election.grace_period", PGC_SUSET},
	{"leader_election.log_terms", PGC_SUSET},
	{"leader_election.max_elections_per_role", PGC_SUSET},
	{"leader_election.max_terms_per_session", PGC_SUSET},
	{"leader_election.max_elections", PGC_SIGHUP},
	{"leader_election.max_tracked", PGC_SIGHUP},
	{"leader_election.max_ttl", PGC_SIGHUP},
};

/*
 * Has the client set this when it connected, who may not?
 */
static bool
is_set_by_client(const char *name, GucContext context)
{
	struct config_generic *setting = find_option_compat(name);

	if (setting == NULL || setting->reset_source != PGC_S_CLIENT)
		return false;
	if (context == PGC_SIGHUP)
		return true;
	return setting->reset_scontext != PGC_SU_BACKEND &&
		pg_parameter_aclcheck(name, setting->reset_srole, ACL_SET) != ACLCHECK_OK;
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
	for (size_t i = 0; i < lengthof(restricted); i++)
	{
		if (is_set_by_client(restricted[i].name, restricted[i].context))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied to set parameter \"%s\"",
							restricted[i].name),
					 errhint("Connect without it.")));
	}
}

/*
 * Define the settings
 *
 * Throws if the client has set what only administrators may set.
 */
void
le_define_settings(void)
{
	refuse_settings_of_client();
	define_limits_of_session();
	define_limits_of_server();
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
