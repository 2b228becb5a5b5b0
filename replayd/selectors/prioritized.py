"""The selector that draws in proportion to a power of the priority.

The method is that of Schaul et al. 2016, "Prioritized Experience Replay". Owns the weights, in a sum tree, and a
uniform selector over the same slots for when all weights are zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from replayd.selectors.base import Configured, Draws, Floats, Pool, Slots, draw_within_room, grown, nothing
from replayd.selectors.uniform import Uniform
from replayd.state import State
from replayd.sum_tree import SumTree

MAX_PRIORITY_EXPONENT = 3.0
"""Priorities reach 1e90, so weights reach 1e270, and the sum over any table that fits in memory stays finite."""

MIN_WEIGHT = float(np.finfo(np.float64).tiny)
"""The weight of a priority whose power is too small for a float64: it is not zero, so its slot can be drawn."""


class Prioritized(Configured, Pool):
    """Each slot with probability weight / sum of weights, where weight = priority ** priority_exponent.

    A priority of 0 has weight 0 whatever the exponent and is never drawn, unless all weights are 0: then every slot has
    probability 1 / n. Raises ValueError unless 0 ≤ priority_exponent ≤ MAX_PRIORITY_EXPONENT.
    """

    __slots__ = ("_drawn", "_excluded", "_present", "_priority_exponent", "_tree")

    def __init__(self, priority_exponent: float) -> None:
        if not 0.0 <= priority_exponent <= MAX_PRIORITY_EXPONENT:
            raise ValueError(f"priority_exponent must be in [0, {MAX_PRIORITY_EXPONENT:g}], got {priority_exponent!r}")
        self._priority_exponent = float(priority_exponent)
        self._tree = SumTree()
        self._present = Uniform()
        self._drawn: Slots = np.empty(0, np.int64)  # Scratch of `draw`, all zero outside it.
        self._excluded: list[tuple[Slots, Floats]] = []  # What `readmit` puts back, oldest first.

    @property
    def priority_exponent(self) -> float:
        """The power of the priority that the weights are."""
        return self._priority_exponent

    def __len__(self) -> int:
        return len(self._present)

    def add(self, slots: Slots, priorities: Floats) -> None:
        if slots.size == 0:
            return
        self._present.add(slots, priorities)
        self._tree.grow(int(slots.max()) + 1)
        self._tree.set(slots, self._weights(priorities))

    def remove(self, slots: Slots) -> None:
        self._present.remove(slots)
        self._tree.set(slots, np.zeros(slots.size))

    def update(self, slots: Slots, priorities: Floats) -> None:
        self._present.update(slots, priorities)
        self._tree.set(slots, self._weights(priorities))

    def clear(self) -> None:
        self._present.clear()
        self._tree.clear()

    def draw(self, n: int, rng: np.random.Generator, room: Slots | None = None) -> Draws:
        if n == 0 or len(self) == 0:
            return nothing()
        if room is not None:
            self._drawn = grown(self._drawn, self._tree.weights.size, 0)
            return draw_within_room(self, n, rng, room, self._drawn)
        slots, weights = self.block(n, rng)
        return slots, weights / self.mass()

    def describe(self) -> dict[str, Any]:
        return {"kind": "prioritized", "priority_exponent": self._priority_exponent}

    def dump(self) -> State:
        # Sums are rounded by the shape of the tree, which its capacity decides.
        return {**self._present.dump(), "capacity": self._tree.weights.size}

    def load(self, state: State, slots: Slots, priorities: Floats) -> None:
        self._tree.grow(state["capacity"])
        self._present.load(state, slots, priorities)
        self._tree.set(slots, self._weights(priorities))

    def validate(self, slots: Slots, priorities: Floats) -> None:
        self._present.validate(slots, priorities)
        self._tree.validate()
        weights = self._tree.weights
        assert np.array_equal(weights[slots], self._weights(priorities)), "a weight is not that of its priority"
        assert np.count_nonzero(weights) == np.count_nonzero(priorities), "an absent slot has a weight"
        assert not self._drawn.any(), "a draw left counts behind"
        assert not self._excluded, "a draw left slots excluded"

    def _weights(self, priorities: Floats) -> Floats:
        weights: Floats = np.maximum(priorities**self._priority_exponent, MIN_WEIGHT)
        # Priorities of zero are rare; `where` for all takes 6 us for 256.
        if np.count_nonzero(priorities) != priorities.size:
            weights[priorities == 0.0] = 0.0
        return weights

    # The distribution that `draw_within_room` narrows.

    def block(self, n: int, rng: np.random.Generator) -> Draws:
        if self._tree.total == 0.0:
            return self._present.block(n, rng)
        slots = self._tree.draw(n, rng)
        return slots, self._tree.weights[slots]

    def mass(self) -> float:
        return self._tree.total or self._present.mass()

    def exclude(self, slots: Slots) -> None:
        self._excluded.append((slots, self._tree.weights[slots]))
        self._tree.set(slots, np.zeros(slots.size))
        self._present.exclude(slots)

    def readmit(self) -> None:
        while self._excluded:
            self._tree.set(*self._excluded.pop())
        self._present.readmit()
