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
_OF_REVERB = (
    "DeadlineExceededError",
    "PatternDataset",
    "ReverbError",
    "TFClient",
    "TableInfo",
    "TimestepDataset",
    "TrajectoryColumn",
    "TrajectoryDataset",
    "checkpointers",
    "install",
    "structured",
)
"""Of Reverb's names those that `replayd.compat.reverb` has and this package has not."""

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
    raise AttributeError(f"module 'replayd' has no attribute {name!r}{_elsewhere(name)}")


def _elsewhere(name: str) -> str:
    """Where a name is that is looked for here, as words to append."""
    import replayd_client

    places = []
    if name in replayd_client.__all__:
        places.append(f"`replayd_client.{name}`")
    if name in _OF_REVERB:
        places.append(f"`from replayd.compat import reverb; reverb.{name}`, as in Reverb")
    return f"; there is {' and '.join(places)}" if places else ""
