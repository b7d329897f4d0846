/*-------------------------------------------------------------------------
 *
 * campaign/campaign.h
 *	  To be elected.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_CAMPAIGN_H
#define LE_CAMPAIGN_H

#include "registry/registry.h"
#include "term/term.h"

/* How long a bid that does not wait lets synchronous standbys answer */
#define LE_STANDBY_PATIENCE_US	(100 * INT64CONST(1000))

/* campaign.c */
pg_noreturn extern void le_throw_lock_timeout(void);
extern bool le_acquire_now(LeBid *bid);
extern bool le_deny_other_client(const LeBid *bid);
extern void le_prepare_to_bid(void);
extern int64 le_begin_elected(const LeBid *bid, const LeIdentity *identity);
extern int64 le_elect(LeBid *bid);

/* campaign_many.c */
extern void le_stop_following(void);
extern const LeElection *le_elect_any(LeBid *bid, LeElection *elections, int count,
									  int64 *token);

/* candidate.c */
extern void le_stand_in_line(const LeElection *election, const LeIdentity *identity);
extern void le_stand_for_many(const LeElection *elections, int count,
							  const LeIdentity *identity);
extern bool le_is_candidate(void);
extern void le_show_wait(LeWait waits_for);
extern void le_withdraw(void);

/* handover.c */
extern bool le_successor_waits(const LeElection *election, int successor);
extern bool le_resign_to(const LeElection *election, int64 token, const char *identity);
extern bool le_take_turn(const LeElection *election);

/* room.c */
extern void le_require_countable(int count);
extern void le_require_room_to_watch(const LeElection *election);
extern void le_require_room(const LeElection *elections, int count, int counted);

/* succession.c */
extern bool le_write_off(const LeElection *election, LeTerm *term, bool dont_wait);
extern bool le_delete_rows(const LeElection *election, const LeTerm *term);
extern bool le_deletion_delays_commit(void);
extern bool le_clear_record(const LeElection *election, bool dont_wait,
							XLogRecPtr *undurable);

/* sweep.c */
extern void le_lease_sweep(bool for_room);

/* vacancy.c */
extern uint64 le_vacant_until(const LeBid *bid, LeWait *why);
extern void le_wait_vacant(uint64 until, LeWait why);

#endif							/* LE_CAMPAIGN_H */
