"""Items that a writer has created and not sent, and how they become the arrays of an insert message.

Pure; knows nothing of chunks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replayd_client.array_messages import ItemBatch
from replayd_client.item_handle import ItemHandle

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

    def head(self, count: int) -> ItemColumns:
        """The first `count` items, by column."""
        handles, priorities, first_rows, last_rows, templates, _ = zip(*self[:count], strict=True)
        return ItemColumns(handles, priorities, np.array(first_rows), np.array(last_rows), templates)

    def replace_template(self, old: bytes, new: bytes) -> None:
        self[:] = [item._replace(template=new) if item.template == old else item for item in self]


@dataclass(frozen=True, slots=True, eq=False)
class ItemColumns:
    """Items as they may leave together, by column: m of each."""

    handles: tuple[ItemHandle, ...]
    priorities: tuple[float, ...]
    first_row: Ints
    last_row: Ints
    templates: tuple[bytes, ...]

    def __len__(self) -> int:
        return len(self.handles)

    def head(self, count: int) -> ItemColumns:
        """The first `count` of them."""
        if count == len(self):
            return self
        part = slice(count)
        return ItemColumns(
            self.handles[part], self.priorities[part], self.first_row[part], self.last_row[part], self.templates[part]
        )

    def spans(self, first_rows: list[int]) -> tuple[Ints, Ints]:
        """Which chunk, of those that begin at `first_rows`, the first row of each item lies in, and which its last."""
        # Most chunks lie before the oldest item; making an array of all would cost more than the search.
        start = bisect_right(first_rows, int(self.first_row.min())) - 1
        starts = np.array(first_rows[start:])
        low = np.searchsorted(starts, self.first_row, side="right") - 1 + start
        return low, np.searchsorted(starts, self.last_row, side="right") - 1 + start

    def fitting(self, low: Ints, high: Ints, max_references: int, max_template_bytes: int) -> int:
        """How many of these items go in one message, by the chunks that they span and the templates they need; at
        least one."""
        count = max(int(np.searchsorted(np.cumsum(high - low + 1), max_references, side="right")), 1)
        distinct = dict.fromkeys(self.templates[:count])
        if sum(map(len, distinct)) <= max_template_bytes:
            return count
        nbytes = 0
        for template in distinct:
            nbytes += len(template)
            place = self.templates.index(template)
            if nbytes > max_template_bytes and place:
                return place
        return count

    def batch(self, low: Ints, high: Ints, base_number: int, first_rows: list[int]) -> ItemBatch:
        """The items as a message has them, with the spans that `spans` gave; chunk 0 there has `base_number`."""
        start = int(low.min())
        starts = np.array(first_rows[start : int(low.max()) + 1])
        tables, table_of = _numbered([handle.table for handle in self.handles])
        templates, template_of = _numbered(self.templates)
        return ItemBatch(
            tables=tables,
            chunk=(low + base_number).astype("<u8"),
            length=(self.last_row - self.first_row + 1).astype("<u4"),
            priority=np.array(self.priorities, "<f8"),
            table_of=table_of,
            chunks=(high - low + 1).astype("<u4"),
            offset=(self.first_row - starts[low - start]).astype("<u4"),
            templates=templates,
            template_of=template_of,
        )


def _numbered(values: Sequence[Any]) -> tuple[list[Any], NDArray[Any] | None]:
    """The distinct values in order of appearance, and the number of each one's value, u16[n]; None if all are one."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    if len(numbers) == 1:
        return list(numbers), None
    return list(numbers), np.array([numbers[value] for value in values], "<u2")
