/*-------------------------------------------------------------------------
 *
 * extension_relation.c
 *	  The extension's own sequence and table: to find them, and to make durable
 *	  what is written to them without regard to the transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"

#include "leader_election.h"

#define LE_EXTENSION	"leader_election"

typedef struct LeRelation
{
	const char *name;
	char		kind;
	Oid			oid;			/* invalid until looked up, and when changed */
} LeRelation;

static LeRelation token_sequence = {"le_token_seq", RELKIND_SEQUENCE, InvalidOid};
static LeRelation lease_table = {"le_leases", RELKIND_RELATION, InvalidOid};

/*
 * Forget the OIDs when a relation was dropped or changed
 */
static void
forget_relation(Datum arg pg_attribute_unused(), Oid relid)
{
	if (relid == InvalidOid || relid == token_sequence.oid)
		token_sequence.oid = InvalidOid;
	if (relid == InvalidOid || relid == lease_table.oid)
		lease_table.oid = InvalidOid;
}

static Oid
find_relation(LeRelation *relation)
{
	static bool registered = false;
	Oid			schema;
	Oid			oid;

	if (likely(OidIsValid(relation->oid)))
		return relation->oid;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(forget_relation, (Datum) 0);
		registered = true;
	}

	schema = get_extension_schema_compat(get_extension_oid(LE_EXTENSION, false));
	oid = get_relname_relid(relation->name, schema);
	if (!OidIsValid(oid) || get_rel_relkind(oid) != relation->kind)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s\" of extension \"%s\" does not exist",
						relation->name, LE_EXTENSION)));

	return relation->oid = oid;
}

/*
 * Return the OID of the sequence that tokens come from; throws if it is gone
 */
Oid
le_token_sequence(void)
{
	return find_relation(&token_sequence);
}

/*
 * Return the OID of the table that leases are written down in; throws if it is gone
 */
Oid
le_lease_table(void)
{
	return find_relation(&lease_table);
}

/*
 * Make sure that the WAL up to there, if anywhere, is remembered by whoever comes
 * after us, however this transaction ends
 *
 * It is waited for on synchronous standbys as a commit would be: if that wait is
 * cancelled, there is the server's warning, and no error.  No LWLock may be held.
 */
void
le_make_durable(XLogRecPtr written)
{
	if (XLogRecPtrIsInvalid(written))
		return;
	XLogFlush(written);

	HOLD_INTERRUPTS();
	SyncRepWaitForLSN(written, true);
	RESUME_INTERRUPTS();
}
