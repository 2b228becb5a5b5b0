"""The names of the incumbent's binding that its users touch: the selectors' classes.

A selector here is a description that any number of tables may have; each table makes its own of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from replayd import selectors


@dataclass(frozen=True, slots=True)
class FifoSelector:
    """The item that was inserted first."""

    def build(self) -> selectors.Selector:
        return selectors.Fifo()


@dataclass(frozen=True, slots=True)
class LifoSelector:
    """The item that was inserted last."""

    def build(self) -> selectors.Selector:
        return selectors.Lifo()


@dataclass(frozen=True, slots=True)
class UniformSelector:
    """Every item with the same probability."""

    def build(self) -> selectors.Selector:
        return selectors.Uniform()


@dataclass(frozen=True, slots=True)
class HeapSelector:
    """The item of the smallest or the largest priority; of equals the one inserted or updated longest ago."""

    min_heap: bool

    def build(self) -> selectors.Selector:
        return selectors.MinHeap() if self.min_heap else selectors.MaxHeap()


@dataclass(frozen=True, slots=True)
class PrioritizedSelector:
    """An item with probability priority ** priority_exponent over the sum; all with the same if that sum is 0.

    Raises ValueError unless 0 ≤ priority_exponent ≤ 3: with priorities up to 1e90 the sum stays finite that far.
    Priorities of its table must not be negative.
    """

    priority_exponent: float

    def __post_init__(self) -> None:
        self.build()

    def build(self) -> selectors.Selector:
        return selectors.Prioritized(self.priority_exponent)


SelectorType = FifoSelector | LifoSelector | UniformSelector | HeapSelector | PrioritizedSelector
