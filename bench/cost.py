"""What elections take of the server: memory, disk, WAL, and processor time.

Its leases enlarge the registry for as long as the server runs, so it is measured
alone, by --only cost.
"""
import re

from clients import MANY, NOTHING, QUIET, Connection, Script, server_time
from tables import Table, median

NUMBERS = 10, 1000, 100000
MANY_OF_A_ROLE = "-c leader_election.max_elections_per_role=1000000"
# each in a transaction of its own, as programs take them
TAKE = """DO $$
BEGIN
    FOR i IN {} + 1 .. {} LOOP
        PERFORM le_lease('cost ' || i, '1 day', identity => 'holder');
        COMMIT;
    END LOOP;
END $$"""
WAL = "SELECT pg_current_wal_insert_lsn() - '0/0'"
DISK = "SELECT pg_total_relation_size('le_leases')"
TOKEN = "SELECT token FROM le_leaders WHERE name = 'cost 1'"
RENEWALS = 20000
EVERY = 5						# seconds, as for a ttl of 15 s
PRIVATE = "SELECT sum(total_bytes) FROM pg_backend_memory_contexts"


def shared_size():
    """Bytes of the registry, as a session maps them that has read all of it."""
    control = Connection()
    control.ask("SELECT count(*) FROM le_leaders")
    sizes = {}
    with open(f"/proc/{control.ask('SELECT pg_backend_pid()')[0]}/maps") as maps:
        for line in maps:
            match = re.match(r"(\w+)-(\w+) .*(/dev/shm/PostgreSQL\.\d+)", line)
            if match:
                sizes[match[3]] = int(match[2], 16) - int(match[1], 16)
    control.close()
    return sum(sizes.values())


def private_size():
    """Bytes that a session takes more once it leads."""
    control = Connection(QUIET)
    control.ask(PRIVATE)
    before = control.ask(PRIVATE)[0]
    control.ask("SELECT le_try_become_leader('private')")
    after = control.ask(PRIVATE)[0]
    control.close()
    return after - before


def as_text(size):
    return f"{size / 1024:.0f} kB" if size < 1e6 else f"{size / 1024 / 1024:.1f} MB"


def milliseconds(options, statement):
    rates = [Script(options.directory, NOTHING, statement).run(1, options.seconds)[0]
             for _ in range(options.rounds or 3)]
    took = 1000 / median(rates)
    return f"{took:.0f} ms" if took >= 10 else f"{took:.2g} ms"


def renewal_time(options, control):
    """Seconds of the server's processor time that a renewal takes."""
    script = Script(options.directory, NOTHING, f"SELECT le_renew('cost 1', {control.ask(TOKEN)[0]})")
    begin = server_time()
    script.run_times(1, RENEWALS)
    return (server_time() - begin) / RENEWALS


def measure_cost(options):
    control = Connection(f"{QUIET} {MANY} {MANY_OF_A_ROLE}")
    table = Table("Cost", "-leases that run", "shared memory", "disk", "WAL to take one", "all of le_leaders",
                  "one by le_leader", f"CPU, each renewed every {EVERY} s")
    taken = 0
    for number in map(options.scaled, NUMBERS):
        control.ask("CHECKPOINT")
        begin = control.ask(WAL)[0]
        control.ask(TAKE.format(taken, number))
        wal = (control.ask(WAL)[0] - begin) / (number - taken)
        taken = number
        control.ask("CHECKPOINT")		# so that its writes are not counted below
        load = renewal_time(options, control) * number / EVERY
        table.row(f"{number:,}", as_text(shared_size()), as_text(control.ask(DISK)[0]), f"{wal:,.0f} bytes",
                  milliseconds(options, "SELECT * FROM le_leaders OFFSET 1000000"),
                  milliseconds(options, "SELECT * FROM le_leader('cost 1')"), f"{100 * load:.2g} % of a core")
    print(f"\nA session that leads takes {as_text(private_size())} more of private memory.")
    control.ask("SELECT count(*) FROM le_leaders WHERE le_resign(name, token)")
    control.close()
