"""Small disks for tests, which can be filled."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(directory: Path, nbytes: int) -> Iterator[Path]:
    """A file system of so many bytes, where that can be had."""
    directory.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or umount is None:
        pytest.skip("only root can mount a small disk")
    made = subprocess.run([mount, "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(directory)], check=False)
    if made.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield directory
    finally:
        subprocess.run([umount, "-l", str(directory)], check=True)


@contextmanager
def filled(disk: Path, left_bytes: int = 0) -> Iterator[None]:
    """While inside, only so much of a small disk is free."""
    assert disk.is_mount(), "no other disk is to be filled"
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        with pytest.raises(OSError, match="space"):
            while True:
                file.write(bytes(4096))
        file.truncate(max(0, ballast.stat().st_size - left_bytes))
    try:
        yield
    finally:
        ballast.unlink()
