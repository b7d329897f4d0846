"""What a call costs as there are more elections: one client, in microseconds."""
from clients import NOTHING, Script
from crowd import Crowd
from plots import plot
from tables import Table, median
from workloads import GSET

ROUNDS = 3
ELECTIONS = (1, 1000, 10000, 100000)
LEASE = "SELECT le_lease('grown', '1 day') AS token" + GSET
# What is measured stands for one more election.  Its own is vacant between two runs.
CALLS = {
    "bid and resignation": (
        NOTHING, "SELECT le_try_become_leader('grown');\nSELECT le_resign('grown')"),
    "renewal": (LEASE, "SELECT le_renew('grown', :token)"),
    "le_leader": (NOTHING, "SELECT * FROM le_leader('grown')"),
    "le_observe": (NOTHING, "CALL le_observe('grown')"),
}
END_LEASE = "SELECT count(le_resign(name, token)) FROM le_leader('grown')"


def measure_growth(options):
    crowd = Crowd()
    scripts = {call: Script(options.directory, *statements)
               for call, statements in CALLS.items()}
    times = {call: {size: [] for size in ELECTIONS} for call in CALLS}
    for _ in range(options.rounds or ROUNDS):
        size = 1
        for wanted in ELECTIONS:
            # half of them bound to sessions, half of them leases
            more = options.scaled(wanted) - size
            crowd.add("terms", more // 2)
            crowd.add("leases", more - more // 2)
            size += more
            for call, script in scripts.items():
                rate, _ = script.run(1, options.seconds)
                times[call][wanted].append(1e6 / rate)
            crowd.connection.ask(END_LEASE)
        crowd.clear()
    crowd.close()

    medians = {call: [median(times[call][size]) for size in ELECTIONS] for call in CALLS}
    table = Table("Growth", "elections", *(f"{call}, µs" for call in CALLS))
    for number, size in enumerate(ELECTIONS):
        table.row(f"{size:,}", *(f"{medians[call][number]:,.1f}" for call in CALLS))
    if options.record:
        plot(options.record, "speed-elections", "elections that are led", "µs each",
             "log", ELECTIONS, medians)
