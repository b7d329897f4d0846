/*-------------------------------------------------------------------------
 *
 * tell/tell.h
 *	  Reports of changes: the server log and notifications.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_TELL_H
#define LE_TELL_H

#include "lib/stringinfo.h"

#include "registry/registry.h"

/* What a session announces of a term */
typedef enum LeEvent
{
	LE_ELECTED,
	LE_ENDED,
	LE_PROCLAIMED
} LeEvent;

typedef struct LeNews
{
	const LeTerm *term;
	LeEvent		event;
	LeEndReason reason;			/* if it has ended */
	const char *by;				/* role that has deposed the leader, or NULL */
	const char *why;			/* NULL: no reason was given */
} LeNews;

/* notify.c */
extern void le_announce_running(const LeElectionKey *election, int64 token, LeEvent event);
extern void le_announce_deposed(const LeTerm *term, const char *by, const char *why);
extern void le_report_end(const LeTerm *term, LeEndReason reason);
extern void le_announcements_before_commit(void);
extern void le_announcements_at_xact_end(bool is_commit);
extern void le_fill_payload(StringInfo payload, const LeNews *news);
extern const char *le_payload_to_ascii(const char *json);

/* log.c */
extern const char *le_scope_name(LeScope scope);
extern void le_log_begin(const LeTerm *term);
extern void le_log_end(const LeTerm *term, LeEndReason reason);
extern void le_log_deposed(const LeTerm *term, const char *by, const char *why);

#endif							/* LE_TELL_H */
