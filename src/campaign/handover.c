/*-------------------------------------------------------------------------
 *
 * campaign/handover.c
 *	  Resigning in favor of a candidate.
 *
 * The candidate that a leader names must be next, whatever its place in line,
 * and all others must keep theirs.  If the leader itself holds the election's
 * lock, it moves the candidate to the front of the lock's queue and then
 * resigns; the lock manager does the rest.
 *
 * If the leader has a lease, the first candidate in line holds the lock and
 * waits for the end of the lease.  So when the lease ends, the successor is
 * recorded in the registry.  The first candidate finds that.  It records that
 * it has given way, moves the successor to the front, releases the lock, and
 * lines up again, at the end as usual.  The successor, which then holds the
 * lock, moves that candidate to the front.
 *
 * The lock may also still be free, if the successor is a candidate that is
 * just lining up.  Until it has done so, a bid that does not wait is denied,
 * as by a candidate that waits.
 *
 * A successor that no longer waits when its turn has come is skipped.  Then
 * the candidate that has given way to it takes its place, and so gets back its
 * own.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/timestamp.h"

#include "announce/announce.h"
#include "lease/lease.h"
#include "leader/leader.h"
#include "campaign/campaign.h"

/* How long to wait for a candidate to line up, and how often to check */
#define LE_LINE_UP_MAX_US	USECS_PER_SEC
#define LE_LINE_UP_LOOK_US	100

/* does the registry show that this session has given way? */
static bool gave_way = false;

typedef bool (*LeCandidateTest) (const LeCandidate *candidate, const void *argument);

static int
compare_waits(const void *a, const void *b)
{
	return timestamptz_cmp_internal(((const LeCandidate *) a)->since,
									((const LeCandidate *) b)->since);
}

/*
 * Return the candidates in the election's line that pass the test, in the
 * order in which they began to wait
 *
 * A session whose end has failed may be left in the registry.
 */
static LeCandidate *
list_in_line(const LeElection *election, LeCandidateTest passes, const void *argument,
			 int *count)
{
	int			all;
	LeCandidate *candidates = le_registry_list_candidates(&all);

	*count = 0;
	for (int i = 0; i < all; i++)
	{
		LeCandidate *candidate = &candidates[i];

		if (candidate->key_count == 0 &&
			memcmp(&candidate->election, &election->key, sizeof(LeElectionKey)) == 0 &&
			strcmp(candidate->name, election->name) == 0 &&
			passes(candidate, argument) && BackendPidGetProc(candidate->pid) != NULL)
			candidates[(*count)++] = *candidate;
	}
	qsort(candidates, *count, sizeof(LeCandidate), compare_waits);
	return candidates;
}

/*
 * Return the process of the first of these, or 0 if there is none
 */
static int
find_in_line(const LeElection *election, LeCandidateTest passes, const void *argument)
{
	int			count;
	LeCandidate *found = list_in_line(election, passes, argument, &count);
	int			pid = count > 0 ? found[0].pid : 0;

	pfree(found);
	return pid;
}

/* compare as the caller sees it, so that a hidden part cannot be guessed */
static bool
has_identity(const LeCandidate *candidate, const void *identity)
{
	return strcmp(le_identity_shown(&candidate->identity, candidate->role), identity) == 0;
}

static bool
is_process(const LeCandidate *candidate, const void *pid)
{
	return candidate->pid == *(const int *) pid;
}

static bool
has_given_way(const LeCandidate *candidate, const void *unused pg_attribute_unused())
{
	return candidate->gave_way && candidate->pid != MyProcPid;
}

/*
 * Check whether the named successor, if any, is another session that is still
 * a candidate, or another candidate has given way to it
 *
 * They may not be in the lock's queue yet, and a bid that does not wait must
 * not overtake them.
 */
bool
le_successor_waits(const LeElection *election, int successor)
{
	if (successor == 0)
		return false;
	return (successor != MyProcPid && find_in_line(election, is_process, &successor) != 0) ||
		find_in_line(election, has_given_way, NULL) != 0;
}

/*
 * Move a process to the front of the election's line.  Return false if it does
 * not wait there.
 *
 * If it is just about to line up, this waits for a short time.  May raise an
 * error.
 */
static bool
bring_to_front(const LeElection *election, int pid)
{
	uint64		give_up_at = le_monotonic_us() + LE_LINE_UP_MAX_US;

	while (!le_move_to_front(election, pid))
	{
		if (le_monotonic_us() > give_up_at || find_in_line(election, is_process, &pid) == 0)
			return false;
		CHECK_FOR_INTERRUPTS();
		pg_usleep(LE_LINE_UP_LOOK_US);
	}
	return true;
}

static void
warn_not_waiting(const LeElection *election, const char *identity)
{
	ereport(WARNING,
			(errcode(ERRCODE_WARNING),
			 errmsg("\"%s\" does not wait to lead election %s",
					le_escape_line(identity), le_label(election)),
			 errdetail("Nothing was resigned."),
			 errhint("%s shows the candidates; a candidate for many elections cannot be named.",
					 "le_candidates")));
}

/*
 * Resign in favor of the candidate with the given identity.  Return false,
 * with a warning, if the caller does not lead, or no such candidate waits.
 *
 * token is 0 for the session's own term.  May raise an error, and may wait a
 * moment for the candidate to line up.
 */
bool
le_resign_to(const LeElection *election, int64 token, const char *identity)
{
	LeHeldTerm *held = le_held_term(election);
	int			pid;

	le_require_primary();
	if (token == 0 && (held == NULL || !held->session_hold))
		return le_resign_term(election);
	if (token != 0 && !le_check_own_lease(election, token))
		return le_resign_by_token(election, token, 0);

	pid = find_in_line(election, has_identity, identity);
	if (pid == 0 || (le_has_lock(&election->key) && !bring_to_front(election, pid)))
	{
		warn_not_waiting(election, identity);
		return false;
	}
	return token == 0 ? le_resign_term(election) : le_resign_by_token(election, token, pid);
}

/*
 * Let the given process go first.  Return false if it does not wait.
 */
static bool
give_way(const LeElection *election, int pid)
{
	if (pid == 0 || !bring_to_front(election, pid))
		return false;
	gave_way = true;
	le_registry_set_gave_way(true);
	le_release_for_xact(election);
	return true;
}

/*
 * Move all candidates that have given way to the front, in the order in which
 * they began to wait
 */
static void
bring_back(const LeElection *election)
{
	int			count;
	LeCandidate *displaced = list_in_line(election, has_given_way, NULL, &count);

	while (count > 0)
		(void) bring_to_front(election, displaced[--count].pid);
	pfree(displaced);
}

/*
 * Check whether it is this session's turn to lead the election, with respect
 * to successors
 *
 * Called by a candidate that has acquired the election's lock, and again when
 * the election has become vacant.  If it returns false, the lock has been
 * released, and the candidate must line up again.  May raise an error, and may
 * wait a moment for others to line up.
 */
bool
le_take_turn(const LeElection *election)
{
	LeRecord	record;
	int			successor;
	int			displaced;

	if (gave_way)
	{
		gave_way = false;
		le_registry_set_gave_way(false);
	}
	(void) le_registry_read_record(&election->key, &record);
	successor = record.successor;
	if (successor == 0)
		return true;

	if (successor == MyProcPid)
	{
		bring_back(election);
		return true;
	}
	if (give_way(election, successor))
		return false;

	/* if it no longer waits, a candidate that gave way to it is next */
	displaced = find_in_line(election, has_given_way, NULL);
	le_registry_name_successor(&election->key, displaced);
	return !give_way(election, displaced);
}
