/*-------------------------------------------------------------------------
 *
 * registry/internal.h
 *	  Declarations for the files of the registry only.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_REGISTRY_INTERNAL_H
#define LE_REGISTRY_INTERNAL_H

#include "lib/dshash.h"
#include "miscadmin.h"

#include "registry/registry.h"

typedef enum LeRegistryTable
{
	LE_ELECTION_TABLE,
	LE_CANDIDATE_TABLE,
	LE_DATABASE_TABLE,
	LE_ROLE_TABLE
} LeRegistryTable;

#define LE_REGISTRY_TABLES	(LE_ROLE_TABLE + 1)

/*
 * What counts toward a role's limit: its terms and leases, and what its
 * sessions pin.  The counter is neither moved nor freed until it is 0, so that
 * it can be decreased under any lock.
 */
typedef struct LeRole
{
	Oid			role;			/* hash key; must be first */
	dsa_pointer counter;		/* a pg_atomic_uint32 */
} LeRole;

/*
 * Where a comment says that the caller must hold the partition lock, the
 * function asserts what is a sign of it: interrupts are held off
 */
#define AssertPartitionLocked() Assert(InterruptHoldoffCount > 0)

/* registry.c */
extern dshash_table *le_registry_table(LeRegistryTable table);
extern void *le_registry_insert(LeRegistryTable table, const void *key, bool *found);
extern dsa_pointer le_registry_allocate(size_t size);
extern LeElectionEntry *le_registry_lock_entry(const LeElectionKey *key, bool exclusive);
extern LeElectionEntry *le_registry_lock_term(const LeElectionKey *key, int64 token,
											  bool exclusive);
extern void le_registry_unlock_entry(LeElectionEntry *entry);
extern dsa_area *le_registry_area(void);
extern const char *le_registry_string(dsa_pointer stored);
extern void *le_registry_list(dshash_table *table, size_t row_size,
							  bool (*copy) (void *entry, void *row), int *count);

/* databases.c */
extern Oid *le_registry_list_databases(int *count);
extern pg_atomic_uint32 *le_registry_terms_of(Oid oid);
extern void le_registry_forget_database(Oid database);

/* entry.c */
extern void le_forget_denial(LeElectionEntry *entry);
extern void le_start_tally(LeElectionEntry *entry, uint64 at);
extern int	le_count_candidates(LeElectionEntry *entry);
extern void le_copy_entry(LeTerm *term, LeElectionEntry *entry);
extern LeEndReason le_true_reason(LeElectionEntry *entry, LeEndReason reason);

/* elections.c */
extern void le_empty_entry(LeElectionEntry *entry);
extern bool le_entry_is_pinned(LeElectionEntry *entry);
extern void le_registry_adopt_entry(LeElectionEntry *entry, const char *name);
extern LeElectionEntry *le_registry_lock_or_add_within(const LeElectionKey *key,
													   const char *name, bool declared,
													   uint32 most);

/* limits.c */
extern bool le_count_within(pg_atomic_uint32 *counter, uint32 more, int64 most);
extern void le_charge_term(Oid role, int64 most);
extern void le_count_term(LeElectionEntry *entry);
extern void le_uncount_term(LeElectionEntry *entry);

/* terms.c */
extern void le_remove_term(LeElectionEntry *entry, LeEndReason reason,
						   pg_atomic_uint32 *terms_here);

/* expiry.c */
extern bool le_has_expired(LeExpiry *expiry);
extern bool le_found_expired(LeExpiry *expiry);
extern bool le_put_off_deadline(LeExpiry *expiry);

/* stats.c */
extern void le_count_begin(LeElectionEntry *entry);
extern void le_count_loaded(LeElectionEntry *entry);
extern void le_count_end(LeElectionEntry *entry, LeEndReason reason, uint64 at);
extern void le_copy_denial(LeDenial *denial, LeElectionEntry *entry);

#endif							/* LE_REGISTRY_INTERNAL_H */
