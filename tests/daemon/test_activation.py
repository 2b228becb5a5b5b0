"""Listening sockets that were there before the daemon: peers that connect while none runs are served by the next."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import zmq

from replayd.activation import Misfit, assigned, handed_over
from tests.daemon.harness import REPLAYD, START_S, Peer, environment

# As a service manager does it: the sockets are file descriptors from 3 on, of the process that LISTEN_PID names.
HAND_OVER = """
import os, sys
fds = [int(fd) for fd in sys.argv[1].split(",")]
spare = [os.dup(fd) for fd in fds]
for number, fd in enumerate(spare, 3):
    os.dup2(fd, number)
    os.set_inheritable(number, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(fds)))
os.execv(sys.argv[2], sys.argv[2:])
"""


class Activated:
    """Daemons one after the other on the same sockets."""

    def __init__(self, sockets: Sequence[socket.socket], arguments: Sequence[str]) -> None:
        self._fds = [each.fileno() for each in sockets]
        self._arguments = arguments
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        fds = ",".join(map(str, self._fds))
        self.process = subprocess.Popen(
            [sys.executable, "-c", HAND_OVER, fds, *REPLAYD, "serve", "--http", "off", *self._arguments],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=self._fds,
            text=True,
        )

    def stop(self) -> str:
        assert self.process is not None
        self.process.terminate()
        said, _ = self.process.communicate(timeout=START_S)
        assert self.process.returncode == 0, said
        return said

    def close(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def listening(stack: ExitStack, path: Path | None = None) -> tuple[socket.socket, str]:
    """A socket as a service manager makes it, and its endpoint."""
    listener = stack.enter_context(socket.socket(socket.AF_INET if path is None else socket.AF_UNIX))
    listener.bind(("127.0.0.1", 0) if path is None else str(path))
    listener.listen()
    return listener, f"tcp://127.0.0.1:{listener.getsockname()[1]}" if path is None else f"ipc://{path}"


def loaded(peer: Peer, header: dict[str, Any]) -> dict[str, Any]:
    """The answer to the request of this reply, once the store is read."""
    while "error" in header and header["error"]["code"] == "loading":
        header = peer.ask(header["op"])
    return header


@pytest.mark.parametrize("kind", ["tcp", "ipc"])
def test_a_restart_drops_no_connection(
    kind: str, stack: ExitStack, tmp_path: Path, zmq_context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    listener, address = listening(stack, None if kind == "tcp" else tmp_path / "socket")
    activated = Activated(
        [listener], ["--listen", address, "--ingest-port", "0", "--data-dir", str(tmp_path / "store")]
    )
    stack.callback(activated.close)
    # Nobody serves yet: the kernel takes the connection, and the daemon finds it.
    early = Peer(zmq_context, address)
    stack.callback(early.close)
    waiting = early.send("hello")
    activated.start()
    header, _ = early.receive()
    assert header["id"] == waiting
    loaded(early, header)
    assert early.insert("replay")["items"] == 1
    said = activated.stop()
    assert f"requests  {address}" in said

    raw = socket.socket(listener.family)
    stack.callback(raw.close)
    raw.connect(listener.getsockname())
    late = Peer(zmq_context, address)
    stack.callback(late.close)
    late.send("info")
    activated.start()
    header = loaded(late, late.receive()[0])
    assert [table["size"] for table in header["tables"]] == [1]
    raw.settimeout(START_S)
    assert raw.recv(1) == b"\xff", "who connected while no daemon ran is greeted as ZeroMQ does"
    activated.stop()
    if kind == "ipc":
        assert (tmp_path / "socket").exists(), "it is the service manager's"


def test_both_sockets_are_taken_over(
    stack: ExitStack, zmq_context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    (requests, address), (ingest, ingest_address) = listening(stack), listening(stack)
    config = tmp_path / "replayd.toml"
    config.write_text(f'[server]\nlisten = "{address}"\ningest = "{ingest_address}"\n')
    # The order of the sockets says nothing.
    activated = Activated([ingest, requests], ["--config", str(config)])
    stack.callback(activated.close)
    activated.start()
    peer = Peer(zmq_context, address, ingest_address)
    stack.callback(peer.close)
    peer.send_insert("replay", push=True)
    # The sample waits for the insert.
    assert peer.ask("sample", table="replay", n=1, timeout_ms=int(START_S * 1000))["op"] == "sample"
    activated.stop()


def test_a_socket_that_fits_no_address_ends_the_start(stack: ExitStack) -> None:
    listener, address = listening(stack)
    activated = Activated([listener], ["--port", "0"])
    stack.callback(activated.close)
    activated.start()
    assert activated.process is not None
    said, _ = activated.process.communicate(timeout=START_S)
    assert activated.process.returncode == os.EX_CONFIG
    assert address in said
    assert "must agree" in said


# --- what fits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handed", "configured"),
    [
        ("tcp://127.0.0.1:7077", "tcp://127.0.0.1:7077"),
        ("tcp://127.0.0.1:7077", "tcp://localhost:7077"),
        ("tcp://0.0.0.0:7077", "tcp://*:7077"),
        ("tcp://[::]:7077", "tcp://0.0.0.0:7077"),
        ("ipc:///run/replayd/socket", "ipc:///run/replayd/socket"),
    ],
)
def test_a_socket_stands_for_the_address_it_is_bound_to(handed: str, configured: str) -> None:
    assert assigned({handed: 3}, ["tcp://127.0.0.1:1", configured]) == {configured: 3}


@pytest.mark.parametrize(
    ("handed", "configured"),
    [
        ("tcp://127.0.0.1:7078", "tcp://127.0.0.1:7077"),
        ("tcp://10.0.0.1:7077", "tcp://127.0.0.1:7077"),
        # Others would reach what is meant for this machine alone.
        ("tcp://[::]:7077", "tcp://127.0.0.1:7077"),
        ("tcp://0.0.0.0:7077", "tcp://localhost:7077"),
        # Others would find nobody at what is meant for them.
        ("tcp://127.0.0.1:7077", "tcp://0.0.0.0:7077"),
        ("tcp://[::1]:7077", "tcp://*:7077"),
        ("ipc:///run/replayd/other", "ipc:///run/replayd/socket"),
    ],
)
def test_a_socket_that_is_bound_elsewhere_fits_nothing(handed: str, configured: str) -> None:
    with pytest.raises(Misfit, match="must agree"):
        assigned({handed: 3}, [configured])


def test_no_address_has_two_sockets() -> None:
    with pytest.raises(Misfit):
        assigned({"tcp://0.0.0.0:7077": 3, "tcp://[::]:7077": 4}, ["tcp://*:7077"])


def test_what_is_no_listening_socket_is_told(monkeypatch: pytest.MonkeyPatch, stack: ExitStack, tmp_path: Path) -> None:
    file = stack.enter_context((tmp_path / "file").open("w"))
    idle = stack.enter_context(socket.socket())
    datagram = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    for fd, story in ((file.fileno(), "no socket"), (idle.fileno(), "nothing"), (datagram.fileno(), "nothing")):
        monkeypatch.setattr("replayd.activation.FIRST_FD", fd)
        with pytest.raises(Misfit, match=story):
            handed_over({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"})
        os.fstat(fd)
    monkeypatch.setattr("replayd.activation.FIRST_FD", 100_000)
    with pytest.raises(Misfit, match="no socket"):
        handed_over({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"})


def test_sockets_of_another_process_are_not_ours() -> None:
    environment = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x", "HOME": "/"}
    assert handed_over(environment) == {}
    assert environment == {"HOME": "/"}, "nor are they left to children"
