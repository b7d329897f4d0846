/*-------------------------------------------------------------------------
 *
 * election/internal.h
 *	  Declarations for the files of declarations only.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_ELECTION_INTERNAL_H
#define LE_ELECTION_INTERNAL_H

#include "election/election.h"

#define Anum_le_declarations_name		1
#define Anum_le_declarations_candidates	2
#define Anum_le_declarations_grace		3
#define Anum_le_declarations_max_ttl	4
#define Anum_le_declarations_private	5
#define Anum_le_declarations_role		6
#define Anum_le_declarations_origin		7
#define Anum_le_declarations_key		8	/* generated from the name */
#define Natts_le_declarations			8

/* declaration.c */
extern int64 le_origin_of_roles(void);

#endif							/* LE_ELECTION_INTERNAL_H */
