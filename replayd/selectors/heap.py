"""The selectors that go by priority: the smallest or the largest first.

A heap here is a few sorted runs of geometric size, as in a log-structured merge tree (O'Neil et al. 1996): a batch
becomes a run, and runs are merged so that each is at least twice the next. An update is an insertion that leaves a dead
entry behind. Every entry of a run is older than every entry of the next, so a stable sort by key alone keeps the order
of age among equals.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from replayd.selectors.base import MIN_SLOTS, Configured, Draws, Floats, Slots, grown
from replayd.selectors.ordered import ABSENT, Run, draw_in_order
from replayd.state import State


class _Heap(Configured):
    """Smallest key first, the key being priority × `_SIGN`; among equals the one inserted or updated longest ago."""

    __slots__ = ("_count", "_next_stamp", "_runs", "_stamp_of")

    _SIGN: float

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._count = 0
        self._next_stamp = 0
        self._stamp_of: Slots = np.empty(0, np.int64)
        self._runs: list[Run] = []  # Oldest first.

    def __len__(self) -> int:
        return self._count

    def add(self, slots: Slots, priorities: Floats) -> None:
        if slots.size == 0:
            return
        self._stamp_of = grown(self._stamp_of, int(slots.max()) + 1, ABSENT)
        assert (self._stamp_of[slots] == ABSENT).all(), "a slot was added twice"
        self._count += slots.size
        self._push(slots, priorities)

    def remove(self, slots: Slots) -> None:
        assert (self._stamp_of[slots] != ABSENT).all(), "an absent slot was removed"
        self._stamp_of[slots] = ABSENT
        self._count -= slots.size
        self._merge_mostly_dead()

    def update(self, slots: Slots, priorities: Floats) -> None:
        if slots.size == 0:
            return
        assert (self._stamp_of[slots] != ABSENT).all(), "an absent slot was updated"
        self._push(slots, priorities)

    def draw(self, n: int, rng: np.random.Generator, room: Slots | None = None) -> Draws:
        return draw_in_order(self._front, n, room)

    def dump(self) -> State:
        return {"stamps": self._stamp_of}

    def load(self, state: State, slots: Slots, priorities: Floats) -> None:
        by_age = state["stamps"][slots].argsort()
        self.add(slots[by_age], priorities[by_age])

    def validate(self, slots: Slots, priorities: Floats) -> None:
        last_stamp = ABSENT
        live_slots, live_keys = [np.empty(0, np.int64)], [np.empty(0)]
        for run in self._runs:
            live = run.alive(self._stamp_of, run.head, run.tail)
            stamps = run.stamps[live]
            assert (stamps > last_stamp).all(), "a run holds an entry older than the run before"
            last_stamp = int(stamps.max(initial=last_stamp))
            assert np.array_equal(np.lexsort((stamps, run.keys[live])), np.arange(live.size)), "a run is not sorted"
            assert (np.diff(run.keys[run.head : run.tail]) >= 0).all(), "a run's keys are not sorted"
            live_slots.append(run.slots[live])
            live_keys.append(run.keys[live])
        found, wanted = np.concatenate(live_slots), slots.argsort()
        order = found.argsort()
        assert np.array_equal(found[order], slots[wanted]), "the live entries are not the table's slots, once each"
        keys = np.concatenate(live_keys)[order]
        assert np.array_equal(keys, self._SIGN * priorities[wanted]), "a key is not that of its priority"
        assert found.size == self._count, "the count is wrong"
        assert np.count_nonzero(self._stamp_of != ABSENT) == self._count, "an absent slot has a stamp"

    def _push(self, slots: Slots, priorities: Floats) -> None:
        stamps = np.arange(self._next_stamp, self._next_stamp + slots.size)
        self._next_stamp += slots.size
        self._stamp_of[slots] = stamps
        keys = self._SIGN * priorities
        order = keys.argsort(kind="stable")
        self._runs.append(Run(slots[order], stamps[order], keys[order]))
        first, size = len(self._runs) - 1, slots.size
        while first and len(self._runs[first - 1]) < 2 * size:
            first -= 1
            size += len(self._runs[first])
        if first < len(self._runs) - 1:
            self._merge_from(first)
        self._merge_mostly_dead()

    def _merge_mostly_dead(self) -> None:
        if sum(map(len, self._runs)) > 2 * self._count + MIN_SLOTS:
            self._merge_from(0)

    def _merge_from(self, first: int) -> None:
        """Makes one run of this one and all newer ones, without their dead entries.

        The stable sort of floats is a timsort, which finds the runs in its input and merges them: linear in practice.
        """
        merging = self._runs[first:]
        live = [run.alive(self._stamp_of, run.head, run.tail) for run in merging]
        slots, stamps, keys = (
            np.concatenate([run.columns[column][alive] for run, alive in zip(merging, live, strict=True)])
            for column in range(3)
        )
        order = keys.argsort(kind="stable")
        self._runs[first:] = [Run(slots[order], stamps[order], keys[order])]

    def _front(self, m: int) -> Slots:
        """The first m slots in order. Once m keys are known, newer runs are read only for keys below the largest."""
        slots, keys = [], []
        bound = np.inf
        for run in self._runs:
            if not len(run) or run.keys[run.head] >= bound:
                continue
            stop = run.tail if bound == np.inf else run.head + int(run.keys[run.head : run.tail].searchsorted(bound))
            live = run.front(self._stamp_of, m, stop)
            slots.append(run.slots[live])
            keys.append(run.keys[live])
            if live.size == m:
                bound = keys[-1][-1]
        if not slots:
            return np.empty(0, np.int64)
        if len(slots) == 1:
            return slots[0]
        return np.concatenate(slots)[np.concatenate(keys).argsort(kind="stable")[:m]]


class MinHeap(_Heap):
    """The slot of the smallest priority, with probability 1; among equals the one inserted or updated longest ago."""

    __slots__ = ()
    _SIGN = 1.0

    def describe(self) -> dict[str, Any]:
        return {"kind": "min_heap"}


class MaxHeap(_Heap):
    """The slot of the largest priority, with probability 1; among equals the one inserted or updated longest ago."""

    __slots__ = ()
    _SIGN = -1.0

    def describe(self) -> dict[str, Any]:
        return {"kind": "max_heap"}
