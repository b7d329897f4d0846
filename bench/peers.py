#!/usr/bin/env python3
"""Show what bench/peers has measured: tables in Markdown, and two pictures."""
import argparse
import json
import os

from pictures import Bar, Panel, draw
from tables import Table, median, median_and_p99, record_tables

# the names in pictures
SHORT = {"session": "leader_election, session", "quiet": "session, not logged",
         "lease": "leader_election, lease", "advisory": "advisory lock",
         "table": "table of leases", "redis-aof": "Redis, fsync always"}
OURS = ("session", "quiet", "lease")
DRAWN = 8						# clients, where rates are drawn


def duration(milliseconds):
    """Milliseconds as they are read most easily."""
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.1f} s"
    digits = 2 if milliseconds < 10 else 1 if milliseconds < 100 else 0
    return f"{milliseconds:.{digits}f} ms"


def rates_of(peer, operation, clients):
    """What was measured in each round."""
    return [rates for rates in peer["Throughput"].get(operation) or []
            if rates["Clients"] == clients]


def some_clients(report):
    """The number of clients for which details are shown."""
    counts = report["Sizes"]["Clients"]
    return DRAWN if DRAWN in counts else counts[-1]


def print_rates(report, title, operation):
    """Print how much a second, and what it takes."""
    counts = report["Sizes"]["Clients"]
    some = some_clients(report)
    table = Table(title, "-", *(f"{count} client{'s' * (count > 1)}" for count in counts),
                  f"with {some}: least to greatest", "median", "p99", "server's CPU each")
    for peer in report["Peers"]:
        if peer.get("Skipped"):
            table.row(peer["Title"], f"skipped: {peer['Skipped']}", *[""] * (len(counts) + 3))
            continue
        all_rates = rates_of(peer, operation, some)
        each = sorted(rates["Rate"] for rates in all_rates)
        table.row(peer["Title"],
                  *(f"{median([one['Rate'] for one in rates_of(peer, operation, count)]):,.0f}"
                    for count in counts),
                  f"{each[0]:,.0f} to {each[-1]:,.0f}",
                  *(f"{median([one[what] for one in all_rates]):,.0f} µs"
                    for what in ("P50", "P99", "CPU")))


def after_kill(times):
    """The cells of a column of times after a kill."""
    if not times:
        return [""] * 3
    ttl = f"{times['TTL']:g} s" if times["TTL"] else "none"
    return [ttl, duration(median(times["Times"])), duration(max(times["Times"]))]


def print_handovers(report):
    table = Table("Peers: Handovers", "-", "after a resignation: median", "p99",
                  "after a kill: ttl", "median", "greatest",
                  "after a kill, default ttl", "median", "greatest")
    for peer in report["Peers"]:
        if peer.get("Resigned"):
            table.row(peer["Title"],
                      *map(duration, median_and_p99(peer["Resigned"]["Times"])),
                      *after_kill(peer.get("Killed")), *after_kill(peer.get("KilledLate")))


def print_lines(report):
    table = Table("Peers: Waiting", "-", "waiting", "server's CPU, of a core", "have led", "in",
                  "handover: median", "p99")
    for peer in report["Peers"]:
        line = peer.get("Line")
        if line:
            table.row(peer["Title"], f"{line['Waiting']:,}", f"{line['Idle']:.3f}",
                      f"{line['Led']:,}", duration(line["Total"]),
                      *map(duration, median_and_p99(line["Gaps"])))


def draw_bars(directory, name, title, peers, panels):
    draw(directory, name, title, [SHORT.get(peer["Name"], peer["Title"]) for peer in peers],
         [peer["Name"] in OURS for peer in peers], panels)


def bar_of_times(times, ttl=False):
    if not times:
        return None
    middle, p99 = median_and_p99(times["Times"])
    label = duration(middle)
    if ttl and times["TTL"]:
        label += f", ttl {times['TTL']:g} s"
    return Bar(middle, label, p99)


def draw_handovers(report, directory):
    peers = [peer for peer in report["Peers"] if peer.get("Resigned")]
    draw_bars(directory, "speed-handover",
              "Time until the next leader knows, after a resignation and after a kill", peers,
              [Panel("After a resignation", "median, and p99; logarithmic scale",
                     [bar_of_times(peer["Resigned"]) for peer in peers], True),
               Panel("After kill -9 of the leader", "median, and p99; logarithmic scale",
                     [bar_of_times(peer.get("Killed"), True) for peer in peers], True)])


def draw_rates(report, directory):
    some = some_clients(report)
    peers = [peer for peer in report["Peers"] if not peer.get("Skipped")]

    def bars(operation):
        for peer in peers:
            rate = median([one["Rate"] for one in rates_of(peer, operation, some)])
            yield Bar(rate, f"{rate:,.0f}")

    draw_bars(directory, "speed-throughput", "Elections and renewals per second", peers,
              [Panel("Election and resignation", f"pairs per second, {some} clients",
                     list(bars("pair"))),
               Panel("Renewal", f"per second, {some} clients", list(bars("renewal")))])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", help="the file that bench/peers has written")
    parser.add_argument("--pictures", metavar="DIRECTORY", required=True)
    parser.add_argument("--record", metavar="DIRECTORY", help="put the tables into its speed.md")
    options = parser.parse_args()
    with open(options.figures) as file:
        report = json.load(file)
    if options.record and report["Quick"]:
        parser.error("a trial cannot be recorded")

    print("\nMeasured: " + ", ".join(f"{name} {version}" for name, version
                                     in report["Versions"].items())
          + f". Before, {100 * report['Idle']:.0f} % of the processors' time was free.")
    print_rates(report, "Peers: Elections", "pair")
    print_rates(report, "Peers: Renewals", "renewal")
    print_handovers(report)
    print_lines(report)
    draw_handovers(report, options.pictures)
    draw_rates(report, options.pictures)
    if options.record:
        record_tables(os.path.join(options.record, "speed.md"))


if __name__ == "__main__":
    main()
