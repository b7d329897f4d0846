/*
 * A program that asks src/bid/decision.c for each of the cases below, and
 * prints what comes of it in the Test Anything Protocol.
 *
 * The rule is a pure function, so it needs no server.
 */
#include "postgres.h"

#include <stdio.h>

/* the C library's, as nothing of the server is linked */
#undef printf

#include "../src/bid/decision.c"

#define NOW			UINT64CONST(1000000)
#define EARLIER		(NOW - 100)
#define LATER		(NOW + 100)
#define MUCH_LATER	(NOW + 1000)

/* What is on record */
typedef enum OnRecord
{
	NO_TERM,
	SESSION,
	TRANSACTION,
	LEASE,						/* of the extension that is there */
	OLD_LEASE					/* of one that was dropped */
} OnRecord;

typedef struct Case
{
	const char *name;
	OnRecord	on_record;
	uint64		deadline;		/* of a lease */
	bool		has_lock;
	uint64		grace_from;
	int64		grace_us;
	uint64		grants_from;
	LeObstacle	obstacle;
	uint64		until;			/* looked at where it counts */
} Case;

static const Case cases[] = {
	/* no leader */
	{"never led", NO_TERM, 0, true, 0, 0, 0, LE_MAY_LEAD, 0},
	{"never led, with grace", NO_TERM, 0, true, 0, 500, 0, LE_MAY_LEAD, 0},
	{"lost, without grace", NO_TERM, 0, true, EARLIER, 0, 0, LE_MAY_LEAD, 0},
	{"lost, within grace", NO_TERM, 0, true, EARLIER, 200, 0, LE_GRACE, LATER},
	{"lost, at the end of grace", NO_TERM, 0, true, EARLIER, 100, 0, LE_MAY_LEAD, 0},
	{"lost, after grace", NO_TERM, 0, true, EARLIER, 50, 0, LE_MAY_LEAD, 0},
	{"after a promotion", NO_TERM, 0, true, 0, 0, LATER, LE_PROMOTION, LATER},
	{"long after a promotion", NO_TERM, 0, true, 0, 0, EARLIER, LE_MAY_LEAD, 0},
	{"grace ends last", NO_TERM, 0, true, EARLIER, 1100, LATER, LE_GRACE, MUCH_LATER},
	{"promotion ends last", NO_TERM, 0, true, EARLIER, 200, MUCH_LATER,
	LE_PROMOTION, MUCH_LATER},
	{"grace is over, promotion is not", NO_TERM, 0, true, EARLIER, 50, LATER,
	LE_PROMOTION, LATER},

	/* leases */
	{"lease runs", LEASE, LATER, true, 0, 0, 0, LE_LEASE_RUNS, LATER},
	{"lease runs, no lock", LEASE, LATER, false, 0, 0, 0, LE_LEASE_RUNS, LATER},
	{"lease runs out now", LEASE, NOW, true, 0, 0, 0, LE_LEASE_OVER, NOW},
	{"lease has run out", LEASE, EARLIER, true, 0, 0, 0, LE_LEASE_OVER, EARLIER},
	{"lease has run out, no lock", LEASE, EARLIER, false, 0, 0, 0,
	LE_LEASE_OVER, EARLIER},
	{"lease was ended", LEASE, LE_DEADLINE_OVER, true, 0, 0, 0,
	LE_LEASE_OVER, LE_DEADLINE_OVER},
	{"lease over, within grace", LEASE, EARLIER, true, EARLIER, 200, 0,
	LE_LEASE_OVER, EARLIER},
	{"uncommitted lease, no lock", LEASE, LE_DEADLINE_UNCOMMITTED, false, 0, 0, 0,
	LE_LED_BY_LOCK, 0},
	{"uncommitted lease, left behind", LEASE, LE_DEADLINE_UNCOMMITTED, true, 0, 0, 0,
	LE_LEASE_OVER, 0},
	{"lease of a dropped extension", OLD_LEASE, LATER, true, 0, 0, 0,
	LE_STALE_TERM, 0},
	{"lease of a dropped extension, no lock", OLD_LEASE, LATER, false, 0, 0, 0,
	LE_STALE_TERM, 0},

	/* terms that a lock holds */
	{"session leads, no lock", SESSION, 0, false, 0, 0, 0, LE_LED_BY_LOCK, 0},
	{"transaction leads, no lock", TRANSACTION, 0, false, 0, 0, 0, LE_LED_BY_LOCK, 0},
	{"session has lost the lock", SESSION, 0, true, 0, 0, 0, LE_STALE_TERM, 0},
	{"transaction has lost the lock", TRANSACTION, 0, true, EARLIER, 200, LATER,
	LE_STALE_TERM, 0},
};

static bool
is_right(const Case *c)
{
	static const LeScope scopes[] = {
		[SESSION] = LE_SCOPE_SESSION,
		[TRANSACTION] = LE_SCOPE_TRANSACTION,
		[LEASE] = LE_SCOPE_LEASE,
		[OLD_LEASE] = LE_SCOPE_LEASE,
	};
	static LeSituation situation;
	LeDecision	decision;
	bool		until_counts;

	memset(&situation, 0, sizeof(situation));
	if (c->on_record != NO_TERM)
	{
		situation.term.token = 7;
		situation.term.scope = scopes[c->on_record];
		situation.term.deadline = c->deadline;
		situation.lease_counts = c->on_record == LEASE;
	}
	situation.term.grace_from = c->grace_from;
	situation.term.end_known = true;
	situation.has_lock = c->has_lock;
	situation.grace_us = c->grace_us;
	situation.grants_from = c->grants_from;
	situation.now = NOW;

	decision = le_decide(&situation);
	until_counts = c->obstacle == LE_GRACE || c->obstacle == LE_PROMOTION ||
		c->obstacle == LE_LEASE_RUNS || c->obstacle == LE_LEASE_OVER;
	if (decision.obstacle == c->obstacle && (!until_counts || decision.until == c->until))
		return true;
	printf("# obstacle %d, expected %d; until " UINT64_FORMAT ", expected " UINT64_FORMAT "\n",
		   decision.obstacle, c->obstacle, decision.until, c->until);
	return false;
}

int
main(void)
{
	int			failed = 0;

	for (size_t i = 0; i < lengthof(cases); i++)
	{
		bool		right = is_right(&cases[i]);

		printf("%sok %zu - %s\n", right ? "" : "not ", i + 1, cases[i].name);
		failed += !right;
	}
	printf("1..%zu\n", lengthof(cases));
	return failed > 0;
}
