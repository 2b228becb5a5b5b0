"""Items that a writer has created and not sent, in columns: what an insert message takes, it takes as arrays.

Pure; knows nothing of chunks.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.item_handle import ItemHandle
from replayd_client.messages import ItemBatch

Ints = NDArray[np.int64]


class PendingItems:
    """Items in the order of their creation: where each lies in its writer's rows, and how it is shown."""

    __slots__ = ("created_at", "first_row", "handles", "last_row", "priorities", "templates")

    def __init__(self) -> None:
        self.handles: list[ItemHandle] = []
        self.priorities: list[float] = []
        self.first_row: list[int] = []
        self.last_row: list[int] = []
        self.templates: list[bytes] = []
        self.created_at: list[float] = []

    def __len__(self) -> int:
        return len(self.handles)

    def add(
        self, handle: ItemHandle, priority: float, first_row: int, last_row: int, template: bytes, now: float
    ) -> None:
        self.handles.append(handle)
        self.priorities.append(priority)
        self.first_row.append(first_row)
        self.last_row.append(last_row)
        self.templates.append(template)
        self.created_at.append(now)

    def take(self, count: int) -> PendingItems:
        """The first `count` items; they are no longer here."""
        taken = PendingItems()
        for name in self.__slots__:
            values = getattr(self, name)
            setattr(taken, name, values[:count])
            del values[:count]
        return taken

    def spans(self, first_rows: list[int], count: int) -> tuple[Ints, Ints]:
        """Which chunk, of those that begin at `first_rows`, the first row of each of the first `count` items lies in,
        and which its last."""
        first_row, last_row = np.array(self.first_row[:count]), np.array(self.last_row[:count])
        # Most chunks lie before the oldest item; making an array of all would cost more than the search.
        start = bisect_right(first_rows, int(first_row.min())) - 1
        starts = np.array(first_rows[start:])
        low = np.searchsorted(starts, first_row, side="right") - 1 + start
        return low, np.searchsorted(starts, last_row, side="right") - 1 + start

    def fitting(self, low: Ints, high: Ints, max_references: int, max_template_bytes: int) -> int:
        """How many of these items go in one message, by the chunks that they span and the templates they need; at
        least one."""
        count = max(int(np.searchsorted(np.cumsum(high - low + 1), max_references, side="right")), 1)
        seen: set[bytes] = set()
        nbytes = 0
        for place, template in enumerate(self.templates[:count]):
            if template not in seen:
                seen.add(template)
                nbytes += len(template)
                if nbytes > max_template_bytes and place:
                    return place
        return count

    def batch(self, low: Ints, high: Ints, base_number: int, first_rows: list[int]) -> ItemBatch:
        """All items as a message has them, with the spans that `spans` gave; chunk 0 there has `base_number`."""
        first_row, last_row = np.array(self.first_row), np.array(self.last_row)
        start = int(low.min())
        starts = np.array(first_rows[start : int(low.max()) + 1])
        tables, table_of = _numbered([handle.table for handle in self.handles])
        templates, template_of = _numbered(self.templates)
        return ItemBatch(
            tables=tables,
            chunk=(low + base_number).astype("<u8"),
            length=(last_row - first_row + 1).astype("<u4"),
            priority=np.array(self.priorities, "<f8"),
            table_of=table_of,
            chunks=(high - low + 1).astype("<u4"),
            offset=(first_row - starts[low - start]).astype("<u4"),
            templates=templates,
            template_of=template_of,
        )

    def replace_template(self, old: bytes, new: bytes) -> None:
        self.templates = [new if template == old else template for template in self.templates]


def _numbered(values: list[Any]) -> tuple[list[Any], NDArray[Any] | None]:
    """The distinct values in order of appearance, and the number of each one's value, u16[n]; None if all are one."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    if len(numbers) == 1:
        return list(numbers), None
    return list(numbers), np.array([numbers[value] for value in values], "<u2")
