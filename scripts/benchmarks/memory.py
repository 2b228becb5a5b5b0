"""Workload 8: what an item costs in memory beyond its payload, and whether a full table stays as large as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.contest import measured
from benchmarks.daemon import rss_bytes
from benchmarks.figures import Figure
from benchmarks.settings import Settings
from benchmarks.systems import Served, replayd, reverb

TABLE, PAYLOAD = "bench", 16
ITEMS, PEER_ITEMS, QUICK_ITEMS = 1_000_000, 200_000, 10_000
"""The peer's cost an item is the same at any number, and it is slow to fill."""
FURTHER = 3
"""Times as many go through the full table afterwards."""
BATCH = 40_000
FIRST_ITEMS = 1_000


def memory(settings: Settings) -> Iterator[Figure]:
    """What the server's memory grows by while a table fills, and while it stays full."""
    items = QUICK_ITEMS if settings.quick else ITEMS
    with replayd(settings, [f"{TABLE},max_size={items}"]) as ours:
        yield from _measured(ours, items, "insert_batch", batch=BATCH)
    items = min(items, PEER_ITEMS)
    with reverb(settings, {"name": TABLE, "max_size": items}) as theirs:
        if theirs is not None:
            yield from _measured(theirs, items, "write_steps")


def _measured(served: Served, items: int, role: str, **more: int) -> Iterator[Figure]:
    # What a server grows by at its first work, whatever that is, has no part in what an item costs.
    served.once(role, table=TABLE, payload=PAYLOAD, fill=FIRST_ITEMS, **more)
    empty = rss_bytes(served.pid)
    rss = []
    for _ in range(1 + FURTHER):
        served.once(role, table=TABLE, payload=PAYLOAD, fill=items, **more)
        rss.append(rss_bytes(served.pid))
    # Arrays that double grow after the first filling too, and whoever sizes a machine needs room for the largest.
    beyond, at_first = ((of - empty) / (items - FIRST_ITEMS) - PAYLOAD for of in (max(rss), rss[0]))
    notes: dict[str, Any] = {"in a table of": items, "after the first filling": at_first}
    yield measured("memory", f"beyond {PAYLOAD} B payload", "B/item", beyond, system=served.system, **notes)
    growth = ", ".join(f"{100 * (later / rss[0] - 1):.1f}" for later in rss[1:])
    notes = {f"% after each {items} more": growth}
    yield measured("memory", "RSS of the full table at the end", "×", rss[-1] / rss[0], system=served.system, **notes)
