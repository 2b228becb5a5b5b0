"""Samples that wait, as state: what a journal that goes on from a snapshot must know of them.

Each was accepted before the snapshot and is served after it, and what it draws changes the state. Their peers are gone
when they are made again: once all has been repeated they are forgotten. Knows no disk.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd.chunks import ChunkStore
from replayd.draws import Draws, Pick
from replayd.pending import PendingSample
from replayd.service import Service
from replayd.state import State
from replayd.table import Table

_NUMBERS = ("id", "n", "min_n", "since", "deadline")


def dump_samples(service: Service) -> list[State]:
    """All that wait, in the order in which they came. Peers are tuples of frames."""
    waiting = sorted((n, request, table) for _, n, request, table in service._deadlines if not request.answered)
    return [_dump(request, table) for _, request, table in waiting]


def load_waiting(samples: Iterable[State], table: Table, chunks: ChunkStore, there: NDArray[np.bool_]) -> None:
    """Those of this table are parked again, without their deadlines; what is kept for them is held."""
    for kept in samples:
        if kept["table"] == table.name:
            peer = tuple(bytes.fromhex(frame) for frame in kept["peer"])
            request = PendingSample(peer, *(kept[name] for name in _NUMBERS))
            request.kept = _draws(kept["kept"], table, chunks, there)
            table.pending_samples.append(request)


def wait_again(service: Service, samples: Iterable[State], later_s: float) -> None:
    """The requests that `load_waiting` has parked have deadlines again."""
    queues = {name: iter(table.pending_samples) for name, table in service.tables.items()}
    for kept in samples:
        if kept["table"] in queues:
            request = next(queues[kept["table"]])
            request.since += later_s
            request.deadline += later_s
            service._accounts.open_sample(request.peer)
            service._parked += 1
            entry = (request.deadline, service._parked, request, service.tables[kept["table"]])
            heapq.heappush(service._deadlines, entry)


def forget_peers(service: Service) -> None:
    """Nobody waits any more, neither for samples nor for acknowledgements, and nobody is answered."""
    for request, _ in service.give_up_held():
        request.answered = True
    for table in service.tables.values():
        for request in table.give_up_samples():
            request.answered = True
        for pending in table.pending_inserts:
            pending.ticket.askers.clear()
    service._accounts.clear()
    service._deadlines.clear()
    service.drain()


def _dump(request: PendingSample, table: Table) -> State:
    assert isinstance(request.peer, tuple)
    numbers: dict[str, Any] = {name: getattr(request, name) for name in _NUMBERS}
    kept = None
    if request.kept is not None:
        pick = request.kept.pick
        kept = {
            "slots": pick.slots,
            "rows": pick.rows,
            "probabilities": request.kept.probabilities,
            "table_sizes": request.kept.table_sizes,
        }
    return {"table": table.name, "peer": [frame.hex() for frame in request.peer], **numbers, "kept": kept}


def _draws(kept: State | None, table: Table, chunks: ChunkStore, there: NDArray[np.bool_]) -> Draws | None:
    """What is kept for a request, if all of it is there."""
    if kept is None:
        return None
    rows = kept["rows"]
    if not chunks.whole(rows["chunk"].astype(np.int64), rows["chunks"].astype(np.int64), there).all():
        return None
    pick = Pick(table.items, chunks, kept["slots"], rows)
    chunks.hold(pick.windows)
    return Draws(pick, kept["probabilities"], kept["table_sizes"])
