/*-------------------------------------------------------------------------
 *
 * sql/functions.c
 *	  SQL functions: check the arguments, and call the implementation.
 *
 * The functions are not strict: a NULL name must raise an error, rather than
 * return NULL, which a client may take for false.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "lease/lease.h"
#include "lead/lead.h"
#include "bid/bid.h"
#include "sql/sql.h"

/*
 * Bid for leadership: (name, timeout, heartbeat, identity), of which only the
 * functions that wait have a timeout, and only those in session scope a
 * heartbeat
 */
static Datum
make_bid(FunctionCallInfo fcinfo, LeScope scope, bool waits)
{
	LeBid		bid;
	int			argument = 1;

	le_prepare(fcinfo);
	le_election_by_name(&bid.election, le_arg_name(fcinfo));
	bid.scope = scope;
	bid.wait_ms = waits ? le_arg_timeout(fcinfo, argument++) : LE_NO_WAIT;
	bid.lasts_us = scope == LE_SCOPE_SESSION ? le_arg_heartbeat(fcinfo, argument++) : 0;
	bid.identity = le_arg_identity(fcinfo, argument);
	PG_RETURN_BOOL(le_elect(&bid) != 0);
}

/*
 * Return the token of this session's own term of the election, or 0 if it
 * leads none
 */
int64
le_own_token(const LeElection *election)
{
	LeHeldTerm *held = le_held_term(election);

	return held == NULL ? 0 : held->token;
}

LE_FUNCTION(le_try_become_leader);
LE_FUNCTION(le_try_become_leader_xact);
LE_FUNCTION(le_become_leader);
LE_FUNCTION(le_become_leader_xact);
LE_FUNCTION(le_am_leader);
LE_FUNCTION(le_token);
LE_FUNCTION(le_resign);
LE_FUNCTION(le_resign_all);
LE_FUNCTION(le_lease);
LE_FUNCTION(le_renew);
LE_FUNCTION(le_proclaim);
LE_FUNCTION(le_assert_leader);
LE_FUNCTION(le_guard);
LE_FUNCTION(le_origin);
LE_FUNCTION(le_depose);
LE_FUNCTION(le_declare);
LE_FUNCTION(le_undeclare);

/* A call of a function by SQL */
typedef struct LeCall
{
	PGFunction	body;
	FunctionCallInfo fcinfo;
	Datum		result;
} LeCall;

static void
do_call(void *argument)
{
	LeCall	   *call = argument;

	call->result = call->body(call->fcinfo);
}

/*
 * Call the body of a function.  For LE_FUNCTION.
 */
Datum
le_call(PGFunction body, FunctionCallInfo fcinfo)
{
	LeCall		call = {.body = body,.fcinfo = fcinfo};

	le_run_released(do_call, &call);
	return call.result;
}

static Datum
le_try_become_leader_body(PG_FUNCTION_ARGS)
{
	return make_bid(fcinfo, LE_SCOPE_SESSION, false);
}

static Datum
le_try_become_leader_xact_body(PG_FUNCTION_ARGS)
{
	return make_bid(fcinfo, LE_SCOPE_TRANSACTION, false);
}

static Datum
le_become_leader_body(PG_FUNCTION_ARGS)
{
	return make_bid(fcinfo, LE_SCOPE_SESSION, true);
}

static Datum
le_become_leader_xact_body(PG_FUNCTION_ARGS)
{
	return make_bid(fcinfo, LE_SCOPE_TRANSACTION, true);
}

/*
 * (name, token, identity)
 */
static Datum
le_am_leader_body(PG_FUNCTION_ARGS)
{
	LeElection	election;
	LeHeldTerm *held;
	text	   *identity;
	const char *as;

	le_election_by_name(&election, le_arg_name(fcinfo));
	identity = le_arg_identity(fcinfo, 2);
	if (!PG_ARGISNULL(1))
	{
		int64		token = PG_GETARG_INT64(1);

		le_require_primary();
		le_prepare_to_look();
		PG_RETURN_BOOL(le_is_leased_as(&election, token, identity));
	}
	held = le_held_term(&election);
	PG_RETURN_BOOL(held != NULL && le_is_led_as(&election, held->token, identity, &as));
}

