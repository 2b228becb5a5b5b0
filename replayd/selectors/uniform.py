"""The selector that draws every slot with the same probability.

Owns a dense array of the slots present and where each one stands in it; removal moves the last ones into the holes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from replayd.selectors.base import Configured, Draws, Floats, Pool, Slots, draw_within_room, grown, nothing, remaining
from replayd.slots import all_true
from replayd.state import State


class Uniform(Configured, Pool):
    """Every slot present with probability 1 / n. Priorities are ignored."""

    __slots__ = ("_count", "_dense", "_drawn", "_excluded", "_position")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._count = 0
        self._dense: Slots = np.empty(0, np.int64)  # The first `_count` entries are the slots present.
        self._position: Slots = np.empty(0, np.int64)  # By slot: its index in `_dense`, −1 when absent.
        self._drawn: Slots = np.empty(0, np.int64)  # Scratch of `draw`, all zero outside it.
        self._excluded: list[tuple[Slots, Slots]] = []  # What `readmit` puts back, oldest first.

    def __len__(self) -> int:
        return self._count

    def add(self, slots: Slots, priorities: Floats) -> None:
        if slots.size == 0:
            return
        start, end = self._count, self._count + slots.size
        self._dense = grown(self._dense, end, -1)
        self._position = grown(self._position, int(slots.max()) + 1, -1)
        assert all_true(self._position[slots] < 0), "a slot was added twice"
        self._dense[start:end] = slots
        self._position[slots] = np.arange(start, end)
        self._count = end

    def remove(self, slots: Slots) -> None:
        self._take_out(slots)

    def update(self, slots: Slots, priorities: Floats) -> None:
        assert all_true(self._position[slots] >= 0), "an absent slot was updated"

    def draw(self, n: int, rng: np.random.Generator, room: Slots | None = None) -> Draws:
        if n == 0 or self._count == 0:
            return nothing()
        if room is None:
            # One number is drawn in half the time of an array of one; it is the same number.
            places = rng.integers(0, self._count, n) if n > 1 else [rng.integers(0, self._count)]
            return self._dense[places], np.full(n, 1.0 / self._count)
        self._drawn = grown(self._drawn, self._position.size, 0)
        return draw_within_room(self, n, rng, room, self._drawn)

    def describe(self) -> dict[str, Any]:
        return {"kind": "uniform"}

    def dump(self) -> State:
        return {"order": self._dense[: self._count]}

    def load(self, state: State, slots: Slots, priorities: Floats) -> None:
        self.add(remaining(state["order"], slots), priorities)

    def validate(self, slots: Slots, priorities: Floats) -> None:
        present = self._dense[: self._count]
        assert np.array_equal(np.sort(present), np.sort(slots)), "the slots present are not the table's"
        assert np.array_equal(self._position[present], np.arange(self._count)), "a position is wrong"
        assert np.count_nonzero(self._position >= 0) == self._count, "an absent slot has a position"
        assert not self._drawn.any(), "a draw left counts behind"
        assert not self._excluded, "a draw left slots excluded"

    # The distribution that `draw_within_room` narrows.

    def block(self, n: int, rng: np.random.Generator) -> Draws:
        return self._dense[rng.integers(0, self._count, n)], np.ones(n)

    def mass(self) -> float:
        return float(self._count)

    def exclude(self, slots: Slots) -> None:
        self._excluded.append(self._take_out(slots))

    def readmit(self) -> None:
        while self._excluded:
            places, slots = self._excluded.pop()
            self._dense[places] = slots
            self._position[slots] = places
            self._count = int(places[-1]) + 1

    def _take_out(self, slots: Slots) -> tuple[Slots, Slots]:
        """Removes the slots. Returns the places this changes, the last one last, and the slots that stood there."""
        places = self._position[slots]
        assert all_true(places >= 0), "an absent slot was removed"
        left = self._count - slots.size
        self._position[slots] = -1
        end = self._dense[left : self._count]
        movers = end[self._position[end] >= 0]
        holes = places[places < left]
        assert movers.size == holes.size, "a slot was removed twice"
        changed = np.concatenate((holes, np.arange(left, self._count)))
        before = self._dense[changed]
        self._dense[holes] = movers
        self._position[movers] = holes
        self._count = left
        return changed, before
