/*-------------------------------------------------------------------------
 *
 * fuzz.c
 *	  Run libFuzzer in a session of a server.
 *
 * le_fuzz(target, arguments ...) hands its arguments to libFuzzer, as its command line.
 * It does not return: libFuzzer ends the process.  tools/fuzz calls it in a server of a
 * single user, and builds this into the extension's library, all of it instrumented.
 *
 * All runs in one transaction.  What a target expects to fail it tries in a
 * subtransaction of its own; any other error is a failure.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timeout.h"

#include "fuzz.h"

/* After which time an input is taken to hang, in milliseconds */
#define LE_FUZZ_HANGS_AFTER	20000

/* How many allocations of its own an input can have */
#define LE_FUZZ_ALLOCATIONS	2048

extern int	LLVMFuzzerRunDriver(int *argc, char ***argv,
								int (*run) (const uint8 *data, size_t size));

static const LeFuzzTarget targets[] = {
	{"names", NULL, le_fuzz_names},
	{"notifications", NULL, le_fuzz_notifications},
	{"log_lines", le_fuzz_prepare_log_lines, le_fuzz_log_lines},
	{"intervals", NULL, le_fuzz_intervals},
	{"tokens", NULL, le_fuzz_tokens},
	{"setting", NULL, le_fuzz_setting},
	{"guard", le_fuzz_prepare_guard, le_fuzz_guard},
	{"lists", le_fuzz_prepare_lists, le_fuzz_lists},
};

static const LeFuzzTarget *target;
static MemoryContext input_context;
static TimeoutId hang_timeout;
static void *allocations[LE_FUZZ_ALLOCATIONS];
static int	allocation_count = 0;

/*
 * Tell which property does not hold.  libFuzzer keeps the input when it sees the abort
 */
void
le_fuzz_fail(const char *what, const char *file, int line)
{
	fprintf(stderr, "FUZZ: %s, %s:%d: not so: %s\n", target->name, file, line, what);
	fflush(stderr);
	abort();
}

/*
 * Return memory that lasts as long as the input, straight from malloc, so that
 * reads and writes beyond its end are detected
 */
void *
le_fuzz_alloc(size_t size)
{
	void	   *memory = malloc(size);

	if (memory == NULL || allocation_count == LE_FUZZ_ALLOCATIONS)
		elog(ERROR, "an input needs too much memory");
	allocations[allocation_count++] = memory;
	return memory;
}

/*
 * Run the action in a subtransaction, which is rolled back in any case.  Returns the
 * SQLSTATE of the error that it throws, or 0
 */
int
le_fuzz_try(void (*action) (void *), void *argument)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile int code = 0;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		action(argument);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		code = error->sqlerrcode;
		LE_FUZZ_CHECK(error->elevel == ERROR);

		/* the server's own functions may say what they cannot parse */
		if (ERRCODE_TO_CATEGORY(code) != ERRCODE_DATA_EXCEPTION)
			LE_FUZZ_CHECK(le_fuzz_is_one_line(error->message));
	}
	PG_END_TRY();
	RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return code;
}

typedef struct LeFuzzCall
{
	PGFunction	function;
	FunctionCallInfo fcinfo;
	Datum		result;
} LeFuzzCall;

static void
call(void *argument)
{
	LeFuzzCall *it = argument;

	it->fcinfo->isnull = false;
	it->result = it->function(it->fcinfo);
}

/*
 * Call the function, as le_fuzz_try does
 */
int
le_fuzz_call(PGFunction function, FunctionCallInfo fcinfo, Datum *result)
{
	LeFuzzCall	it = {.function = function,.fcinfo = fcinfo};
	int			code = le_fuzz_try(call, &it);

	if (result != NULL)
		*result = it.result;
	return code;
}

static void
note_hang(void)
{
	le_fuzz_fail("each input is done in no time", __FILE__, __LINE__);
}

/*
 * What libFuzzer calls with each input
 */
static int
run(const uint8 *data, size_t size)
{
	LeFuzzInput input = {data, size};
	MemoryContext caller = MemoryContextSwitchTo(input_context);

	enable_timeout_after(hang_timeout, LE_FUZZ_HANGS_AFTER);
	PG_TRY();
	{
		target->run(&input);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(input_context);
		error = CopyErrorData();
		le_fuzz_fail(psprintf("no error %s: %s", unpack_sql_state(error->sqlerrcode),
							  error->message), error->filename, error->lineno);
	}
	PG_END_TRY();
	disable_timeout(hang_timeout, false);
	MemoryContextSwitchTo(caller);
	MemoryContextReset(input_context);
	while (allocation_count > 0)
		free(allocations[--allocation_count]);
	return 0;
}

static void
choose_target(const char *name)
{
	for (size_t i = 0; i < lengthof(targets); i++)
	{
		if (strcmp(targets[i].name, name) == 0)
			target = &targets[i];
	}
	if (target == NULL)
		elog(ERROR, "no target is called %s", name);
}

PG_FUNCTION_INFO_V1(le_fuzz);

/*
 * (target, VARIADIC arguments)
 */
Datum
le_fuzz(PG_FUNCTION_ARGS)
{
	Datum	   *arguments;
	char	  **argv;
	int			argc;

	choose_target(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), TEXTOID, -1, false, TYPALIGN_INT,
					  &arguments, NULL, &argc);
	argv = palloc0_array(char *, argc + 2);
	argv[0] = "leader_election";
	for (int i = 0; i < argc; i++)
		argv[i + 1] = TextDatumGetCString(arguments[i]);
	argc++;

	input_context = AllocSetContextCreate(TopMemoryContext, "fuzz input",
										  ALLOCSET_DEFAULT_SIZES);
	hang_timeout = RegisterTimeout(USER_TIMEOUT, note_hang);
	le_register_callbacks();
	if (target->prepare != NULL)
		target->prepare();
	PG_RETURN_INT32(LLVMFuzzerRunDriver(&argc, &argv, run));
}
