"""The files of a store: its mark, its data, its lock; how they are made, checked and put aside.

Each is there whole or is none, whatever a full disk or a kill leaves undone: a directory with the mark has data, and
data that has its name was made to the end. Knows nothing of what is in them, and no transactions.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import time
from pathlib import Path

import lmdb
from lmdb.verify import VerifyError, verify

from replayd.errors import StoreError, StoreForbidden, StoreInUse, StoreNotMade, StoreUnreadable
from replayd.store_format import FORMAT

log = logging.getLogger("replayd")

MARK = "replayd-store.json"
"""The file that says of a directory that it is a store, and so that replayd may replace or remove it."""
DATA = "data.mdb"
LOCK = "lock.mdb"
LOCK_BYTES = 8192
"""What LMDB makes of it with the number of readers that it allows by itself."""

_PART = re.compile(r"\.part-\d+")
"""Directories in a store's in which a copy is made that is brought back."""
_ASIDE = re.compile(r"aside-\d{8}T\d{6}Z-\d+")
"""And those with what was there before; they sort by time."""

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


def lock_mark(directory: Path) -> int:
    """Open the mark, which is made if need be, and lock it: until it is closed the directory is the caller's.

    Raises OSError, and StoreInUse if another process has it.
    """
    fd = os.open(directory / MARK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A copy that is brought back has another mark, and this one may be that of before.
        is_free = os.path.samestat(os.fstat(fd), os.stat(directory / MARK))
    except OSError:
        is_free = False
    if not is_free:
        os.close(fd)
        raise StoreInUse(f"another process uses the store in {directory}: end it, or name another directory")
    return fd


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


def mark_text(copy_of: int | None = None, copy: int | None = None) -> bytes:
    """What the mark of a new store says; of a copy that of which checkpoint it is one, and its number `copy`, if it is
    one of those that follow each other."""
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    says = {"what": "a store of replayd", "format": FORMAT, "made": made, "copy_of": copy_of, "copy": copy}
    return (json.dumps({key: value for key, value in says.items() if value is not None}) + "\n").encode()


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


def copy_number(directory: Path) -> int:
    """The number of a copy, 0 if its mark tells none."""
    return _number_in_mark(directory, "copy")


def copied_checkpoint(directory: Path) -> int:
    """The checkpoint of which this store was made as a copy, 0 if its mark tells none."""
    return _number_in_mark(directory, "copy_of")


def _number_in_mark(directory: Path, key: str) -> int:
    try:
        return int(json.loads((directory / MARK).read_bytes()).get(key, 0))
    except (OSError, ValueError, TypeError, AttributeError):
        return 0


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


def what_is_missing(directory: Path) -> str | None:
    """Why a directory without data is not to be taken for an empty one; None if it may be. Raises OSError."""
    names = [path.name for path in directory.iterdir()]
    asides = sorted(name for name in names if _ASIDE.fullmatch(name) and (directory / name / DATA).exists())
    if is_store(directory):
        story = f"{directory} has a {MARK} but no {DATA}: what was in this store is gone"
    elif any(map(_PART.fullmatch, names)):
        story = f"{directory} has no store, only what a `replayd restore` left that was cut short"
    elif asides:
        story = f"{directory} has no store, only one that was put aside"
    else:
        return None
    return f"{story}; what was put aside last is in {directory / asides[-1]}" if asides else story


# --- moving them ------------------------------------------------------------------------------------------------------


def part_of(directory: Path) -> Path:
    """Where this process makes a copy that is to be the directory's store; none is there yet."""
    return directory / f".part-{os.getpid()}"


def put_aside(directory: Path) -> Path | None:
    """Move the data of a store into a new directory inside this one, which is a store then; None if there is none.

    The mark stays here too, so that nobody takes this one for empty until it has other data. Raises StoreError, and
    nothing has changed then.
    """
    if not (directory / DATA).exists():
        return None
    aside = directory / f"aside-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
    try:
        aside.mkdir()
        try:
            if (directory / MARK).exists():
                (aside / MARK).write_bytes((directory / MARK).read_bytes())
                (aside / MARK).chmod(0o640)
            for name in (LOCK, DATA):
                if (directory / name).exists():
                    (directory / name).rename(aside / name)
            sync_directory(aside)
            sync_directory(directory)
        except BaseException:
            take_back(directory, aside)
            raise
    except OSError as error:
        raise StoreError(f"{directory}: {reason(directory, error)}") from error
    return aside


def take_back(directory: Path, aside: Path) -> None:
    """Have the store again that was put aside, in the place of what is there. Raises OSError."""
    for name in (LOCK, DATA):
        if (aside / name).exists():
            (aside / name).rename(directory / name)
    (aside / MARK).unlink(missing_ok=True)
    aside.rmdir()
    sync_directory(directory)


def remove_remains(directory: Path) -> None:
    """Remove what a restore left that was cut short, for whoever has the directory for himself.

    That is what it had copied, and a place for what was to be put aside and was not.
    """
    try:
        for path in directory.iterdir():
            is_empty_aside = _ASIDE.fullmatch(path.name) and not (path / DATA).exists()
            if (_PART.fullmatch(path.name) or is_empty_aside) and path.is_dir() and not path.is_symlink():
                for name in (DATA, LOCK, MARK):
                    (path / name).unlink(missing_ok=True)
                path.rmdir()
    except OSError as error:
        log.warning("%s has what a restore left that was cut short: %s; remove it by hand", directory, error)


# --- what went wrong --------------------------------------------------------------------------------------------------


def not_made(directory: Path, error: OSError) -> StoreError:
    """Why there can be no store in a directory, and what to do about it."""
    if error.errno in _OF_THE_DISK:
        return StoreError(f"{directory}: {error.strerror}")
    kind = StoreForbidden if isinstance(error, PermissionError) else StoreNotMade
    return kind(
        f"cannot have a store in {directory}: {error.strerror}; `--data-dir` or `[store] path` must name a directory "
        "that the user who runs replayd may write to, or may make"
    )


def not_copied(place: Path, error: Exception) -> StoreError:
    """Why a store could not be copied from or to there."""
    if isinstance(error, PermissionError):
        where = error.filename or place
        return StoreForbidden(f"{where}: {error.strerror}; run this as a user who may read and write there, or as root")
    if isinstance(error, NotADirectoryError):
        return StoreNotMade(f"{place} is no directory: name another place")
    # Where the copy is to be: it need not be there.
    return StoreError(f"{place}: {reason(place if place.is_dir() else place.parent, error)}")


def reason(directory: Path, error: Exception) -> str:
    """What went wrong, for people: LMDB calls a write that a full disk cut short an input/output error."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return str(error)
    free = disk.f_bavail * disk.f_frsize
    return f"no space left on the disk, {free / 1e6:.1f} MB are free ({error})" if free < FULL_BYTES else str(error)
