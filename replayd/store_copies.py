"""Copies of a store: compact, whole, and stores of their own; made while the daemon writes, or brought back.

A copy is made beside its place and renamed when it is whole. Only what carries the mark of a store, and has a name that
is given here, is ever removed. Runs in whatever process asks, never in the daemon's.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import lmdb

from replayd.errors import StoreError, StoreInUse, StoreUnreadable
from replayd.store_files import (
    DATA,
    LOCK,
    MARK,
    check_structure,
    is_store,
    make_lock,
    mark_text,
    not_made,
    put_aside,
    reason,
    sync_directory,
)
from replayd.store_format import Damaged, Head, unpack_head

log = logging.getLogger("replayd")

_NAME = re.compile(r"\d{8}T\d{6}Z-checkpoint-\d+")
"""Names of copies in a rotation, which sort by time."""


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy that is whole."""

    path: Path
    generation: int
    saved_at: float
    """Seconds since 1970."""
    size_bytes: int


def copy_store(source: Path, target: Path) -> Copied:
    """Copy what the last checkpoint left in `source` to `target`, which must not be there, or be an empty directory.

    The source may be in use. Raises StoreError and its kinds.
    """
    if not is_store(source):
        raise StoreUnreadable(f"{source} is no store of replayd's: it has no {MARK}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StoreError(f"{target} is there already")
    target = target.absolute()
    part = target.with_name(f".{target.name}.part-{os.getpid()}")
    try:
        part.mkdir(parents=True)
        head = _copy_into(source, part)
        (part / MARK).write_bytes(mark_text())
        for name in (DATA, MARK):
            (part / name).chmod(0o640)
        for name in (DATA, MARK):
            with (part / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_directory(part)
        part.rename(target)
        sync_directory(target.parent)
    except (OSError, lmdb.Error) as error:
        raise StoreError(f"{target}: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Copied(target, head.generation, head.saved_at, (target / DATA).stat().st_size)


def copy_into_rotation(source: Path, parent: Path, keep: int) -> tuple[Copied, list[Path]]:
    """Copy to a directory in `parent` that is named after the time, and remove the oldest such ones beyond `keep`.

    The copy, and what was removed.
    """
    with _reading(source) as env:
        generation = _head(source, env).generation
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-checkpoint-{generation}"
    copied = copy_store(source, parent / name)
    copies = sorted(path for path in parent.iterdir() if _NAME.fullmatch(path.name) and is_store(path))
    removed = copies[: max(0, len(copies) - keep)]
    for path in removed:
        for file in (MARK, DATA, LOCK):
            (path / file).unlink(missing_ok=True)
        try:
            path.rmdir()
        except OSError:
            log.warning("%s has files that are not replayd's: remove it by hand if nobody needs them", path)
    return copied, removed


def bring_back(source: Path, directory: Path, *, replace: bool) -> tuple[Copied, Path | None]:
    """Make `directory` a store with what is in `source`.

    With `replace` a store that is there is put aside in it first: where, None if there was none. Raises StoreInUse,
    StoreUnreadable, and StoreError if there is one and it must not be replaced.
    """
    aside = None
    with _locked(directory):
        if (directory / DATA).exists():
            if not replace:
                raise StoreError(f"{directory} has a store already; --replace puts that aside")
            aside = put_aside(directory)
    part = directory / f".part-{os.getpid()}"
    copied = copy_store(source, part)
    try:
        for name in (DATA, MARK):
            (part / name).rename(directory / name)
        sync_directory(directory)
    except OSError as error:
        raise StoreError(f"{directory}: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Copied(directory, copied.generation, copied.saved_at, copied.size_bytes), aside


def _copy_into(source: Path, target: Path) -> Head:
    check_structure(source)
    with _reading(source) as env:
        env.copy(str(target), compact=True)
    with closing(lmdb.open(str(target), readonly=True, lock=False, max_dbs=8)) as env:
        # What the copy has, since the source may have gone on.
        return _head(target, env)


@contextmanager
def _reading(directory: Path) -> Iterator[lmdb.Environment]:
    """An environment that is only read; who writes it lets the pages be that are read."""
    try:
        make_lock(directory)
    except OSError as error:
        # Where nobody may write nobody does.
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise StoreError(f"{directory}: {reason(directory, error)}") from error
    env = lmdb.open(str(directory), readonly=True, max_dbs=8)
    try:
        yield env
    finally:
        env.close()


def _head(directory: Path, env: lmdb.Environment) -> Head:
    try:
        db = env.open_db(b"head", create=False)
        with env.begin(db=db) as txn:
            value = txn.get(b"head")
        if value is None:
            raise StoreUnreadable(f"{directory} has no checkpoint yet")
        return unpack_head(value)
    except lmdb.NotFoundError:
        raise StoreUnreadable(f"{directory} has no checkpoint yet") from None
    except Damaged as error:
        raise StoreUnreadable(f"{directory}: {error}") from error


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """No daemon uses the directory while inside, or StoreInUse is raised."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        mark = directory / MARK
        if not mark.exists():
            yield
            return
        fd = os.open(mark, os.O_RDWR)
    except OSError as error:
        raise not_made(directory, error) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreInUse(
                f"another process uses the store in {directory}: end it, or name another directory"
            ) from None
        yield
    finally:
        os.close(fd)
