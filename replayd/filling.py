"""How tables fill: what each will hold when it is full, told once its first items show how large they are.

What the configuration alone tells is another matter (`forecast`). Capacity is said in items and memory is had in bytes,
so a run that does not fit dies hours later. Reads tables, and marks how they were; the memory there is for all is
handed in.
"""

from __future__ import annotations

from collections.abc import Iterable

from replayd.capacity import Mark, ServerCapacity
from replayd.limits import held_most
from replayd.table import Table

AFTER_INSERTS = 1000
"""Items that tell how large the others will be."""
LEAST_GROWTH = AFTER_INSERTS // 4
"""Items by which a table must have grown to tell what one more adds, or a quarter of what it had if that is more."""


def full_bytes(table: Table) -> int:
    """What it will hold with max_size items like those it has, as far as its limits and the server's let it grow; 0
    without any.
    """
    limit, held = table.capacity.largest_item_bytes, table.capacity.nbytes
    wanted = _wanted_bytes(table)
    return wanted if limit is None else max(held, min(wanted, limit))


def growth_bytes(tables: Iterable[Table], server: ServerCapacity) -> int:
    """What all will hold more when they are full, as far as the server lets them grow."""
    growth = sum(full_bytes(table) - table.capacity.nbytes for table in tables)
    return growth if server.max_bytes is None else max(0, min(growth, server.max_bytes - server.nbytes))


class Forecasts:
    """Which tables have been told of.

    What later items add tells more than what the first ones hold on average: of items that overlap each writer's first
    one brings all of its chunks, and those behind it few. So a table is marked when half of AFTER_INSERTS are in.
    """

    def __init__(self) -> None:
        self._told: set[str] = set()

    def due(self, tables: Iterable[Table], memory_bytes: int, *, has_store: bool) -> list[tuple[str, str, bool]]:
        """Name, words and whether they are a warning, of each table that has taken in AFTER_INSERTS items by now.

        `memory_bytes`: the most that the process may have, 0 if that is not known.
        """
        all = list(tables)
        new = []
        for table in all:
            inserts, capacity = table.limiter.inserts, table.capacity
            if inserts >= AFTER_INSERTS:
                new += [table] if table.size and table.name not in self._told else []
            if table.size and (inserts <= AFTER_INSERTS // 2 or capacity.mark is None):
                capacity.mark = Mark(table.size, capacity.nbytes, table.limiter.deletes)
        self._told |= {table.name for table in new}
        # What the process takes beyond what tables hold must fit as well.
        fits = held_most(memory_bytes, has_store=has_store) if memory_bytes else None
        return [(table.name, *self._forecast(table, all, memory_bytes, fits)) for table in new]

    def _forecast(self, table: Table, tables: Iterable[Table], memory_bytes: int, fits: int | None) -> tuple[str, bool]:
        full, capacity = _wanted_bytes(table), table.capacity
        text = (
            f"table {table.name}: its {table.size} items hold {capacity.nbytes} bytes; with max_size {table.max_size} "
            f"it will hold about {full}"
        )
        if capacity.max_bytes is not None and full > capacity.max_bytes:
            fits = table.size + int((capacity.max_bytes - capacity.nbytes) / _added_bytes(table))
            return f"{text}, and max_bytes {capacity.max_bytes} is reached at about {fits} items ({_then(table)})", True
        # The others count as far as they are known.
        limits = ((t, _wanted_bytes(t), t.capacity.max_bytes) for t in tables)
        all = sum(full if own is None else min(full, own) for _, full, own in limits)
        server = capacity.server.max_bytes
        if server is not None and all > server:
            return f"{text}, all tables about {all}: more than the server's max_bytes {server} ({_then(table)})", True
        most = all if server is None else min(all, server)
        if fits is not None and most > fits:
            return (
                f"{text}, all tables about {most}: more than the {fits} for which there is room in {memory_bytes} "
                "bytes of memory, so it may be killed; set max_bytes (`replayd set`, --max-bytes) to that, or lower "
                "max_size",
                True,
            )
        return text, False


def _wanted_bytes(table: Table) -> int:
    """What it would hold with max_size items like those it has, whatever it may; 0 without any."""
    return table.capacity.nbytes + int(max(0, table.max_size - table.size) * _added_bytes(table))


def _added_bytes(table: Table) -> float:
    """By one item more."""
    held, mark = table.capacity.nbytes, table.capacity.mark
    if mark and table.limiter.deletes == mark.deletes:
        grown = table.size - mark.size
        if grown >= max(LEAST_GROWTH, mark.size // 4):
            return (held - mark.nbytes) / grown
    return held / table.size if table.size else 0.0


def _then(table: Table) -> str:
    return {
        "evict": "then it evicts: lower max_size, or raise max_bytes, if that is not meant",
        "block": "then inserts wait: lower max_size, or raise max_bytes",
        "reject": "then inserts are refused: lower max_size, or raise max_bytes",
    }[table.capacity.when_full]
