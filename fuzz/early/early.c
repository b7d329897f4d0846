/*
 * early.c
 *	  Have AddressSanitizer made ready before anything else.
 *
 * It is preloaded, as the server itself is built without it, and made ready by the first
 * malloc.  That may come from a library's constructor that holds a lock of the C library
 * which AddressSanitizer then wants: bindtextdomain in libgpg-error.  This library's
 * constructor runs before all others, as it is linked with -z initfirst.
 */
#include <stdlib.h>

static __attribute__((constructor)) void
allocate(void)
{
	void	   *volatile memory = malloc(1);

	free(memory);
}
