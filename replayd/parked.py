"""Parked inserts as state: what of them is kept in a snapshot, and made again from one.

Their writers were told that the messages are accepted, so they must not be lost. Who asked is not kept: with a new
connection they ask again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from replayd.messages import Int64s
from replayd.pending import PendingInsert
from replayd.state import Later, State
from replayd.streams import Ticket

_COLUMNS = ("keys", "priority", "chunk", "chunks", "offset", "length", "template")
"""What there is of each item in a PendingInsert."""

Whole = Callable[[Int64s, Int64s], NDArray[np.bool_]]
"""Of windows, by first chunk and number of chunks: whether all their chunks are there."""


def dump_parked(parked: Iterable[PendingInsert]) -> Later:
    """Inserts that wait, without what has been applied of them."""
    # Nothing but `applied` changes of one that is parked.
    kept = [(pending, pending.applied) for pending in parked]
    return Later(lambda: _dump(kept))


def load_parked(
    state: State, tickets: dict[tuple[int, int], Ticket], whole: Whole, later_s: float
) -> Iterator[tuple[PendingInsert, int]]:
    """What was dumped, as far as it is whole, and how many items of each are not.

    `tickets`: those that streams remember, by stream and number; the others are made again.
    """
    own = [
        tickets.get((stream, seq)) or Ticket(first_key, items, nbytes, 0, [], seq, None)
        for stream, seq, first_key, items, nbytes in state["tickets"].tolist()
    ]
    is_whole = whole(state["chunk"], state["chunks"])
    for n, (start, stop) in enumerate(pairwise([0, *np.cumsum(state["counts"]).tolist()])):
        mine = start + np.flatnonzero(is_whole[start:stop])
        pending = PendingInsert(
            ticket=own[int(state["ticket_of"][n])],
            **{name: state[name][mine] for name in _COLUMNS},
            since=float(state["since"][n]) + later_s,
            at_max=bool(state["at_max"][n]),
        )
        yield pending, stop - start - len(mine)


def _dump(kept: list[tuple[PendingInsert, int]]) -> State:
    tickets: dict[int, int] = {}
    ticket_of = [tickets.setdefault(id(pending.ticket), len(tickets)) for pending, _ in kept]
    distinct = {id(pending.ticket): pending.ticket for pending, _ in kept}.values()
    numbers = [(-1 if t.stream is None else t.stream.uid, t.seq, t.first_key, t.items, t.nbytes) for t in distinct]
    columns = {
        name: np.concatenate([np.zeros(0, dtype), *(getattr(pending, name)[applied:] for pending, applied in kept)])
        for name, dtype in zip(_COLUMNS, ("u8", "f8", *5 * ("i8",)), strict=True)
    }
    return {
        **columns,
        "tickets": np.array(numbers, np.int64).reshape(-1, 5),
        "ticket_of": np.array(ticket_of, np.int64),
        "counts": np.array([len(pending.keys) - applied for pending, applied in kept], np.int64),
        "since": np.array([pending.since for pending, _ in kept], np.float64),
        "at_max": np.array([pending.at_max for pending, _ in kept], np.bool_),
    }
