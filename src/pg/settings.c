/*-------------------------------------------------------------------------
 *
 * pg/settings.c
 *	  Settings, and which roles may change them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>
#include <limits.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/guc.h"

#include "pg/pg.h"

/*
 * If applications elect many times a second, an administrator may want to keep
 * the beginning and end of each term out of the server log.
 */
bool		le_log_terms = true;

/*
 * Every term uses a slot of the lock table that all sessions share.  If this
 * is raised, max_locks_per_transaction may have to be raised, too.
 */
int			le_max_terms_per_session = 1000;

/*
 * Applies to what the session does or finds.  A commit that notifies takes a
 * transaction ID, and a lock that all such commits of the server share until
 * they are flushed.
 */
bool		le_notify = false;

/*
 * Raise this to see many thousands of elections in the statistics.  Each takes
 * less than a kilobyte of shared memory.
 */
int			le_max_tracked = 5000;

/*
 * Leases, and the names that one session campaigns for, take no locks.
 * Therefore, the memory that they take is limited in total, and for each role.
 */
int			le_max_elections = 100 * 1000;
int			le_max_elections_per_role = 10 * 1000;

/*
 * A promoted server may not know the last leases that were granted before.  It
 * waits until they must have expired, for which it needs an upper bound of
 * their ttl.  The setting must have the same value on all servers that may be
 * promoted, and must not be lowered while longer leases run.
 */
int			le_max_ttl = 60 * 1000;

/*
 * A program that has lost its leadership continues until it notices.  With a
 * grace period as long as that takes, the election stays vacant meanwhile.
 */
int			le_grace_period = 0;

/*
 * How long a client's host may be silent before the session is ended, while it
 * leads or waits; in seconds.  Raise it if clients may legitimately stop
 * reading for longer.  0 leaves this to the server's own settings.
 */
int			le_dead_peer_timeout = 15;

/*
 * If a server is run for others, an administrator may want to control which
 * elections exist there, and which roles may lead them.
 */
bool		le_declared_only = false;

/*
 * The token that a session which does not lead presents to the trigger
 * function le_guard
 */
LeSessionToken le_session_token = {0, InvalidOid};
static char *session_token = NULL;

/* the role that has set it before the library was loaded */
static Oid	early_role = InvalidOid;

static bool
check_session_token(char **value, void **extra, GucSource source)
{
	int64		token = 0;

	/* the owner of a database could present a token for its sessions */
	if (**value != '\0' && (source == PGC_S_DATABASE || source == PGC_S_USER ||
							source == PGC_S_DATABASE_USER))
	{
		GUC_check_errmsg("parameter \"%s\" cannot be set for a database or role",
						 "leader_election.token");
		return false;
	}
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
	*extra = GucMallocCompat(sizeof(LeSessionToken));
	if (*extra == NULL)
		return false;
	((LeSessionToken *) *extra)->token = token;
	((LeSessionToken *) *extra)->set_by = early_role;
	if (!OidIsValid(early_role) && IsTransactionState() && GetUserId() != GetOuterUserId())
		((LeSessionToken *) *extra)->set_by = GetUserId();
	return true;
}

static void
assign_session_token(const char *value pg_attribute_unused(), void *extra)
{
	le_session_token = *(LeSessionToken *) extra;
}

/* A setting that is an integer */
typedef struct LeIntSetting
{
	const char *name;
	int		   *value;			/* has the default */
	int			min;
	int			max;
	GucContext	context;
	int			flags;
	const char *brief;
	const char *more;			/* may be NULL */
} LeIntSetting;

static const LeIntSetting int_settings[] = {
	{"leader_election.max_terms_per_session", &le_max_terms_per_session, 1, INT_MAX, PGC_SUSET, 0,
		"Sets the maximum number of elections that one session may lead at a time.",
	"Each term takes one slot of the lock table, which all sessions share."},
	{"leader_election.max_elections_per_role", &le_max_elections_per_role, 1, INT_MAX / 2, PGC_SUSET, 0,
		"Sets the maximum number of elections that a role leads, observes or campaigns for as one of many.",
	"Superusers are exempt."},
	{"leader_election.dead_peer_timeout", &le_dead_peer_timeout, 0, 24 * 60 * 60, PGC_USERSET, GUC_UNIT_S,
		"Sets the time after which a vanished client that leads or waits is detected.",
	"A value of 0 uses the server's own settings, such as tcp_keepalives_idle."},
	{"leader_election.max_elections", &le_max_elections, 1000, INT_MAX / 2, PGC_SIGHUP, 0,
		"Sets the maximum number of elections that the server knows of at a time.",
	"This counts the elections of all databases that are led, waited for or remembered. A tenth is reserved for declared elections and superusers."},
	{"leader_election.max_tracked", &le_max_tracked, 100, INT_MAX / 2, PGC_SIGHUP, 0,
		"Sets the maximum number of vacant elections that are remembered.",
	NULL},
	{"leader_election.max_ttl", &le_max_ttl, LE_MIN_TTL_MS, LE_MAX_TTL_MS, PGC_SIGHUP, GUC_UNIT_MS,
		"Sets the maximum ttl of a lease.",
	"A promoted server grants no leases for that long."},
	{"leader_election.grace_period", &le_grace_period, 0, LE_MAX_TTL_MS, PGC_SUSET, GUC_UNIT_MS,
		"Sets how long an election stays vacant after a term that ended without resignation.",
	"In that time, the former leader can notice and stop."},
};

