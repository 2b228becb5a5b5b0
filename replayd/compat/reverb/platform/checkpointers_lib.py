"""Checkpointers: where a server's checkpoints are. replayd writes none on request yet, so they only say so."""

from __future__ import annotations

import tempfile
from pathlib import Path

_DONE = "DONE"
"""The incumbent's last file of a finished checkpoint."""


class CheckpointerBase:
    """A place of checkpoints."""

    def __init__(self, path: str, fallback_checkpoint_path: str | None = None) -> None:
        self.path = path
        self.fallback_checkpoint_path = fallback_checkpoint_path

    def check_loadable(self) -> None:
        """Raises ValueError if there is a checkpoint, which would have to be restored: it is the incumbent's."""
        found = sorted(Path(self.path).glob(f"*/{_DONE}"))
        if not found and self.fallback_checkpoint_path is not None:
            found = sorted(Path(self.fallback_checkpoint_path).glob(_DONE))
        if found:
            raise ValueError(f"the checkpoint in {found[-1].parent} is Reverb's, which replayd cannot read")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(path={self.path!r})"


class DefaultCheckpointer(CheckpointerBase):
    """Checkpoints in a directory."""

    def __init__(self, path: str, group: str = "", fallback_checkpoint_path: str | None = None) -> None:
        super().__init__(path, fallback_checkpoint_path)
        self.group = group


class TempDirCheckpointer(CheckpointerBase):
    """Checkpoints in a fresh temporary directory."""

    def __init__(self) -> None:
        super().__init__(tempfile.mkdtemp())


def default_checkpointer(group: str | None = None) -> CheckpointerBase:
    """What a server has that is given none."""
    return TempDirCheckpointer()
