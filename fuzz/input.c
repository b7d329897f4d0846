/*-------------------------------------------------------------------------
 *
 * input.c
 *	  From bytes to arguments.
 *
 * Numbers come first in an input, then strings, each ended by a NUL: so an input can be
 * read, and changed in a way that means something.  Of a string that is not valid in the
 * encoding of the database, only the part is taken that is: the server refuses the rest
 * before the extension sees it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/errcodes.h"

#include "fuzz.h"

/*
 * Take a byte, 0 if there is none
 */
uint8
le_fuzz_byte(LeFuzzInput *input)
{
	if (input->left == 0)
		return 0;
	input->left--;
	return *input->at++;
}

/*
 * Take a number, lowest byte first
 */
int64
le_fuzz_int64(LeFuzzInput *input)
{
	uint64		number = 0;

	for (int i = 0; i < 8; i++)
		number |= (uint64) le_fuzz_byte(input) << (8 * i);
	return (int64) number;
}

/*
 * Take a string
 */
char *
le_fuzz_string(LeFuzzInput *input)
{
	size_t		length = strnlen((const char *) input->at, input->left);
	int			valid = pg_encoding_verifymbstr(GetDatabaseEncoding(),
												(const char *) input->at, length);
	char	   *string = le_fuzz_alloc(valid + 1);

	memcpy(string, input->at, valid);
	string[valid] = '\0';
	length = Min(length + 1, input->left);
	input->at += length;
	input->left -= length;
	return string;
}

/*
 * Take a string, and how often to repeat it, up to that many bytes
 */
char *
le_fuzz_long_string(LeFuzzInput *input, int max)
{
	int			times = 1 + (le_fuzz_byte(input) | le_fuzz_byte(input) << 8);
	char	   *once = le_fuzz_string(input);
	size_t		length = strlen(once);
	char	   *string;

	if (length * times > (size_t) max)
		times = length == 0 ? 0 : max / length;
	string = le_fuzz_alloc(length * times + 1);
	for (int i = 0; i < times; i++)
		memcpy(string + i * length, once, length);
	string[length * times] = '\0';
	return string;
}

/*
 * Return the string as a text of just that size, with a header of one byte, as it comes
 * from a table, or of four
 */
text *
le_fuzz_text(const char *string, bool packed)
{
	size_t		length = strlen(string);
	text	   *value;

	if (packed && length + VARHDRSZ_SHORT <= VARATT_SHORT_MAX)
	{
		value = le_fuzz_alloc(length + VARHDRSZ_SHORT);
		SET_VARSIZE_SHORT(value, length + VARHDRSZ_SHORT);
	}
	else
	{
		value = le_fuzz_alloc(length + VARHDRSZ);
		SET_VARSIZE(value, length + VARHDRSZ);
	}
	memcpy(VARDATA_ANY(value), string, length);
	return value;
}

/*
 * Is the string without control characters?
 */
bool
le_fuzz_is_one_line(const char *string)
{
	for (; *string != '\0'; string++)
	{
		if ((unsigned char) *string < 32 || *string == 127)
			return false;
	}
	return true;
}

/*
 * Return which error a string of that length must give, 0 for none
 */
int
le_fuzz_length_error(size_t length, size_t max)
{
	if (length == 0 && max == LE_TEXT_MAX)
		return ERRCODE_ZERO_LENGTH_CHARACTER_STRING;
	return length > max ? ERRCODE_STRING_DATA_RIGHT_TRUNCATION : 0;
}

/*
 * Return which error that name of an election must give, 0 for none
 */
int
le_fuzz_name_error(const char *name)
{
	size_t		length = strlen(name);
	int			error = le_fuzz_length_error(length, LE_TEXT_MAX);

	if (error != 0)
		return error;
	if (length > 1 && name[0] == '{' && name[length - 1] == '}')
		return ERRCODE_INVALID_PARAMETER_VALUE;
	return 0;
}
