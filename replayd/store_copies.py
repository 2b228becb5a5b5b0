"""Copies of a store: compact, whole, and stores of their own; made while the daemon writes, or brought back.

A copy is made beside its place and renamed when it is whole. Only what carries the mark of a store, and has a name that
is given here, is ever removed. Runs in whatever process asks, never in the daemon's.
"""

from __future__ import annotations

import errno
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

from replayd.errors import StoreError, StoreNotMade, StoreUnreadable
from replayd.ownership import give_to_owner_of_directory, make_directory
from replayd.store import MAP_BYTES, Store
from replayd.store_files import (
    DATA,
    MARK,
    check_structure,
    copy_number,
    is_store,
    lock_mark,
    make_lock,
    mark_text,
    not_copied,
    not_made,
    part_of,
    put_aside,
    remove_remains,
    sync_directory,
    take_back,
)
from replayd.store_format import Damaged, Head, unpack_head
from replayd.store_parts import part_of_copy, remove_files, remove_leftovers

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
    with _sound(source) as env:
        return _copy(source, env, target)


def copy_into_rotation(source: Path, parent: Path, keep: int) -> tuple[Copied, list[Path]]:
    """Copy to a directory in `parent` that is named after the time, and remove the oldest such ones beyond `keep`.

    Which are the oldest their marks tell, whatever the clock has done. The copy, and what was removed.
    """
    try:
        before = _copies(parent)
    except OSError as error:
        raise not_copied(parent, error) from error
    number = 1 + (before[-1][0] if before else 0)
    with _sound(source) as env:
        name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-checkpoint-{_head(source, env).generation}"
        remove_leftovers(parent, _NAME.pattern)
        copied = _copy(source, env, parent / name, number)
    others = [path for _, path in _copies(parent) if path.name != name]
    removed = others[: max(0, len(others) + 1 - keep)]
    for path in removed:
        try:
            remove_files(path)
        except OSError as error:
            log.warning("%s could not be removed: %s; remove it by hand if nobody needs what is in it", path, error)
    return copied, removed


def _copies(parent: Path) -> list[tuple[int, Path]]:
    """The copies of a rotation, the oldest first, with their numbers: 0 for those that were made without."""
    if not parent.exists():
        return []
    found = [path for path in parent.iterdir() if _NAME.fullmatch(path.name) and is_store(path)]
    return sorted((copy_number(path), path) for path in found)


def _copy(source: Path, env: lmdb.Environment, target: Path, number: int | None = None) -> Copied:
    target = target.absolute()
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise StoreNotMade(f"{target} is there already: name another place")
        remove_leftovers(target.parent, re.escape(target.name))
        with part_of_copy(target) as part:
            head = _copy_into(source, env, part, number)
            part.rename(target)
        sync_directory(target.parent)
    except (OSError, lmdb.Error) as error:
        raise not_copied(target, error) from error
    return Copied(target, head.generation, head.saved_at, (target / DATA).stat().st_size)


def bring_back(source: Path, directory: Path, *, replace: bool) -> tuple[Copied, Path | None]:
    """Make `directory` a store with what is in `source`.

    With `replace` a store that is there is put aside in it: where, None if there was none. That is done when the copy
    is whole, and undone if it cannot take its place; a process that is killed leaves one of the two, or a directory
    that a start refuses. Raises StoreInUse, StoreUnreadable, StoreForbidden, and StoreNotMade if there is one that must
    not be replaced.
    """
    with _sound(source) as env, _locked(directory):
        if (directory / DATA).exists() and not replace:
            raise StoreNotMade(f"{directory} has a store already; --replace puts that aside")
        remove_remains(directory)
        part = part_of(directory)
        try:
            part.mkdir()
            head = _copy_into(source, env, part)
            _check_index(source, part)
            _give_to_owner(part)
            aside = put_aside(directory)
            if aside is not None:
                _give_to_owner(aside)
            _place(part, directory, aside)
            size_bytes = (directory / DATA).stat().st_size
        except (OSError, lmdb.Error) as error:
            raise not_copied(directory, error) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return Copied(directory, head.generation, head.saved_at, size_bytes), aside


