/*-------------------------------------------------------------------------
 *
 * registry/news.c
 *	  What has not been announced yet of the terms in the registry.
 *
 * An entry keeps the news of one term: of the one that runs, or else of the
 * last one that has ended.  Several sessions may have the same news on their
 * lists (announce.c).  The first one that is about to send it claims it here,
 * and the others drop theirs.  The session that begins the next term takes
 * over all that is left of the previous one, and announces it before its own.
 * So the announcements of an election come in the order of its terms, whatever
 * becomes of the session that ended a term.
 *
 * An uncommitted lease leaves the news of the previous term alone, because the
 * lease may never begin.  An entry that is evicted loses its news.  After
 * that, nothing keeps the sessions that have it on their lists from sending
 * it.
 *
 * registry.c says which locks protect what.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "registry/internal.h"

/*
 * After this time, the end of a term is no longer left to the session that
 * ended it
 */
#define LE_TELLER_PATIENCE_US	USECS_PER_SEC

/*
 * Forget the strings that only the end of a term needs
 *
 * The caller must hold the partition lock exclusively.  Never raises an error.
 */
static void
forget_deposition(LeElectionEntry *entry)
{
	le_registry_free(&entry->deposed_by);
	le_registry_free(&entry->deposed_why);
}

/*
 * Forget the news of the entry
 *
 * The caller must hold the partition lock exclusively.  Never raises an error.
 */
void
le_news_forget(LeElectionEntry *entry)
{
	AssertPartitionLockedExclusively();
	entry->news = 0;
	le_registry_free(&entry->news_identity);
	forget_deposition(entry);
}

/*
 * Keep what is needed to announce the end of the entry's term, which is about
 * to be removed, if that end has not been announced yet
 *
 * The caller must hold the partition lock exclusively.  Never raises an error.
 */
void
le_news_keep(LeElectionEntry *entry)
{
	AssertPartitionLockedExclusively();
	if (entry->news_token != entry->token)
		return;
	if ((entry->news & LE_NEWS_END) == 0)
	{
		forget_deposition(entry);
		return;
	}
	entry->news_identity = entry->identity;
	entry->news_has_client = entry->identity_has_client;
	entry->identity = InvalidDsaPointer;
}

/*
 * Make the entry's term, which has just begun, the one that the news is of
 *
 * The caller must hold the partition lock exclusively.  Never raises an error.
 */
void
le_news_begin(LeElectionEntry *entry)
{
	AssertPartitionLockedExclusively();
	entry->news_token = entry->token;
	entry->news = entry->announces ? LE_NEWS_BEGIN : 0;
}

/*
 * Do the same for a lease that was loaded after a restart, whose beginning is
 * not announced
 *
 * The caller must hold the partition lock exclusively.  Never raises an error.
 */
void
le_news_loaded(LeElectionEntry *entry)
{
	AssertPartitionLockedExclusively();
	le_news_forget(entry);
	entry->news_token = entry->token;
}

/*
 * Record that the entry's term has ended and that this session is to announce
 * it
 *
 * The caller must hold the partition lock exclusively.  Never raises an error.
 */
void
le_news_end(LeElectionEntry *entry, LeEndReason reason)
{
	AssertPartitionLockedExclusively();
	if (entry->news_token != entry->token)
	{
		entry->news_token = entry->token;
		entry->news = 0;
	}
	if (!entry->announces)
		return;
	entry->news |= LE_NEWS_END;
	entry->end_reason = reason;
	entry->teller = MyProcPid;
}

/*
 * Check whether the end of the last term is still to be announced
 *
 * The caller must hold the partition lock.
 */
static bool
end_is_untold(const LeElectionEntry *entry)
{
	return !entry->running && (entry->news & LE_NEWS_END) != 0 &&
		entry->news_token == entry->last_token;
}

/*
 * Check whether the end of the last term is still to be announced, and is not
 * left to another session
 *
 * An expired lease is found by chance, by a session that may be slow to
 * commit.  Any other end is announced by the session that caused it, usually
 * at once.
 *
 * The caller must hold the partition lock.  Never raises an error.
 */
bool
le_news_owed(const LeElectionEntry *entry)
{
	AssertPartitionLocked();
	return end_is_untold(entry) && entry->teller != MyProcPid &&
		(entry->end_reason == LE_END_EXPIRED ||
		 entry->tally.changed_at + LE_TELLER_PATIENCE_US < le_monotonic_us());
}

/*
 * If the term was deposed, copy by which role and for what reason
 *
 * The caller must hold the partition lock.  Never raises an error.
 */
void
le_copy_deposition(LeNews *news, const LeElectionEntry *entry)
{
	bool		deposed = news->term.end_reason == LE_END_DEPOSED;

	AssertPartitionLocked();
	strlcpy(news->by, deposed ? le_registry_string(entry->deposed_by) : "", NAMEDATALEN);
	strlcpy(news->why, deposed ? le_registry_string(entry->deposed_why) : "", LE_TEXT_SIZE);
}

/*
 * Copy the last term, which has ended, and what is still to be announced of
 * it.  From now on, this session is to announce it as well.
 *
 * The caller must hold the partition lock exclusively.  Never raises an error.
 */
