"""The files of a store: its mark, its data, its lock; how they are made, checked and put aside.

Each is there whole or is none, whatever a full disk or a kill leaves undone: a directory with the mark has data, and
data that has its name was made to the end. Knows nothing of what is in them, and no transactions.
"""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

import lmdb
from lmdb.verify import VerifyError, verify

from replayd.errors import StoreError, StoreNotMade, StoreUnreadable
from replayd.store_format import FORMAT

MARK = "replayd-store.json"
"""The file that says of a directory that it is a store, and so that replayd may replace or remove it."""
DATA = "data.mdb"
LOCK = "lock.mdb"
LOCK_BYTES = 8192
"""What LMDB makes of it with the number of readers that it allows by itself."""

FULL_BYTES = 1 << 25
"""Free space with which a write that fails has failed for lack of it: twice what a transaction has, none needs more."""

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""Errors that are no matter of what the directory is called or whose it is."""


# --- making them ------------------------------------------------------------------------------------------------------


def make_data(directory: Path) -> None:
    """Make the data of an empty store; raises OSError and lmdb.Error, and nothing is there then."""
    draft = directory / f".{DATA}.part"
    draft.unlink(missing_ok=True)
    try:
        lmdb.open(str(draft), subdir=False, lock=False, mode=0o640).close()
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.rename(directory / DATA)
    finally:
        draft.unlink(missing_ok=True)


def complete_mark(mark: int) -> None:
    """Write the mark into its open file, unless it is there."""
    if not _is_mark(os.pread(mark, 4096, 0)):
        os.ftruncate(mark, 0)
        text = mark_text()
        if os.pwrite(mark, text, 0) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(mark)


def make_lock(directory: Path) -> None:
    """Have room for what LMDB keeps in shared memory. It would find out that there is none by the signal SIGBUS."""
    fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o640)
    try:
        os.posix_fallocate(fd, 0, LOCK_BYTES)
    finally:
        os.close(fd)


def mark_text() -> bytes:
    """What the mark of a new store says."""
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return (json.dumps({"what": "a store of replayd", "format": FORMAT, "made": made}) + "\n").encode()


def sync_directory(directory: Path) -> None:
    """Make durable which files are in it."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# --- what is there ----------------------------------------------------------------------------------------------------


def is_store(directory: Path) -> bool:
    """Whether it carries the mark."""
    try:
        return _is_mark((directory / MARK).read_bytes())
    except OSError:
        return False


def _is_mark(text: bytes) -> bool:
    try:
        return bool(json.loads(text)["what"] == "a store of replayd")
    except (ValueError, KeyError, TypeError):
        return False


def check_structure(directory: Path) -> None:
    """Raise StoreUnreadable if the file's pages do not hang together: LMDB itself takes them on trust."""
    data = directory / DATA
    if not data.exists():
        return
    try:
        problems: list[str] = verify(str(directory))  # type: ignore[no-untyped-call]
    except VerifyError as error:
        problems = [str(error)]
    if problems:
        more = f" (and {len(problems) - 1} more faults)" if len(problems) > 1 else ""
        raise StoreUnreadable(f"{data}: {problems[0]}{more}")


def put_aside(directory: Path) -> Path:
    """Move what there is of a store into a new directory inside this one, and so out of use; that directory."""
    aside = directory / f"aside-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
    try:
        aside.mkdir()
        for name in (DATA, LOCK, MARK):
            if (directory / name).exists():
                (directory / name).rename(aside / name)
        sync_directory(directory)
    except OSError as error:
        raise StoreError(f"{directory}: {reason(directory, error)}") from error
    return aside


# --- what went wrong --------------------------------------------------------------------------------------------------


def not_made(directory: Path, error: OSError) -> StoreError:
    """Why there can be no store in a directory, and what to do about it."""
    if error.errno in _OF_THE_DISK:
        return StoreError(f"{directory}: {error.strerror}")
    return StoreNotMade(
        f"cannot have a store in {directory}: {error.strerror}; `--data-dir` or `[store] path` must name a directory "
        "that the user who runs replayd may write to, or may make"
    )


def reason(directory: Path, error: Exception) -> str:
    """What went wrong, for people: LMDB calls a write that a full disk cut short an input/output error."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return str(error)
    free = disk.f_bavail * disk.f_frsize
    return f"no space left on the disk, {free / 1e6:.1f} MB are free ({error})" if free < FULL_BYTES else str(error)
