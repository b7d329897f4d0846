/*-------------------------------------------------------------------------
 *
 * leader_election.h
 *	  What functions that SQL can call need of the callbacks at the end of transactions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_LEADER_ELECTION_H
#define LE_LEADER_ELECTION_H

/* leader_election.c */
extern void le_register_callbacks(void);

#endif							/* LE_LEADER_ELECTION_H */
