"""How many peers are connected, as `info` tells it: those who come, who go, and who never speak."""

from __future__ import annotations

import socket

import zmq

from tests.daemon.conftest import ConnectPeer, StartDaemon
from tests.daemon.embedded import until
from tests.daemon.harness import Peer


def connected(peer: Peer) -> int:
    peers: dict[str, int] = peer.ask("info")["peers"]
    return peers["connected"]


def test_peers_that_come_and_go_are_counted(
    start_daemon: StartDaemon, connect: ConnectPeer, zmq_context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    daemon = start_daemon()
    watcher = connect(daemon)
    until(lambda: connected(watcher) == 2)
    others = [Peer(zmq_context, daemon.address) for _ in range(5)]
    until(lambda: connected(watcher) == 7)
    for other in others:
        other.close()
    until(lambda: connected(watcher) == 2)


def test_a_connection_that_says_nothing_counts_until_it_ends(start_daemon: StartDaemon, connect: ConnectPeer) -> None:
    daemon = start_daemon()
    watcher = connect(daemon)
    until(lambda: connected(watcher) == 2)
    host, _, port = daemon.address.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port))):
        until(lambda: connected(watcher) == 3)
    until(lambda: connected(watcher) == 2)


def test_many_that_come_and_go_leave_no_trace(start_daemon: StartDaemon, connect: ConnectPeer) -> None:
    daemon = start_daemon()
    watcher = connect(daemon)
    host, _, port = daemon.address.removeprefix("tcp://").rpartition(":")
    for _ in range(2000):
        socket.create_connection((host, int(port))).close()
    until(lambda: connected(watcher) == 2)
