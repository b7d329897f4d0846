/*-------------------------------------------------------------------------
 *
 * sql/pushdown.c
 *	  Pushing a condition on the name, or a LIMIT, down into the functions that
 *	  the views read.
 *
 * Each view reads a function with two arguments: the name of an election, NULL
 * for all, and the number of rows that suffice, NULL for all.  If the query
 * that the view has become part of has WHERE name = something, or LIMIT and
 * nothing that needs further rows, the planner is given the same call with
 * that as an argument.  The condition and the limit stay in the query, so the
 * function may return more rows than were asked for.
 *
 * The planner simplifies a function in FROM before it pulls the view up into
 * the query, and again after that only if the function is LATERAL, as it is in
 * the views.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_operator.h"
#include "fmgr.h"
#include "nodes/nodeFuncs.h"
#include "nodes/pathnodes.h"
#include "nodes/supportnodes.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "utils/lsyscache.h"

PG_FUNCTION_INFO_V1(le_view_support);

/* The column that contains the name */
#define LE_NAME_COLUMN	1

/*
 * Count the calls of the function in this item of the query's FROM
 */
static int
count_calls(const RangeTblEntry *entry, Oid function)
{
	int			count = 0;
	ListCell   *cell;

	if (entry->rtekind != RTE_FUNCTION)
		return 0;
	foreach(cell, entry->functions)
	{
		Node	   *call = lfirst_node(RangeTblFunction, cell)->funcexpr;

		if (IsA(call, FuncExpr) && castNode(FuncExpr, call)->funcid == function)
			count++;
	}
	return count;
}

/*
 * Return the index of the item in the query's FROM that is a call of the
 * function, and nothing else.  Return 0 unless the query calls the function
 * exactly once, since the request does not tell which call it is for.
 */
static int
find_call(const Query *query, Oid function)
{
	int			count = 0;
	int			relation = 0;
	int			found = 0;
	ListCell   *cell;

	foreach(cell, query->rtable)
	{
		RangeTblEntry *entry = lfirst_node(RangeTblEntry, cell);
		int			calls = count_calls(entry, function);

		relation++;
		count += calls;
		if (calls > 0 && list_length(entry->functions) == 1)
			found = relation;
	}
	return count == 1 && !query->hasTargetSRFs ? found : 0;
}

static bool
is_name_column(const Node *node, int relation)
{
	const Var  *column = (const Var *) node;

	return IsA(node, Var) && column->varno == relation &&
		column->varattno == LE_NAME_COLUMN && column->varlevelsup == 0;
}

/*
 * Return the expression that the condition compares the name with, if it is
 * the same for all rows; NULL if this is another condition
 *
 * Names are compared as bytes, so the condition must do so, too.
 */
static Node *
compared_with(Node *condition, int relation)
{
	OpExpr	   *comparison = (OpExpr *) condition;
	Node	   *left;
	Node	   *right;

	if (!IsA(condition, OpExpr) || comparison->opno != TextEqualOperator ||
		!get_collation_isdeterministic(comparison->inputcollid))
		return NULL;
	left = linitial(comparison->args);
	right = lsecond(comparison->args);
	if (is_name_column(right, relation))
		left = right, right = linitial(comparison->args);
	if (!is_name_column(left, relation) || !is_pseudo_constant_clause(right) ||
		contain_subplans(right))
		return NULL;
	return right;
}

/*
 * Check whether the item is in this part of the query's FROM
 */
static bool
has_relation(Node *part, int relation)
{
	ListCell   *cell;

	if (IsA(part, RangeTblRef))
		return castNode(RangeTblRef, part)->rtindex == relation;
	if (IsA(part, JoinExpr))
		return has_relation(castNode(JoinExpr, part)->larg, relation) ||
			has_relation(castNode(JoinExpr, part)->rarg, relation);
	foreach(cell, castNode(FromExpr, part)->fromlist)
	{
		if (has_relation(lfirst(cell), relation))
			return true;
	}
	return false;
}

/*
 * Return the expression that the name is compared with in this part of the
 * query's FROM and WHERE, if no row with another name can result from it
 *
 * The conditions of another part, in an outer join, may refer to the name
 * without filtering the rows.
 */
