"""Fixtures: daemons as real processes, and peers of them. Whatever a test starts is ended with it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from tests.daemon.harness import DaemonProcess, Peer

StartDaemon = Callable[..., DaemonProcess]
ConnectPeer = Callable[[DaemonProcess], Peer]


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[StartDaemon]:
    """`start_daemon("--table", …)`: a running daemon, stopped at the end; if it does not stop the test fails."""
    numbers = itertools.count()
    with ExitStack() as running:

        def start(*arguments: str, file_decides: bool = False) -> DaemonProcess:
            directory = tmp_path / f"daemon-{next(numbers)}"
            directory.mkdir()
            return running.enter_context(DaemonProcess(directory, *arguments, file_decides=file_decides))

        yield start


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> DaemonProcess:
    """A daemon with the default table."""
    return start_daemon()


@pytest.fixture
def connect(zmq_context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[ConnectPeer]:
    """`connect(daemon)`: a peer speaking plain protocol, closed when the test ends."""
    with ExitStack() as connected:

        def connect(daemon: DaemonProcess) -> Peer:
            peer = Peer(zmq_context, daemon.address, daemon.ingest_address)
            connected.callback(peer.close)
            return peer

        yield connect


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """One daemon for the whole module, with the tables of its TABLES: their names, and their lines in the file."""
    directory = tmp_path_factory.mktemp("daemon")
    config = directory / "replayd.toml"
    config.write_text(
        "".join(f'[[table]]\nname = "{name}"\n{lines}\n' for name, lines in request.module.TABLES.items())
    )
    with DaemonProcess(directory, "--config", str(config)) as daemon:
        yield daemon


@pytest.fixture
def peer(connect: ConnectPeer, server: DaemonProcess) -> Peer:
    """A peer of the module's daemon."""
    return connect(server)


@pytest.fixture
def zmq_context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)
