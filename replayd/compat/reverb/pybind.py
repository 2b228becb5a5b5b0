"""The names of the incumbent's binding that its users touch: selectors, options of chunks, what writers are made of.

A selector here is a description that any number of tables may have; each table makes its own of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from replayd import selectors
from replayd.compat.reverb._cells import AutoTunedChunkerOptions, ChunkerOptions, ConstantChunkerOptions, WeakCellRef
from replayd.compat.reverb._cells import CellWriter as TrajectoryWriter
from replayd.compat.reverb.replay_sample import SampleInfo

__all__ = [
    "AutoTunedChunkerOptions",
    "Checkpointer",
    "ChunkerOptions",
    "ConstantChunkerOptions",
    "FifoSelector",
    "HeapSelector",
    "LifoSelector",
    "PrioritizedSelector",
    "Sampler",
    "SelectorType",
    "TrajectoryWriter",
    "UniformSelector",
    "WeakCellRef",
    "create_default_checkpointer",
]


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


class Sampler:
    """What is known of every sampler of the incumbent without having one."""

    NUM_INFO_TENSORS: Final = len(SampleInfo._fields)


@dataclass(frozen=True, slots=True)
class Checkpointer:
    """Where checkpoints are: under `path`, or if there is none the one at `fallback_checkpoint_path`."""

    path: str
    group: str = ""
    fallback_checkpoint_path: str | None = None


create_default_checkpointer = Checkpointer
"""The binding's way to make one."""
