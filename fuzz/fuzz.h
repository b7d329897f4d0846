/*-------------------------------------------------------------------------
 *
 * fuzz.h
 *	  What the fuzz targets share.
 *
 * A target turns the bytes that libFuzzer makes up into arguments, hands these to the
 * extension's own functions, in a transaction of a real server, and checks what they
 * must keep to whatever the bytes are.  fuzz.c runs it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_FUZZ_H
#define LE_FUZZ_H

#include "tell/tell.h"
#include "bid/bid.h"
#include "lead/lead.h"
#include "sql/sql.h"
#include "lease/lease.h"
#include "registry/internal.h"
#include "sql/sql.h"
#include "term/term.h"

/* What is left of the bytes */
typedef struct LeFuzzInput
{
	const uint8 *at;
	size_t		left;
} LeFuzzInput;

typedef struct LeFuzzTarget
{
	const char *name;
	void		(*prepare) (void);	/* once; NULL: nothing */
	void		(*run) (LeFuzzInput *input);
} LeFuzzTarget;

/* A property that has to hold; else the input is kept, and the run ends */
#define LE_FUZZ_CHECK(condition) \
	do { \
		if (!(condition)) \
			le_fuzz_fail(#condition, __FILE__, __LINE__); \
	} while (0)

/* fuzz.c */
pg_noreturn extern void le_fuzz_fail(const char *what, const char *file, int line);
extern int	le_fuzz_try(void (*action) (void *), void *argument);
extern int	le_fuzz_call(PGFunction function, FunctionCallInfo fcinfo, Datum *result);
extern void *le_fuzz_alloc(size_t size);

/* input.c */
extern uint8 le_fuzz_byte(LeFuzzInput *input);
extern int64 le_fuzz_int64(LeFuzzInput *input);
extern char *le_fuzz_string(LeFuzzInput *input);
extern char *le_fuzz_long_string(LeFuzzInput *input, int max);
extern text *le_fuzz_text(const char *string, bool packed);
extern bool le_fuzz_is_one_line(const char *string);
extern int	le_fuzz_length_error(size_t length, size_t max);
extern int	le_fuzz_name_error(const char *name);

/* the targets */
extern void le_fuzz_names(LeFuzzInput *input);
extern void le_fuzz_notifications(LeFuzzInput *input);
extern void le_fuzz_log_lines(LeFuzzInput *input);
extern void le_fuzz_prepare_log_lines(void);
extern void le_fuzz_intervals(LeFuzzInput *input);
extern void le_fuzz_tokens(LeFuzzInput *input);
extern void le_fuzz_setting(LeFuzzInput *input);
extern void le_fuzz_prepare_guard(void);
extern void le_fuzz_guard(LeFuzzInput *input);
extern void le_fuzz_prepare_lists(void);
extern void le_fuzz_lists(LeFuzzInput *input);

#endif							/* LE_FUZZ_H */
