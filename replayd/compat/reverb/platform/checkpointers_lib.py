"""Checkpointers: where a server's checkpoints are. What is done there `_checkpoints` knows."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod

from replayd.compat.reverb.pybind import Checkpointer, create_default_checkpointer


class CheckpointerBase(ABC):
    """A place of checkpoints; programs' own say it by `internal_checkpointer`."""

    @abstractmethod
    def internal_checkpointer(self) -> Checkpointer:
        """The binding's description of the place."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.internal_checkpointer()})"


class DefaultCheckpointer(CheckpointerBase):
    """Checkpoints in the directory `path`, which is made if it is not there.

    A server with it begins with the newest one there; if there is none, with the one at `fallback_checkpoint_path`, a
    path that `Client.checkpoint` returned, which is only read. A server refuses a `group` that is not empty.
    """

    def __init__(self, path: str, group: str = "", fallback_checkpoint_path: str | None = None) -> None:
        self.path = path
        self.group = group
        self.fallback_checkpoint_path = fallback_checkpoint_path

    def internal_checkpointer(self) -> Checkpointer:
        return create_default_checkpointer(self.path, self.group, self.fallback_checkpoint_path)


class TempDirCheckpointer(DefaultCheckpointer):
    """Checkpoints in a fresh temporary directory."""

    def __init__(self) -> None:
        super().__init__(tempfile.mkdtemp())


def default_checkpointer(group: str | None = None) -> DefaultCheckpointer:
    """What a server has that is given none."""
    return TempDirCheckpointer()
