"""The names of the incumbent's binding that its users touch: selectors, options of chunks, what writers are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from replayd.compat.reverb._cells import AutoTunedChunkerOptions, ChunkerOptions, ConstantChunkerOptions, WeakCellRef
from replayd.compat.reverb._cells import CellWriter as TrajectoryWriter
from replayd.compat.reverb.item_selectors import (
    FifoSelector,
    HeapSelector,
    LifoSelector,
    PrioritizedSelector,
    SelectorType,
    UniformSelector,
)
from replayd.compat.reverb.rate_limiters import RateLimiter
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
    "RateLimiter",
    "Sampler",
    "SelectorType",
    "TrajectoryWriter",
    "UniformSelector",
    "WeakCellRef",
    "create_default_checkpointer",
]


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
