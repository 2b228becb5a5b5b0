"""Whose files are that root makes: the daemon seldom runs as root, and commands for it often do.

Knows nothing of what is in them.
"""

from __future__ import annotations

import os
from pathlib import Path


def give_to_owner_of_directory(path: Path) -> None:
    """What root makes in a directory of somebody else's is theirs, so that the daemon can read it. Raises OSError."""
    if os.geteuid() == 0:
        directory = path.absolute().parent.stat()
        # A link of theirs does not make what it points to theirs.
        os.chown(path, directory.st_uid, directory.st_gid, follow_symlinks=False)


def make_directory(path: Path) -> None:
    """A directory with all above it, each its parent's owner's. Raises OSError."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        give_to_owner_of_directory(each)
