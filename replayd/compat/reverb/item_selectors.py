"""The six selectors, under the names of the incumbent's `reverb.selectors`."""

from __future__ import annotations

from functools import partial

from replayd.compat.reverb.pybind import (
    FifoSelector,
    HeapSelector,
    LifoSelector,
    PrioritizedSelector,
    SelectorType,
    UniformSelector,
)

Fifo = FifoSelector
Lifo = LifoSelector
Uniform = UniformSelector
Prioritized = PrioritizedSelector
MinHeap = partial(HeapSelector, True)
MaxHeap = partial(HeapSelector, False)

ItemSelector = SelectorType

__all__ = ["Fifo", "ItemSelector", "Lifo", "MaxHeap", "MinHeap", "Prioritized", "Uniform"]
