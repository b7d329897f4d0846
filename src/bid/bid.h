/*-------------------------------------------------------------------------
 *
 * bid/bid.h
 *	  Bids and campaigns: everything up to the election.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_BID_H
#define LE_BID_H

#include "registry/registry.h"
#include "term/term.h"

/* What keeps a candidate from being elected */
typedef enum LeObstacle
{
	LE_MAY_LEAD,				/* nothing */
	LE_LEASE_RUNS,
	LE_LED_BY_LOCK,				/* by a session or transaction, or by a lease
								 * that is not committed */
	LE_LEASE_OVER,				/* its end must be recorded */
	LE_STALE_TERM,				/* it must be removed */
	LE_GUARDED,					/* transactions are guarded by the last term */
	LE_NOT_DURABLE,				/* the record of the last lease's end */
	LE_GRACE,
	LE_PROMOTION				/* leases are not granted yet */
} LeObstacle;

typedef struct LeDecision
{
	LeObstacle	obstacle;
	uint64		until;			/* end of the lease, the grace period, or wait
								 * after a promotion, by le_monotonic_us */
	XLogRecPtr	undurable;		/* for LE_NOT_DURABLE: end of that WAL */
} LeDecision;

/* All that decides whether a candidate may be elected */
typedef struct LeSituation
{
	LeTerm		term;			/* what is recorded, read once */
	bool		has_lock;		/* does the candidate hold the election's
								 * lock? */
	bool		lease_counts;	/* is a recorded lease one of the extension
								 * that exists now? */
	int64		grace_us;		/* 0: none */
	uint64		grants_from;	/* when the bid may be granted; 0: now */
	uint64		now;			/* by le_monotonic_us */
} LeSituation;

/*
 * How long even a bid that does not wait waits for synchronous standbys, and
 * for the end of a silent leader's session
 */
#define LE_TRY_WAITS_US	(100 * INT64CONST(1000))

/* campaign.c */
pg_noreturn extern void le_raise_lock_timeout(void);
extern bool le_deny_other_client(const LeBid *bid);
extern void le_prepare_to_bid(const LeBid *bid);
extern int64 le_run_bid(LeBid *bid, const LeIdentity *identity, bool in_line);
extern int64 le_elect(LeBid *bid);

/* campaign_many.c */
extern void le_leave_many(void);
extern const LeElection *le_elect_any(LeBid *bid, LeElection *elections, int count,
									  int64 *token);

/* candidate.c */
extern void le_enter_line(const LeElection *election, const LeIdentity *identity);
extern void le_enter_for_many(const LeElection *elections, int count,
							  const LeIdentity *identity);
extern bool le_is_candidate(void);
extern void le_show_wait(LeWait waits_for);
extern void le_withdraw(void);

/* decision.c */
extern LeDecision le_decide_vacant(const LeSituation *situation);
extern LeDecision le_decide(const LeSituation *situation);

/* room.c */
extern void le_require_countable(int count);
extern void le_make_room_to_observe(void);
extern void le_make_room_to_wait(int count, int counted);
extern void le_make_room(int count, int counted);

/* succession.c */
extern void le_look_at_vacancy(const LeBid *bid, LeSituation *situation);
extern void le_wait_vacant(uint64 until, LeObstacle why);
extern bool le_write_off(const LeElection *election, LeTerm *term, bool dont_wait);
extern bool le_delete_rows(const LeElection *election, const LeTerm *term);
extern bool le_deletion_delays_commit(void);
extern LeDecision le_clear_record(const LeBid *bid, bool dont_wait);

/* sweep.c */
extern void le_lease_sweep(bool for_room);

#endif							/* LE_BID_H */
