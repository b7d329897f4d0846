"""A picture of the dashboard: panels of monitoring/grafana.json, by their own queries, of a real run.

The run takes four minutes.  Prometheus asks postgres_exporter each second.
"""
import json
import math
import os
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

import psycopg2

from clients import Connection
from pictures import COLOURS, FONT, escape, text

MONITORING = Path(__file__).parents[1] / "monitoring"
LENGTH = 240					# of the run, in seconds
PLOTS = ("Candidates", "Time Vacant", "Lease Time Left", "Terms Ended per Hour")
LINES = {"light": ("#0b62c4", "#bc4c00", "#1a7f37", "#8250df", "#bf3989"),
         "dark": ("#4493f8", "#db6d28", "#3fb950", "#ab7df8", "#db61a2")}
WIDTH, LEFT, BAR = 820, 92, 26	# of the picture, of names, of a bar with its gap
HEIGHT, GAP = 118, 62			# of a plot, and between two


class Candidate(threading.Thread):
    """A program that campaigns, leads, and campaigns again until the run is over."""

    present, resigning = True, False

    def __init__(self, election, identity, ttl=None):
        super().__init__(daemon=True)
        self.election, self.identity, self.ttl = election, identity, ttl

    def lead(self):
        connection = Connection("-c client_min_messages=error")
        bid, asked = ((f"SELECT le_lease('{self.election}', '{self.ttl} s', identity => '{self.identity}')",
                       f"le_renew('{self.election}', %s)") if self.ttl else
                      (f"CALL le_campaign('{self.election}', identity => '{self.identity}')",
                       f"le_am_leader('{self.election}')"))
        token = connection.ask(bid)[0]
        while token and self.present and connection.ask("SELECT " + asked.replace("%s", str(token)))[0]:
            time.sleep(self.ttl / 3 if self.ttl else 0.5)
            if self.resigning:
                self.resigning = False
                connection.ask(f"SELECT le_resign('{self.election}'{f', {token}' if self.ttl else ''})")
                break
        connection.close()

    def run(self):
        while True:
            try:
                if self.present:
                    self.lead()
            except psycopg2.Error:
                pass			# its session was ended
            time.sleep(1 if self.ttl else 4)


def act(control):
    """What happens in the run."""
    def leader(election):
        return control.ask(f"SELECT identity FROM le_leader('{election}')")[0]

    control.ask("SELECT le_declare(name) FROM unnest(ARRAY['billing', 'mailer', 'scheduler']) name")
    candidates = {c.identity: c for c in [
        *(Candidate("scheduler", f"host-{i}") for i in (1, 2, 3)),
        *(Candidate("billing", f"app-{i}") for i in (1, 2)),
        *(Candidate("mailer", f"web-{i}", ttl=12) for i in (1, 2))]}
    for candidate in candidates.values():
        candidate.start()
        time.sleep(0.2)
    began = time.time()
    for when, what in (
            (45, lambda: setattr(candidates[leader("scheduler")], "resigning", True)),
            (70, lambda: [setattr(candidates[f"app-{i}"], "present", False) for i in (1, 2)]),
            (70, lambda: control.ask("SELECT count(pg_terminate_backend(pid)) FROM le_candidates WHERE name = 'billing'")),
            (95, lambda: setattr(candidates[leader("mailer")], "present", False)),
            (105, lambda: [setattr(candidates[f"app-{i}"], "present", True) for i in (1, 2)]),
            (130, lambda: control.ask("SELECT le_depose('scheduler', 'hangs')")),
            (160, lambda: control.ask("SELECT pg_terminate_backend(pid) FROM le_leader('billing')")),
            (165, lambda: [setattr(c, "present", True) for c in candidates.values()]),
            (195, lambda: setattr(candidates[leader("mailer")], "resigning", True)),
            (210, lambda: control.ask("SELECT pg_terminate_backend(pid) FROM le_leader('scheduler')"))):
        time.sleep(max(0, began + when - time.time()))
        what()
    time.sleep(max(0, began + LENGTH - time.time()))
    return began


def ask(port, page, **parameters):
    """Ask Prometheus."""
    query = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}?{query}", timeout=20) as answer:
        return answer.read()


