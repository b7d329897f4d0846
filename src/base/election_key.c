/*-------------------------------------------------------------------------
 *
 * base/election_key.c
 *	  From the name or bare key of an election to its lock tag, and to the
 *	  words that messages call it by.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"

#include "base/base.h"

/*
 * Fill in the tag of the election's lock
 */
void
le_election_tag(const LeElectionKey *key, LOCKTAG *tag)
{
	SET_LOCKTAG_ADVISORY(*tag, key->database, (uint32) (key->key >> 32),
						 (uint32) key->key, key->lock_class);
}

/*
 * Does this session hold the lock, at whatever level?  Does not throw
 */
bool
le_has_lock(const LeElectionKey *key)
{
	LOCKTAG		tag;

	le_election_tag(key, &tag);
	return LockHeldByMeCompat(&tag, ExclusiveLock);
}

static void
fill_key(LeElection *election, int64 key, LeLockClass lock_class)
{
	election->key.key = key;
	election->key.database = MyDatabaseId;
	election->key.lock_class = lock_class;
	le_election_tag(&election->key, &election->tag);
}

/*
 * Fill in the election of that name
 *
 * The key is hashtextextended(name, 0), which anybody can compute in SQL.  The
 * caller has checked the length.
 */
void
le_election_by_name(LeElection *election, const text *name)
{
	const unsigned char *bytes = (const unsigned char *) VARDATA_ANY(name);
	int			length = VARSIZE_ANY_EXHDR(name);

	Assert(length > 0 && length <= LE_TEXT_MAX);
	memcpy(election->name, bytes, length);
	election->name[length] = '\0';
	fill_key(election, (int64) hash_bytes_extended(bytes, length, 0),
			 LE_CLASS_ELECTION);
}

/*
 * Fill in the election of that bare key
 */
void
le_election_by_key(LeElection *election, int64 key)
{
	election->name[0] = '\0';
	fill_key(election, key, LE_CLASS_BARE_KEY);
}

/*
 * Return the character of a UTF-8 string that a terminal or a reader of logs may take for
 * something else than text, in that many bytes: the control characters of ISO 6429, line
 * and paragraph separators, and what changes the direction of text; 0 if it is none
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
 * Are the bytes from 0x80 to 0x9F control characters in the database's encoding?
 */
static bool
has_control_bytes(int encoding)
{
	return (encoding >= PG_LATIN1 && encoding <= PG_LATIN10) ||
		(encoding >= PG_ISO_8859_5 && encoding <= PG_ISO_8859_8);
}

/*
 * Return a copy of the string in which quotes, backslashes and all control characters are
 * escaped, so that it stays on one line of the log, and within its quotes
 *
 * In no server encoding is a byte that is escaped by itself part of another character.
 */
char *
le_escape_line(const char *string)
{
	int			encoding = GetDatabaseEncoding();
	bool		control_bytes = has_control_bytes(encoding);
	StringInfoData line;

	initStringInfo(&line);
	for (; *string != '\0'; string++)
	{
		unsigned char byte = (unsigned char) *string;
		unsigned int code = 0;
		int			bytes;

		if (encoding == PG_UTF8)
			code = find_control_char((const unsigned char *) string, &bytes);
		if (code != 0)
		{
			appendStringInfo(&line, "\\u%04x", code);
			string += bytes - 1;
		}
		else if (byte < ' ' || byte == 0x7f ||
				 (control_bytes && byte >= 0x80 && byte <= 0x9F))
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
 * Return what messages call the election: its name in quotes, or its bare key
 */
const char *
le_election_label(const LeElectionKey *key, const char *name)
{
	if (key->lock_class == LE_CLASS_BARE_KEY)
		return psprintf(INT64_FORMAT, key->key);
	return psprintf("\"%s\"", le_escape_line(name));
}

/*
 * Throw if the election shares its key with the one of that name
 */
void
le_refuse_collision(const LeElection *election, const char *name)
{
	if (strcmp(election->name, name) == 0)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_LE_KEY_COLLISION),
			 errmsg("election %s has the same key as election %s",
					le_election_label(&election->key, election->name),
					le_election_label(&election->key, name)),
			 errdetail("Both names have the key " INT64_FORMAT ".",
					   election->key.key),
			 errhint("Rename one of the two elections.")));
}
