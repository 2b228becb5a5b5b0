"""The six selectors, under the names of the incumbent's `reverb.selectors` and of its binding.

A selector here is a description that any number of tables may have; each table makes its own of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from replayd import selectors


@dataclass(frozen=True, slots=True, repr=False)
class FifoSelector:
    """The item that was inserted first."""

    def build(self) -> selectors.Selector:
        """A new selector of this kind, for one table."""
        return selectors.Fifo()

    def __repr__(self) -> str:
        return "FifoSelector"


@dataclass(frozen=True, slots=True, repr=False)
class LifoSelector:
    """The item that was inserted last."""

    def build(self) -> selectors.Selector:
        """A new selector of this kind, for one table."""
        return selectors.Lifo()

    def __repr__(self) -> str:
        return "LifoSelector"


@dataclass(frozen=True, slots=True, repr=False)
class UniformSelector:
    """Every item with the same probability."""

    def build(self) -> selectors.Selector:
        """A new selector of this kind, for one table."""
        return selectors.Uniform()

    def __repr__(self) -> str:
        return "UniformSelector"


@dataclass(frozen=True, slots=True, repr=False)
class HeapSelector:
    """The item of the smallest or the largest priority; of equals the one inserted or updated longest ago."""

    min_heap: bool

    def build(self) -> selectors.Selector:
        """A new selector of this kind, for one table."""
        return selectors.MinHeap() if self.min_heap else selectors.MaxHeap()

    def __repr__(self) -> str:
        return f"HeapSelector(sign={1 if self.min_heap else -1})"


@dataclass(frozen=True, slots=True, repr=False)
class PrioritizedSelector:
    """An item with probability priority ** priority_exponent over the sum; all with the same if that sum is 0.

    Raises ValueError unless 0 ≤ priority_exponent ≤ 3: with priorities up to 1e90 the sum stays finite that far.
    Priorities of its table must not be negative.
    """

    priority_exponent: float

    def __post_init__(self) -> None:
        self.build()

    def build(self) -> selectors.Selector:
        """A new selector of this kind, for one table."""
        return selectors.Prioritized(self.priority_exponent)

    def __repr__(self) -> str:
        return f"PrioritizedSelector(priority_exponent={self.priority_exponent:g})"


SelectorType = FifoSelector | LifoSelector | UniformSelector | HeapSelector | PrioritizedSelector
ItemSelector = SelectorType

Fifo = FifoSelector
Lifo = LifoSelector
Uniform = UniformSelector
Prioritized = PrioritizedSelector
MinHeap = partial(HeapSelector, True)
MaxHeap = partial(HeapSelector, False)
