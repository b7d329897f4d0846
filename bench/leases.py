"""Leases that are taken, resigned and renewed, beside the table that people write."""
from clients import MANY, NOTHING, QUIET, Connection, Script, without_fsync
from tables import Table, median
from throughput import Side, print_pairs
from workloads import GSET, UPSERT

ROUNDS = 3
CLIENTS = (1, 8, 64)
HOLDERS = 16					# of the elections that are taken once
ELECTIONS = 10000
BIDDERS = 32					# each of an election of its own
BIDS = 1000000
AT_ONCE = 1000					# leases in one renewal
TABLE = """CREATE TABLE IF NOT EXISTS lease (key text PRIMARY KEY,
 leader_id text NOT NULL, valid_until timestamptz NOT NULL)"""

TAKE = "SELECT le_lease(:name, '15 s', identity => 'me') AS token \\gset\n"
PAIR = (NOTHING, TAKE + "SELECT le_resign(:name, :token)")
PAIR_BY_HAND = (NOTHING, UPSERT.format(key=":name", leader="'me'")
                + ";\nDELETE FROM lease WHERE key = :name AND leader_id = 'me'")
NEXT = "\\set turn :turn + 1\n"
NAME = "'held ' || :client_id || '/' || :turn"
# a lease long enough for what follows
HOLD = NEXT + f"SELECT le_lease({NAME}, '1 h', identity => 'me')"
HOLD_BY_HAND = NEXT + UPSERT.format(key=NAME, leader="'me'")
LET_GO = ("WITH gone AS MATERIALIZED (SELECT name, token FROM le_leaders"
          " WHERE name LIKE 'held %%' LIMIT 1000)"
          " SELECT count(le_resign(name, token)) FROM gone")
# A bid for an election of one's own can only be denied by mistake.
BID = """SELECT coalesce(le_lease('bid ' || :client_id, '15 s', identity => 'me'), 0)
 AS token \\gset
\\if :token
SELECT le_resign('bid ' || :client_id, :token);
\\else
INSERT INTO denied DEFAULT VALUES;
\\endif
SELECT 1"""
RENEW_EACH = ("SELECT coalesce((SELECT token FROM le_leader('many ' || :client_id || '/1')),"
              " le_lease('many ' || :client_id || '/1', '1 h')) AS token" + GSET,
              "SELECT le_renew('many ' || :client_id || '/1', :token)")
RENEW_MANY = (f"""SELECT array_agg(name)::text AS names, array_agg(token)::text AS tokens
 FROM (SELECT name, coalesce((SELECT token FROM le_leader(name)),
                             le_lease(name, '1 h')) AS token
       FROM (SELECT 'many ' || :client_id || '/' || n AS name
             FROM generate_series(1, {AT_ONCE}) n) AS named) AS held""" + GSET,
              "SELECT count(*) FILTER (WHERE le_renew(name, token))"
              " FROM unnest(:names::text[], :tokens::bigint[]) AS held (name, token)")


def compare_pairs(table, options, control, what, settings):
    """Take and resign a lease; insert and delete a row."""
    pairs = [(clients, Side(options.directory, PAIR, clients, settings),
              Side(options.directory, PAIR_BY_HAND, clients)) for clients in CLIENTS]
    for turn in range(options.rounds or ROUNDS):
        for _, *sides in pairs:
            for side in sides[::-1 if turn % 2 else 1]:
                side.run(control, options.seconds)
    print_pairs(table, what, "upsert and delete of a row", pairs, 1)


def let_go(control):
    with without_fsync(control):
        while control.ask(LET_GO)[0] > 0:
            pass
    control.ask("TRUNCATE lease")
    control.ask("VACUUM le_leases")


def compare_many(table, options, control):
    """Take many leases, by some clients."""
    each = max(options.scaled(ELECTIONS) // HOLDERS, 1)
    scripts = [Script(options.directory, NOTHING, text) for text in (HOLD, HOLD_BY_HAND)]
    times = ([], [])
    for turn in range(options.rounds or ROUNDS):
        for number in (0, 1)[::-1 if turn % 2 else 1]:
            rate = scripts[number].run_times(HOLDERS, each, MANY)
            times[number].append(each * HOLDERS / rate)
        let_go(control)
    ours, theirs = map(median, times)
    what = "10,000 leases are taken by 16 clients"
    table.row(what, "upsert of 10,000 rows", table.judge(what, ours, f"{ours:.2f} s", most=0.6),
              f"{theirs:.2f} s", f"{theirs / ours:.2f}", "at most 0.60 s")


def count_denials(table, options, control):
    """Bid for elections that no other candidate wants."""
    each = max(options.scaled(BIDS) // BIDDERS, 1)
    control.ask("CREATE TABLE denied ()")
    with without_fsync(control):		# which only makes it take longer
        rate = Script(options.directory, NOTHING, BID).run_times(BIDDERS, each, QUIET)
    denied = control.ask("SELECT count(*) FROM denied")[0]
    control.ask("DROP TABLE denied")
    what = "le_lease is denied in 1,000,000 pairs of 32 clients, each of its own election"
    table.row(what, "", table.judge(what, denied, f"{denied:,} times", most=0),
              "", "", "never")
    return f"{each * BIDDERS:,} pairs were tried for denials, {rate:,.0f} a second."


def compare_renewals(table, options, control):
    """Renew many leases by one statement, and by one for each."""
    clients = 8
    many = Side(options.directory, RENEW_MANY, clients, MANY)
    one = Side(options.directory, RENEW_EACH, clients, MANY)
    for side in (many, one):			# the first run takes the leases
        side.run(control, 1)
        side.rates.clear()
    for turn in range(options.rounds or ROUNDS):
        for side in (many, one)[::-1 if turn % 2 else 1]:
            side.run(control, options.seconds)
    ours, theirs = AT_ONCE * median(many.rates), median(one.rates)
    what = "le_renew, 1,000 leases in each of 8 clients' statements"
    table.row(what, "le_renew, one lease in each",
              table.judge(what, ours, f"{ours:,.0f} per second", least=1000000),
              f"{theirs:,.0f} per second", f"{ours / theirs:.1f}", "at least 1,000,000")
    return "Each client that renews many has leases of its own."


def measure_leases(options):
    control = Connection(f"{QUIET} {MANY} -c client_min_messages=error")
    control.ask(TABLE)
    control.ask("VACUUM le_leases")		# of those of other tables: nothing else does that here
    table = Table("Leases", "-what", "-against", "ours", "theirs", "ratio", "asked")
    compare_pairs(table, options, control, "le_lease + le_resign", "")
    compare_pairs(table, options, control, "le_lease + le_resign, log_terms off", QUIET)
    compare_many(table, options, control)
    notes = (compare_renewals(table, options, control), count_denials(table, options, control))
    print("\n" + "\n".join(notes))
    control.close()
