/*-------------------------------------------------------------------------
 *
 * leader/internal.h
 *	  Declarations for the files that end terms of other sessions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_LEADER_INTERNAL_H
#define LE_LEADER_INTERNAL_H

#include "leader/leader.h"

/* end_terms.c */
extern bool le_read_leader(const LeElection *election, LeTerm *term);
extern bool le_may_terminate(Oid role);
extern void le_wait_until_gone(const LeElection *election, const int *pids, int count,
							   int *(*list) (const LeElection *election, int *count),
							   uint64 until);
extern bool le_has_prepared(const LeElection *election);
extern int	le_end_leases(LeTerm *terms, int count, const char *by, const char *why);
extern int	le_end_sessions(LeTerm *terms, int count, const char *by, const char *why);

#endif							/* LE_LEADER_INTERNAL_H */