static Datum
le_token_body(PG_FUNCTION_ARGS)
{
	LeElection	election;
	int64		token;

	le_election_by_name(&election, le_arg_name(fcinfo));
	token = le_own_token(&election);
	if (token == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

/*
 * (name, token, identity)
 */
static Datum
le_resign_body(PG_FUNCTION_ARGS)
{
	LeElection	election;
	int64		token = PG_ARGISNULL(1) ? 0 : PG_GETARG_INT64(1);

	le_prepare_for_name(fcinfo, &election);
	if (!le_may_resign_as(&election, token, le_arg_identity(fcinfo, 2)))
		PG_RETURN_BOOL(false);
	PG_RETURN_BOOL(PG_ARGISNULL(1) ? le_resign_term(&election) :
				   le_resign_by_token(&election, token));
}

static Datum
le_resign_all_body(PG_FUNCTION_ARGS)
{
	le_prepare(fcinfo);
	PG_RETURN_INT32(le_resign_terms());
}

/*
 * (name, ttl, token, identity): become or stay leader
 */
static Datum
le_lease_body(PG_FUNCTION_ARGS)
{
	LeBid		bid;
	int64		token;

	le_prepare_for_name(fcinfo, &bid.election);
	bid.scope = LE_SCOPE_LEASE;
	bid.wait_ms = LE_NO_WAIT;
	bid.lasts_us = le_arg_ttl(fcinfo, 1);
	bid.identity = le_arg_identity(fcinfo, 3);

	if (!PG_ARGISNULL(2))
	{
		le_require_primary();
		if (le_renew_by_bid(&bid, PG_GETARG_INT64(2)))
			PG_RETURN_INT64(PG_GETARG_INT64(2));
	}
	token = le_elect(&bid);
	if (token == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

/*
 * (name, token, ttl)
 */
static Datum
le_renew_body(PG_FUNCTION_ARGS)
{
	LeElection	election;
	int64		token;
	int64		ttl_us;

	le_election_by_name(&election, le_arg_name(fcinfo));
	if (PG_ARGISNULL(1))
		le_raise_null("token");
	token = PG_GETARG_INT64(1);
	ttl_us = PG_ARGISNULL(2) ? 0 : le_arg_ttl(fcinfo, 2);
	le_require_primary();
	le_prepare_to_look();
	PG_RETURN_BOOL(le_lease_renew(&election, token, ttl_us));
}

/*
 * (name, value, token)
 */
static Datum
le_proclaim_body(PG_FUNCTION_ARGS)
{
	LeElection	election;
	text	   *value;
	int64		token;

	le_prepare_for_name(fcinfo, &election);
	value = le_arg_text(fcinfo, 1, "value", 0, LE_VALUE_MAX);
	token = PG_ARGISNULL(2) ? 0 : PG_GETARG_INT64(2);
	PG_RETURN_BOOL(le_publish(&election, token, value));
}

/*
 * (name, token)
 */
static Datum
le_assert_leader_body(PG_FUNCTION_ARGS)
{
	LeElection	election;
	bool		own = PG_ARGISNULL(1);
	int64		token;

	le_prepare_for_name(fcinfo, &election);
	token = own ? le_own_token(&election) : PG_GETARG_INT64(1);
	if (!le_guard_transaction(&election, token, false))
		le_raise_not_leader(&election, own ? NULL : &token);
	PG_RETURN_VOID();
}

/*
 * Raise an error if the function was not called as a trigger
 */
static TriggerData *
get_trigger(FunctionCallInfo fcinfo, const char *function)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("%s can only be called as a trigger", function)));
	return (TriggerData *) fcinfo->context;
}

/*
 * Trigger: raise an error unless the writing session leads the election
 *
 * For use before or after each row or statement.  A row is not changed.
 */
static Datum
le_guard_body(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = get_trigger(fcinfo, "le_guard");
	LeElection	election;
	text	   *name;
	int64		token;

	le_prepare(fcinfo);
	if (trigger->tg_trigger->tgnargs != 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
				 errmsg("trigger \"%s\" on table \"%s\" must have one argument, the name of an election",
						trigger->tg_trigger->tgname,
						RelationGetRelationName(trigger->tg_relation)),
				 errhint("Create the trigger again, with EXECUTE FUNCTION le_guard('name').")));
	name = cstring_to_text(trigger->tg_trigger->tgargs[0]);
	le_check_name(name);
	le_election_by_name(&election, name);
	pfree(name);

	token = le_guarded_by(&election);
	if (token == 0)
		token = le_own_token(&election);
	if (token == 0)
		token = le_presented_token();
	if (!le_guard_transaction(&election, token, true))
		le_raise_not_leader(&election, token == 0 ? NULL : &token);

	if (TRIGGER_FIRED_BY_UPDATE(trigger->tg_event))
		return PointerGetDatum(trigger->tg_newtuple);
	return PointerGetDatum(trigger->tg_trigtuple);
}

