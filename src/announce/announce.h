/*-------------------------------------------------------------------------
 *
 * announce/announce.h
 *	  Reports of changes: the server log, notifications, wakeups of candidates
 *	  for many elections, and identities.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_ANNOUNCE_H
#define LE_ANNOUNCE_H

#include "registry/registry.h"

/* What a session announces of a term */
typedef enum LeEvent
{
	LE_ELECTED,
	LE_ENDED,
	LE_PROCLAIMED
} LeEvent;

/* announce.c */
extern void le_announce_running(const LeElectionKey *election, int64 token, LeEvent event);
extern void le_announce_deposed(const LeTerm *term, const char *by, const char *why);
extern void le_report_end(const LeTerm *term, LeEndReason reason);
extern void le_announcements_before_commit(void);
extern void le_announcements_at_xact_end(bool is_commit);

/* follow.c */
extern void le_track_lock(const LeElection *election, int64 guarded_by);
extern void le_untrack_lock(const LeElection *election);
extern void le_wake_followers(const LeElectionKey *key);
extern void le_rest_tracking(void);
extern ConditionVariable *le_follow_from(uint64 *place);
extern int	le_releases_since(uint64 *place, int64 *keys);

/* identity.c */
extern void le_identity_fill(LeIdentity *identity, const text *given);
extern const char *le_identity_public(const LeIdentity *identity);
extern const char *le_identity_shown(const LeIdentity *identity, Oid role);

/* term_log.c */
extern const char *le_scope_name(LeScope scope);
extern void le_log_begin(const LeTerm *term);
extern void le_log_end(const LeTerm *term, LeEndReason reason);
extern void le_log_deposed(const LeTerm *term, const char *by, const char *why);

#endif							/* LE_ANNOUNCE_H */
