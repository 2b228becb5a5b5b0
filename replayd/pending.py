"""Requests that wait at a table, and what becomes of them when it is pumped.

Words between the service, which makes the first and reads the second, and the table, which owns the queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from replayd.draws import Draws
from replayd.messages import Float64s, Int64s, Peer, Sampled, Uint64s
from replayd.quotas import Quota
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

    def part(self, which: Int64s | slice, ticket: Ticket) -> PendingInsert:
        """The items at these positions, which are those of a ticket; none has been applied."""
        return PendingInsert(
            ticket,
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


ENTER_TOGETHER = 4096
"""Most items of several messages that enter a table with one call for all."""


def next_to_enter(parked: Iterable[PendingInsert], room: int) -> list[PendingInsert]:
    """The parked inserts that enter next: the first, and of those behind it as many as there is room for.

    What the table has afterwards is the same as if they had entered one by one.
    """
    group: list[PendingInsert] = []
    for pending in parked:
        room -= len(pending)
        # What takes the largest priority there is has to know who is there.
        if group and (room < 0 or pending.at_max or group[0].at_max):
            break
        group.append(pending)
    return group


def together(group: Sequence[PendingInsert]) -> PendingInsert:
    """What is left of several, one behind the other, as one; its ticket is the first one's."""
    if len(group) == 1:
        return group[0]
    rest = [(pending, slice(pending.applied, None)) for pending in group]
    first = group[0]
    return PendingInsert(
        first.ticket,
        np.concatenate([pending.keys[left] for pending, left in rest]),
        np.concatenate([pending.priority[left] for pending, left in rest]),
        np.concatenate([pending.chunk[left] for pending, left in rest]),
        np.concatenate([pending.chunks[left] for pending, left in rest]),
        np.concatenate([pending.offset[left] for pending, left in rest]),
        np.concatenate([pending.length[left] for pending, left in rest]),
        np.concatenate([pending.template[left] for pending, left in rest]),
        first.since,
    )


def entered(group: Sequence[PendingInsert], n: int) -> list[Applied]:
    """The first n items of a group are in the table: how many of each that is."""
    outcomes = []
    for pending in group:
        count = min(n, len(pending))
        if count == 0:
            break
        pending.applied += count
        n -= count
        outcomes.append(Applied(pending.ticket, count))
    return outcomes


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
    quota: Quota = field(default_factory=Quota)
    """What its peer has unread."""
    is_held: bool = False
    """It is in no queue until its peer has read."""

    @property
    def must_wait(self) -> bool:
        """Whether its peer must read first; what has been begun is finished."""
        return self.quota.is_full and self.kept is None

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


@dataclass(slots=True)
class HeldBack:
    """Outcome: a sample request left the queue of this table, since its peer must read first."""

    request: PendingSample
    table: str


Outcome = Applied | Drawn | HeldBack
