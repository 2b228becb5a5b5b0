"""The board, where the loop puts what other threads may see of it, once a second.

A bulletin is never changed after it was published, so whoever reads one needs no lock and the loop waits for nobody.
Owns the history of the last quarter of an hour. Knows neither who reads nor how; the clock is handed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

INTERVAL_S = 1.0
"""Between two bulletins."""

HISTORY = 900
"""Points that are remembered: a quarter of an hour. One is some 100 bytes a table."""

STALE_S = 10.0
"""One that is older means that the loop is stuck: no turn of it should take a tenth of that."""
PATIENCE_S = 300.0
"""The longest that loading or saving may show no step, before nobody is asked for patience any more: far longer than
one takes on a disk that is slow, while one that hangs takes for ever."""

STOPPING = "stopping"
"""The state of a daemon that was told to end."""


@dataclass(frozen=True, slots=True)
class TablePoint:
    """One table at one moment, for a graph."""

    size: int
    inserts: int
    samples: int
    cursor: float
    insert_waited_s: float
    """How long the oldest request of each side has waited; 0 if none does."""
    sample_waited_s: float


@dataclass(frozen=True, slots=True)
class Point:
    """All tables at one moment, in the order of the report."""

    at_s: float
    """Uptime of the server."""
    resident_bytes: int
    tables: tuple[TablePoint, ...]


@dataclass(frozen=True, slots=True)
class Bulletin:
    """How the daemon was at one moment, for whoever wants to know."""

    taken_at: float
    """By the monotonic clock."""
    report: Mapping[str, Any]
    """What `info` says (protocol.md §11)."""
    history: tuple[Point, ...]
    """The last HISTORY points, this one included."""


class Board:
    """Where the loop puts its newest bulletin. Written by one thread, read by any."""

    def __init__(self) -> None:
        self.newest: Bulletin | None = None
        """None: there is nothing to tell of yet."""
        self.due = 0.0
        """When the next one is to be published."""
        self.state = "starting"
        """Why requests are not served; empty: they are."""
        self.told_at: float | None = None
        """When the loop last said so, None: it has not gone round yet."""
        self.advanced_at: float | None = None
        """When what it waits for last showed a step."""
        self._step: object = None

    def tell(self, state: str, step: object, now: float) -> None:
        """The loop goes round. `step`: where what it waits for is, which is another one when that gets on."""
        if self.advanced_at is None or step != self._step or not state:
            self.advanced_at = now
        self.state, self._step, self.told_at = state, step, now

    def publish(self, report: Mapping[str, Any], now: float) -> None:
        """Show this report, which nobody changes any more."""
        before = () if self.newest is None else self.newest.history
        self.newest = Bulletin(now, report, (*before[1 - HISTORY :], _point(report)))
        self.due = now + INTERVAL_S


def _point(report: Mapping[str, Any]) -> Point:
    return Point(
        report["uptime_s"], report["memory"]["resident_bytes"], tuple(_table_point(table) for table in report["tables"])
    )


def _table_point(table: Mapping[str, Any]) -> TablePoint:
    limiter = table["limiter"]
    waited = {waiting["side"]: waiting["waited_s"] for waiting in table["waiting"]}
    return TablePoint(
        table["size"],
        limiter["inserts"],
        limiter["samples"],
        limiter["cursor"],
        waited.get("insert", 0.0),
        waited.get("sample", 0.0),
    )