/*
 * For the installation script
 */
static Datum
le_origin_body(PG_FUNCTION_ARGS pg_attribute_unused())
{
	PG_RETURN_INT64(le_origin_now(InvalidOid));
}

/*
 * (name, reason)
 */
static Datum
le_depose_body(PG_FUNCTION_ARGS)
{
	LeElection	election;

	le_prepare_for_name(fcinfo, &election);
	PG_RETURN_BOOL(le_depose_leader(&election, le_arg_reason(fcinfo, 1)));
}

/*
 * (name, candidates, grace, max_ttl, private)
 */
static Datum
le_declare_body(PG_FUNCTION_ARGS)
{
	LeElection	election;
	bool		private_value = !PG_ARGISNULL(4) && PG_GETARG_BOOL(4);

	le_prepare_for_name(fcinfo, &election);
	le_declare_election(&election, le_arg_role(fcinfo, 1),
						le_arg_limit(fcinfo, 2, "grace", 0),
						le_arg_limit(fcinfo, 3, "max_ttl", LE_MIN_TTL_MS),
						PG_ARGISNULL(4) ? NULL : &private_value);
	PG_RETURN_VOID();
}

static Datum
le_undeclare_body(PG_FUNCTION_ARGS)
{
	LeElection	election;

	le_prepare_for_name(fcinfo, &election);
	PG_RETURN_BOOL(le_undeclare_election(&election));
}

LE_FUNCTION(le_heartbeat);
LE_FUNCTION(le_once);

/*
 * (name, token)
 */
static Datum
le_heartbeat_body(PG_FUNCTION_ARGS)
{
	LeElection	election;
	LeHeldTerm *held;

	le_refuse_restricted(fcinfo);
	le_election_by_name(&election, le_arg_name(fcinfo));
	le_require_primary();
	if (!PG_ARGISNULL(1))
		PG_RETURN_BOOL(le_beat_by_token(&election, PG_GETARG_INT64(1)));
	held = le_held_term(&election);
	if (held == NULL)
		PG_RETURN_BOOL(false);
	le_require_own_term(&election);
	PG_RETURN_BOOL(le_beat(held));
}

/*
 * (name, due, token)
 */
static Datum
le_once_body(PG_FUNCTION_ARGS)
{
	LeElection	election;
	int64		token;

	le_prepare_for_name(fcinfo, &election);
	if (PG_ARGISNULL(1))
		le_raise_null("the time for which a job is due");
	token = PG_ARGISNULL(2) ? le_own_token(&election) : PG_GETARG_INT64(2);
	PG_RETURN_BOOL(le_do_once(&election, PG_GETARG_TIMESTAMPTZ(1), token));
}
