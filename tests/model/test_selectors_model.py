"""Every selector against a list that does the same one item at a time, over random sequences of operations."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from replayd.selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Uniform

SLOTS = 3000  # Beyond the first capacity, so that growing is covered.
PRIORITIES = st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0, 1e-12, 1e12])  # Few values: ties are the interesting case.
SELECTORS = {
    "fifo": Fifo,
    "lifo": Lifo,
    "min_heap": MinHeap,
    "max_heap": MaxHeap,
    "uniform": Uniform,
    "prioritized_0": lambda: Prioritized(0.0),
    "prioritized": lambda: Prioritized(0.7),
}


class SelectorsAgainstModel(RuleBasedStateMachine):
    """All six selectors are fed the same operations; the model is a dict in order of insertion and a dict of ages."""

    def __init__(self) -> None:
        super().__init__()
        self.selectors = {kind: make() for kind, make in SELECTORS.items()}
        self.priority: dict[int, float] = {}
        self.age: dict[int, int] = {}
        self.clock = 0

    def touch(self, slots, priorities) -> None:
        for slot, priority in zip(slots, priorities, strict=True):
            self.priority[slot] = priority
            self.age[slot] = self.clock
            self.clock += 1

    def order(self, kind: str) -> list[int]:
        slots = list(self.priority)
        if kind == "fifo":
            return slots
        if kind == "lifo":
            return slots[::-1]
        sign = 1 if kind == "min_heap" else -1
        return sorted(slots, key=lambda slot: (sign * self.priority[slot], self.age[slot]))

    def some(self, data, most: int) -> list[int]:
        """Distinct slots that are present, in a random order."""
        return data.draw(st.lists(st.sampled_from(sorted(self.priority)), unique=True, max_size=most))

    @rule(data=st.data(), n=st.sampled_from([1, 2, 5, 40]), base=st.sampled_from([0, 0, 20, SLOTS - 60]))
    def add(self, data, n, base) -> None:
        free = [slot for slot in range(base, base + 60) if slot not in self.priority][:n]
        slots = data.draw(st.permutations(free))
        priorities = data.draw(st.lists(PRIORITIES, min_size=len(slots), max_size=len(slots)))
        for selector in self.selectors.values():
            selector.add(np.array(slots, np.int64), np.array(priorities, float))
        self.touch(slots, priorities)

    @precondition(lambda self: self.priority)
    @rule(data=st.data())
    def update(self, data) -> None:
        slots = self.some(data, 20)
        priorities = data.draw(st.lists(PRIORITIES, min_size=len(slots), max_size=len(slots)))
        for selector in self.selectors.values():
            selector.update(np.array(slots, np.int64), np.array(priorities, float))
        self.touch(slots, priorities)

    @precondition(lambda self: self.priority)
    @rule(data=st.data(), most=st.sampled_from([1, 5, 60]))
    def remove(self, data, most) -> None:
        self.drop(self.some(data, most))

    @precondition(lambda self: self.priority)
    @rule(
        kind=st.sampled_from(["fifo", "lifo", "min_heap", "max_heap", "uniform", "prioritized"]), n=st.integers(1, 30)
    )
    def evict(self, kind, n) -> None:
        """The remover's round: draw victims, each at most once, and remove them."""
        victims, _ = self.selectors[kind].draw(n, np.random.default_rng(n), np.ones(SLOTS, np.int64))
        assert len(victims) == len(set(victims.tolist())) == min(n, len(self.priority))
        self.drop(victims.tolist())

    def drop(self, slots: list[int]) -> None:
        for selector in self.selectors.values():
            selector.remove(np.array(slots, np.int64))
        for slot in slots:
            del self.priority[slot], self.age[slot]

    @rule()
    def clear(self) -> None:
        for selector in self.selectors.values():
            selector.clear()
        self.priority.clear()
        self.age.clear()

    @rule(n=st.integers(1, 200), most=st.sampled_from([1, 3, 10**18]), seed=st.integers(0, 2**32))
    def draw_within_room(self, n, most, seed) -> None:
        rng = np.random.default_rng(seed)
        room = rng.integers(1, most, SLOTS, endpoint=True)
        for kind in ("fifo", "lifo", "min_heap", "max_heap"):
            slots, probabilities = self.selectors[kind].draw(n, rng, room)
            expected = [slot for slot in self.order(kind) for _ in range(min(n, room[slot]))][:n]
            assert slots.tolist() == expected
            assert probabilities.tolist() == [1.0] * len(expected)
        for kind in ("uniform", "prioritized_0", "prioritized"):
            slots, probabilities = self.selectors[kind].draw(n, rng, room)
            assert len(slots) == min(n, sum(min(n, room[slot]) for slot in self.priority))
            self.check_chances(kind, slots, probabilities, room)

    @precondition(lambda self: self.priority)
    @rule(n=st.sampled_from([1, 2, 50]), seed=st.integers(0, 2**32))
    def draw(self, n, seed) -> None:
        rng = np.random.default_rng(seed)
        for kind in ("fifo", "lifo", "min_heap", "max_heap"):
            slots, _ = self.selectors[kind].draw(n, rng)
            assert slots.tolist() == [self.order(kind)[0]] * n
        for kind in ("uniform", "prioritized_0", "prioritized"):
            slots, probabilities = self.selectors[kind].draw(n, rng)
            assert len(slots) == n
            self.check_chances(kind, slots, probabilities, np.full(SLOTS, n + 1))

    def check_chances(self, kind, slots, probabilities, room) -> None:
        """Each draw has a chance, and the one reported, given the draws before it."""
        exponent = {"uniform": None, "prioritized_0": 0.0, "prioritized": 0.7}[kind]
        weights = {
            slot: 1.0 if exponent is None else priority**exponent if priority else 0.0
            for slot, priority in self.priority.items()
        }
        left = {slot: int(room[slot]) for slot in self.priority}
        mass = math.fsum(weights.values())
        for slot, probability in zip(slots.tolist(), probabilities.tolist(), strict=True):
            chance = weights[slot] / mass if mass else 1 / len(left)
            assert chance > 0
            assert math.isclose(probability, chance, rel_tol=1e-9)
            left[slot] -= 1
            if not left[slot]:
                del left[slot]
                mass = math.fsum(weights[slot] for slot in left)

    @invariant()
    def structures_agree(self) -> None:
        slots = np.array(list(self.priority), np.int64)
        priorities = np.array([self.priority[slot] for slot in self.priority], float)
        for selector in self.selectors.values():
            assert len(selector) == len(self.priority)
            selector.validate(slots, priorities)


SelectorsAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSelectorsAgainstModel = SelectorsAgainstModel.TestCase
