"""Elections and resignations over TCP, where programs are, beside the unix socket.

Over TCP, an election also costs what it takes to notice a host that has vanished.
"""
from clients import QUIET, Connection
from tables import Table, limit, median, several
from throughput import Side
from workloads import ELECT_RESIGN, LOCK_UNLOCK

ROUNDS = 5
CLIENTS = (1, 8)
HOSTS = (("unix socket", None), ("TCP", "127.0.0.1"))
LOCKS = "pg_try_advisory_lock + pg_advisory_unlock"
# what, its statements and settings, and what is asked of its CPU time over TCP
SIDES = (
    (LOCKS, LOCK_UNLOCK, "", None),
    ("le_try_become_leader + le_resign, log_terms off", ELECT_RESIGN, QUIET, 1.15),
    ("le_try_become_leader + le_resign", ELECT_RESIGN, "", 1.8),
)


def print_row(table, name, number, groups):
    """Print one of the sides, in the order of its clients."""
    what, _, _, most = SIDES[number]
    most = most if name == "TCP" else None
    rates, costs, ratios = [], [], []
    for clients, sides in groups:
        locks, cpu = (side.cpu / side.transactions for side in (sides[0], sides[number]))
        rates.append(f"{median(sides[number].rates):,.0f}")
        costs.append(f"{1e6 * cpu:.1f}")
        ratios.append("" if number == 0 else
                      table.judge(f"{what}, over {name}, clients: {clients}", cpu / locks,
                                  f"{cpu / locks:.2f}", most=most))
    table.row(what, name, several(rates), several(costs, " µs"), several(ratios), limit(most))


def measure_tcp(options):
    control = Connection()
    groups = [(clients, name, [Side(options.directory, statements, clients, settings, host)
                               for _, statements, settings, _ in SIDES])
              for name, host in HOSTS for clients in CLIENTS]
    for turn in range(options.rounds or ROUNDS):
        for _, _, sides in groups:
            for side in sides[::-1 if turn % 2 else 1]:
                side.run(control, options.seconds)
    control.close()

    table = Table("TCP", "-what", "-over", "per second", "server's CPU each",
                  "ratio to the locks' CPU", "at most")
    for name, _ in HOSTS:
        for number in range(len(SIDES)):
            print_row(table, name, number, [(clients, sides) for clients, over, sides in groups
                                            if over == name])
