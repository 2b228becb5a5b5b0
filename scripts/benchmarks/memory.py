"""Workload 8: what an item costs in memory beyond its payload, and whether a full table stays as large as it is."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.contest import Settings, single
from benchmarks.daemon import rss_bytes
from benchmarks.figures import Figure
from benchmarks.systems import Served, replayd, reverb

TABLE, PAYLOAD = "bench", 16
ITEMS, PEER_ITEMS, QUICK_ITEMS = 1_000_000, 200_000, 10_000
"""The peer's cost an item is the same at any number, and it is slow to fill."""
FURTHER = 3
"""Times as many go through the full table afterwards."""


def memory(settings: Settings) -> Iterator[Figure]:
    """What the server's memory grows by while a table fills, and while it stays full."""
    items = QUICK_ITEMS if settings.quick else ITEMS
    with replayd(settings, [f"{TABLE},max_size={items}"]) as ours:
        beyond, growth = _measured(ours, items, batch=40_000)
    yield single("memory", "beyond 16 B payload", beyond, "B/item", items=items)
    yield single("memory", "growth of the full table", growth, "MB", further_inserts=FURTHER * items)
    items = min(items, PEER_ITEMS)
    with reverb(settings, {"name": TABLE, "max_size": items}) as theirs:
        if theirs is not None:
            beyond, growth = _measured(theirs, items)
            yield single("memory", "beyond 16 B payload", beyond, "B/item", system=theirs.system, items=items)
            more = FURTHER * items
            yield single("memory", "growth of the full table", growth, "MB", system=theirs.system, further_inserts=more)


def _measured(served: Served, items: int, **more: int) -> tuple[float, float]:
    """RSS in bytes an item of the full table, and in MB what it grew by when it had been full."""
    settings = {"table": TABLE, "payload": PAYLOAD, **more}
    role = "insert_batch" if "batch" in more else "write_steps"
    empty = rss_bytes(served.pid)
    served.once(role, **settings, fill=items)
    full = rss_bytes(served.pid)
    served.once(role, **settings, fill=FURTHER * items)
    return (full - empty) / items - PAYLOAD, (rss_bytes(served.pid) - full) / 1e6
