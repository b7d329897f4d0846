/*
 * A library that fails when the end of the term of an election named "fails..." is
 * logged, as memory may run out there.
 */
#include "postgres.h"

#include "fmgr.h"
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

void
_PG_init(void)
{
	emit_log_hook = fail;
}
