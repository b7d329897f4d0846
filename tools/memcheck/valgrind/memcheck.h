/*-------------------------------------------------------------------------
 *
 * memcheck.h
 *		Valgrind's header, found instead of it when tools/checked-server.sh
 *		builds the server: what the server tells valgrind about its memory
 *		contexts, it then tells AddressSanitizer, too.
 *
 * AddressSanitizer knows what malloc has handed out, but a palloc'd chunk is a
 * piece of a large block to it: a write past the end of a chunk, or to one that
 * was freed, is nothing amiss.  So the server's own notes on which memory may be
 * touched are passed on to libasan where it was preloaded.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_MEMCHECK_H
#define LE_MEMCHECK_H

#include <stddef.h>
#include_next <valgrind/memcheck.h>

/* libasan's; null where it was not preloaded */
extern void __asan_poison_memory_region(void const volatile *start, size_t size)
			__attribute__((weak));
extern void __asan_unpoison_memory_region(void const volatile *start, size_t size)
			__attribute__((weak));

static inline void
le_may_touch(const volatile void *start, size_t size)
{
	if (__asan_unpoison_memory_region)
		__asan_unpoison_memory_region(start, size);
}

static inline void
le_noaccess(const volatile void *start, size_t size)
{
	VALGRIND_MAKE_MEM_NOACCESS(start, size);
	if (__asan_poison_memory_region)
		__asan_poison_memory_region(start, size);
}

static inline void
le_undefined(const volatile void *start, size_t size)
{
	VALGRIND_MAKE_MEM_UNDEFINED(start, size);
	le_may_touch(start, size);
}

static inline void
le_defined(const volatile void *start, size_t size)
{
	VALGRIND_MAKE_MEM_DEFINED(start, size);
	le_may_touch(start, size);
}

static inline void
le_mempool_alloc(const volatile void *pool, const volatile void *start, size_t size)
{
	VALGRIND_MEMPOOL_ALLOC(pool, start, size);
	le_may_touch(start, size);
}

static inline void
le_mempool_change(const volatile void *pool, const volatile void *from,
				  const volatile void *start, size_t size)
{
	VALGRIND_MEMPOOL_CHANGE(pool, from, start, size);
	le_may_touch(start, size);
}

#undef VALGRIND_MAKE_MEM_NOACCESS
#undef VALGRIND_MAKE_MEM_UNDEFINED
#undef VALGRIND_MAKE_MEM_DEFINED
#undef VALGRIND_MEMPOOL_ALLOC
#undef VALGRIND_MEMPOOL_CHANGE

#define VALGRIND_MAKE_MEM_NOACCESS le_noaccess
#define VALGRIND_MAKE_MEM_UNDEFINED le_undefined
#define VALGRIND_MAKE_MEM_DEFINED le_defined
#define VALGRIND_MEMPOOL_ALLOC le_mempool_alloc
#define VALGRIND_MEMPOOL_CHANGE le_mempool_change

#endif							/* LE_MEMCHECK_H */
