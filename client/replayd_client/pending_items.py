"""Items that a writer has created and not sent, and how they become the arrays of an insert message.

Pure; knows nothing of chunks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replayd_client.item_handle import ItemHandle
from replayd_client.messages import ItemBatch

Ints = NDArray[np.int64]


class PendingItem(NamedTuple):
    """An item: where it lies in its writer's rows, and how it is shown."""

    handle: ItemHandle
    priority: float
    first_row: int
    last_row: int
    template: bytes
    created_at: float


class PendingItems(list[PendingItem]):
    """Items in the order of their creation."""

    __slots__ = ()

    def take(self, count: int) -> PendingItems:
        """The first `count` items; they are no longer here."""
        taken = PendingItems(self[:count])
        del self[:count]
        return taken

    def spans(self, first_rows: list[int], count: int) -> tuple[Ints, Ints]:
        """Which chunk, of those that begin at `first_rows`, the first row of each of the first `count` items lies in,
        and which its last."""
        first_row = np.array([item.first_row for item in self[:count]])
        last_row = np.array([item.last_row for item in self[:count]])
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
        for place, item in enumerate(self[:count]):
            if item.template not in seen:
                seen.add(item.template)
                nbytes += len(item.template)
                if nbytes > max_template_bytes and place:
                    return place
        return count

    def batch(self, low: Ints, high: Ints, base_number: int, first_rows: list[int]) -> ItemBatch:
        """All items as a message has them, with the spans that `spans` gave; chunk 0 there has `base_number`."""
        handles, priorities, first_rows_shown, last_rows_shown, shown_by, _ = zip(*self, strict=True)
        first_row, last_row = np.array(first_rows_shown), np.array(last_rows_shown)
        start = int(low.min())
        starts = np.array(first_rows[start : int(low.max()) + 1])
        tables, table_of = _numbered([handle.table for handle in handles])
        templates, template_of = _numbered(shown_by)
        return ItemBatch(
            tables=tables,
            chunk=(low + base_number).astype("<u8"),
            length=(last_row - first_row + 1).astype("<u4"),
            priority=np.array(priorities, "<f8"),
            table_of=table_of,
            chunks=(high - low + 1).astype("<u4"),
            offset=(first_row - starts[low - start]).astype("<u4"),
            templates=templates,
            template_of=template_of,
        )

    def replace_template(self, old: bytes, new: bytes) -> None:
        self[:] = [item._replace(template=new) if item.template == old else item for item in self]


def _numbered(values: Sequence[Any]) -> tuple[list[Any], NDArray[Any] | None]:
    """The distinct values in order of appearance, and the number of each one's value, u16[n]; None if all are one."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    if len(numbers) == 1:
        return list(numbers), None
    return list(numbers), np.array([numbers[value] for value in values], "<u2")