def _give_to_owner(part: Path) -> None:
    """A directory in a store's, and the files in it: whoever brings a copy back for a service is often root."""
    for path in (part, *part.iterdir()):
        give_to_owner_of_directory(path)


def _place(part: Path, directory: Path, aside: Path | None) -> None:
    """Have the copy be the store. If it cannot be, what was put aside is again; where that fails too the error says."""
    try:
        for name in (DATA, MARK):
            (part / name).rename(directory / name)
        sync_directory(directory)
    except BaseException as error:
        try:
            if aside is not None:
                take_back(directory, aside)
        except OSError:
            raise StoreError(f"{directory}: {error}; the store that was there is in {aside}") from error
        raise


def _check_files(source: Path) -> None:
    for name in (MARK, DATA):
        try:
            (source / name).open("rb").close()
        except PermissionError as error:
            raise not_copied(source, error) from error
        except OSError:
            break
    if not is_store(source):
        raise StoreUnreadable(f"{source} is no store of replayd's: it has no {MARK}")
    if not (source / DATA).exists():
        raise StoreUnreadable(f"{source} has a {MARK} but no {DATA}: what was in this store is gone")


def _copy_into(source: Path, env: lmdb.Environment, part: Path, number: int | None = None) -> Head:
    """A store that is on the disk, in a directory that has nothing yet."""
    env.copy(str(part), compact=True)
    with closing(lmdb.open(str(part), readonly=True, lock=False, max_dbs=8)) as copy:
        # What the copy has, since the source may have gone on.
        head = _head(source, copy)
    (part / MARK).write_bytes(mark_text(head.generation, number))
    for name in (DATA, MARK):
        (part / name).chmod(0o640)
        with (part / name).open("rb") as file:
            os.fsync(file.fileno())
    sync_directory(part)
    return head


def _check_index(source: Path, part: Path) -> None:
    """Read the index, in which a start would find damage when what was there is aside."""
    try:
        with Store(part) as copy:
            copy.read_index()
    except StoreUnreadable as error:
        raise StoreUnreadable(f"{source}: {error.__cause__ or error}") from error


@contextmanager
def _sound(source: Path) -> Iterator[lmdb.Environment]:
    """An environment that is only read and whose pages hang together, also of a store that is in use.

    While inside, who writes lets the pages be that are read. Raises StoreError, StoreUnreadable.
    """
    _check_files(source)
    denied: OSError | None = None
    try:
        make_lock(source)
    except OSError as error:
        # Where nobody may write nobody does.
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise not_copied(source, error) from error
        denied = error if error.errno == errno.EACCES else None
    try:
        # With room for what is added meanwhile: it is address space alone.
        map_bytes = max(MAP_BYTES, 4 * (source / DATA).stat().st_size)
        env = lmdb.open(str(source), map_size=map_bytes, readonly=True, max_dbs=8)
    except (OSError, lmdb.Error) as error:
        # It is no more than too short, or no file of LMDB's, if that is what is wrong with it.
        check_structure(source)
        raise not_copied(source, denied or error) from error
    with closing(env), env.begin():
        # No page that this transaction can reach is written anew, nor any that is let go of from now on: whatever is
        # the last commit when the check begins stays whole until it is over.
        _check(source)
        yield env


def _check(source: Path) -> None:
    """Raise StoreUnreadable if pages do not hang together. What grows in that moment looks cut off, but once only."""
    try:
        check_structure(source)
    except StoreUnreadable:
        check_structure(source)


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
        make_directory(directory)
        # Data without a mark is nobody's that would look at locks, and does not become a store by being locked.
        fd = None if (directory / DATA).exists() and not (directory / MARK).exists() else lock_mark(directory)
        if fd is not None:
            give_to_owner_of_directory(directory / MARK)
    except OSError as error:
        raise not_made(directory, error) from error
    try:
        yield
    finally:
        if fd is not None:
            os.close(fd)
