"""The selectors that go by order of insertion, and the runs that they and the heaps are made of.

A run is a sequence of entries in the order in which they are to be drawn. Removal does not touch it: an entry is alive
while it carries the stamp that its slot has now, so a slot that was removed, used again or moved elsewhere leaves a
dead entry behind. Whoever reads dead entries clears them away, so each is read a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd.selectors.base import MIN_SLOTS, NO_ROOM, Configured, Draws, Floats, Slots, grown, nothing
from replayd.slots import all_true
from replayd.state import State

ABSENT = -1  # The stamp of a slot that is not in the selector; entries carry stamps ≥ 0.
MIN_WINDOW = 16
BLOCK = 1 << 16
"""Entries that are cleared at once: what that takes in between fits into the cache, and is no memory to speak of."""


class Run:
    """Entries head … tail − 1 of parallel columns: slots, stamps and, for heaps, keys."""

    __slots__ = ("columns", "head", "tail")

    def __init__(self, *columns: NDArray[Any], head: int = 0, tail: int | None = None) -> None:
        self.columns = columns
        self.head = head
        self.tail = columns[0].size if tail is None else tail

    def __len__(self) -> int:
        return self.tail - self.head

    @property
    def slots(self) -> Slots:
        """The slot of each entry."""
        return self.columns[0]

    @property
    def stamps(self) -> Slots:
        """The stamp of each entry; it is alive while its slot has this one."""
        return self.columns[1]

    @property
    def keys(self) -> Floats:
        """The key of each entry, by which a heap orders them."""
        return self.columns[2]

    def alive(self, stamp_of: Slots, head: int, tail: int) -> Slots:
        """Indices of the live entries from head to tail."""
        return np.flatnonzero(stamp_of[self.slots[head:tail]] == self.stamps[head:tail]) + head

    def front(self, stamp_of: Slots, wanted: int, stop: int) -> Slots:
        """Indices of the first `wanted` live entries before `stop` (fewer if there are no more).

        If most of what had to be read was dead, the live entries are moved up to where the reading ended and the head
        behind the dead: no entry is read often in vain, wherever in the run the dead ones lie. The sequence of live
        entries stays as it is.
        """
        width = wanted + MIN_WINDOW
        while True:
            end = min(self.head + width, stop)
            live = self.alive(stamp_of, self.head, end)
            if live.size >= wanted or end == stop:
                break
            width *= 4
        if live.size >= wanted:
            live = live[:wanted]
            end = int(live[-1]) + 1
            self.head = int(live[0])
        if end - self.head > 2 * live.size + MIN_WINDOW:
            start = end - live.size
            for column in self.columns:
                column[start:end] = column[live]
            self.head = start
            live = np.arange(start, end)
        return live


def draw_in_order(front: Callable[[int], Slots], n: int, room: Slots | None) -> Draws:
    """Draws for a selector that always takes its first slot; `front(m)` returns the first m in order."""
    if n == 0:
        return nothing()
    # Where items have room for one draw, as for a remover they have, all n are needed.
    slots = front(1 if room is None else n)
    if slots.size == 0:
        return nothing()
    if room is None or room[slots[0]] >= n:
        return slots[:1].repeat(n), np.ones(n)
    takes = np.minimum(room[slots], n)  # Rooms may be huge; held to n their sum cannot overflow.
    assert (takes >= 1).all(), NO_ROOM
    ends = takes.cumsum()
    count = int(ends.searchsorted(n)) + 1
    drawn = slots[:count].repeat(takes[:count])[:n]
    return drawn, np.ones(drawn.size)


class _InsertionOrder(Configured):
    """What Fifo and Lifo share: one run, in which updates do not move anything."""

    __slots__ = ("_count", "_log", "_next_stamp", "_stamp_of")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._count = 0
        self._next_stamp = 0
        self._stamp_of: Slots = np.empty(0, np.int64)
        self._log = Run(np.empty(0, np.int64), np.empty(0, np.int64))

    def __len__(self) -> int:
        return self._count

    def add(self, slots: Slots, priorities: Floats) -> None:
        if slots.size == 0:
            return
        stamps = np.arange(self._next_stamp, self._next_stamp + slots.size)
        self._stamp_of = grown(self._stamp_of, int(slots.max()) + 1, ABSENT)
        assert all_true(self._stamp_of[slots] == ABSENT), "a slot was added twice"
        self._stamp_of[slots] = stamps
        self._push(slots, stamps)
        self._next_stamp += slots.size
        self._count += slots.size

    def remove(self, slots: Slots) -> None:
        assert all_true(self._stamp_of[slots] != ABSENT), "an absent slot was removed"
        self._stamp_of[slots] = ABSENT
        self._count -= slots.size

    def update(self, slots: Slots, priorities: Floats) -> None:
        assert all_true(self._stamp_of[slots] != ABSENT), "an absent slot was updated"

    def draw(self, n: int, rng: np.random.Generator, room: Slots | None = None) -> Draws:
        if room is not None and n > 1:
            slots = self._front(n)
            if slots.size and all_true(room[slots] == 1):
                return slots, np.ones(slots.size)
        return draw_in_order(self._front, n, room)

    def dump(self) -> State:
        return {}

    def load(self, state: State, slots: Slots, priorities: Floats) -> None:
        self.add(slots, priorities)

    def validate(self, slots: Slots, priorities: Floats) -> None:
        log = self._log
        live = log.slots[log.alive(self._stamp_of, log.head, log.tail)]
        assert np.array_equal(live, self._in_order(slots)), "the live entries are not the table's slots in order"
        assert live.size == self._count, "the count is wrong"
        assert np.count_nonzero(self._stamp_of != ABSENT) == self._count, "an absent slot has a stamp"

    def _front(self, m: int) -> Slots:
        return self._log.slots[self._log.front(self._stamp_of, m, self._log.tail)]

    def _push(self, slots: Slots, stamps: Slots) -> None:
        raise NotImplementedError

    def _in_order(self, slots: Slots) -> Slots:
        """Slots given in order of insertion, in order of drawing."""
        raise NotImplementedError


class Fifo(_InsertionOrder):
    """The slot inserted first, with probability 1."""

    __slots__ = ()

    def describe(self) -> dict[str, Any]:
        return {"kind": "fifo"}

    def _push(self, slots: Slots, stamps: Slots) -> None:
        log, n = self._log, slots.size
        if not log.tail + n <= _most_used(self._count, n) <= log.slots.size:
            log = self._log = Run(*_cleared(log, self._stamp_of, self._count, n), tail=self._count)
        log.slots[log.tail : log.tail + n] = slots
        log.stamps[log.tail : log.tail + n] = stamps
        log.tail += n

    def _in_order(self, slots: Slots) -> Slots:
        return slots


class Lifo(_InsertionOrder):
    """The slot inserted last, with probability 1. Its log grows towards the front."""

    __slots__ = ()

    def describe(self) -> dict[str, Any]:
        return {"kind": "lifo"}

    def _push(self, slots: Slots, stamps: Slots) -> None:
        log, n = self._log, slots.size
        size = log.slots.size
        if not size - log.head + n <= _most_used(self._count, n) <= size:
            columns = _cleared(log, self._stamp_of, self._count, n, at_end=True)
            log = self._log = Run(*columns, head=columns[0].size - self._count)
        log.head -= n
        log.slots[log.head : log.head + n] = slots[::-1]
        log.stamps[log.head : log.head + n] = stamps[::-1]

    def _in_order(self, slots: Slots) -> Slots:
        return slots[::-1]


def _most_used(live: int, n: int) -> int:
    """Entries from which on the dead ones are cleared away when n more come: so the memory of a full table stays as it
    is, and an insertion pays for copying four entries, 40 ns."""
    return live + live // 4 + 2 * n + MIN_SLOTS


def _cleared(log: Run, stamp_of: Slots, live: int, n: int, at_end: bool = False) -> list[NDArray[Any]]:
    """Columns with the live entries at one end: the same ones if n more fit beside them, else new ones with as much
    space again, which costs nothing until it is used."""
    needed, size = _most_used(live, n), log.slots.size
    fits = needed <= size <= 2 * needed
    columns = list(log.columns) if fits else [np.empty(live + needed, column.dtype) for column in log.columns]
    starts = range(log.head, log.tail, BLOCK)
    end, step = (columns[0].size, -1) if at_end else (0, 1)
    # Block by block, from the end to which they move, so that entries overwrite none that is still to be read.
    for start in starts[::step]:
        entries = log.alive(stamp_of, start, min(start + BLOCK, log.tail))
        place = slice(*sorted((end, end + step * entries.size)))
        for column, moved in zip(log.columns, columns, strict=True):
            moved[place] = column[entries]
        end += step * entries.size
    return columns
