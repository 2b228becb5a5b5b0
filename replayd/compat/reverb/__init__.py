"""DeepMind's Reverb on replayd: code written for its Python API runs by an import change, without TensorFlow.

`from replayd.compat import reverb` gives its names; `reverb.install()` makes `import reverb` find this package, so that
programs need not be changed at all. Arguments, kinds of errors and texts are Reverb's, as of dm-reverb 0.14; where
it loses or corrupts data, aborts the process or hangs for ever, this package does what its documentation says instead.

Priorities may be negative in tables without a Prioritized selector, which replayd's may not: they are stored there as
others of the same order, so that replayd's own clients see other numbers and must not write theirs into these tables.
"""

from __future__ import annotations

import sys
from importlib import import_module

from replayd.compat.reverb import item_selectors as selectors
from replayd.compat.reverb import rate_limiters
from replayd.compat.reverb import structured_writer as structured
from replayd.compat.reverb.client import Client, Writer
from replayd.compat.reverb.errors import DeadlineExceededError, ReverbError
from replayd.compat.reverb.pattern_dataset import PatternDataset
from replayd.compat.reverb.platform.default import checkpointers
from replayd.compat.reverb.replay_sample import ReplaySample, SampleInfo
from replayd.compat.reverb.reverb_types import TableInfo, TensorSpec
from replayd.compat.reverb.server import Server, Table
from replayd.compat.reverb.tf_client import TFClient
from replayd.compat.reverb.timestep_dataset import TimestepDataset
from replayd.compat.reverb.trajectory_dataset import TrajectoryDataset
from replayd.compat.reverb.trajectory_writer import TrajectoryColumn, TrajectoryWriter

__all__ = [
    "Client",
    "DeadlineExceededError",
    "PatternDataset",
    "ReplaySample",
    "ReverbError",
    "SampleInfo",
    "Server",
    "TFClient",
    "Table",
    "TableInfo",
    "TensorSpec",
    "TimestepDataset",
    "TrajectoryColumn",
    "TrajectoryDataset",
    "TrajectoryWriter",
    "Writer",
    "checkpointers",
    "install",
    "rate_limiters",
    "selectors",
    "structured",
]

_MODULES = (
    "client",
    "errors",
    "item_selectors",
    "pattern_dataset",
    "platform",
    "platform.checkpointers_lib",
    "platform.default",
    "pybind",
    "rate_limiters",
    "replay_sample",
    "reverb_types",
    "server",
    "structured_writer",
    "tf_client",
    "timestep_dataset",
    "trajectory_dataset",
    "trajectory_writer",
)
_ALIASES = {
    "selectors": "item_selectors",
    "structured": "structured_writer",
    "checkpointers": "platform.checkpointers_lib",
    "platform.default.checkpointers": "platform.checkpointers_lib",
}


def install() -> None:
    """Make `import reverb`, and its modules, find this package. Raises ImportError if another reverb was imported."""
    here = sys.modules[__name__]
    if sys.modules.setdefault("reverb", here) is not here:
        raise ImportError("another reverb has been imported already; install this one first")
    for name in _MODULES:
        sys.modules[f"reverb.{name}"] = import_module(f"{__name__}.{name}")
    for alias, name in _ALIASES.items():
        sys.modules[f"reverb.{alias}"] = sys.modules[f"reverb.{name}"]
