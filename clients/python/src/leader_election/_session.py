"""What leading in session scope does differently: its timers and statements."""

from math import inf
from typing import Any

from ._options import Options, Statement


class Session:
    """A way to lead: with a connection of its own, which is opened for each campaign."""

    wait = 300.0  # of the next bid, in the server
    validity, round, retry, between = 6.0, 300.0, inf, 0.0

    def __init__(self, options: Options) -> None:
        self.interval = min(1.0, (options.heartbeat or inf) / 4)
        self.limit = self.patience = min(5.0, (options.heartbeat or inf) / 3)

    def statements(self, o: Options, name: str, _: Any) -> dict[str, Statement]:
        """Return each statement, with its parameters."""
        le, me, beat = o.prefix, o.name, f"{o.heartbeat} s" if o.heartbeat else None
        seats = [o.seats] if o.seats else []
        names = f"{le}le_seats($1::text, $4::int)" if o.seats else "$1::text"
        terms = f"timeout => '{self.wait:.3f} s', heartbeat => $2::interval, identity => $3::text"
        led = f"ANY ({le}le_seats($1::text, $3::int))" if o.seats else "$1::text"
        expel = f"SELECT pg_terminate_backend(pid) FROM {le}le_leaders WHERE identity = $2::text"
        asked = f"SELECT {le}le_am_leader($1::text, identity => $2::text), pg_backend_pid()"
        return {
            "bid": (f"CALL {le}le_campaign({names}, {terms})", name, beat, me, *seats),
            "confirm": (asked, name, me),
            "beat": (f"SELECT {le}le_heartbeat($1::text), pg_backend_pid()", name),
            "resign": (f"SELECT {le}le_resign($1::text, identity => $2::text)", name, me),
            "expel": (f"{expel} AND name = {led}", name, me, *seats),
        }
