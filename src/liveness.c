/*-------------------------------------------------------------------------
 *
 * liveness.c
 *	  Is the client behind this session still there?
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "libpq/libpq.h"
#include "miscadmin.h"

#include "leader_election.h"

/*
 * End this session if its client has gone
 *
 * A backend in a lock queue does not look at its socket, so that a candidate may
 * have died long ago when the lock comes to it.  Background workers have no
 * client and pass.
 */
void
le_require_client(void)
{
	if (MyProcPort == NULL || pq_check_connection())
		return;

	/* the server's own way to end a session that lost its client */
	ClientConnectionLost = true;
	InterruptPending = true;
	CHECK_FOR_INTERRUPTS();
}
