/*-------------------------------------------------------------------------
 *
 * election/end_reason.c
 *	  End reasons of terms: their names, and whether they are resignations.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "election/election.h"

typedef struct LeEndReasonInfo
{
	const char *name;			/* in log, announcements and statistics */
	bool		resignation;	/* did the leader know that the term was about
								 * to end? */
} LeEndReasonInfo;

static const LeEndReasonInfo reasons[LE_END_REASONS] = {
	[LE_END_RESIGNED] = {"resigned", true},
	[LE_END_DEPOSED] = {"deposed", false},
	[LE_END_TRANSACTION] = {"transaction ended", true},
	[LE_END_SESSION] = {"session ended", false},
	[LE_END_LOCK_RELEASED] = {"lock released", false},
	[LE_END_EXPIRED] = {"expired", false},
	[LE_END_EXTENSION_DROPPED] = {"extension dropped", false},
	[LE_END_SILENT] = {"silent", false},
};

/*
 * Return the name of a reason.  Never raises an error.
 */
const char *
le_reason_name(LeEndReason reason)
{
	return reasons[reason].name;
}

/*
 * Check whether a term that ended for this reason was resigned, in which case
 * no grace period follows.  Never raises an error.
 */
bool
le_is_resignation(LeEndReason reason)
{
	return reasons[reason].resignation;
}
