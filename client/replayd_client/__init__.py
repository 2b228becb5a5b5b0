"""Python client of replayd, the experience replay daemon: stream steps in, draw batches out.

Names are loaded when they are first used: importing the package costs milliseconds, and brings neither numpy nor zmq.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from replayd_client import errors

if TYPE_CHECKING:
    from replayd_client import structured
    from replayd_client.batch_writer import BatchWriter
    from replayd_client.client import Client
    from replayd_client.dataset import Dataset
    from replayd_client.history import TrajectoryColumn
    from replayd_client.inspection import Checkpointed, SetResult, Why
    from replayd_client.item_handle import ItemHandle
    from replayd_client.pattern_dataset import PatternDataset
    from replayd_client.peeking import Peeked, PeekedItem, PeekInfo
    from replayd_client.sampling import ReplaySample, SampleBatch, SampleInfo
    from replayd_client.server_info import TableInfo
    from replayd_client.specs import TensorSpec
    from replayd_client.structured_writer import StructuredWriter
    from replayd_client.timestep_dataset import TimestepDataset
    from replayd_client.trajectory_dataset import TrajectoryDataset
    from replayd_client.trajectory_writer import TrajectoryWriter
    from replayd_client.updates import MutateResult
    from replayd_client.vector_items import VectorItem
    from replayd_client.vector_writer import VectorWriter
    from replayd_client.writer import Writer
    from replayd_client.writer_report import ColumnReport, WriterReport

_HOMES = {
    "BatchWriter": "batch_writer",
    "Checkpointed": "inspection",
    "Client": "client",
    "ColumnReport": "writer_report",
    "Dataset": "dataset",
    "ItemHandle": "item_handle",
    "MutateResult": "updates",
    "PatternDataset": "pattern_dataset",
    "PeekInfo": "peeking",
    "Peeked": "peeking",
    "PeekedItem": "peeking",
    "ReplaySample": "sampling",
    "SampleBatch": "sampling",
    "SampleInfo": "sampling",
    "SetResult": "inspection",
    "StructuredWriter": "structured_writer",
    "TableInfo": "server_info",
    "TensorSpec": "specs",
    "TimestepDataset": "timestep_dataset",
    "TrajectoryColumn": "history",
    "TrajectoryDataset": "trajectory_dataset",
    "TrajectoryWriter": "trajectory_writer",
    "VectorItem": "vector_items",
    "VectorWriter": "vector_writer",
    "Why": "inspection",
    "Writer": "writer",
    "WriterReport": "writer_report",
}
_MODULES = ("structured", "torch")
"""Public modules; `torch` imports PyTorch."""

__all__ = [
    "BatchWriter",
    "Checkpointed",
    "Client",
    "ColumnReport",
    "Dataset",
    "ItemHandle",
    "MutateResult",
    "PatternDataset",
    "PeekInfo",
    "Peeked",
    "PeekedItem",
    "ReplaySample",
    "SampleBatch",
    "SampleInfo",
    "SetResult",
    "StructuredWriter",
    "TableInfo",
    "TensorSpec",
    "TimestepDataset",
    "TrajectoryColumn",
    "TrajectoryDataset",
    "TrajectoryWriter",
    "VectorItem",
    "VectorWriter",
    "Why",
    "Writer",
    "WriterReport",
    "errors",
    "structured",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"replayd_client.{_HOMES[name]}"), name)
    if name in _MODULES:
        return import_module(f"replayd_client.{name}")
    raise AttributeError(f"module 'replayd_client' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
