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
 * The lists are short: leader_election.max_terms_per_session limits how many
 * elections a session leads.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"

#include "base/base.h"

/* the number of items of all lists */
static uint32 all_items = 0;

/* the lists that have ever had an item */
static LeXactList *all_lists = NULL;

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
 * Add an item for the election at the end of the list, in the current
 * subtransaction.  Never raises an error.
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
	item->election = *election;
	item->subxact = GetCurrentSubTransactionId();
	dlist_push_tail(&list->items, &item->node);
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
 * Return the election's first item, or the one that was added next after the
 * given one, or NULL if there is none.  Never raises an error.
 */
LeXactItem *
le_xact_list_next(LeXactList *list, const LeElectionKey *election, LeXactItem *after)
{
	dlist_node *node = after != NULL ? &after->node : &list->items.head;

	while (dlist_has_next(&list->items, node))
	{
		LeXactItem *item;

		node = dlist_next_node(&list->items, node);
		item = dlist_container(LeXactItem, node, node);
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
dlist_node *
le_xact_list_first_of(LeXactList *list, SubTransactionId mine)
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
		dlist_node *node = le_xact_list_first_of(list, mine);

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
		dlist_node *node = le_xact_list_first_of(list, mine);

		for (; node != &list->items.head; node = node->next)
			dlist_container(LeXactItem, node, node)->subxact = parent;
	}
}
