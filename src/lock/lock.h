/*-------------------------------------------------------------------------
 *
 * lock/lock.h
 *	  The locks of elections in the lock manager of the server.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_LOCK_H
#define LE_LOCK_H

#include "registry/registry.h"

/* Results of le_probe_holder that are no process IDs */
#define LE_NO_HOLDER	(-1)
#define LE_IDLE_HOLDER	0

/* lock.c */
extern bool le_acquire_for_xact(const LeElection *election, bool dont_wait);
extern void le_release_unused(const LeElection *election);
extern void le_release_for_xact(const LeElection *election);
extern void le_acquire_for_session(const LeElection *election);
extern void le_release_for_session(const LeElection *election);
extern bool le_lock_is_busy(const LeElection *election);
extern bool le_acquire_to_sweep(const LeElection *election);
extern void le_release_swept(const LeElection *election);
extern bool le_is_swept(const LeElection *election);
extern bool le_has_guard(const LeElection *election);
extern void le_acquire_job(const LeElection *election);
extern bool le_acquire_guard(const LeElection *election, LOCKMODE mode, bool dont_wait);
extern void le_release_guard(const LeElection *election, LOCKMODE mode);
extern int *le_list_holders(const LeElection *election, int *count);
extern int *le_list_guarded(const LeElection *election, int *count);
extern bool le_guard_is_contended(const LeElection *election);
extern bool le_find_holder(const LeElection *election, int *pid);
extern int	le_probe_holder(const LeElection *election);
extern bool le_holds_lock(const LeElection *election, int pid);

#endif							/* LE_LOCK_H */