void
le_news_copy(LeNews *news, LeElectionEntry *entry)
{
	AssertPartitionLockedExclusively();
	le_copy_entry(&news->term, entry);
	if (entry->token != entry->last_token)
	{
		news->term.token = entry->last_token;
		news->term.identity.has_client = entry->news_has_client;
		strcpy(news->term.identity.string, le_registry_string(entry->news_identity));
	}
	news->term.end_reason = entry->end_reason;
	le_copy_deposition(news, entry);
	news->what = end_is_untold(entry) ? entry->news : 0;
	if (news->what != 0)
		entry->teller = MyProcPid;
}

/*
 * Take over what is still to be announced of the last term, for a later term
 * that begins
 *
 * The caller must hold the partition lock exclusively.  Never raises an error.
 */
void
le_news_take(LeNews *news, LeElectionEntry *entry)
{
	AssertPartitionLockedExclusively();
	news->what = 0;
	if (end_is_untold(entry))
		le_news_copy(news, entry);
	le_news_forget(entry);
}

/*
 * Copy the election's last term, if this session is to announce its end.
 * Return false otherwise.
 */
bool
le_registry_find_news(const LeElectionKey *key, LeNews *news)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, true);
	bool		owed;

	if (entry == NULL)
		return false;
	owed = le_news_owed(entry);
	if (owed)
		le_news_copy(news, entry);
	le_registry_unlock_entry(entry);
	return owed;
}

/*
 * Copy the lease with the given token, which this session has just ended.
 * Return false if it is no longer recorded.
 */
bool
le_registry_read_ended(const LeElectionKey *key, int64 token, LeNews *news)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, true);
	bool		found;

	if (entry == NULL)
		return false;
	found = entry->token == token && !entry->running;
	if (found)
		le_news_copy(news, entry);
	le_registry_unlock_entry(entry);
	return found;
}

/*
 * Copy the lease with the given token, which is about to be committed, and
 * take over what is to be announced before it.  Return false if it is no
 * longer recorded.
 */
bool
le_registry_precede_lease(const LeElectionKey *key, int64 token, LeTerm *term,
						  LeNews *before)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, true);
	bool		found;

	if (entry == NULL)
		return false;
	found = entry->token == token;
	if (found)
	{
		le_copy_entry(term, entry);
		le_news_take(before, entry);
		le_news_begin(entry);
	}
	le_registry_unlock_entry(entry);
	return found;
}

/*
 * Record that the running term with the given token ends with the current
 * commit, which is to announce that.  Return false if it is not to be
 * announced.
 */
bool
le_registry_end_foreseen(const LeElectionKey *key, int64 token, LeNews *news)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, true);
	bool		found;

	if (entry == NULL)
		return false;
	found = entry->token == token && entry->announces;
	if (found)
	{
		le_copy_entry(&news->term, entry);
		news->term.end_reason = le_true_reason(entry, LE_END_TRANSACTION);
		news->what = LE_NEWS_END;
		le_copy_deposition(news, entry);
		le_news_end(entry, news->term.end_reason);
		entry->announces = false;
	}
	le_registry_unlock_entry(entry);
	return found;
}

/*
 * Undo le_registry_end_foreseen because the commit has failed
 */
void
le_registry_end_unforeseen(const LeElectionKey *key, int64 token)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, true);

	if (entry == NULL)
		return;
	if (entry->token == token)
	{
		entry->announces = true;
		entry->news &= ~LE_NEWS_END;
	}
	le_registry_unlock_entry(entry);
}

/*
 * Check whether this news of the term with the given token is still to be
 * announced
 *
 * A published value is of no interest after the end of the term.
 */
static bool
is_untold(const LeElectionEntry *entry, int64 token, LeNewsKind what)
{
	if (what == LE_NEWS_VALUE)
		return entry->token == token;
	if (entry->news_token == token)
		return (entry->news & what) != 0;

	/*
	 * the entry has been evicted since, or a later term has taken over the
	 * news
	 */
	return entry->news_token < token;
}

/*
 * Check whether this news of the term with the given token is still to be
 * announced
 */
bool
le_registry_is_untold(const LeElectionKey *key, int64 token, LeNewsKind what)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, false);
	bool		untold = true;

	if (entry == NULL)
		return what != LE_NEWS_VALUE;
	untold = is_untold(entry, token, what);
	le_registry_unlock_entry(entry);
	return untold;
}

/*
 * Do the same, and if so, claim it for this session
 */
bool
le_registry_claim_news(const LeElectionKey *key, int64 token, LeNewsKind what)
{
	LeElectionEntry *entry = le_registry_lock_entry(key, true);
	bool		untold;

	if (entry == NULL)
		return what != LE_NEWS_VALUE;
	untold = is_untold(entry, token, what);
	if (untold && what != LE_NEWS_VALUE && entry->news_token == token)
	{
		entry->news &= ~what;
		if (what == LE_NEWS_END && !entry->running)
			le_news_forget(entry);
	}
	le_registry_unlock_entry(entry);
	return untold;
}
