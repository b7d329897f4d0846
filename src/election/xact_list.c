/*-------------------------------------------------------------------------
 *
 * election/xact_list.c
 *	  Lists of items that belong to the current transaction, each to one of its
 *	  subtransactions.  A subtransaction passes its items to its parent when it
 *	  commits, and loses them when it is rolled back.
 *
 * An item is added by the innermost subtransaction, at the end.  Therefore,
 * the items of that subtransaction are always the last ones in the list.
 *
 * Each item is also in one of the list's buckets, so that it can be found by
 * election, however many items there are.  The number of buckets grows when an
 * item is added, which may raise an error before anything has changed.
 * Finding and removing an item allocates nothing and never raises an error.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "utils/memutils.h"

#include "election/election.h"

/* How many buckets a list has at first */
#define LE_XACT_BUCKETS 8

/* the number of items of all lists */
uint32		le_xact_items = 0;

/*
 * the number of other things that the end of a transaction must look at:
 * announcements, and a timer
 */
uint32		le_other_pending = 0;

/* the lists that have ever had an item */
static LeXactList *all_lists = NULL;

static dlist_head *
get_bucket(LeXactList *list, const LeElectionKey *election)
{
	uint32		hash = hash_bytes((const unsigned char *) election, sizeof(LeElectionKey));

	return &list->buckets[hash & (list->bucket_count - 1)];
}

/*
 * Double the number of buckets, and put all items into them
 *
 * They stay, for later transactions.
 */
static void
add_buckets(LeXactList *list)
{
	uint32		bucket_count = Max(2 * list->bucket_count, LE_XACT_BUCKETS);
	dlist_head *buckets;
	dlist_iter	iter;

	buckets = MemoryContextAllocExtended(TopMemoryContext,
										 bucket_count * sizeof(dlist_head),
										 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	if (list->buckets != NULL)
		pfree(list->buckets);
	list->buckets = buckets;
	list->bucket_count = bucket_count;
	dlist_foreach(iter, &list->items)
	{
		LeXactItem *item = dlist_container(LeXactItem, node, iter.cur);

		dlist_push_tail(get_bucket(list, &item->election), &item->in_bucket);
	}
}

/*
 * Make room for one more item, so that adding it raises no error
 */
void
le_xact_list_reserve(LeXactList *list)
{
	if (list->count >= list->bucket_count)
		add_buckets(list);
}

/*
 * Add an item for the election at the end of the list, in the current
 * subtransaction.  Raises no error if room was made for it.
 */
void
le_xact_list_add(LeXactList *list, LeXactItem *item, const LeElectionKey *election)
{
	if (!list->is_used)
	{
		list->is_used = true;
		list->next = all_lists;
		all_lists = list;
	}
	le_xact_list_reserve(list);
	item->election = *election;
	item->subxact = GetCurrentSubTransactionId();
	dlist_push_tail(&list->items, &item->node);
	dlist_push_tail(get_bucket(list, election), &item->in_bucket);
	list->count++;
	le_xact_items++;
}

/*
 * Remove the item from its list.  Never raises an error.
 */
void
le_xact_list_remove(LeXactList *list, LeXactItem *item)
{
	Assert(le_xact_items > 0);
	dlist_delete(&item->node);
	dlist_delete(&item->in_bucket);
	list->count--;
	le_xact_items--;
}

/*
 * Return the election's first item, or the one that was added next after the
 * given one, or NULL if there is none.  Never raises an error.
 */
LeXactItem *
le_xact_list_next(LeXactList *list, const LeElectionKey *election, LeXactItem *after)
{
	dlist_head *bucket;
	dlist_node *node;

	if (list->count == 0)
		return NULL;
	bucket = get_bucket(list, election);
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

/*
 * Call the function for each item of the list.  The function may remove the
 * item.
 */
void
le_xact_list_each(LeXactList *list, void (*visit) (LeXactItem *item))
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &list->items)
		visit(dlist_container(LeXactItem, node, iter.cur));
}

/*
 * Return the first item of the innermost subtransaction, or the end of the
 * list if it has none
 */
static dlist_node *
find_first_of(LeXactList *list, SubTransactionId mine)
{
	dlist_head *items = &list->items;
	dlist_node *first = &items->head;

	while (first->prev != &items->head &&
		   dlist_container(LeXactItem, node, first->prev)->subxact == mine)
		first = first->prev;
	return first;
}

/*
 * Undo the items of the transaction, which is rolled back.  Never raises an
 * error.
 */
void
le_xact_lists_at_abort(void)
{
	for (LeXactList *list = all_lists; list != NULL; list = list->next)
		le_xact_list_each(list, list->undo);
}

/*
 * Undo the items of a subtransaction likewise
 */
void
le_xact_lists_at_subxact_abort(SubTransactionId mine)
{
	for (LeXactList *list = all_lists; list != NULL; list = list->next)
	{
		dlist_node *node = find_first_of(list, mine);

		while (node != &list->items.head)
		{
			dlist_node *next = node->next;

			list->undo(dlist_container(LeXactItem, node, node));
			node = next;
		}
	}
}

/*
 * Pass a subtransaction's items to its parent
 */
void
le_xact_lists_at_subxact_commit(SubTransactionId mine, SubTransactionId parent)
{
	for (LeXactList *list = all_lists; list != NULL; list = list->next)
	{
		dlist_node *node = find_first_of(list, mine);

		for (; node != &list->items.head; node = node->next)
			dlist_container(LeXactItem, node, node)->subxact = parent;
	}
}
