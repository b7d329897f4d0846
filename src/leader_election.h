/*-------------------------------------------------------------------------
 *
 * leader_election.h
 *	  Declaration of the callbacks, for functions that SQL can call.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_LEADER_ELECTION_H
#define LE_LEADER_ELECTION_H

/* leader_election.c */
extern void le_register_callbacks(void);

#endif							/* LE_LEADER_ELECTION_H */
