"""A disk that is found full where none can be mounted: a directory that takes no more than so many bytes.

In a daemon's process, what replayd asks of the disk is refused with ENOSPC as the kernel would: files that grow, and
transactions of LMDB whose pages would make the file grow. What is in the file already may be written anew, as on a
disk. DISK and DISK_BYTES, variables of the environment, say which directory it is and what it takes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

DISK, DISK_BYTES = "REPLAYD_TEST_DISK", "REPLAYD_TEST_DISK_BYTES"
PAGE_BYTES = 4096
DATA_BYTES = 2 * PAGE_BYTES
"""What LMDB writes when it makes a file."""


def free_bytes() -> int:
    """What there is room for."""
    used = sum(path.stat().st_size for path in Path(os.environ[DISK]).rglob("*") if path.is_file())
    return max(0, int(os.environ[DISK_BYTES]) - used)


def inject() -> None:
    """From now on, the disk of this process is that one."""
    import lmdb

    real_open, real_statvfs = lmdb.open, os.statvfs
    real_pwrite, real_fallocate = os.pwrite, os.posix_fallocate

    def opened(path: str, **options: Any) -> Any:
        file = Path(path) if not options.get("subdir", True) else Path(path) / "data.mdb"
        if _is_there(file) and not file.exists() and free_bytes() < DATA_BYTES:
            raise _disk_full()
        env = real_open(path, **options)
        return _Environment(env, file) if _is_there(file) else env

    def statvfs(path: Any) -> os.statvfs_result:
        told = real_statvfs(path)
        if not _is_there(Path(path)):
            return told
        free = free_bytes() // told.f_frsize
        return os.statvfs_result([*told[:3], free, free, *told[5:]])

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        _check_growth(fd, offset + len(data))
        return real_pwrite(fd, data, offset)

    def posix_fallocate(fd: int, offset: int, nbytes: int) -> None:
        _check_growth(fd, offset + nbytes)
        real_fallocate(fd, offset, nbytes)

    lmdb.open, os.statvfs = opened, statvfs
    os.pwrite, os.posix_fallocate = pwrite, posix_fallocate


class _Environment:
    """An environment of LMDB whose file grows only as far as there is room."""

    def __init__(self, env: Any, file: Path) -> None:
        self._env = env
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def open_db(self, *arguments: Any, **options: Any) -> Any:
        with self._within_room():
            return self._env.open_db(*arguments, **options)

    def copy(self, path: str, **options: Any) -> None:
        if _is_there(Path(path)) and self._file.stat().st_size > free_bytes():
            raise _disk_full()
        self._env.copy(path, **options)

    def begin(self, *arguments: Any, write: bool = False, **options: Any) -> Any:
        txn = lambda: self._env.begin(*arguments, write=write, **options)  # noqa: E731
        return _Changed(self, txn) if write else txn()

    @contextmanager
    def _within_room(self) -> Iterator[None]:
        """LMDB finds its map full where the file would not fit the disk."""
        import lmdb

        map_bytes = self._env.info()["map_size"]
        fits = (self._file.stat().st_size + free_bytes()) // PAGE_BYTES * PAGE_BYTES
        if fits >= map_bytes:
            yield
            return
        self._env.set_mapsize(fits)
        try:
            yield
        except lmdb.MapFullError:
            raise _disk_full() from None
        finally:
            self._env.set_mapsize(map_bytes)


class _Changed:
    """A transaction that writes, for `with`."""

    def __init__(self, env: _Environment, begin: Any) -> None:
        self._room = env._within_room()
        self._begin = begin

    def __enter__(self) -> Any:
        self._room.__enter__()
        self._txn = self._begin()
        return self._txn.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._txn.__exit__(kind, error, trace)
        except BaseException as failed:
            self._room.__exit__(type(failed), failed, failed.__traceback__)
            raise
        self._room.__exit__(kind, error, trace)


def _check_growth(fd: int, size: int) -> None:
    if _is_there(Path(os.readlink(f"/proc/self/fd/{fd}"))) and size - os.fstat(fd).st_size > free_bytes():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _is_there(path: Path) -> bool:
    return path.resolve().is_relative_to(Path(os.environ[DISK]).resolve())


def _disk_full() -> Exception:
    import lmdb

    return lmdb.DiskError(f"mdb_txn_commit: {os.strerror(errno.ENOSPC)}")  # type: ignore[no-any-return]
