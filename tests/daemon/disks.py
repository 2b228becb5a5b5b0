"""Small disks for tests, which can be filled: mounted where one may, else a directory that daemons find full."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.daemon.full_disk import DISK, DISK_BYTES, free_bytes

NO_MOUNTS = "REPLAYD_TEST_NO_MOUNTS"
"""A variable of the environment: set, nothing is mounted."""


@contextmanager
def small_disk(directory: Path, nbytes: int, *, is_mounted: bool | None = None) -> Iterator[Path]:
    """A file system of so many bytes. None: a real one where that can be had."""
    directory.mkdir()
    if is_mounted is not False and _mounted(directory, nbytes):
        try:
            yield directory
        finally:
            subprocess.run(["umount", "-l", str(directory)], check=True)
        return
    assert not is_mounted, "no file system can be mounted here"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DISK, str(directory))
        patch.setenv(DISK_BYTES, str(nbytes))
        yield directory


def _mounted(directory: Path, nbytes: int) -> bool:
    if os.geteuid() != 0 or not (shutil.which("mount") and shutil.which("umount")) or NO_MOUNTS in os.environ:
        return False
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(directory)], check=False)
    return made.returncode == 0


@contextmanager
def filled(disk: Path, left_bytes: int = 0) -> Iterator[None]:
    """While inside, only so much of a small disk is free."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        if disk.is_mount():
            with pytest.raises(OSError, match="space"):
                while True:
                    file.write(bytes(4096))
            file.truncate(max(0, ballast.stat().st_size - left_bytes))
        else:
            assert os.environ[DISK] == str(disk), "no other disk is to be filled"
            file.truncate(max(0, free_bytes() - left_bytes))
    try:
        yield
    finally:
        ballast.unlink()
