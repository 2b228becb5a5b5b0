"""Peeks: items looked at without drawing them.

Reads a table; changes and counts nothing.
"""

from __future__ import annotations

import numpy as np

from replayd.items import NOT_FOUND
from replayd.messages import Float64s, Shown, Uint64s
from replayd.table import Table


def peek(table: Table, order: str, n: int, keys: Uint64s, now: float) -> tuple[Shown, Float64s, Uint64s]:
    """Items, their ages in seconds, and the keys that are not there.

    By key if there are `keys` (u64[k]), else the first n `oldest`, `newest`, or of `highest` or `lowest` priority
    (which looks at every item; ties in any order). As many, from the first on, as one reply takes.
    """
    items = table.items
    missing = keys[:0]
    if len(keys):
        slots = items.find(keys)
        missing, slots = keys[slots == NOT_FOUND], slots[slots != NOT_FOUND]
    elif order in ("oldest", "newest"):
        slots = items.oldest(n) if order == "oldest" else items.newest(n)
    else:
        live = items.in_order()
        rank = items.priority[live] if order == "lowest" else -items.priority[live]
        best = np.argpartition(rank, n)[:n] if n < len(live) else np.arange(len(live))
        slots = live[best[np.argsort(rank[best], kind="stable")]]
    shown = table.show(slots)
    return shown, now - items.inserted_at[slots[: len(shown.keys)]], missing