def measure(directory):
    """Let the run happen, and return the series of each panel: labels, and values by seconds."""
    exporter, prometheus = (int(os.environ["PGPORT"]) + i for i in (1000, 1001))
    Path(directory, "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n"
        f"- {{job_name: server, static_configs: [{{targets: ['127.0.0.1:{exporter}']}}]}}\n", encoding="ascii")
    source = "user={PGUSER} host=127.0.0.1 port={PGPORT} dbname=postgres sslmode=disable".format(**os.environ)
    daemons = [subprocess.Popen(command, env={**os.environ, "DATA_SOURCE_NAME": source},
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for command in (
        ["prometheus-postgres-exporter", f"--web.listen-address=127.0.0.1:{exporter}",
         f"--extend.query-path={MONITORING}/postgres_exporter.yaml"],
        ["prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/series",
         f"--web.listen-address=127.0.0.1:{prometheus}"])]
    try:
        time.sleep(5)
        began = act(Connection())
        panels = json.loads((MONITORING / "grafana.json").read_text(encoding="utf-8"))["panels"]
        series = {}
        for panel in panels:
            series[panel["title"]] = []
            for target in panel["targets"] if panel["title"] in (*PLOTS, "Leaders") else ():
                query = target["expr"].replace("$__rate_interval", "15s")
                for name in ("instance", "datname", "election"):
                    query = query.replace(f'"${name}"', '".*"')
                found = json.loads(ask(prometheus, "/api/v1/query_range", query=query, step=1,
                                       start=began, end=began + LENGTH))
                series[panel["title"]] += [
                    (one["metric"], {when - began: float(value) for when, value in one["values"]})
                    for one in found["data"]["result"]]
        return series
    finally:
        for daemon in daemons:
            daemon.kill()
            daemon.wait()


def draw_leaders(series, colours, palette):
    """Bars of the identities that led each election."""
    elections = sorted({labels["election"] for labels, _ in series})
    identities = sorted({labels["identity"] for labels, _ in series})
    scale = (WIDTH - LEFT) / LENGTH
    yield text(0, 18, "Leaders", colours["text"], 15, 600)
    yield text(WIDTH, 18, f"{LENGTH // 60} minutes", colours["faint"], 12, anchor="end")
    for row, election in enumerate(elections):
        top = 30 + BAR * row
        yield text(LEFT - 8, top + 16, election, colours["text"], 13, anchor="end")
        for labels, values in series:
            if labels["election"] != election:
                continue
            vacant = labels["identity"] == "(vacant)"
            own = [i for i in identities if i[0] == labels["identity"][0]]
            colour = colours["line"] if vacant else palette[own.index(labels["identity"]) % len(palette)]
            times = sorted(values)
            begins = [t for t in times if t - 1 not in values and t - 1 >= 0 or t == times[0]]
            for begin in begins:
                end = begin
                while end in values:
                    end += 1
                x, width = LEFT + begin * scale, (min(end, LENGTH) - begin) * scale
                yield f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{BAR - 4}" fill="{colour}"/>'
                if width > 50:
                    yield text(x + 6, top + 15, labels["identity"], colours["text" if vacant else "bar"], 12)


def draw_plot(title, series, left, top, colours, palette):
    """Lines over time, with their names below."""
    width = WIDTH / 2 - 56
    share = title in ("Time Vacant", "Lease Time Left")
    greatest = 1 if share else math.ceil(max((round(v, 1) for _, values in series for v in values.values()), default=1))
    yield text(left, top - 12, title, colours["text"], 15, 600)
    left += 44
    for part in (0, 0.5, 1):
        y = top + HEIGHT * (1 - part)
        yield f'<path d="M{left} {y:.1f}h{width:.1f}" stroke="{colours["line"]}" stroke-width="1"/>'
        label = f"{100 * part:.0f} %" if share else f"{part * greatest:g}"
        yield text(left - 6, y + 4, label, colours["faint"], 11, anchor="end")
    x = left
    for number, (labels, values) in enumerate(sorted(series, key=lambda one: sorted(one[0].items()))):
        colour = palette[number % len(palette)]
        points = " ".join(f"{left + t * width / LENGTH:.1f},{top + HEIGHT * (1 - min(v / greatest, 1)):.1f}"
                          for t, v in sorted(values.items()))
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        name = labels.get("election") or labels.get("reason") or "undeclared"
        yield text(x, top + HEIGHT + 18, name, colour, 12, 600)
        x += 8 * len(name) + 12


def draw_dashboard(options):
    """Write dashboard-light.svg and dashboard-dark.svg into the folder images of options.record."""
    series = measure(options.directory)
    rows = len({labels["election"] for labels, _ in series["Leaders"]})
    first = 30 + BAR * rows + 44
    height = first + 2 * (HEIGHT + GAP) - 30
    for scheme, colours in COLOURS.items():
        colours, palette = {**colours, "bar": "#ffffff" if scheme == "light" else "#0d1117"}, LINES[scheme]
        lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" role="img"'
                 f' viewBox="0 0 {WIDTH} {height}" font-family="{FONT}" aria-labelledby="title">',
                 f'<title id="title">{escape("Leaders of three elections in four minutes, and figures of these")}</title>']
        lines += draw_leaders(series["Leaders"], colours, palette)
        for number, title in enumerate(PLOTS):
            lines += draw_plot(title, series[title], number % 2 * (WIDTH / 2 + 8),
                               first + number // 2 * (HEIGHT + GAP), colours, palette)
        Path(options.record, "images", f"dashboard-{scheme}.svg").write_text("\n".join(lines + ["</svg>"]) + "\n",
                                                                              encoding="utf-8")
