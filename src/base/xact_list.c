/*-------------------------------------------------------------------------
 *
 * base/xact_list.c
 *	  Lists of items that belong to the current transaction, each to one of its
 *	  subtransactions.  A subtransaction passes its items to its parent when it
 *	  commits, and loses them when it is rolled back.
 *
 * An item is added by the innermost subtransaction, at the end.  Therefore,
 * the items of that subtransaction are always the last ones in the list.
 *
 * A table (LeXactTable) is such a list whose items can be found by election,
 * however many there are.  Each item is also in one of its buckets.  Their
 * number grows when an item is added, which may raise an error before anything
 * has changed.  Finding and removing an item allocates nothing and never
 * raises an error.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "utils/memutils.h"

#include "base/base.h"

/* the number of items of all lists */
static uint32 all_items = 0;

/*
 * Check whether any list has an item.  Most transactions have none, so that
 * nothing is to be done at their end.  Never raises an error.
 */
bool
le_xact_has_items(void)
{
	return all_items > 0;
}

/*
 * Add an item at the end of the list, in the current subtransaction.  Never
 * raises an error.
 */
void
le_xact_list_add(dlist_head *list, LeXactItem *item)
{
	item->subxact = GetCurrentSubTransactionId();
	dlist_push_tail(list, &item->node);
	all_items++;
}

/*
 * Remove the item from its list.  Never raises an error.
 */
void
le_xact_list_remove(LeXactItem *item)
{
	Assert(all_items > 0);
	dlist_delete(&item->node);
	all_items--;
}

/*
 * Call the function for each item of the list.  The function may remove the
 * item.
 */
void
le_xact_list_each(dlist_head *list, void (*visit) (LeXactItem *item))
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, list)
		visit(dlist_container(LeXactItem, node, iter.cur));
}

/*
 * Return the first item of the innermost subtransaction, or the end of the
 * list if it has none
 */
dlist_node *
le_xact_list_first_of(dlist_head *list, SubTransactionId mine)
{
	dlist_node *first = &list->head;

	while (first->prev != NULL && first->prev != &list->head &&
		   dlist_container(LeXactItem, node, first->prev)->subxact == mine)
		first = first->prev;
	return first;
}

/*
 * Call the function for each item of a subtransaction.  The function must
 * remove the item.
 */
void
le_xact_list_abort(dlist_head *list, SubTransactionId mine,
				   void (*remove) (LeXactItem *item))
{
	dlist_node *node = le_xact_list_first_of(list, mine);

	while (node != &list->head)
	{
		dlist_node *next = node->next;

		remove(dlist_container(LeXactItem, node, node));
		node = next;
	}
}

/*
 * Pass a subtransaction's items to its parent
 */
void
le_xact_list_commit(dlist_head *list, SubTransactionId mine, SubTransactionId parent)
{
	for (dlist_node *node = le_xact_list_first_of(list, mine); node != &list->head; node = node->next)
		dlist_container(LeXactItem, node, node)->subxact = parent;
}

static dlist_head *
get_bucket(LeXactTable *table, const LeElectionKey *election)
{
	uint32		hash = hash_bytes((const unsigned char *) election, sizeof(LeElectionKey));

	if (table->buckets == NULL)
		return &table->first_buckets[hash % LE_XACT_BUCKETS];
	return &table->buckets[hash & (table->bucket_count - 1)];
}

/*
 * Double the number of buckets, and put all items into them
 */
static void
add_buckets(LeXactTable *table)
{
	uint32		bucket_count = 2 * Max(table->bucket_count, LE_XACT_BUCKETS);
	dlist_head *buckets;
	dlist_iter	iter;

	buckets = MemoryContextAllocExtended(TopTransactionContext,
										 bucket_count * sizeof(dlist_head),
										 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	if (table->buckets != NULL)
		pfree(table->buckets);
	table->buckets = buckets;
	table->bucket_count = bucket_count;
	dlist_foreach(iter, &table->items)
	{
		LeXactItem *item = dlist_container(LeXactItem, node, iter.cur);

		dlist_push_tail(get_bucket(table, &item->election), &item->in_bucket);
	}
}

/*
 * Add an item for the election, in the current subtransaction
 */
void
le_xact_table_add(LeXactTable *table, LeXactItem *item, const LeElectionKey *election)
{
	if (table->count >= Max(table->bucket_count, LE_XACT_BUCKETS))
		add_buckets(table);
	item->election = *election;
	le_xact_list_add(&table->items, item);
	dlist_push_tail(get_bucket(table, election), &item->in_bucket);
	table->count++;
}

/*
 * Remove the item.  Never raises an error.
 *
 * When the last item is removed, frees the buckets, before
 * TopTransactionContext is.
 */
void
le_xact_table_remove(LeXactTable *table, LeXactItem *item)
{
	le_xact_list_remove(item);
	dlist_delete(&item->in_bucket);
	if (--table->count > 0 || table->buckets == NULL)
		return;
	pfree(table->buckets);
	memset(table, 0, sizeof(LeXactTable));
}

/*
 * Return the election's first item, or the one that was added next after the
 * given one, or NULL if there is none.  Never raises an error.
 */
LeXactItem *
le_xact_table_next(LeXactTable *table, const LeElectionKey *election, LeXactItem *after)
{
	dlist_head *bucket;
	dlist_node *node;

	if (table->count == 0)
		return NULL;
	bucket = get_bucket(table, election);
	node = after != NULL ? &after->in_bucket : &bucket->head;
	while (node->next != NULL && node->next != &bucket->head)
	{
		LeXactItem *item;

		node = node->next;
		item = dlist_container(LeXactItem, in_bucket, node);
		if (memcmp(&item->election, election, sizeof(LeElectionKey)) == 0)
			return item;
	}
	return NULL;
}
