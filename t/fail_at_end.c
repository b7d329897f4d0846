/*
 * A library that fails when the end of the term of an election named "fails..." is
 * logged, and once when the transaction is aborted in which a session ends, as memory
 * may run out there.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "storage/ipc.h"
#include "utils/elog.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

static void
fail(ErrorData *edata)
{
	if (strstr(edata->message, "election \"fails") != NULL &&
		strstr(edata->message, " ended: ") != NULL)
		ereport(ERROR, errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of luck"));
}

static void
fail_once(XactEvent event, void *unused)
{
	static bool failed = false;

	if (event != XACT_EVENT_ABORT || !proc_exit_inprogress || failed)
		return;
	failed = true;
	ereport(ERROR, errcode(ERRCODE_OUT_OF_MEMORY), errmsg("the abort is out of luck"));
}

void
_PG_init(void)
{
	emit_log_hook = fail;
	RegisterXactCallback(fail_once, NULL);
}
