/*-------------------------------------------------------------------------
 *
 * sql/leaders.c
 *	  Sessions and leases that lead: le_leader, and the rows of the view
 *	  le_leaders.
 *
 * The lock manager tells which process holds an election's lock, and the
 * registry which term it leads.  The lock is read first: if a term is recorded
 * after that, and its process held the lock, that process has led in between.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "announce/announce.h"
#include "lease/lease.h"
#include "term/term.h"
#include "sql/sql.h"

PG_FUNCTION_INFO_V1(le_leader);
PG_FUNCTION_INFO_V1(le_leader_key);
PG_FUNCTION_INFO_V1(le_holders);

/* The columns of le_leaders */
enum
{
	LE_LEADERS_NAME,
	LE_LEADERS_KEY,
	LE_LEADERS_SCOPE,
	LE_LEADERS_IDENTITY,
	LE_LEADERS_TOKEN,
	LE_LEADERS_PID,
	LE_LEADERS_SESSION,
	LE_LEADERS_SINCE = LE_LEADERS_SESSION + LE_SESSION_COLUMNS,
	LE_LEADERS_CANDIDATES,
	LE_LEADERS_LAST_DENIED,
	LE_LEADERS_EXPIRY = LE_LEADERS_LAST_DENIED + LE_DENIAL_COLUMNS,
	LE_LEADERS_VALUE = LE_LEADERS_EXPIRY + LE_EXPIRY_COLUMNS,
	LE_LEADERS_COLUMNS
};

/*
 * Fill in what the registry, or the table of leases, knows of the term
 */
static void
fill_term(const LeTerm *term, Datum *values, bool *nulls)
{
	if (term->name[0] != '\0')
	{
		values[LE_LEADERS_NAME] = CStringGetTextDatum(term->name);
		nulls[LE_LEADERS_NAME] = false;
	}
	values[LE_LEADERS_SCOPE] = CStringGetTextDatum(le_scope_name(term->scope));
	values[LE_LEADERS_IDENTITY] =
		CStringGetTextDatum(le_identity_shown(&term->identity, term->role));
	values[LE_LEADERS_TOKEN] = Int64GetDatum(term->token);
	values[LE_LEADERS_SINCE] = TimestampTzGetDatum(term->since);
	nulls[LE_LEADERS_SCOPE] = false;
	nulls[LE_LEADERS_IDENTITY] = false;
	nulls[LE_LEADERS_TOKEN] = false;
	nulls[LE_LEADERS_SINCE] = false;
	le_fill_expiry(term, &values[LE_LEADERS_EXPIRY], &nulls[LE_LEADERS_EXPIRY]);
	le_fill_value(term, &values[LE_LEADERS_VALUE], &nulls[LE_LEADERS_VALUE]);
}

/*
 * Return a row for a holder of an election's lock, NULL for a lease, and its
 * term, NULL for none
 */
