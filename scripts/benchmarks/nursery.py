"""Where workers are forked: one process a driver and interpreter, which has imported everything. See `worker`.

Owns these processes until this one ends.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[2]


def environment(*, peer: bool = False) -> dict[str, str]:
    """What is measured is this tree, whatever is installed; a peer sees its own environment and the drivers."""
    paths = [ROOT / "scripts"] if peer else [ROOT, ROOT / "client", ROOT / "scripts"]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "TF_CPP_MIN_LOG_LEVEL": "3"}


class Nursery:
    """Of one driver."""

    _of: dict[tuple[str, Path | None], Nursery] = {}  # noqa: RUF012 - all that there are

    @classmethod
    def of(cls, driver: str, python: Path | None) -> Nursery:
        """The one that there is, or a new one; `python` None is this interpreter."""
        if (driver, python) not in cls._of:
            cls._of[driver, python] = cls(driver, python)
        return cls._of[driver, python]

    def __init__(self, driver: str, python: Path | None) -> None:
        self._driver = driver
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        with theirs:
            self._process = subprocess.Popen(
                [str(python or sys.executable), "-m", f"benchmarks.{driver}", str(theirs.fileno())],
                env=environment(peer=python is not None),
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    def fork(self, role: str, settings: dict[str, Any], *fds: int) -> int:
        """A worker with these descriptors for its orders, answers and other words: its process id."""
        try:
            socket.send_fds(self._socket, [json.dumps({"role": role, "settings": settings}).encode()], fds)
        except BrokenPipeError:
            raise self._failed() from None
        return self._answer()

    def end(self, pid: int) -> None:
        try:
            self._socket.send(json.dumps({"end": pid}).encode())
        except OSError:
            return  # It has ended, and with it the worker.
        self._answer()

    def close(self) -> None:
        self._socket.close()
        self._process.wait()
        self._said.close()

    def _answer(self) -> int:
        try:
            answer = self._socket.recv(64)
        except ConnectionResetError:
            answer = b""
        if not answer:
            raise self._failed()
        return int(answer)

    def _failed(self) -> click.ClickException:
        self._process.wait()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")[-2000:]
        return click.ClickException(f"{self._driver} ended too early:\n{said}")
