"""A daemon as a real process, and a peer that speaks to it in plain pyzmq and msgpack, after protocol.md alone."""

from __future__ import annotations

import itertools
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgpack
import zmq

from tests.daemon import full_disk

# Bounds on waiting, not expectations: a machine with two busy cores takes seconds to import numpy.
START_S = 60.0
STOP_S = 30.0
REPLY_S = 30.0

ROOT = Path(__file__).resolve().parents[2]
REPLAYD = (sys.executable, "-m", "replayd")


def environment() -> dict[str, str]:
    """The daemon under test is the one of this tree, whatever is installed."""
    paths = [ROOT, ROOT / "client"]
    if full_disk.DISK in os.environ:
        paths.append(ROOT / "tests" / "daemon" / "injected")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}


def run_replayd(*arguments: str, timeout_s: float = START_S) -> subprocess.CompletedProcess[str]:
    """Run `replayd …` to its end."""
    return subprocess.run(
        [*REPLAYD, *arguments],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@dataclass(frozen=True, slots=True)
class Ended:
    """How a daemon ended, and all that it said."""

    returncode: int
    stdout: str
    stderr: str


class DaemonProcess:
    """`replayd serve` on free ports of loopback. Use as a context manager: leaving it ends the process.

    `directory` holds its endpoint file and its output; `arguments` are further arguments of `serve`. With
    `file_decides` the address is that of the configuration file. It has `start_s` seconds to listen. `launcher` is a
    command that starts the command that follows it.
    """

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        file_decides: bool = False,
        start_s: float = START_S,
        launcher: Sequence[str] = (),
    ) -> None:
        self.endpoint_file = directory / "endpoint.json"
        self._stdout = directory / "stdout.txt"
        self._stderr = directory / "stderr.txt"
        port = [] if file_decides else ["--port", "0"]
        with self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*launcher, *REPLAYD, "serve", *port, "--endpoint-file", str(self.endpoint_file), *arguments],
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        try:
            endpoint = self._wait_until_it_listens(start_s)
        except BaseException:
            self.kill()
            raise
        self.address: str = endpoint["router"]
        self.ingest_address: str | None = endpoint["ingest"]
        self.http_address: str | None = endpoint["http"]
        self.pid: int = endpoint["pid"]

    def _wait_until_it_listens(self, start_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + start_s
        while not self.endpoint_file.exists():
            # Waiting for the process rather than sleeping: if it ends there will be no file.
            try:
                self.process.wait(timeout=0.01)
            except subprocess.TimeoutExpired:
                assert time.monotonic() < deadline, f"no endpoint file after {start_s} s\n{self.output()}"
            else:
                raise AssertionError(f"the daemon ended with {self.process.returncode}\n{self.output()}")
        endpoint: dict[str, Any] = json.loads(self.endpoint_file.read_text())
        return endpoint

    def output(self) -> str:
        """What it said so far, on stdout and then on stderr."""
        return self._stdout.read_text() + self._stderr.read_text()

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def wait(self, timeout_s: float = STOP_S) -> Ended:
        """Wait until it has ended by itself."""
        self.process.wait(timeout_s)
        return Ended(self.process.returncode, self._stdout.read_text(), self._stderr.read_text())

    def stop(self) -> Ended:
        """End it as an operator does, and check that it went quietly."""
        self.send_signal(signal.SIGTERM)
        ended = self.wait()
        assert ended.returncode == 0, f"the daemon ended with {ended.returncode}\n{ended.stdout}{ended.stderr}"
        return ended

    def kill(self) -> None:
        """End it without a word, as a crash does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            # A failed test is not helped by a second failure; one that passed must not hide a daemon that cannot stop.
            if kind is None and self.process.poll() is None:
                self.stop()
        finally:
            self.kill()


class Peer:
    """A DEALER and, if asked for, a PUSH peer of a daemon. A wait lasts at most REPLY_S and then fails the test."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, ingest_address: str | None = None
    ) -> None:
        self._ids = itertools.count(1)
        self._stream = os.urandom(16)
        self._seqs = itertools.count()
        self.dealer = self._connected(context, zmq.DEALER, address)
        self.push = self._connected(context, zmq.PUSH, ingest_address) if ingest_address is not None else None

    def _connected(self, context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> zmq.Socket[bytes]:
        socket = context.socket(kind)
        socket.linger = 0
        socket.connect(address)
        return socket

    def send(self, op: str, body: Sequence[bytes] = (), **fields: Any) -> int:
        """Send a request and return its id."""
        id = next(self._ids)
        self.dealer.send_multipart([msgpack.packb({"v": 1, "op": op, "id": id, **fields}), *body])
        return id

    def receive(self, timeout_s: float = REPLY_S) -> tuple[dict[str, Any], list[bytes]]:
        """The next reply: its header and its body."""
        assert self.dealer.poll(int(timeout_s * 1000)), f"no reply within {timeout_s} s"
        header, *body = self.dealer.recv_multipart()
        unpacked: dict[str, Any] = msgpack.unpackb(header)
        return unpacked, body

    def ask(self, op: str, body: Sequence[bytes] = (), **fields: Any) -> dict[str, Any]:
        """Send a request and return the header of its reply, which must be the next one to arrive."""
        id = self.send(op, body, **fields)
        header, _ = self.receive()
        assert header["id"] == id, header
        return header

    def send_insert(self, table: str, priority: float = 1.0, *, push: bool = False) -> int:
        """Send an insert of one step of one float32 and an item that shows it; return its id."""
        id, seq = next(self._ids), next(self._seqs)
        header = {
            "v": 1,
            "op": "insert",
            "id": id,
            "stream": self._stream,
            "seq": seq,
            "keep_from": seq,
            "first_chunk": seq,
            "rows": struct.pack("<I", 1),
            "schemas": [msgpack.packb([[["x"], "float32", []]])],
            "blobs": struct.pack("<IBBH", 4, 0, 0, 0),
            "tables": [table],
            "chunk": struct.pack("<Q", seq),
            "length": struct.pack("<I", 1),
            "priority": struct.pack("<d", priority),
        }
        socket = self.push if push else self.dealer
        assert socket is not None, "the daemon has no ingest address"
        socket.send_multipart([msgpack.packb(header), struct.pack("<f", seq)])
        return id

    def insert(self, table: str, priority: float = 1.0) -> dict[str, Any]:
        """Insert one step and one item, and return the reply, which must be the next one to arrive."""
        id = self.send_insert(table, priority)
        header, _ = self.receive()
        assert header["id"] == id, header
        return header

    def close(self) -> None:
        for socket in (self.dealer, self.push):
            if socket is not None:
                socket.close()