static void
put_leader(ReturnSetInfo *rsinfo, const LeElectionKey *key, const LeLockUser *holder,
		   const LeTerm *term, int candidates)
{
	Datum		values[LE_LEADERS_COLUMNS] = {0};
	bool		nulls[LE_LEADERS_COLUMNS];
	LeDenial	denial;

	memset(nulls, true, sizeof(nulls));
	values[LE_LEADERS_KEY] = Int64GetDatum(key->key);
	nulls[LE_LEADERS_KEY] = false;
	if (term != NULL)
	{
		fill_term(term, values, nulls);
		candidates += term->followers;
	}
	Assert(term != NULL || holder != NULL);
	if (holder == NULL)
		le_fill_role(term->role, &values[LE_LEADERS_SESSION], &nulls[LE_LEADERS_SESSION]);
	else
	{
		values[LE_LEADERS_PID] = Int32GetDatum(holder->pid);
		nulls[LE_LEADERS_PID] = holder->pid == 0;
		le_fill_session(holder->process, holder->pid, &values[LE_LEADERS_SESSION],
						&nulls[LE_LEADERS_SESSION]);
	}
	values[LE_LEADERS_CANDIDATES] = Int64GetDatum(candidates);
	nulls[LE_LEADERS_CANDIDATES] = false;
	le_registry_read_denial(key, &denial);
	le_fill_denial(&denial, &values[LE_LEADERS_LAST_DENIED], &nulls[LE_LEADERS_LAST_DENIED]);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * Return rows for the holders of a bare key, whether they use the extension or
 * not
 */
static void
put_holders(ReturnSetInfo *rsinfo, const LeElectionKey *key, const LeLockView *view,
			const LeLockUser *leader, const LeTerm *term, int candidates)
{
	for (int i = 0; i < view->holders; i++)
	{
		const LeLockUser *holder = &view->users[i];

		put_leader(rsinfo, key, holder, holder == leader ? term : NULL, candidates);
	}
}

/*
 * Return the rows of an election.  With a name, return none if another
 * election has the key.  The view is working memory.
 */
static void
put_election(ReturnSetInfo *rsinfo, const LeElectionKey *key, const char *name,
			 LeLockView *view)
{
	const LeLockUser *leader = NULL;
	LeTerm		term;
	bool		on_record;
	bool		leased;
	int			candidates;

	le_view_lock(key, view);
	on_record = le_registry_read(key, &term) && !term.silent;
	if (on_record && name != NULL && strcmp(term.name, name) != 0)
		return;
	leased = on_record && le_copied_lease_runs(&term);
	if (on_record && term.scope != LE_SCOPE_LEASE)
		leader = le_find_leader_in(view, term.pid);
	if (leader == NULL && !leased && key->lock_class != LE_CLASS_BARE_KEY)
		return;

	candidates = le_count_standing(key, view, leader != NULL ? leader->pid : 0);
	if (leased)
		put_leader(rsinfo, key, NULL, &term, candidates);
	else if (key->lock_class == LE_CLASS_BARE_KEY)
		put_holders(rsinfo, key, view, leader, &term, candidates);
	else
		put_leader(rsinfo, key, leader, &term, candidates);
}

/*
 * Return the leases that a standby has received, of one election or of all
 * (NULL)
 */
static void
put_replicated(ReturnSetInfo *rsinfo, const LeElection *election)
{
	int			count;
	LeTerm	   *terms = le_lease_list(election, &count);

	for (int i = 0; i < count; i++)
		put_leader(rsinfo, &terms[i].election, NULL, &terms[i], 0);
}

/*
 * Return the rows of one election
 */
static void
put_one(ReturnSetInfo *rsinfo, const LeElection *election)
{
	bool		by_name = election->name[0] != '\0';
	LeLockView	view = {0};

	if (by_name && RecoveryInProgress())
		put_replicated(rsinfo, election);
	else
		put_election(rsinfo, &election->key, by_name ? election->name : NULL, &view);
}

/*
 * Return the rows of all elections that are led, and of all bare keys that a
 * session has bid for
 */
static void
put_all(FunctionCallInfo fcinfo)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	LeLockView	view = {0};
	MemoryContext row_context;
	LeElectionKey *keys;
	int			count;

	if (RecoveryInProgress())
	{
		put_replicated(rsinfo, NULL);
		return;
	}
	keys = le_registry_list_keys(false, &count);
	row_context = AllocSetContextCreate(CurrentMemoryContext, "leader_election row",
										ALLOCSET_SMALL_SIZES);
	if (count > 0)
		le_view_lock(&keys[0], &view);	/* so that its memory stays */
	for (int i = 0; i < count && !le_has_rows_enough(fcinfo); i++)
	{
		MemoryContext caller = MemoryContextSwitchTo(row_context);

		CHECK_FOR_INTERRUPTS();
		put_election(rsinfo, &keys[i], NULL, &view);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(row_context);
	}
}

/*
 * Return the rows of le_leaders, or those of one election if it is given
 */
Datum
le_holders(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = le_begin_rows(fcinfo, LE_LEADERS_COLUMNS);
	LeElection	election;

	le_prepare_to_look();
	if (PG_ARGISNULL(0))
		put_all(fcinfo);
	else if (le_arg_any_name(fcinfo, &election))
		put_one(rsinfo, &election);
	return (Datum) 0;
}

static Datum
return_leader(FunctionCallInfo fcinfo, LeCalledBy called_by)
{
	ReturnSetInfo *rsinfo = le_begin_rows(fcinfo, LE_LEADERS_COLUMNS);
	LeElection	election;

	le_arg_election(fcinfo, called_by, &election);
	le_prepare_to_look();
	put_one(rsinfo, &election);
	return (Datum) 0;
}

Datum
le_leader(PG_FUNCTION_ARGS)
{
	return return_leader(fcinfo, LE_BY_NAME);
}

Datum
le_leader_key(PG_FUNCTION_ARGS)
{
	return return_leader(fcinfo, LE_BY_KEY);
}