/* A setting that is on or off */
typedef struct LeBoolSetting
{
	const char *name;
	bool	   *value;			/* has the default */
	GucContext	context;
	const char *brief;
} LeBoolSetting;

static const LeBoolSetting bool_settings[] = {
	{"leader_election.declared_only", &le_declared_only, PGC_SUSET,
	"Allows bids for declared elections only."},
	{"leader_election.log_terms", &le_log_terms, PGC_SUSET,
	"Logs the beginning and the end of each term."},
	{"leader_election.notify", &le_notify, PGC_USERSET,
	"Announces changes on the channel \"leader_election\"."},
};

/*
 * Raise an error if the client has set what only administrators may set, at
 * connection start
 *
 * If the library was not loaded when the session began, the server accepted
 * the value.  It would now discard it, together with the value that the
 * administrator has set.
 */
static void
refuse_setting_of_client(const char *name, GucContext context)
{
	struct config_generic *setting = find_option_compat(name);

	if (context == PGC_USERSET || setting == NULL || setting->reset_source != PGC_S_CLIENT)
		return;
	if (context == PGC_SIGHUP ||
		(setting->reset_scontext != PGC_SU_BACKEND &&
		 pg_parameter_aclcheck(name, setting->reset_srole, ACL_SET) != ACLCHECK_OK))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to set parameter \"%s\"", name),
				 errhint("Connect without it.")));
}

/*
 * Check whether the role is another than the session's, and does not have the
 * privileges of that
 */
static bool
is_foreign(Oid role)
{
	return OidIsValid(role) && role != GetSessionUserId() &&
		!has_privs_of_role(role, GetOuterUserId());
}

/*
 * Return the foreign role whose code has set the setting, or a value that is
 * hidden now, before the library was loaded; InvalidOid if there is none
 */
static Oid
foreign_setter(const struct config_generic *setting)
{
	Oid			role = setting->srole;

	for (GucStack *hidden = setting->stack; hidden != NULL && !is_foreign(role);
		 hidden = hidden->prev)
		role = is_foreign(hidden->srole) ? hidden->srole : hidden->masked_srole;
	return is_foreign(role) ? role : InvalidOid;
}

/*
 * Define the settings
 *
 * Raises an error if the client has set what only administrators may set.
 */
void
le_define_settings(void)
{
	struct config_generic *early;

	for (size_t i = 0; i < lengthof(bool_settings); i++)
		refuse_setting_of_client(bool_settings[i].name, bool_settings[i].context);
	for (size_t i = 0; i < lengthof(int_settings); i++)
		refuse_setting_of_client(int_settings[i].name, int_settings[i].context);
	for (size_t i = 0; i < lengthof(int_settings); i++)
	{
		const LeIntSetting *s = &int_settings[i];

		DefineCustomIntVariable(s->name, s->brief, s->more, s->value, *s->value, s->min,
								s->max, s->context, s->flags, NULL, NULL, NULL);
	}
	for (size_t i = 0; i < lengthof(bool_settings); i++)
	{
		const LeBoolSetting *s = &bool_settings[i];

		DefineCustomBoolVariable(s->name, s->brief, NULL, s->value, *s->value, s->context,
								 0, NULL, NULL, NULL);
	}
	early = find_option_compat("leader_election.token");
	if (early != NULL && IsTransactionState())
		early_role = foreign_setter(early);
	DefineCustomStringVariable("leader_election.token",
							   "Sets the token of a term that the session presents to the trigger function le_guard.",
							   "If it is empty, the session itself must lead.",
							   &session_token, "", PGC_USERSET, 0,
							   check_session_token, assign_session_token, NULL);
	early_role = InvalidOid;

	MarkGUCPrefixReserved("leader_election");
}

/*
 * Set a setting of the server, as a superuser may, until the end of the
 * subtransaction, or of the nest level of settings that the caller has begun.
 * May raise an error.
 */
void
le_set_locally(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE,
							 true, 0, false);
}
