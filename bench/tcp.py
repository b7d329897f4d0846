"""Elections and resignations over TCP, where programs are, beside the unix socket.

Over TCP, an election also costs what it takes to notice a host that has vanished.
"""
from clients import QUIET, Connection
from tables import Table, limit, median
from throughput import Side
from workloads import ELECT_RESIGN, LOCK_UNLOCK

ROUNDS = 5
CLIENTS = (1, 8)
HOSTS = (("unix socket", None), ("TCP", "127.0.0.1"))
LOCKS = "pg_try_advisory_lock + pg_advisory_unlock"
# what, its statements and settings, and what is asked of its CPU time over TCP
SIDES = (
    (LOCKS, LOCK_UNLOCK, "", None),
    ("le_try_become_leader + le_resign, log_terms and notify off", ELECT_RESIGN, QUIET, 1.15),
    ("le_try_become_leader + le_resign", ELECT_RESIGN, "", 1.8),
)


def measure_tcp(options):
    control = Connection()
    groups = [(clients, name, [Side(options.directory, statements, clients, settings, host)
                               for _, statements, settings, _ in SIDES])
              for clients in CLIENTS for name, host in HOSTS]
    for turn in range(options.rounds or ROUNDS):
        for _, _, sides in groups:
            for side in sides[::-1 if turn % 2 else 1]:
                side.run(control, options.seconds)
    control.close()

    table = Table("TCP", "-what", "-over", "clients", "per second", "server's CPU each",
                  "ratio to the locks' CPU", "at most")
    for clients, name, sides in groups:
        for (what, _, _, most), side in zip(SIDES, sides):
            cpu = side.cpu / side.transactions
            ratio = cpu / (sides[0].cpu / sides[0].transactions)
            most = most if name == "TCP" else None
            table.row(what, name, clients, f"{median(side.rates):,.0f}",
                      f"{1e6 * cpu:.1f} µs", "" if side is sides[0] else
                      table.judge(f"{what}, over {name}, clients: {clients}", ratio,
                                  f"{ratio:.2f}", most=most), limit(most))
