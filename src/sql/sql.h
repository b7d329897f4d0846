/*-------------------------------------------------------------------------
 *
 * sql/sql.h
 *	  What the functions that SQL can call have in common.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_SQL_H
#define LE_SQL_H

#include "base/base.h"

/* arguments.c */
extern void le_check_name(const text *name);
extern text *le_arg_name(FunctionCallInfo fcinfo);
extern text *le_arg_identity(FunctionCallInfo fcinfo, int argument);
extern char *le_arg_reason(FunctionCallInfo fcinfo, int argument);
extern text *le_arg_value(FunctionCallInfo fcinfo, int argument);
extern int64 le_arg_timeout(FunctionCallInfo fcinfo, int argument);
extern int64 le_arg_ttl(FunctionCallInfo fcinfo, int argument);
extern const Interval *le_arg_limit(FunctionCallInfo fcinfo, int argument,
									const char *what, int min_ms);
extern Name le_arg_role(FunctionCallInfo fcinfo, int argument);
extern int64 le_arg_token(FunctionCallInfo fcinfo, int argument);

/* call.c */
extern void le_refuse_restricted(FunctionCallInfo fcinfo);
extern void le_warn_outside_transaction(const char *function);

#endif							/* LE_SQL_H */
