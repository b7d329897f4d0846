/*-------------------------------------------------------------------------
 *
 * election/key.c
 *	  Lock tags of elections, from their names, and their labels in messages.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"

#include "election/election.h"

/*
 * Fill in the tag of the election's lock
 */
static void
election_tag(const LeElectionKey *key, LOCKTAG *tag)
{
	SET_LOCKTAG_ADVISORY(*tag, key->database, (uint32) (key->key >> 32),
						 (uint32) key->key, key->lock_class);
}

/*
 * Check whether this session holds the election's lock, at any level.  Never
 * raises an error.
 */
bool
le_has_lock(const LeElectionKey *key)
{
	LOCKTAG		tag;

	election_tag(key, &tag);
	return LockHeldByMeCompat(&tag, ExclusiveLock);
}

/*
 * Fill in the election with the given name
 *
 * The key is hashtextextended(name, 0), which any client can compute in SQL.
 * The caller must have checked the length.
 */
void
le_election_by_name(LeElection *election, const text *name)
{
	const unsigned char *bytes = (const unsigned char *) VARDATA_ANY(name);
	int			length = VARSIZE_ANY_EXHDR(name);

	Assert(length > 0 && length <= LE_TEXT_MAX);
	memcpy(election->name, bytes, length);
	election->name[length] = '\0';
	election->declared = false;
	election->key.key = (int64) hash_bytes_extended(bytes, length, 0);
	election->key.database = MyDatabaseId;
	election->key.lock_class = LE_CLASS_ELECTION;
	election_tag(&election->key, &election->tag);
}

/*
 * Return the character at the start of a UTF-8 string if a terminal or log
 * reader may interpret it as something other than text, and set *bytes to its
 * length.  Return 0 for all other characters.
 *
 * Such characters are the control characters of ISO 6429, line and paragraph
 * separators, and those that change the direction of text.
 */
static unsigned int
find_control_char(const unsigned char *string, int *bytes)
{
	unsigned int code;

	*bytes = 2;
	if (string[0] == 0xC2 && string[1] >= 0x80 && string[1] <= 0x9F)
		return string[1];
	if (string[0] == 0xD8 && string[1] == 0x9C)
		return 0x061C;
	if (string[0] != 0xE2 || (string[1] != 0x80 && string[1] != 0x81))
		return 0;
	*bytes = 3;
	code = 0x2000 | (string[1] & 0x01) << 6 | (string[2] & 0x3F);
	if (code == 0x200E || code == 0x200F || (code >= 0x2028 && code <= 0x202E) ||
		(code >= 0x2066 && code <= 0x2069))
		return code;
	return 0;
}

/*
 * Check whether the bytes from 0x80 to 0x9F are control characters in the
 * encoding
 */
static bool
has_control_bytes(int encoding)
{
	return (encoding >= PG_LATIN1 && encoding <= PG_LATIN10) ||
		(encoding >= PG_ISO_8859_5 && encoding <= PG_ISO_8859_8);
}

/*
 * Return a copy of the string in which quotes, backslashes and all control
 * characters are escaped, so that it stays on one line of the log, and within
 * its quotes
 *
 * In all server encodings, a byte that is escaped here is never part of
 * another character.
 */
char *
le_escape_line(const char *string)
{
	int			encoding = GetDatabaseEncoding();
	StringInfoData line;

	initStringInfo(&line);
	for (; *string != '\0'; string++)
	{
		unsigned char byte = (unsigned char) *string;
		unsigned int code = 0;
		int			bytes;

		if (encoding == PG_UTF8 && byte >= 0x80)
			code = find_control_char((const unsigned char *) string, &bytes);
		if (code != 0)
		{
			appendStringInfo(&line, "\\u%04x", code);
			string += bytes - 1;
		}
		else if (byte < ' ' || byte == 0x7f ||
				 (byte >= 0x80 && byte <= 0x9F && has_control_bytes(encoding)))
			appendStringInfo(&line, "\\x%02x", byte);
		else
		{
			if (byte == '"' || byte == '\\')
				appendStringInfoChar(&line, '\\');
			appendStringInfoChar(&line, *string);
		}
	}
	return line.data;
}

/*
 * Return the label of an election with that name in messages
 */
const char *
le_name_label(const char *name)
{
	return psprintf("\"%s\"", le_escape_line(name));
}

const char *
le_label(const LeElection *election)
{
	return le_name_label(election->name);
}

/*
 * Raise an error if the election has another name than the given one, whose
 * key is the same
 */
void
le_refuse_collision(const LeElection *election, const char *name)
{
	if (strcmp(election->name, name) == 0)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_LE_KEY_COLLISION),
			 errmsg("election %s has the same key as election %s", le_label(election),
					le_name_label(name)),
			 errdetail("Both names have the key " INT64_FORMAT ".",
					   election->key.key),
			 errhint("Rename one of the two elections.")));
}
