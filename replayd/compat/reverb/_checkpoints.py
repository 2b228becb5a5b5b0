"""Checkpoints where the incumbent's programs look for them: directories in the one that a checkpointer names.

A server has its store in `ROOT/TIME`, and that is what `Client.checkpoint` returns. The next server of this root goes
on with the newest such store, so that a checkpoint writes only what is new, in the place of the one before it. What a
store has inside is replayd's business.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import lmdb

from replayd.compat.reverb.pybind import Checkpointer
from replayd.errors import StoreUnreadable
from replayd.store_files import DATA, LOCK, MARK, is_store
from replayd.store_format import Damaged, Head, unpack_head

_DONE = "DONE"
"""The incumbent's last file of a finished checkpoint."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server has its store."""

    path: Path
    head: Head | None
    """Of the checkpoint that it begins with."""

    def settings(self) -> dict[str, dict[str, Any]]:
        """Those of the saved tables, by name."""
        return {} if self.head is None else {kept["name"]: kept["settings"] for kept in self.head.index["tables"]}


def find_place(checkpointer: Checkpointer) -> Place:
    """The place of a new server's store: with the newest checkpoint of the root, or else the fallback's, or empty.

    A store that another server uses is copied, as its last checkpoint left it. Raises ValueError for a group, which
    replayd has no use for, and for a checkpoint of the incumbent's own; RuntimeError for one that cannot be copied,
    StoreUnreadable for a damaged one.
    """
    if checkpointer.group:
        raise ValueError("Setting non-empty group is not supported")
    root = Path(checkpointer.path)
    empty: Path | None = None
    for path in _stores(root):
        if _is_in_use(path):
            if copied := _copied(path, root):
                return copied
            continue
        head = _head(path)
        if head is not None:
            return Place(path, head)
        empty = path
    _refuse_the_incumbents(root.glob(f"*/{_DONE}"))
    if checkpointer.fallback_checkpoint_path is not None:
        fallback = Path(checkpointer.fallback_checkpoint_path)
        _refuse_the_incumbents(fallback.glob(_DONE))
        if is_store(fallback) and (copied := _copied(fallback, root)):
            return copied
    return Place(empty or _new_path(root), None)


def remove_older(place: Place) -> None:
    """Remove the checkpoints of the root that this one, which has been loaded, took the place of."""
    stores = _stores(place.path.parent)
    for path in stores[stores.index(place.path) + 1 :] if place.path in stores else []:
        if not _is_in_use(path):
            _remove(path)


def remove_if_empty(path: Path) -> None:
    """Remove the store of a server that has ended if there never was a checkpoint in it."""
    if is_store(path) and not _is_in_use(path) and _head(path) is None:
        _remove(path)


def _stores(root: Path) -> list[Path]:
    """The stores in a root, that with the newest checkpoint first."""
    stores = [path for path in root.iterdir() if is_store(path)] if root.is_dir() else []
    return sorted(stores, key=lambda path: _written_at(path / DATA), reverse=True)


def _written_at(data: Path) -> int:
    try:
        return data.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _head(path: Path) -> Head | None:
    """What the last checkpoint says in a store that nobody uses; None: there has been none."""
    if not (path / DATA).exists():
        return None
    try:
        with closing(lmdb.open(str(path), readonly=True, max_dbs=8)) as environment:
            head = environment.open_db(b"head", create=False)
            with environment.begin(db=head) as transaction:
                value = transaction.get(b"head")
        return None if value is None else unpack_head(value)
    except lmdb.NotFoundError:
        return None
    except (lmdb.Error, Damaged) as error:
        raise StoreUnreadable(f"the checkpoint in {path} cannot be read: {error}") from error


def _is_in_use(path: Path) -> bool:
    """Whether a server, of this process or another, has the store."""
    mark = os.open(path / MARK, os.O_RDWR)
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(mark)
    return False


def _copied(source: Path, root: Path) -> Place | None:
    """A copy in the root of what the last checkpoint left in a store; None if there was none."""
    path = _new_path(root)
    # In a process of its own: LMDB opens a store once in each, and the server that has this one may be in this process.
    command = [sys.executable, "-m", "replayd", "restore", str(source), "--data-dir", str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return Place(path, _head(path))
    if path.is_dir():
        path.rmdir()
    if "no checkpoint yet" in done.stderr:
        return None
    raise RuntimeError(f"the checkpoint in {source} cannot be read: {done.stderr.strip()}")


def _new_path(root: Path) -> Path:
    return root / datetime.now().astimezone().isoformat(timespec="microseconds")


def _remove(path: Path) -> None:
    """Remove a store and nothing else."""
    for name in (DATA, LOCK, MARK):
        (path / name).unlink(missing_ok=True)
    if not any(path.iterdir()):
        path.rmdir()


def _refuse_the_incumbents(found: Any) -> None:
    done = sorted(found)
    if done:
        raise ValueError(f"the checkpoint in {done[-1].parent} is Reverb's, which replayd cannot read")
