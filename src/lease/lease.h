/*-------------------------------------------------------------------------
 *
 * lease/lease.h
 *	  Leases: terms that no session holds, and the table by which they survive
 *	  a restart.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_LEASE_H
#define LE_LEASE_H

#include "registry/registry.h"

/* A lease that this transaction has taken */
typedef struct LeGrant
{
	LeXactItem	item;
	LeElection	election;
	int64		token;
	Oid			role;
	LeElectionEntry *entry;		/* the lease's entry in the registry */
	bool		given_up;		/* has ended, only the lock is left */
} LeGrant;

/* lease.c */
extern void le_require_role(const LeElection *election, Oid user, Oid role);
extern bool le_check_own_lease(const LeElection *election, int64 token);
extern bool le_lease_renew(const LeElection *election, int64 token, int64 ttl_us);
extern bool le_lease_write_end(const LeElection *election, int64 token,
							   const LeLeaseOrder *order, XLogRecPtr *written);
extern bool le_close_lease(const LeElection *election);
extern bool le_lease_resign(const LeElection *election, int64 token);
extern void le_lease_wait(const LeElection *election, uint64 until);
extern bool le_lease_runs_for_any(const LeElection *election, int64 token, Oid *role);
extern void le_end_stale(const LeTerm *term);
extern bool le_leases_are_loaded(void);
extern Oid	le_leases_ready(bool for_bid);
extern int64 le_take_lease(const LeBid *bid, const LeIdentity *identity);

/* lease/grant.c */
extern int	le_grant_count(void);
extern LeGrant *le_find_grant(const LeElection *election);
extern int64 le_grant_lease(const LeBid *bid, const LeIdentity *identity, Oid table);
extern void le_give_up_grant(LeGrant *grant);
extern void le_grants_before_prepare(void);
extern void le_grants_before_commit(void *unused);
extern void le_grants_at_commit(void);

/* lease/table.c */
extern void le_lease_lock_table(void);
extern void le_lease_unlock_table(void);
extern void le_lease_insert(const LeTerm *term);
extern XLogRecPtr le_lease_overwrite_ttl(const LeElection *election, int64 token,
										 int64 ttl_us);
extern bool le_lease_delete_void(const LeElection *election);
extern LeTerm *le_lease_list(const LeElection *election, int *count);
extern void le_lease_load(Relation table);
extern bool le_is_lease_table(Oid table);
extern bool le_copied_lease_runs(const LeTerm *term);

#endif							/* LE_LEASE_H */
