/*-------------------------------------------------------------------------
 *
 * announce/internal.h
 *	  Declarations for the files of announcements only.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_ANNOUNCE_INTERNAL_H
#define LE_ANNOUNCE_INTERNAL_H

#include "lib/stringinfo.h"

#include "announce/announce.h"

/* notify.c */
extern bool le_notify_queue_is_full(int count);
extern bool le_can_notify(uint64 waiting_since);

/* payload.c */
extern void le_fill_payload(StringInfo payload, const LeNews *news, LeNewsKind what);
extern const char *le_payload_to_ascii(const char *json);

#endif							/* LE_ANNOUNCE_INTERNAL_H */
