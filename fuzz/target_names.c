/*-------------------------------------------------------------------------
 *
 * target_names.c
 *	  Names, identities, reasons and values: their lengths, the key, the words that
 *	  messages call an election by.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_collation.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"

#include "fuzz.h"

/* Long enough for a value that is too long */
#define LONGEST		(LE_VALUE_MAX + 100)

static Datum
get_name(PG_FUNCTION_ARGS)
{
	return PointerGetDatum(le_arg_name(fcinfo));
}

static Datum
get_identity(PG_FUNCTION_ARGS)
{
	return PointerGetDatum(le_arg_identity(fcinfo, 0));
}

static Datum
get_reason(PG_FUNCTION_ARGS)
{
	return PointerGetDatum(le_arg_reason(fcinfo, 0));
}

static Datum
get_value(PG_FUNCTION_ARGS)
{
	return PointerGetDatum(le_arg_text(fcinfo, 0, "value", 0, LE_VALUE_MAX));
}

/*
 * Undo what keeps a string on one line and in its quotes; NULL if that cannot be undone
 */
static char *
without_escapes(const char *line)
{
	char	   *string = palloc(strlen(line) + 1);
	char	   *end = string;

	for (; *line != '\0'; line++)
	{
		unsigned int code;

		if (*line == '"')
			return NULL;
		if (*line != '\\')
			*end++ = *line;
		else if (line[1] == '\\' || line[1] == '"')
			*end++ = *++line;
		else if (sscanf(line, "\\x%2x", &code) == 1)
		{
			*end++ = (char) code;
			line += 3;
		}
		else if (sscanf(line, "\\u%4x", &code) == 1)
		{
			unicode_to_utf8(code, (unsigned char *) end);
			end += pg_encoding_mblen(PG_UTF8, end);
			line += 5;
		}
		else
			return NULL;
	}
	*end = '\0';
	return string;
}

/*
 * Check an election of that name: any client can compute its key, and its
 * label is one line
 */
static void
check_election(const char *string, const text *name)
{
	LeElection	election;
	const char *label;
	size_t		length;
	char	   *inside;

	le_election_by_name(&election, name);
	LE_FUZZ_CHECK(strcmp(election.name, string) == 0);
	LE_FUZZ_CHECK(election.key.key ==
				  DatumGetInt64(DirectFunctionCall2Coll(hashtextextended, C_COLLATION_OID,
														PointerGetDatum(name), Int64GetDatum(0))));
	LE_FUZZ_CHECK((((uint64) election.tag.locktag_field2 << 32) | election.tag.locktag_field3) ==
				  (uint64) election.key.key);

	label = le_name_label(election.name);
	length = strlen(label);
	LE_FUZZ_CHECK(le_fuzz_is_one_line(label));
	LE_FUZZ_CHECK(length >= 2 && label[0] == '"' && label[length - 1] == '"');

	inside = without_escapes(pnstrdup(label + 1, length - 2));
	LE_FUZZ_CHECK(inside != NULL && strcmp(inside, string) == 0);
}

/*
 * An identity of those words, given or made up
 */
static void
check_identity(const char *string, const text *given, bool has_client)
{
	LeIdentity	identity;
	const char *shown;
	const char *at;

	le_identity_fill(&identity, given);
	LE_FUZZ_CHECK(strcmp(identity.string, string) == 0 && !identity.has_client);
	LE_FUZZ_CHECK(strcmp(le_identity_public(&identity), string) == 0);

	identity.has_client = has_client;
	at = strrchr(string, '@');
	shown = le_identity_public(&identity);
	if (has_client && at != NULL)
		LE_FUZZ_CHECK(strlen(shown) == (size_t) (at - string) &&
					  memcmp(shown, string, at - string) == 0);
	else
		LE_FUZZ_CHECK(strcmp(shown, string) == 0);
}

void
le_fuzz_names(LeFuzzInput *input)
{
	LOCAL_FCINFO(fcinfo, 1);
	uint8		flags = le_fuzz_byte(input);
	char	   *string = le_fuzz_long_string(input, LONGEST);
	text	   *argument = le_fuzz_text(string, flags & 1);
	size_t		length = strlen(string);
	int			error = le_fuzz_length_error(length, LE_TEXT_MAX);
	int			name_error = le_fuzz_name_error(string);
	Datum		result;

	InitFunctionCallInfoData(*fcinfo, NULL, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = PointerGetDatum(argument);
	fcinfo->args[0].isnull = false;

	LE_FUZZ_CHECK(le_fuzz_call(get_name, fcinfo, &result) == name_error);
	LE_FUZZ_CHECK(le_fuzz_call(get_identity, fcinfo, NULL) == error);
	LE_FUZZ_CHECK(le_fuzz_call(get_reason, fcinfo, NULL) == error);
	LE_FUZZ_CHECK(le_fuzz_call(get_value, fcinfo, NULL) ==
				  le_fuzz_length_error(length, LE_VALUE_MAX));
	if (name_error == 0)
		check_election(string, argument);
	if (error == 0)
		check_identity(string, argument, flags & 2);

	fcinfo->args[0].isnull = true;
	LE_FUZZ_CHECK(le_fuzz_call(get_name, fcinfo, NULL) == ERRCODE_NULL_VALUE_NOT_ALLOWED);
	LE_FUZZ_CHECK(le_fuzz_call(get_identity, fcinfo, &result) == 0 && result == 0);
}
