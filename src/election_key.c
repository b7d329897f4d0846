/*-------------------------------------------------------------------------
 *
 * election_key.c
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

#include "leader_election.h"

static void
fill_key(LeElection *election, int64 key, LeLockClass lock_class)
{
	election->key.key = key;
	election->key.database = MyDatabaseId;
	election->key.lock_class = lock_class;
	SET_LOCKTAG_ADVISORY(election->tag, MyDatabaseId,
						 (uint32) (key >> 32), (uint32) key, lock_class);
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
 * Return a copy of the string in which every control character is escaped, so
 * that it stays on one line of the log
 */
char *
le_escape_line(const char *string)
{
	StringInfoData line;

	initStringInfo(&line);
	while (*string != '\0')
	{
		int			length = pg_mblen(string);

		if (length == 1 && (unsigned char) *string < ' ')
			appendStringInfo(&line, "\\x%02x", (unsigned char) *string);
		else if (*string == 0x7f)
			appendStringInfoString(&line, "\\x7f");
		else
			appendBinaryStringInfo(&line, string, length);
		string += length;
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
