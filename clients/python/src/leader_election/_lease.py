"""What leading by a lease does differently: its timers and statements."""

from typing import Any

from ._options import Options, Statement


class Lease:
    """A way to lead: each statement may use another connection."""

    round = wait = 0.0

    def __init__(self, ttl: float) -> None:
        self.interval, self.validity, self.between = ttl / 3, ttl * 2 / 3, min(1.0, ttl / 3)
        self.limit, self.patience = min(5.0, ttl / 3), min(5.0, ttl / 5)
        self.retry = min(1.0, ttl / 10)

    def statements(self, o: Options, name: str, token: Any) -> dict[str, Statement]:
        """Return each statement, with its parameters."""
        le, terms = o.prefix, "$2::interval, identity => $3::text"
        bid = f"SELECT {le}le_lease($1::text, {terms}, token => $4::bigint)"
        if o.seats:
            names = f"{le}le_seats($1::text, $4::int)"
            bid = f"CALL {le}le_campaign({names}, timeout => '0', ttl => {terms})"
        return {
            "bid": (bid, name, f"{o.ttl} s", o.name, o.seats or token),
            "confirm": (f"SELECT {le}le_renew($1::text, $2::bigint)", name, token),
            "resign": (f"SELECT {le}le_resign($1::text, $2::bigint)", name, token),
        }
