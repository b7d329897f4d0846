/*-------------------------------------------------------------------------
 *
 * registry/news.c
 *	  What has been announced of the terms in the registry.
 *
 * Tokens grow from term to term.  So an entry has the token of the last term
 * whose beginning was announced, and of the last one whose end was.  A session
 * that is about to announce a term takes from here what is still to be
 * announced: first of the term before, then of that one.  It does so while it
 * holds the lock under which all commits notify, so the announcements of an
 * election come in the order of its terms.  What a session would announce of a
 * term after a later one is not there any more, and is left out.
 *
 * A term that is not to be announced counts as announced.  If an entry is
 * evicted, what it has not announced is lost.
 *
 * registry.c says which locks protect what.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "registry/internal.h"

static void
forget_deposition(LeElectionEntry *entry)
{
	le_registry_free(&entry->deposed_by);
	le_registry_free(&entry->deposed_why);
}

/*
 * Forget the strings that only an announcement needs
 *
 * The caller must hold the partition lock exclusively.  Never raises an error.
 */
void
le_news_forget(LeElectionEntry *entry)
{
	AssertPartitionLocked();
	le_registry_free(&entry->ended_identity);
	forget_deposition(entry);
}

/*
 * Record whether the entry's term, which begins, is to be announced
 *
 * The caller must hold the partition lock exclusively.  Never raises an error.
 */
void
le_news_begin(LeElectionEntry *entry, bool announces)
{
	AssertPartitionLocked();
	if (!announces)
		entry->begin_told = Max(entry->begin_told, entry->token);
}

/*
 * Record why the entry's term has ended
 *
 * The caller must hold the partition lock exclusively.  Never raises an error.
 */
void
le_news_end(LeElectionEntry *entry, LeEndReason reason)
{
	AssertPartitionLocked();
	entry->end_reason = reason;
	if (!entry->announces)
		entry->end_told = entry->token;
}

static bool
end_is_untold(const LeElectionEntry *entry)
{
	return entry->last_token > entry->end_told;
}

/*
 * Keep what is needed to announce the end of the entry's term, which is about
 * to be removed, unless that has been announced
 *
 * The caller must hold the partition lock exclusively.  Never raises an error.
 */
void
le_news_keep(LeElectionEntry *entry)
{
	AssertPartitionLocked();
	if (entry->token != entry->last_token)
		return;
	le_registry_free(&entry->ended_identity);
	if (!end_is_untold(entry))
	{
		forget_deposition(entry);
		return;
	}
	entry->ended_identity = entry->identity;
	entry->ended_has_client = entry->identity_has_client;
	entry->identity = InvalidDsaPointer;
}

/*
 * If the term was deposed, copy by which role and for what reason
 *
 * The caller must hold the partition lock.  Never raises an error.
 */
static void
copy_deposition(LeNews *news, const LeElectionEntry *entry)
{
	bool		deposed = news->term.end_reason == LE_END_DEPOSED;

	strlcpy(news->by, deposed ? le_registry_string(entry->deposed_by) : "", NAMEDATALEN);
	strlcpy(news->why, deposed ? le_registry_string(entry->deposed_why) : "", LE_TEXT_SIZE);
}

/*
 * Take what is to be announced of the last term that has ended
 */
static void
take_ended(LeNews *news, LeElectionEntry *entry)
{
	bool		recorded = entry->token == entry->last_token;

	le_copy_entry(&news->term, entry);
	news->term.token = entry->last_token;
	news->term.end_reason = entry->end_reason;
	if (!recorded)
	{
		news->term.identity.has_client = entry->ended_has_client;
		strcpy(news->term.identity.string, le_registry_string(entry->ended_identity));
	}
	copy_deposition(news, entry);
	news->what = LE_NEWS_END;
	if (entry->begin_told < entry->last_token)
		news->what |= LE_NEWS_BEGIN;
	entry->begin_told = Max(entry->begin_told, entry->last_token);
	entry->end_told = entry->last_token;
	if (!entry->running)
		forget_deposition(entry);
}

/*
 * Take what is to be announced of the term on record, which runs, or is to
 * begin or end with the current commit
 */
static void
take_recorded(LeNews *news, LeElectionEntry *entry, bool ends)
{
	le_copy_entry(&news->term, entry);
	if (entry->begin_told < entry->token)
		news->what = LE_NEWS_BEGIN;
	entry->begin_told = entry->token;
	if (!ends || entry->end_told >= entry->token || !entry->announces)
		return;
	news->term.end_reason = le_true_reason(entry, LE_END_TRANSACTION);
	copy_deposition(news, entry);
	news->what |= LE_NEWS_END;
	entry->end_told = entry->token;
}

/*
 * Take what is still to be announced up to the term with the given token: of
 * the last one that has ended, and of the one on record.  "ends" says that the
 * latter ends with the current commit.
 *
 * What is taken is not announced again, unless it is returned.  An uncommitted
 * lease counts as begun.  The values of "what" are 0 for nothing.
 */
void
le_registry_take_news(const LeElectionKey *key, int64 token, bool ends, LeNews *ended,
					  LeNews *recorded, LeNewsTaken *taken)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, true);

	ended->what = recorded->what = 0;
	memset(taken, 0, sizeof(LeNewsTaken));
	if (entry == NULL)
		return;
	taken->begin_before = entry->begin_told;
	taken->end_before = entry->end_told;
	if (end_is_untold(entry) && entry->last_token <= token)
		take_ended(ended, entry);
	if (entry->token == token && entry->token != entry->last_token)
		take_recorded(recorded, entry, ends);
	taken->begin_told = entry->begin_told;
	taken->end_told = entry->end_told;
	le_registry_unlock_entry(entry);
}

/*
 * Return what le_registry_take_news has taken, since the commit has failed
 *
 * The commit still holds the lock under which it was taken.  But an entry that
 * was evicted meanwhile may be another one now.
 */
void
le_registry_return_news(const LeElectionKey *key, const LeNewsTaken *taken)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, true);

	if (entry == NULL)
		return;
	if (entry->begin_told == taken->begin_told)
		entry->begin_told = taken->begin_before;
	if (entry->end_told == taken->end_told)
		entry->end_told = taken->end_before;
	le_registry_unlock_entry(entry);
}
