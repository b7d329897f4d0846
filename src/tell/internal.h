/*-------------------------------------------------------------------------
 *
 * tell/internal.h
 *	  Declarations for the files of announcements only.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_TELL_INTERNAL_H
#define LE_TELL_INTERNAL_H

#include "lib/stringinfo.h"

#include "tell/tell.h"

typedef struct LeNews
{
	const LeTerm *term;
	LeEvent		event;
	LeEndReason reason;			/* if it has ended */
	const char *by;				/* role that has deposed the leader, or NULL */
	const char *why;			/* NULL: no reason was given */
} LeNews;

/* payload.c */
extern void le_fill_payload(StringInfo payload, const LeNews *news);
extern const char *le_payload_to_ascii(const char *json);

#endif							/* LE_TELL_INTERNAL_H */
