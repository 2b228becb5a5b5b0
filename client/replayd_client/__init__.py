"""Python client of replayd, the experience replay daemon: stream steps in, draw batches out."""

from __future__ import annotations

from replayd_client import errors
from replayd_client.client import Client, MutateResult
from replayd_client.history import TrajectoryColumn
from replayd_client.item_handle import ItemHandle
from replayd_client.sampling import ReplaySample, SampleBatch, SampleInfo
from replayd_client.server_info import TableInfo
from replayd_client.specs import TensorSpec
from replayd_client.trajectory_writer import TrajectoryWriter
from replayd_client.writer import Writer

__all__ = [
    "Client",
    "ItemHandle",
    "MutateResult",
    "ReplaySample",
    "SampleBatch",
    "SampleInfo",
    "TableInfo",
    "TensorSpec",
    "TrajectoryColumn",
    "TrajectoryWriter",
    "Writer",
    "errors",
]
