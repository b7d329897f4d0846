/*-------------------------------------------------------------------------
 *
 * campaign/handover.c
 *	  To resign in favour of a candidate.
 *
 * The candidate that a leader names must be next, whatever its place in line, and all
 * others must keep theirs.  As long as the leader has the election's lock himself, he moves
 * the candidate to the front of the lock's queue, and then resigns: the lock manager does
 * the rest.
 *
 * Where a lease leads, it is the first candidate in line who has the lock, and waits for the
 * end of the lease.  So the lease ends with word of the successor in the registry.  The
 * first candidate finds that; he leaves word himself that he gives way, moves the successor
 * to the front, lets go of the lock, and lines up again: at the end, as everybody must.  The
 * successor, who has the lock then, moves him to the front.
 *
 * That lock may still be free: then the successor is a candidate that is just lining up.
 * Until it has done so, a bid that does not wait is denied, as by one that waits.
 *
 * A successor that does not wait any more when its turn has come is passed over.  Then
 * whoever has given way to it takes its place, and so gets back his own.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"

#include "announce/announce.h"
#include "lease/lease.h"
#include "leader/leader.h"
#include "campaign/campaign.h"

/* How long we wait for somebody to line up, and how often we look */
#define LE_LINE_UP_MAX_US	USECS_PER_SEC
#define LE_LINE_UP_LOOK_US	100

/* does the registry show that this session has given way? */
static bool gave_way = false;

typedef bool (*LeCandidateTest) (const LeCandidate *candidate, const void *argument);

static int
compare_waits(const void *a, const void *b)
{
	TimestampTz first = ((const LeCandidate *) a)->since;
	TimestampTz second = ((const LeCandidate *) b)->since;

	return first < second ? -1 : first > second ? 1 : 0;
}

/*
 * Return the candidates in the election's line that pass the test, the one that has waited
 * longest first
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
			passes(candidate, argument))
			candidates[(*count)++] = *candidate;
	}
	qsort(candidates, *count, sizeof(LeCandidate), compare_waits);
	return candidates;
}

/*
 * Return the process of the first of these; 0: there is none
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

/* As everybody is shown it: what is hidden cannot be guessed */
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
 * Check whether the successor that was named, if any, is another session that still is a
 * candidate
 *
 * It may not be in the lock's queue yet: a bid that does not wait must not overtake it.
 */
bool
le_successor_waits(const LeElection *election, int successor)
{
	return successor != 0 && successor != MyProcPid &&
		find_in_line(election, is_process, &successor) != 0;
}

/*
 * Move that process to the front of the election's line; false if it does not wait there
 *
 * It may just be about to line up: for that we wait, but not for long.  May throw.
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
			 errmsg("\"%s\" does not wait to lead election %s", identity,
					le_election_label(&election->key, election->name)),
			 errdetail("Nothing was resigned."),
			 errhint("%s shows who waits; a candidate for many elections cannot be named.",
					 "le_candidates")));
}

/*
 * Resign in favour of the candidate with that identity; false, with a warning, if the
 * caller does not lead, or that one does not wait
 *
 * token is 0 for the session's own term.  May throw, and wait a moment for the candidate to
 * line up.
 */
bool
le_resign_to(const LeElection *election, int64 token, const char *identity)
{
	LeHeldTerm *held = le_held_term(election);
	int			pid;

	le_require_primary();
	if (token == 0 && (held == NULL || !held->session_hold))
		return le_resign_term(election);
	if (token != 0 && !le_lease_is_led(election, token))
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
 * Let that process go first; false if it does not wait
 */
static bool
give_way(const LeElection *election, int pid)
{
	if (pid == 0 || !bring_to_front(election, pid))
		return false;
	gave_way = true;
	le_registry_set_gave_way(MyProcPid, true);
	le_release_for_xact(election);
	return true;
}

/*
 * Move all who have given way to the front, each behind those who came before him
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
 * Is it this session's turn to lead the election, as far as successors go?
 *
 * To be called by a candidate who has been granted the election's lock, and again when
 * nobody leads any more.  If not, the lock has been let go, and the candidate is to line up
 * again.  May throw, and wait a moment for others to line up.
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
		le_registry_set_gave_way(MyProcPid, false);
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

	/* it is gone: then it is the turn of who gave way to it */
	displaced = find_in_line(election, has_given_way, NULL);
	le_registry_name_successor(&election->key, displaced);
	return !give_way(election, displaced);
}
