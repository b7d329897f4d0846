"""How much a second: ours and theirs by pgbench, in interleaved rounds."""
from clients import Connection, Script, Session, server_time
from crowd import Crowd
from tables import Table, limit, median, several
from workloads import GSET, WORKLOADS, create_tables, hold_others

ROUNDS = 5
CLIENTS = (1, 8)
NAMES = ("SELECT 'election ' || :client_id AS name, 'lease ' || :client_id AS leased,"
         " :client_id + 1001 AS key" + GSET)


class Side:
    """One side of a comparison: its script, rates and costs."""

    def __init__(self, directory, statements, clients, options="", host=None):
        self.host = host
        self.script = Script(directory, NAMES + ";\n" + statements[0], statements[1])
        self.clients = clients
        self.options = options
        self.rates = []
        self.wal = self.xids = self.transactions = self.cpu = 0

    def run(self, control, seconds):
        wal, xids = read_costs(control)
        cpu = server_time()
        rate, transactions = self.script.run(self.clients, seconds, self.options,
                                                 self.host)
        self.cpu += server_time() - cpu
        wal_after, xids_after = read_costs(control)
        self.rates.append(rate)
        self.transactions += transactions
        self.wal += wal_after - wal
        self.xids += xids_after - xids


def read_costs(control):
    """How far WAL and transaction ids have come."""
    return [int(value) for value in
            control.ask("SELECT pg_current_wal_insert_lsn() - '0/0',"
                        " pg_snapshot_xmax(pg_current_snapshot())::text")]


class Comparison:
    """A workload with a number of clients."""

    def __init__(self, directory, workload, clients):
        self.workload = workload
        self.clients = clients
        self.ours = Side(directory, workload.ours, clients, workload.options)
        self.theirs = Side(directory, workload.theirs, clients)

    def figures(self, table):
        """Return rate, ratio, and what one operation costs in bytes of WAL and in xids."""
        # of the two in one round, which had the same weather
        ratio = median([ours / theirs for ours, theirs
                        in zip(self.ours.rates, self.theirs.rates)])
        what = (f"{self.workload.what}, against {self.workload.against},"
                f" clients: {self.clients}")
        return (f"{median(self.ours.rates):,.0f}",
                table.judge(what, ratio, f"{ratio:.3f}", least=self.workload.least),
                f"{self.ours.wal / self.ours.transactions:.1f}",
                f"{self.ours.xids / self.ours.transactions:.2f}")


def print_row(table, workload, comparisons):
    """Print what the comparisons of a workload have found, in the order of their clients."""
    rate, ratio, wal, xids = map(several, zip(*(one.figures(table) for one in comparisons)))
    table.row(workload.what, workload.against, rate, ratio, limit(workload.least), wal, xids)


def print_pairs(table, what, against, pairs, least):
    """Print the rates and ratios of pairs, in the order of their clients."""
    ours, theirs = ([f"{median(pair[side].rates):,.0f}" for pair in pairs] for side in (1, 2))
    ratios = [median([a / b for a, b in zip(mine.rates, other.rates)]) for _, mine, other in pairs]
    table.row(what, against, several(ours, " per second"), several(theirs, " per second"),
              several([table.judge(f"{what}, {clients} clients", ratio, f"{ratio:.2f}", least=least)
                       for (clients, *_), ratio in zip(pairs, ratios)]), f"at least {limit(least)}")


def run_round(comparisons, turn, control, crowd, options):
    """Run each comparison once, first theirs or first ours in turn.

    What has to bear the same crowd runs together, so that this is made once.
    """
    for beside in dict.fromkeys(one.workload.beside for one in comparisons):
        group = [one for one in comparisons if one.workload.beside == beside]
        if beside is None:
            for one in group:
                for side in (one.theirs, one.ours)[::-1 if turn % 2 else 1]:
                    side.run(control, options.seconds)
            continue
        for which in ("theirs", "ours")[::-1 if turn % 2 else 1]:
            if which == "ours":
                crowd.add(beside[0], options.scaled(beside[1]))
            for one in group:
                getattr(one, which).run(control, options.seconds)
            if which == "ours":
                crowd.clear()


def measure_throughput(options):
    create_tables()
    control = Connection()
    holder = Session()
    hold_others(holder)
    crowd = Crowd()
    comparisons = [Comparison(options.directory, workload, clients)
                   for clients in CLIENTS for workload in WORKLOADS
                   if options.rows in workload.what]
    for turn in range(options.rounds or ROUNDS):
        run_round(comparisons, turn, control, crowd, options)
    crowd.close()
    holder.close()
    control.close()

    table = Table("Throughput", "-what", "-against", "per second", "ratio", "at least",
                  "WAL bytes each", "xids each")
    for workload in WORKLOADS:
        if found := [one for one in comparisons if one.workload is workload]:
            print_row(table, workload, found)
