/*
 * A background worker that runs one statement
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(run_in_worker);

PGDLLEXPORT void worker_main(Datum database);

void
worker_main(Datum database)
{
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(database), InvalidOid, 0);
	StartTransactionCommand();
	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_execute(MyBgworkerEntry->bgw_extra, false, 0);
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
	elog(LOG, "the worker is done");
}

/* run_in_worker(library text, statement text) */
Datum
run_in_worker(PG_FUNCTION_ARGS)
{
	BackgroundWorker worker = {0};

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = ObjectIdGetDatum(MyDatabaseId);
	strlcpy(worker.bgw_name, "worker of a test", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "worker_main", BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, text_to_cstring(PG_GETARG_TEXT_PP(0)),
			sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_extra, text_to_cstring(PG_GETARG_TEXT_PP(1)), BGW_EXTRALEN);
	PG_RETURN_BOOL(RegisterDynamicBackgroundWorker(&worker, NULL));
}
