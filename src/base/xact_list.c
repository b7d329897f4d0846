/*-------------------------------------------------------------------------
 *
 * base/xact_list.c
 *	  Lists of what belongs to the current transaction, each item to one of its
 *	  subtransactions: that passes its items on to its parent when it commits, and
 *	  loses them when it is rolled back.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/base.h"

/*
 * Call the function for each item of the list, which it may remove
 */
void
le_xact_list_each(dlist_head *list, void (*visit) (LeXactItem *item))
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, list)
		visit(dlist_container(LeXactItem, node, iter.cur));
}

/*
 * Call the function for each item of a subtransaction, which removes it
 */
void
le_xact_list_abort(dlist_head *list, SubTransactionId mine,
				   void (*remove) (LeXactItem *item))
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, list)
	{
		LeXactItem *item = dlist_container(LeXactItem, node, iter.cur);

		if (item->subxact == mine)
			remove(item);
	}
}

/*
 * Pass a subtransaction's items on to its parent
 */
void
le_xact_list_commit(dlist_head *list, SubTransactionId mine, SubTransactionId parent)
{
	dlist_iter	iter;

	dlist_foreach(iter, list)
	{
		LeXactItem *item = dlist_container(LeXactItem, node, iter.cur);

		if (item->subxact == mine)
			item->subxact = parent;
	}
}
