/*-------------------------------------------------------------------------
 *
 * sql/session.c
 *	  Columns of views about the session of a leader or candidate, as in
 *	  pg_stat_activity.
 *
 * pg_stat_activity copies what the server reports of all sessions.  This reads
 * the report of one.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/socket.h>

#include "catalog/pg_authid.h"
#include "common/ip.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"

#include "sql/sql.h"

/* A copy of the shown part of the server's report */
typedef struct LeReport
{
	Oid			role;
	SockAddr	client;
	char		application_name[NAMEDATALEN];
} LeReport;

/*
 * Copy the report of the process.  Return false if it no longer has one.
 *
 * As the server requires (backend_status.h), a copy is valid if the count is
 * even, and the same before and after.
 */
static bool
read_report(LeReport *report, PGPROC *process, int pid)
{
	volatile PgBackendStatus *status = BackendStatusCompat(process);

	if (status == NULL)
		return false;
	for (;;)
	{
		int			before;
		int			after;
		int			reported;

		pgstat_begin_read_activity(status, before);
		reported = status->st_procpid;
		report->role = status->st_userid;
		memcpy(&report->client, unvolatize(SockAddr *, &status->st_clientaddr), sizeof(SockAddr));
		strlcpy(report->application_name, status->st_appname, NAMEDATALEN);
		pgstat_end_read_activity(status, after);
		if (pgstat_read_activity_complete(before, after))
			return reported == pid;
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Return the address of the client as text, or NULL if it has none, or it must
 * not be shown
 */
static char *
show_client(const LeReport *report)
{
	const struct sockaddr_storage *address = &report->client.addr;
	char		host[NI_MAXHOST];

	if (address->ss_family != AF_INET && address->ss_family != AF_INET6)
		return NULL;
	if (!has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) &&
		!has_privs_of_role(GetUserId(), report->role))
		return NULL;
	if (pg_getnameinfo_all(address, report->client.salen, host, sizeof(host), NULL, 0,
						   NI_NUMERICHOST | NI_NUMERICSERV) != 0)
		return NULL;
	clean_ipv6_addr(address->ss_family, host);
	return pstrdup(host);
}

/*
 * Fill in the name of the role, or NULL if it was dropped
 */
void
le_fill_role(Oid role, Datum *value, bool *is_null)
{
	char	   *name = OidIsValid(role) ? GetUserNameFromId(role, true) : NULL;

	*is_null = name == NULL;
	if (name != NULL)
		*value = DirectFunctionCall1(namein, CStringGetDatum(name));
}

/*
 * Fill in the columns usename, application_name and client_addr of a process,
 * or NULLs if it has ended, or is a prepared transaction
 */
void
le_fill_session(PGPROC *process, int pid, Datum *values, bool *nulls)
{
	LeReport	report;
	char	   *client;

	memset(nulls, true, LE_SESSION_COLUMNS);
	if (pid == 0 || !read_report(&report, process, pid))
		return;
	le_fill_role(report.role, &values[0], &nulls[0]);
	values[1] = CStringGetTextDatum(report.application_name);
	nulls[1] = false;
	client = show_client(&report);
	nulls[2] = client == NULL;
	if (client != NULL)
		values[2] = DirectFunctionCall1(inet_in, CStringGetDatum(client));
}
