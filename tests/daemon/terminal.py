"""A program in a terminal of its own: what it writes there, and what is typed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from typing import Self

from tests.daemon.harness import environment

SECONDS = 60.0


class Terminal:
    """A command in a terminal of this size. Its process ends with it."""

    def __init__(self, command: Sequence[str], *, width: int = 80, height: int = 24) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        variables = {**environment(), "TERM": "xterm-256color", "COLUMNS": str(width), "LINES": str(height)}
        self.process = subprocess.Popen(
            command, env=variables, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        self._said = ""

    def read_until(self, text: str) -> str:
        """All that it wrote since the last call, until this is among it; without the codes of the terminal."""
        return plain(self.read_raw_until(text))

    def read_raw_until(self, text: str) -> str:
        """The same with the codes."""
        deadline = time.monotonic() + SECONDS
        while text not in plain(self._said):
            ready, _, _ = select.select([self._master], [], [], 0.1)
            assert time.monotonic() < deadline, plain(self._said)
            if ready:
                self._said += os.read(self._master, 1 << 16).decode(errors="replace")
        said, self._said = self._said, ""
        return said

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self.slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def plain(text: str) -> str:
    return re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])", "", text)
