"""The proof of a table: each count again, from the items and the parked requests.

Looks into everything a table has, and changes nothing. Tests ask for it after every step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from replayd.capacity import EVICT
from replayd.messages import Int64s


def held_chunks(table: Any) -> Int64s:
    """One entry for each holding of a chunk by an item, a parked insert or a draw that is kept."""
    held = [table._windows(table.items.in_order())]
    held += [table._chunks.windows(p.chunk[p.applied :], p.chunks[p.applied :]) for p in table.pending_inserts]
    held += [request.kept.pick.windows for request in table.pending_samples if request.kept]
    return np.concatenate(held)


def held_templates(table: Any) -> Int64s:
    """One entry for each holding of a template, by the same holders."""
    held = [table.items.template[table.items.in_order()].astype(np.int64)]
    held += [p.template[p.applied :] for p in table.pending_inserts]
    kept = [request.kept for request in table.pending_samples if request.kept]
    held += [draws.pick.rows["template"].astype(np.int64) for draws in kept]
    return np.concatenate(held)


def shown_chunks(table: Any) -> Int64s:
    """One entry for each chunk that an item shows."""
    shown: Int64s = table._windows(table.items.in_order())
    return shown


def prove(table: Any) -> None:
    """Assertion errors tell which count is not what follows from the rest. `table` is a Table, which calls this."""
    table.items.validate()
    live = table.items.in_order()
    priorities = table.items.priority[live]
    table.sampler.validate(live, priorities)
    table.remover.validate(live, priorities)
    assert table.size <= table.max_size, f"{table.size} items in a table of {table.max_size}"
    capacity = table.capacity
    if capacity.max_bytes is not None and capacity.when_full == EVICT:
        assert capacity.nbytes <= capacity.max_bytes, f"{capacity.nbytes} bytes in a table of {capacity.max_bytes}"
    assert table.limiter.size == table.size, f"limiter counts {table.limiter.size} items, there are {table.size}"
    assert table.pending_items == sum(len(p) for p in table.pending_inserts), "pending items"
    assert table.pending_bytes == sum(p.ticket.nbytes for p in table.pending_inserts), "pending bytes"
    assert all(len(p) for p in table.pending_inserts), "an insert is parked that has nothing left to do"
    table._room.validate()
    table.showing.validate(table._windows(live))
    assert table.max_priority == (float(priorities.max()) if len(live) else None), "the largest priority is wrong"
    if table.pending_inserts and "insert" not in table.paused:
        assert not table.limiter.can_insert(1) or capacity.keeping_out(table.pending_inserts), (
            "an insert waits that may pass"
        )
    if table.pending_samples and "sample" not in table.paused:
        head = table.pending_samples[0]
        assert table.grantable(head.n - head.drawn) < head.min_n - head.drawn, "a sample waits that may pass"
    for i, request in enumerate(table.pending_samples):
        assert request.drawn < (request.min_n if i == 0 else 1), "draws are kept that should be on their way"
