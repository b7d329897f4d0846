/*-------------------------------------------------------------------------
 *
 * election/identity.c
 *	  Identities of leaders and candidates, for people to read.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "libpq/libpq-be.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/guc.h"

#include "election/election.h"

/*
 * Fill in the identity: the given one, else application_name, else user@client
 *
 * The caller must have checked the given one's length.
 */
void
le_identity_fill(LeIdentity *identity, const text *given)
{
	identity->has_client = false;

	if (given != NULL)
	{
		int			length = VARSIZE_ANY_EXHDR(given);

		Assert(length > 0 && length <= LE_TEXT_MAX);
		memcpy(identity->string, VARDATA_ANY(given), length);
		identity->string[length] = '\0';
	}
	else if (application_name != NULL && application_name[0] != '\0')
	{
		strlcpy(identity->string, application_name, LE_TEXT_SIZE);
	}
	else
	{
		const char *client = "local";

		if (MyProcPort != NULL && MyProcPort->remote_host != NULL &&
			MyProcPort->remote_host[0] != '[')
			client = MyProcPort->remote_host;
		identity->has_client = true;
		snprintf(identity->string, LE_TEXT_SIZE, "%s@%s",
				 GetUserNameFromId(GetSessionUserId(), false), client);

		/* a host name can be long */
		identity->string[pg_mbcliplen(identity->string, strlen(identity->string),
									  LE_TEXT_MAX)] = '\0';
	}
}

/*
 * Return the identity as all roles may see it: without the client's address,
 * if it was made up with that
 */
const char *
le_identity_public(const LeIdentity *identity)
{
	const char *at = strrchr(identity->string, '@');

	if (!identity->has_client || at == NULL)
		return identity->string;
	return pnstrdup(identity->string, at - identity->string);
}

/*
 * Return the identity as the current user may see it
 *
 * The whole identity is shown to roles to which pg_stat_activity shows the
 * address.  role is the role that the identity belongs to.
 */
const char *
le_identity_shown(const LeIdentity *identity, Oid role)
{
	if (!identity->has_client ||
		has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
		has_privs_of_role(GetUserId(), role))
		return identity->string;
	return le_identity_public(identity);
}
