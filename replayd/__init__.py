"""replayd: an experience-replay service for reinforcement learning.

The names below are loaded when they are first used, so that the command line starts without numpy and zmq.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from replayd import rate_limiters, selectors
    from replayd.embedded import Server
    from replayd.table import Table
    from replayd_client import Client, ReplaySample, SampleInfo, TensorSpec, TrajectoryWriter, Writer

_HOMES = {
    "Server": "replayd.embedded",
    "Table": "replayd.table",
    "Client": "replayd_client",
    "ReplaySample": "replayd_client",
    "SampleInfo": "replayd_client",
    "TensorSpec": "replayd_client",
    "TrajectoryWriter": "replayd_client",
    "Writer": "replayd_client",
}
_MODULES = {"selectors": "replayd.selectors", "rate_limiters": "replayd.rate_limiters"}

__all__ = [
    "Client",
    "ReplaySample",
    "SampleInfo",
    "Server",
    "Table",
    "TensorSpec",
    "TrajectoryWriter",
    "Writer",
    "rate_limiters",
    "selectors",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(_MODULES[name])
    raise AttributeError(f"module 'replayd' has no attribute {name!r}")
