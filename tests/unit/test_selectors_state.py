"""A selector that is filled from a dump draws what the dumped one draws, whatever was done to both before and since."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayd import selectors
from replayd.state import frozen

SLOTS = np.arange(3000)
KINDS = ["Uniform", "Fifo", "Lifo", "MinHeap", "MaxHeap", "Prioritized"]


def made(kind: str) -> selectors.Selector:
    return selectors.Prioritized(0.5) if kind == "Prioritized" else getattr(selectors, kind)()


class Filled:
    """A selector with what its table knows: slots in order of insertion, and their priorities."""

    def __init__(self, kind: str) -> None:
        self.selector = made(kind)
        self.priorities: dict[int, float] = {}

    def step(self, random: np.random.Generator, zeros: bool) -> None:
        kind = random.integers(0, 3)
        n = int(random.integers(1, 6))
        if kind == 0 or not self.priorities:
            slots = random.choice(np.delete(SLOTS, list(self.priorities)), n, replace=False)
        else:
            slots = random.choice(list(self.priorities), min(n, len(self.priorities)), replace=False)
        values = np.zeros(len(slots)) if zeros else random.choice([0.0, 1.0, 2.0, 2.0], len(slots))
        if slots[0] not in self.priorities:
            self.selector.add(slots, values)
            self.priorities.update(zip(slots.tolist(), values.tolist(), strict=True))
        elif kind == 1:
            self.selector.update(slots, values)
            self.priorities.update(zip(slots.tolist(), values.tolist(), strict=True))
        else:
            self.selector.remove(slots)
            for slot in slots.tolist():
                del self.priorities[slot]

    def again(self, kind: str) -> selectors.Selector:
        filled = made(kind)
        state = frozen(self.selector.dump(), np.copy)
        slots, values = np.array(list(self.priorities), np.int64), np.array(list(self.priorities.values()), np.float64)
        filled.load(state, slots, values)
        filled.validate(slots, values)
        return filled


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(0, 40), zeros=st.booleans())
def test_a_loaded_selector_draws_the_same(kind: str, seed: int, steps: int, zeros: bool) -> None:
    random = np.random.default_rng(seed)
    one = Filled(kind)
    for _ in range(steps):
        one.step(random, zeros)
    other = Filled(kind)
    other.selector, other.priorities = one.again(kind), dict(one.priorities)
    for since in range(10):
        room = np.full(len(SLOTS), 2)
        for limited in (None, room):
            draws = [each.selector.draw(7, np.random.default_rng(since), limited) for each in (one, other)]
            assert [part.tolist() for part in draws[0]] == [part.tolist() for part in draws[1]]
        for each in (one, other):
            each.step(np.random.default_rng([seed, since]), zeros)


@pytest.mark.parametrize("kind", KINDS)
def test_slots_that_did_not_come_back_are_not_drawn(kind: str) -> None:
    one = Filled(kind)
    slots, values = np.arange(10), np.arange(10.0) + 1
    one.selector.add(slots, values)
    left = slots[slots % 3 > 0]
    filled = made(kind)
    filled.load(frozen(one.selector.dump(), np.copy), left, values[left])
    filled.validate(left, values[left])
    assert set(filled.draw(200, np.random.default_rng(0))[0].tolist()) <= set(left.tolist())
