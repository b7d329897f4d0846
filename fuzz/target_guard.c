/*-------------------------------------------------------------------------
 *
 * target_guard.c
 *	  The arguments of the trigger le_guard, and of le_assert_leader.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "fuzz.h"

#define LED			"led"
#define ARGUMENTS	3

PGDLLEXPORT Datum le_guard(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum le_assert_leader(PG_FUNCTION_ARGS);
PGDLLEXPORT Datum le_try_become_leader(PG_FUNCTION_ARGS);

static int64 token_led;

/*
 * Lead one election
 */
void
le_fuzz_prepare_guard(void)
{
	LOCAL_FCINFO(fcinfo, 3);
	LeElection	election;

	InitFunctionCallInfoData(*fcinfo, NULL, 3, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = PointerGetDatum(cstring_to_text(LED));
	fcinfo->args[0].isnull = false;
	fcinfo->args[1].isnull = true;
	fcinfo->args[2].isnull = true;
	if (!DatumGetBool(le_try_become_leader(fcinfo)))
		elog(ERROR, "somebody leads already");
	le_election_by_name(&election, cstring_to_text(LED));
	token_led = le_held_term(&election)->token;
}

/*
 * Which error must it be to write where that election must be led?
 */
static int
expected_error(const char *name)
{
	int			error = le_fuzz_name_error(name);

	if (error == 0 && strcmp(name, LED) != 0)
		error = ERRCODE_LE_NOT_LEADER;
	return error;
}

static void
check_trigger(LeFuzzInput *input, uint8 flags)
{
	LOCAL_FCINFO(fcinfo, 0);
	char	   *arguments[ARGUMENTS];
	HeapTupleData old_row = {0};
	HeapTupleData new_row = {0};
	FormData_pg_class table = {.relname = {.data = "guarded"}};
	RelationData relation = {.rd_rel = &table};
	Trigger		trigger = {.tgname = "guard",.tgnargs = flags >> 4,.tgargs = arguments};
	TriggerData data = {
		.type = T_TriggerData,
		.tg_event = flags & TRIGGER_EVENT_OPMASK,
		.tg_relation = &relation,
		.tg_trigtuple = &old_row,
		.tg_newtuple = &new_row,
		.tg_trigger = &trigger
	};
	Datum		result;
	int			error;

	le_session_token.token = le_fuzz_int64(input);
	for (int i = 0; i < ARGUMENTS; i++)
		arguments[i] = le_fuzz_long_string(input, LE_TEXT_MAX + 20);
	error = trigger.tgnargs == 1 ? expected_error(arguments[0]) :
		ERRCODE_INVALID_OBJECT_DEFINITION;

	InitFunctionCallInfoData(*fcinfo, NULL, 0, InvalidOid, (Node *) &data, NULL);
	LE_FUZZ_CHECK(le_fuzz_call(le_guard, fcinfo, &result) == error);
	if (error == 0)
		LE_FUZZ_CHECK(DatumGetPointer(result) ==
					  (TRIGGER_FIRED_BY_UPDATE(data.tg_event) ? (Pointer) &new_row : (Pointer) &old_row));
	le_session_token.token = 0;

	fcinfo->context = NULL;
	LE_FUZZ_CHECK(le_fuzz_call(le_guard, fcinfo, NULL) ==
				  ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED);
}

static void
check_assertion(LeFuzzInput *input, uint8 flags)
{
	LOCAL_FCINFO(fcinfo, 2);
	int64		token = le_fuzz_int64(input);
	char	   *name = le_fuzz_long_string(input, LE_TEXT_MAX + 20);
	int			error = expected_error(name);

	/* half of all tokens are near the right one */
	if (flags & 4)
		token = token_led + token % 2;
	if (error == 0 && !(flags & 8) && token != token_led)
		error = ERRCODE_LE_NOT_LEADER;

	InitFunctionCallInfoData(*fcinfo, NULL, 2, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = PointerGetDatum(le_fuzz_text(name, flags & 2));
	fcinfo->args[0].isnull = false;
	fcinfo->args[1].value = Int64GetDatum(token);
	fcinfo->args[1].isnull = flags & 8;
	LE_FUZZ_CHECK(le_fuzz_call(le_assert_leader, fcinfo, NULL) == error);
}

void
le_fuzz_guard(LeFuzzInput *input)
{
	uint8		what = le_fuzz_byte(input);
	uint8		flags = le_fuzz_byte(input);

	if (what % 2 == 0)
		check_trigger(input, flags & 0x3f);
	else
		check_assertion(input, flags);
}
