/*-------------------------------------------------------------------------
 *
 * lead/internal.h
 *	  Declarations for the files that wait for sessions to end.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_LEAD_INTERNAL_H
#define LE_LEAD_INTERNAL_H

#include "lead/lead.h"

/* depose.c */
extern bool le_read_leader(const LeElection *election, LeTerm *term);
extern bool le_may_terminate(Oid role);
extern void le_wait_until_gone(const LeElection *election, const int *pids, int count,
							   int *(*list) (const LeElection *election, int *count),
							   uint64 until);

#endif							/* LE_LEAD_INTERNAL_H */
