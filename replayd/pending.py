"""Requests that wait at a table, and what becomes of them when it is pumped.

Words between the service, which makes the first and reads the second, and the table, which owns the queues.
"""

from __future__ import annotations

from dataclasses import dataclass

from replayd.draws import Draws
from replayd.messages import Float64s, Int64s, Peer, Sampled, Uint64s
from replayd.streams import Ticket


@dataclass(slots=True, eq=False)
class PendingInsert:
    """Items of one message for this table, waiting for the limiter; the first `applied` ones are in."""

    ticket: Ticket
    keys: Uint64s
    priority: Float64s
    chunk: Int64s
    """Slot of each window's first chunk."""
    chunks: Int64s
    offset: Int64s
    length: Int64s
    template: Int64s
    since: float
    at_max: bool = False
    """Some priorities are NaN, which stands for the largest there is when the item enters."""
    applied: int = 0

    def __len__(self) -> int:
        return len(self.keys) - self.applied

    def part(self, which: Int64s) -> PendingInsert:
        """The items at these positions; none has been applied."""
        return PendingInsert(
            self.ticket,
            self.keys[which],
            self.priority[which],
            self.chunk[which],
            self.chunks[which],
            self.offset[which],
            self.length[which],
            self.template[which],
            self.since,
            self.at_max,
        )


@dataclass(slots=True, eq=False)
class PendingSample:
    """A sample request waiting for the limiter."""

    peer: Peer
    id: int
    n: int
    min_n: int
    since: float
    deadline: float
    kept: Draws | None = None
    """Draws that were made for it before items were too few for the rest; what they show is held."""
    answered: bool = False

    @property
    def drawn(self) -> int:
        """Draws that are kept for it."""
        return 0 if self.kept is None else len(self.kept)


@dataclass(slots=True)
class Applied:
    """Outcome: so many items of this message are now in the table."""

    ticket: Ticket
    items: int


@dataclass(slots=True)
class Drawn:
    """Outcome: a sample request is served."""

    request: PendingSample
    reply: Sampled


Outcome = Applied | Drawn


@dataclass(slots=True)
class Stopwatch:
    """Seconds during which something was the case."""

    seconds: float = 0.0
    since: float | None = None

    def runs(self, running: bool, now: float) -> None:
        if self.since is not None and not running:
            self.seconds += now - self.since
            self.since = None
        elif self.since is None and running:
            self.since = now

    def total(self, now: float) -> float:
        return self.seconds + (0.0 if self.since is None else now - self.since)
