/*-------------------------------------------------------------------------
 *
 * handover.c
 *	  To resign in favour of a candidate.
 *
 * The candidate that a leader names must be next, whatever its place in line, and all
 * others must keep theirs.  As long as the leader has the election's lock himself, he moves
 * the candidate to the front of the lock's queue, and then resigns: the lock manager does
 * the rest.
 *
 * Where a lease leads, it is the first candidate in line who has the lock, and waits for the
 * end of the lease.  So the leader leaves word in the registry, and then resigns.  The first
 * candidate finds that; he leaves word himself that he gives way, moves the successor to the
 * front, lets go of the lock, and lines up again: at the end, as everybody must.  The
 * successor, who has the lock then, moves him to the front.
 *
 * A candidate that does not wait any more when its turn has come is passed over.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"

#include "leader_election.h"

/* How long we wait for somebody to line up again who has given way, and how often we look */
#define LE_LINE_UP_TRIES	1000
#define LE_LINE_UP_US		100

static bool
is_in_line(const LeCandidate *candidate, const LeElection *election)
{
	return candidate->key_count == 0 &&
		memcmp(&candidate->election, &election->key, sizeof(LeElectionKey)) == 0 &&
		strcmp(candidate->name, election->name) == 0;
}

/*
 * Return the process that has waited longest in the election's line with that identity; 0:
 * none does
 */
static int
find_candidate(const LeElection *election, const char *identity)
{
	int			count;
	LeCandidate *candidates = le_registry_list_candidates(&count);
	LeCandidate *found = NULL;

	for (int i = 0; i < count; i++)
	{
		LeCandidate *candidate = &candidates[i];

		if (is_in_line(candidate, election) &&
			strcmp(candidate->identity.string, identity) == 0 &&
			(found == NULL || candidate->since < found->since))
			found = candidate;
	}
	return found == NULL ? 0 : found->pid;
}

/*
 * Return the process that has given way to the election's successor, and stands in line
 * since; 0: none
 */
static int
find_who_gave_way(const LeElection *election)
{
	int			count;
	LeCandidate *candidates = le_registry_list_candidates(&count);
	int			pid = 0;

	for (int i = 0; i < count && pid == 0; i++)
	{
		if (candidates[i].gave_way && is_in_line(&candidates[i], election))
			pid = candidates[i].pid;
	}
	pfree(candidates);
	return pid;
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
 * token is 0 for the session's own term.
 */
bool
le_resign_to(const LeElection *election, int64 token, const char *identity)
{
	LeHeldTerm *held = le_held_term(election);
	int			pid;

	le_require_primary();
	le_register_callbacks();
	if (token == 0 && (held == NULL || !held->session_hold))
		return le_resign_term(election);
	if (token != 0 && !le_lease_is_led(election, token))
		return le_resign_by_token(election, token);

	pid = find_candidate(election, identity);
	if (pid != 0 && le_has_lock(&election->key))
	{
		if (!le_move_to_front(election, pid))
			pid = 0;
	}
	else if (pid != 0)
		le_registry_name_successor(&election->key, token, pid);
	if (pid == 0)
	{
		warn_not_waiting(election, identity);
		return false;
	}
	return token == 0 ? le_resign_term(election) : le_resign_by_token(election, token);
}

/*
 * Let the successor go first whom the leader has named, if it waits; false: go on
 *
 * For the first candidate in line, who has the election's lock.  If it does not go on, it
 * has let go of that, and has to line up again.
 */
bool
le_give_way(const LeElection *election)
{
	int			successor = le_registry_successor(&election->key);

	if (successor == 0 || successor == MyProcPid || !le_move_to_front(election, successor))
		return false;
	le_registry_set_gave_way(MyProcPid);
	le_release_for_xact(election);
	return true;
}

/*
 * Move who has given way to the front, as soon as he has lined up again
 *
 * For whoever has just been granted the election's lock: the successor, or, if he is gone,
 * another.  May throw, and wait a moment.
 */
void
le_let_back_in(const LeElection *election)
{
	if (le_registry_successor(&election->key) == 0)
		return;
	for (int i = 0; i < LE_LINE_UP_TRIES; i++)
	{
		int			pid = find_who_gave_way(election);

		if (pid == 0 || pid == MyProcPid || le_move_to_front(election, pid))
			break;
		CHECK_FOR_INTERRUPTS();
		pg_usleep(LE_LINE_UP_US);
	}
}
