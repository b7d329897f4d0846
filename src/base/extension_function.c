/*-------------------------------------------------------------------------
 *
 * base/extension_function.c
 *	  SQL that the library runs: functions of the extension.
 *
 * The library contains no text of SQL.  What it has to read by SQL is the body
 * of a function that the extension's script creates.  Its names are resolved
 * then, once and for all, so that the caller's search_path decides nothing.
 * None of these functions has the rights of another role.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_collation.h"
#include "catalog/pg_proc.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/syscache.h"

#include "base/base.h"

/*
 * Return the OID of the extension's function with this name and these argument
 * types, or InvalidOid if it does not exist
 */
Oid
le_find_function(const char *name, int count, const Oid *types)
{
	oidvector  *arguments = buildoidvector(types, count);
	Oid			function = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid,
										   CStringGetDatum(name), PointerGetDatum(arguments),
										   ObjectIdGetDatum(le_extension_schema()));

	pfree(arguments);
	if (OidIsValid(function) && !le_is_member(ProcedureRelationId, function))
		function = InvalidOid;
	return function;
}

/*
 * Call the extension's function with these arguments, none of which is null,
 * and return its result.  *is_null is set to whether the result is null.
 *
 * Raises an error if the function does not exist.
 */
Datum
le_call_function(const char *name, int count, const Oid *types, const Datum *values,
				 bool *is_null)
{
	LOCAL_FCINFO(fcinfo, FUNC_MAX_ARGS);
	Oid			oid = le_find_function(name, count, types);
	FmgrInfo	function;
	Datum		result;

	if (!OidIsValid(oid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function %s() of extension \"%s\" does not exist", name, LE_EXTENSION)));
	fmgr_info(oid, &function);
	InitFunctionCallInfoData(*fcinfo, &function, count, C_COLLATION_OID, NULL, NULL);
	for (int i = 0; i < count; i++)
	{
		fcinfo->args[i].value = values[i];
		fcinfo->args[i].isnull = false;
	}
	result = FunctionCallInvoke(fcinfo);
	*is_null = fcinfo->isnull;
	return result;
}
