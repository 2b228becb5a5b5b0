"""Samples that wait, as state: what a journal that goes on from a snapshot must know of them.

Each was accepted before the snapshot and is served after it, and what it draws changes the state. Their peers are gone
when they are made again: once all has been repeated they are forgotten. Knows no disk.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd.chunks import ChunkStore
from replayd.draws import Draws, Pick
from replayd.messages import Peer
from replayd.pending import PendingSample
from replayd.service import Service
from replayd.state import State
from replayd.table import Table

_NUMBERS = ("id", "n", "min_n", "since", "deadline")


def dump_samples(service: Service) -> State:
    """All that wait, each table's in their order; who waits until its peer has read; what peers have not read.

    Peers are tuples of frames.
    """
    order_of = service._deadlines.orders()
    quotas = service._quotas
    here = [(request, table) for table in service.tables.values() for request in table.pending_samples]
    return {
        "waiting": [_dump(request, table, order_of) for request, table in here],
        "ready": [_dump(request, table, order_of) for request, table in quotas._ready],
        "held": [_dump(request, table, order_of) for held in quotas._held.values() for request, table in held],
        "unread": [[_hex(peer), quota.nbytes, quota.replies] for peer, quota in quotas._quotas.items()],
    }


def load_waiting(samples: State | None, table: Table, chunks: ChunkStore, there: NDArray[np.bool_]) -> None:
    """Those of this table are parked again, without their deadlines; what is kept for them is held."""
    for kept in samples["waiting"] if samples else ():
        if kept["table"] == table.name:
            request = _request(kept)
            request.kept = _draws(kept["kept"], table, chunks, there)
            table.pending_samples.append(request)


def wait_again(service: Service, samples: State | None, later_s: float) -> None:
    """The requests that `load_waiting` has parked have deadlines again, and the others wait for their peers."""
    if samples is None:
        return
    quotas, tables = service._quotas, service.tables
    for frames, nbytes, replies in samples["unread"]:
        quota = quotas.of(_peer(frames))
        quota.nbytes, quota.replies = nbytes, replies
    queues = {name: iter(table.pending_samples) for name, table in tables.items()}
    for where in ("waiting", "ready", "held"):
        for kept in samples[where]:
            if kept["table"] not in tables:
                continue
            table = tables[kept["table"]]
            request = next(queues[table.name]) if where == "waiting" else _request(kept)
            request.since += later_s
            request.deadline += later_s
            request.quota = quotas.of(request.peer)
            service._accounts.open_sample(request.peer)
            if where != "waiting":
                request.is_held = True
                quotas.hold(request.peer, (request, table)) if where == "held" else quotas._ready.append(
                    (request, table)
                )
            service._deadlines.add_as(kept["order"], request, table)


def forget_peers(service: Service) -> None:
    """Nobody waits any more, neither for samples nor for acknowledgements, and nobody is answered."""
    service.give_up_samples(None)
    for table in service.tables.values():
        for pending in table.pending_inserts:
            pending.ticket.askers.clear()
    service._accounts.clear()
    service._deadlines.clear()
    service._quotas.clear()
    service.drain(are_read=False)


def _dump(request: PendingSample, table: Table, order_of: dict[int, int]) -> State:
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
    order = order_of[id(request)]
    return {"table": table.name, "peer": _hex(request.peer), "order": order, **numbers, "kept": kept}


def _request(kept: State) -> PendingSample:
    return PendingSample(_peer(kept["peer"]), *(kept[name] for name in _NUMBERS))


def _hex(peer: Peer) -> list[str]:
    assert isinstance(peer, tuple)
    return [frame.hex() for frame in peer]


def _peer(frames: list[str]) -> Peer:
    return tuple(bytes.fromhex(frame) for frame in frames)


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
