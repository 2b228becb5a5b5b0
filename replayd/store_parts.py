"""Where a copy is made: a hidden directory beside its place, which gets that name when the copy is whole.

It has a mark of its own, locked while the copy is made, so that what a process left that was killed can be told from
what is being made now, and from what is somebody else's. Knows nothing of what is in a store.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replayd.store_files import DATA, LOCK, MARK, is_store

log = logging.getLogger("replayd")

_WHAT = "a copy of a store of replayd that is being made"


@contextmanager
def part_of_copy(target: Path) -> Iterator[Path]:
    """A directory beside `target`, an absolute path, to make a copy in; it has this process's number in its name.

    It has a mark already, which is to be overwritten with a store's. While inside nobody takes it for a leftover;
    afterwards it is gone, unless it was given another name. Raises OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part, mark = _begin(target)
    try:
        yield part
    finally:
        try:
            remove_files(part)
        except OSError as error:
            log.warning("%s has what is left of a copy that failed: %s; remove it by hand", part, error)
        os.close(mark)


def remove_leftovers(parent: Path, names: str) -> None:
    """Remove what copies that were cut short left in `parent`, if the names that they were to have match `names`.

    What carries no mark of ours stays, as does what is being made now. Whatever is removed, or cannot be, is logged.
    """
    pattern = re.compile(rf"\.({names})\.part-\d+(-[0-9a-f]+)?")
    try:
        parts = [path for path in parent.iterdir() if pattern.fullmatch(path.name)]
    except FileNotFoundError:
        return
    for path in sorted(parts):
        try:
            if path.is_dir() and not path.is_symlink() and _remove_leftover(path):
                log.warning(
                    "removed %s, which a copy left that was cut short; see that copies have time and room", path
                )
        except OSError as error:
            log.warning("%s may be what a copy left that was cut short: %s; remove it by hand", path, error)


def remove_files(directory: Path) -> None:
    """Remove a store, or a part of one, and its directory, if that has nothing else. Raises OSError.

    The mark is the last to go: whoever is killed before leaves what another one can still tell for replayd's.
    """
    for name in (DATA, LOCK, MARK):
        (directory / name).unlink(missing_ok=True)
    if directory.exists():
        directory.rmdir()


def _begin(target: Path) -> tuple[Path, int]:
    """A new part and its mark, which is open and locked."""
    while True:
        part = target.with_name(f".{target.name}.part-{os.getpid()}-{secrets.token_hex(4)}")
        part.mkdir()
        try:
            mark = os.open(part / MARK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
        except FileNotFoundError:
            # Somebody took it for a leftover in this moment, as he may take the mark in the next one.
            continue
        try:
            fcntl.flock(mark, fcntl.LOCK_EX)
            if os.fstat(mark).st_nlink:
                os.write(mark, json.dumps({"what": _WHAT}).encode())
                return part, mark
        except BaseException:
            os.close(mark)
            remove_files(part)
            raise
        os.close(mark)


def _remove_leftover(part: Path) -> bool:
    """False if somebody works on it; raises OSError if it is not replayd's, or cannot be removed."""
    if not any(part.iterdir()):
        part.rmdir()
        return True
    try:
        mark = os.open(part / MARK, os.O_RDWR)
    except FileNotFoundError:
        raise OSError(f"it has no {MARK}") from None
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_ours(part):
            raise OSError(f"its {MARK} is not replayd's")
        remove_files(part)
    except BlockingIOError:
        return False
    finally:
        os.close(mark)
    return True


def _is_ours(part: Path) -> bool:
    text = (part / MARK).read_bytes()
    # It is empty when it has just been made, and before it becomes a store's.
    return not text or is_store(part) or text == json.dumps({"what": _WHAT}).encode()
