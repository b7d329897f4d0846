/*-------------------------------------------------------------------------
 *
 * sql/sql.h
 *	  Declarations for the functions that SQL can call.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_SQL_H
#define LE_SQL_H

#include "funcapi.h"

#include "registry/registry.h"

/*
 * Define a function that SQL can call, whose body is called NAME_body
 *
 * An error in it is told when no LWLock is held: see le_run_released.
 */
#define LE_FUNCTION(name) \
PG_FUNCTION_INFO_V1(name); \
static Datum name##_body(PG_FUNCTION_ARGS); \
Datum \
name(PG_FUNCTION_ARGS) \
{ \
	return le_call(name##_body, fcinfo); \
} \
static Datum name##_body(PG_FUNCTION_ARGS)

/* arguments.c */
pg_noreturn extern void le_raise_null(const char *what);
extern void le_check_name(const text *name);
extern text *le_arg_name(FunctionCallInfo fcinfo);
extern text *le_arg_text(FunctionCallInfo fcinfo, int argument, const char *what,
						 int min, int max);
extern text *le_arg_identity(FunctionCallInfo fcinfo, int argument);
extern char *le_arg_reason(FunctionCallInfo fcinfo, int argument);
extern int64 le_arg_timeout(FunctionCallInfo fcinfo, int argument);
extern int64 le_arg_ttl(FunctionCallInfo fcinfo, int argument);
extern int64 le_arg_heartbeat(FunctionCallInfo fcinfo, int argument);
extern const Interval *le_arg_limit(FunctionCallInfo fcinfo, int argument,
									const char *what, int min_ms);
extern Name le_arg_role(FunctionCallInfo fcinfo, int argument);
extern void le_refuse_restricted(FunctionCallInfo fcinfo);
extern void le_prepare(FunctionCallInfo fcinfo);
extern void le_prepare_for_name(FunctionCallInfo fcinfo, LeElection *election);
extern void le_prepare_to_look(void);
extern ReturnSetInfo *le_begin_rows(FunctionCallInfo fcinfo, int columns);

/* module.c */
extern void le_register_callbacks(void);

/* functions.c */
extern Datum le_call(PGFunction body, FunctionCallInfo fcinfo);
extern int64 le_own_token(const LeElection *election);

#endif							/* LE_SQL_H */