static Node *
find_name(Node *part, int relation)
{
	List	   *conditions;
	List	   *parts;
	ListCell   *cell;
	Node	   *name = NULL;

	if (!has_relation(part, relation))
		return NULL;
	if (IsA(part, FromExpr))
	{
		conditions = (List *) castNode(FromExpr, part)->quals;
		parts = castNode(FromExpr, part)->fromlist;
	}
	else if (IsA(part, JoinExpr))
	{
		JoinExpr   *join = castNode(JoinExpr, part);
		bool		filters = join->jointype == JOIN_INNER || join->jointype == JOIN_SEMI;

		/* an outer join has rows for which its condition is not true */
		conditions = filters ? (List *) join->quals : NIL;
		parts = list_make2(join->larg, join->rarg);
	}
	else
		return NULL;

	/* otherwise, the planner has not processed them yet */
	if (conditions != NIL && IsA(conditions, List))
	{
		foreach(cell, conditions)
		{
			if ((name = compared_with(lfirst(cell), relation)) != NULL)
				return name;
		}
	}
	foreach(cell, parts)
	{
		if ((name = find_name(lfirst(cell), relation)) != NULL)
			return name;
	}
	return NULL;
}

/*
 * Check whether this part of the query's FROM and WHERE is the function,
 * unconditionally
 */
static bool
is_only(Node *part, int relation)
{
	if (IsA(part, RangeTblRef))
		return castNode(RangeTblRef, part)->rtindex == relation;
	return IsA(part, FromExpr) && castNode(FromExpr, part)->quals == NULL &&
		list_length(castNode(FromExpr, part)->fromlist) == 1 &&
		is_only(linitial(castNode(FromExpr, part)->fromlist), relation);
}

/*
 * Return the query's limit, if its rows are the first ones that the function
 * returns
 */
static Node *
find_limit(const Query *query, int relation)
{
	Node	   *limit = query->limitCount;

	if (limit == NULL ||
		!(IsA(limit, Const) ||
		  (IsA(limit, Param) && castNode(Param, limit)->paramkind == PARAM_EXTERN)) ||
		query->limitOffset != NULL || query->limitOption != LIMIT_OPTION_COUNT ||
		query->sortClause != NIL || query->groupClause != NIL ||
		query->groupingSets != NIL || query->distinctClause != NIL ||
		query->havingQual != NULL || query->setOperations != NULL ||
		query->hasAggs || query->hasWindowFuncs ||
		!is_only((Node *) query->jointree, relation))
		return NULL;
	return limit;
}

static bool
is_null_constant(Node *argument)
{
	return IsA(argument, Const) && castNode(Const, argument)->constisnull;
}

/*
 * Return the call for the rows that the query asks for, or NULL to leave it as
 * it is
 */
static Node *
simplify_call(const SupportRequestSimplify *request)
{
	Query	   *query = request->root != NULL ? request->root->parse : NULL;
	FuncExpr   *call = request->fcall;
	Node	   *name;
	Node	   *limit;
	int			relation;

	if (query == NULL || !is_null_constant(linitial(call->args)) ||
		!is_null_constant(lsecond(call->args)))
		return NULL;
	relation = find_call(query, call->funcid);
	if (relation == 0)
		return NULL;
	name = find_name((Node *) query->jointree, relation);
	limit = find_limit(query, relation);
	if (name == NULL && (limit == NULL || is_null_constant(limit)))
		return NULL;
	call = copyObject(call);
	if (name != NULL)
		linitial(call->args) = copyObject(name);
	if (limit != NULL)
		lsecond(call->args) = copyObject(limit);
	return (Node *) call;
}

/*
 * Estimate one row for one election, or return NULL to use the function's
 * declaration
 */
static Node *
estimate_rows(SupportRequestRows *request)
{
	List	   *args;

	if (!IsA(request->node, FuncExpr))
		return NULL;
	args = castNode(FuncExpr, request->node)->args;
	if (is_null_constant(linitial(args)))
		return NULL;
	request->rows = 1;
	return (Node *) request;
}

/*
 * Planner support function for the functions that views read
 */
Datum
le_view_support(PG_FUNCTION_ARGS)
{
	Node	   *request = (Node *) PG_GETARG_POINTER(0);
	Node	   *answer = NULL;

	if (IsA(request, SupportRequestSimplify))
		answer = simplify_call((SupportRequestSimplify *) request);
	else if (IsA(request, SupportRequestRows))
		answer = estimate_rows((SupportRequestRows *) request);
	PG_RETURN_POINTER(answer);
}
