/*-------------------------------------------------------------------------
 *
 * target_lists.c
 *	  The names of many elections, as an array of whatever shape.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/regproc.h"

#include "fuzz.h"

#define NAMES_MAX	40

static FmgrInfo campaign;

/*
 * Look up the procedure
 */
void
le_fuzz_prepare_lists(void)
{
	Oid			oid = DatumGetObjectId(DirectFunctionCall1(regprocedurein,
														   CStringGetDatum("le_campaign(text[],interval,interval,interval,text,bigint,text)")));

	fmgr_info_cxt(oid, &campaign, TopMemoryContext);
}

/*
 * Take up to that many names, some of them NULL
 */
static int
take_names(LeFuzzInput *input, Datum *names, bool *nulls)
{
	int			count = le_fuzz_byte(input) % (NAMES_MAX + 1);
	int64		null_at = le_fuzz_int64(input);

	for (int i = 0; i < count; i++)
	{
		names[i] = PointerGetDatum(le_fuzz_text(le_fuzz_long_string(input, LE_TEXT_MAX + 20), false));
		nulls[i] = null_at >> i & 1;
	}
	return count;
}

/*
 * Fill in the dimensions of the array, of that many elements in all
 */
static int
take_shape(uint8 shape, int count, int *lengths, int *bounds)
{
	int			dimensions = 1 + shape % MAXDIM;

	if (count == 0)
		return 0;
	for (int i = 0; i < dimensions; i++)
	{
		lengths[i] = 1;
		bounds[i] = (shape >> 3) - 4;
	}
	lengths[shape % dimensions] = count;
	return dimensions;
}

static Datum
call_campaign(FunctionCallInfo fcinfo)
{
	return FunctionCallInvoke(fcinfo);
}

/*
 * Which is the first error in the list, if any?
 */
static int
expected_error(int dimensions, int count, Datum *names, bool *nulls)
{
	int			error = 0;

	/* first the array, then its elements */
	for (int i = 0; i < count && error == 0; i++)
		error = nulls[i] ? ERRCODE_NULL_VALUE_NOT_ALLOWED : 0;
	if (error == 0 && dimensions != 1)
		error = ERRCODE_ARRAY_SUBSCRIPT_ERROR;
	for (int i = 0; i < count && error == 0; i++)
		error = le_fuzz_name_error(text_to_cstring(DatumGetTextPP(names[i])));
	return error;
}

static int
count_different(int count, Datum *names)
{
	int			different = 0;

	for (int i = 0; i < count; i++)
	{
		int			j;

		for (j = 0; j < i; j++)
		{
			if (DatumGetBool(DirectFunctionCall2Coll(texteq, DEFAULT_COLLATION_OID,
													 names[i], names[j])))
				break;
		}
		different += j == i;
	}
	return different;
}

/*
 * Campaign again and again, until everything is led that can be: each once, in order
 */
static void
lead_all(FunctionCallInfo fcinfo, int different)
{
	int64		last = 0;
	int			led = 0;

	for (;;)
	{
		HeapTupleHeader row = DatumGetHeapTupleHeader(FunctionCallInvoke(fcinfo));
		bool		no_token;
		bool		no_name;
		int64		token = DatumGetInt64(GetAttributeByNum(row, 1, &no_token));
		Datum		name = GetAttributeByNum(row, 2, &no_name);
		LeElection	election;

		LE_FUZZ_CHECK(no_token == no_name);
		if (no_token)
			break;
		LE_FUZZ_CHECK(token > last);
		le_election_by_name(&election, DatumGetTextPP(name));
		LE_FUZZ_CHECK(le_held_term(&election) != NULL &&
					  le_held_term(&election)->token == token);
		last = token;
		led++;
	}
	LE_FUZZ_CHECK(led == different);
	LE_FUZZ_CHECK(le_resign_terms() == led);
}

void
le_fuzz_lists(LeFuzzInput *input)
{
	LOCAL_FCINFO(fcinfo, 7);
	Interval	no_time = {0};
	Datum		names[NAMES_MAX];
	bool		nulls[NAMES_MAX];
	int			lengths[MAXDIM];
	int			bounds[MAXDIM];
	uint8		shape = le_fuzz_byte(input);
	int			count = take_names(input, names, nulls);
	int			dimensions = take_shape(shape, count, lengths, bounds);
	int			error = expected_error(dimensions, count, names, nulls);

	InitFunctionCallInfoData(*fcinfo, &campaign, 7, InvalidOid, NULL, NULL);
	for (int i = 2; i < 7; i++)
		fcinfo->args[i].isnull = true;
	fcinfo->args[0].isnull = fcinfo->args[1].isnull = false;
	fcinfo->args[0].value = PointerGetDatum(construct_md_array(names, nulls, dimensions, lengths, bounds,
															   TEXTOID, -1, false, TYPALIGN_INT));
	fcinfo->args[1].value = IntervalPGetDatum(&no_time);

	if (error == 0)
		lead_all(fcinfo, count_different(count, names));
	else
		LE_FUZZ_CHECK(le_fuzz_call(call_campaign, fcinfo, NULL) == error);
}
