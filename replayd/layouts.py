"""The blob records of stored chunks: for each chunk one record a column, 8 bytes, kept as numbers.

Owns the records, in one array for each number of columns, so that those of a whole batch are put and taken at once. Who
has which is the chunk store's to remember. Never looks into a record.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd.messages import Int64s, Uint64s
from replayd.slots import Slots, all_true, grown

Widths = NDArray[np.integer[Any]]
"""Columns of each chunk."""


class Layouts:
    """Records by place: `put` gives the places, which with the chunks' widths (their columns) find them again."""

    def __init__(self) -> None:
        self._shelves: dict[int, _Shelf] = {}

    def put(self, records: Uint64s, widths: Widths) -> Int64s:
        """Store the records of n chunks, one behind the other; the place of each chunk's."""
        width = int(widths[0])
        if len(widths) == 1 or all_true(widths == width):
            return self._shelf(width).put(records.reshape(-1, width))
        places = np.empty(len(widths), np.int64)
        for width, mine, spots in _by_width(widths):
            places[mine] = self._shelf(width).put(records[spots])
        return places

    def take(self, places: NDArray[np.int32], widths: Widths) -> Uint64s:
        """The records of these chunks, one behind the other."""
        if len(places) == 0:
            return np.zeros(0, np.uint64)
        width = int(widths[0])
        if len(widths) == 1 or all_true(widths == width):
            return self._shelves[width].records.take(places, axis=0).reshape(-1)
        records = np.empty(int(widths.sum()), np.uint64)
        for width, mine, spots in _by_width(widths):
            records[spots] = self._shelves[width].records[places[mine]]
        return records

    def remove(self, places: NDArray[np.int32], widths: Widths) -> None:
        """Forget the records at these places, which are distinct."""
        width = int(widths[0])
        if len(widths) == 1 or all_true(widths == width):
            self._shelves[width].slots.give_back(places.astype(np.int64))
            return
        for width, mine, _ in _by_width(widths):
            self._shelves[width].slots.give_back(places[mine].astype(np.int64))

    def validate(self, places: Int64s, widths: Widths) -> None:
        """These are all places in use."""
        for width, shelf in self._shelves.items():
            shelf.slots.validate(places[widths == width])

    def _shelf(self, width: int) -> _Shelf:
        shelf = self._shelves.get(width)
        if shelf is None:
            shelf = self._shelves[width] = _Shelf(width)
        return shelf


class _Shelf:
    """The records of all chunks of one width, a row each."""

    __slots__ = ("records", "slots")

    def __init__(self, width: int) -> None:
        self.slots = Slots()
        self.records = np.zeros((self.slots.capacity, width), np.uint64)

    def put(self, records: Uint64s) -> Int64s:
        places = self.slots.take(len(records))
        self.records = grown(self.records, self.slots.capacity)
        self.records[places] = records
        return places


def _by_width(widths: Widths) -> list[tuple[int, Int64s, Int64s]]:
    """For each width: the chunks that have it, and where their records lie, [chunks, width]."""
    starts = np.cumsum(widths) - widths
    groups = []
    for width in np.unique(widths).tolist():
        mine = np.flatnonzero(widths == width)
        groups.append((width, mine, starts[mine][:, None] + np.arange(width)))
    return groups
