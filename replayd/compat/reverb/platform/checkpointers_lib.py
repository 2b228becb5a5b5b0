"""Checkpointers: where a server's checkpoints are. replayd writes none on request yet, so they only say so."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from pathlib import Path

from replayd.compat.reverb.pybind import Checkpointer, create_default_checkpointer

_DONE = "DONE"
"""The incumbent's last file of a finished checkpoint."""


class CheckpointerBase(ABC):
    """A place of checkpoints; programs' own say it by `internal_checkpointer`."""

    @abstractmethod
    def internal_checkpointer(self) -> Checkpointer:
        """The binding's description of the place."""

    def check_loadable(self) -> None:
        """Raises ValueError if there is a checkpoint, which would have to be restored: it is the incumbent's."""
        place = self.internal_checkpointer()
        found = sorted(Path(place.path).glob(f"*/{_DONE}"))
        if not found and place.fallback_checkpoint_path is not None:
            found = sorted(Path(place.fallback_checkpoint_path).glob(_DONE))
        if found:
            raise ValueError(f"the checkpoint in {found[-1].parent} is Reverb's, which replayd cannot read")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.internal_checkpointer()})"


class DefaultCheckpointer(CheckpointerBase):
    """Checkpoints in a directory."""

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
