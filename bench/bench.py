#!/usr/bin/env python3
"""Measure leader_election beside what a user would call otherwise.

Prints tables in Markdown.  Figures are medians of interleaved rounds, and ratios
are of two things measured in one run.  What misses what is asked is bold, and
told again at the end.  Needs a running server with the extension's files, found
through PGHOST and the like, and its data directory in PGDATA.  `make bench`
prepares all that.
"""
import argparse
import os
import tempfile

from clients import idle, psql
from cost import measure_cost
from dashboard import draw_dashboard
from growth import measure_growth
from handover import measure_handovers
from leases import measure_leases
from pooler import measure_pooler
from sql_edition import measure_sql_edition
from tables import print_summary, record_tables
from tcp import measure_tcp
from throughput import measure_throughput
from transactions import measure_transactions
from views import measure_views
from waiting import measure_crowd

TABLES = {
    "views": measure_views,		# first: they read the entries of elections that have ended, too
    "throughput": measure_throughput,
    "tcp": measure_tcp,
    "leases": measure_leases,
    "transactions": measure_transactions,
    "growth": measure_growth,
    "pooler": measure_pooler,
    "handover": measure_handovers,
    "crowd": measure_crowd,
    "sql": measure_sql_edition,
    "cost": measure_cost,
    "dashboard": draw_dashboard,
}


def choose_tables(text):
    names = text.split(",")
    for name in names:
        if name not in TABLES:
            raise argparse.ArgumentTypeError(
                f'there is no table "{name}", only {", ".join(TABLES)}')
    return names


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=choose_tables, default=[name for name in TABLES if name not in ("cost", "dashboard")],
                        metavar="TABLE,...", help="of " + ", ".join(TABLES) + "; cost and dashboard only if named")
    parser.add_argument("--rows", default="", metavar="TEXT",
                        help="of the first table, only those that have this in their names")
    parser.add_argument("--rounds", type=int,
                        help="instead of each table's own number of rounds")
    parser.add_argument("--seconds", type=int, default=1,
                        help="that each run of pgbench takes")
    parser.add_argument("--scale", type=float, default=1, metavar="FACTOR",
                        help="of the numbers of elections and candidates, for a trial")
    parser.add_argument("--record", metavar="DIRECTORY",
                        help="put the tables into its speed.md, and draw its plots anew")
    options = parser.parse_args()
    if options.record and (options.scale != 1 or options.rows):
        parser.error("only whole tables of the full scale can be recorded")
    if "dashboard" in options.only and not options.record:
        parser.error("the picture of the dashboard is recorded, or not made")
    options.scaled = lambda number: max(int(number * options.scale), 1)

    print(f"{100 * idle():.0f} % of the processors' time is free.")
    psql("CREATE EXTENSION IF NOT EXISTS leader_election")
    if options.scale != 1:
        print(f"\nA trial: numbers of elections and candidates times {options.scale:g}.")
    with tempfile.TemporaryDirectory() as options.directory:
        for name in options.only:
            TABLES[name](options)
    if options.record and options.only != ["dashboard"]:
        record_tables(os.path.join(options.record, "speed.md"))
    print_summary()


if __name__ == "__main__":
    main()
