"""How the daemon ends: by a signal, quickly, cleanly, and not without a word to those who wait."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.daemon.conftest import ConnectPeer, StartDaemon

# An operator's patience, and far less than a service manager's: an orderly end has no long work to do.
STOP_S = 5.0

BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


@BOTH
def test_a_signal_ends_an_idle_daemon(start_daemon: StartDaemon, number: signal.Signals) -> None:
    daemon = start_daemon()
    daemon.send_signal(number)
    ended = daemon.wait(STOP_S)
    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr


@BOTH
def test_a_signal_answers_whoever_waits(
    start_daemon: StartDaemon, connect: ConnectPeer, number: signal.Signals
) -> None:
    daemon = start_daemon()
    peers = [connect(daemon) for _ in range(3)]
    waiting = [peer.send("sample", table="replay", n=1, timeout_ms=60_000) for peer in peers]
    # A reply to a later request shows that the one before it has arrived and is parked.
    for peer in peers:
        assert "error" not in peer.ask("hello")
    daemon.send_signal(number)
    for peer, id in zip(peers, waiting, strict=True):
        header, body = peer.receive()
        assert (header["op"], header["id"], header["error"]["code"], body) == ("sample", id, "shutting_down", [])
    assert daemon.wait(STOP_S).returncode == 0


def test_an_insert_that_waits_is_answered_too(start_daemon: StartDaemon, connect: ConnectPeer) -> None:
    daemon = start_daemon("--table", "full,preset=queue,max_size=1")
    peer = connect(daemon)
    assert peer.insert("full")["items"] == 1
    waiting = peer.send_insert("full")
    assert "error" not in peer.ask("hello")
    daemon.send_signal(signal.SIGTERM)
    header, _ = peer.receive()
    assert (header["id"], header["error"]["code"]) == (waiting, "shutting_down")
    assert daemon.wait(STOP_S).returncode == 0


def test_a_second_signal_is_no_harm(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    daemon.send_signal(signal.SIGTERM)
    if daemon.process.poll() is None:
        daemon.send_signal(signal.SIGTERM)
    daemon.wait(STOP_S)
    assert "Traceback" not in daemon.output()


def test_a_hangup_is_told_and_changes_nothing(start_daemon: StartDaemon, connect: ConnectPeer) -> None:
    daemon = start_daemon()
    daemon.send_signal(signal.SIGHUP)
    peer = connect(daemon)
    assert peer.insert("replay")["items"] == 1
    assert "SIGHUP changes no settings: there is no file of them" in daemon.stop().stderr


@pytest.mark.parametrize("is_early", [True, False], ids=["before-its-loop", "in-its-loop"])
def test_a_hangup_has_the_file_read_again(
    start_daemon: StartDaemon, connect: ConnectPeer, tmp_path: Path, is_early: bool
) -> None:
    path = tmp_path / "replayd.toml"
    path.write_text('[[table]]\nname = "t"\nmax_size = 5\n')
    daemon = start_daemon("--config", str(path))
    peer = connect(daemon)
    if not is_early:
        assert "error" not in peer.ask("hello")
    path.write_text('[server]\nseed = 7\n[[table]]\nname = "t"\nmax_size = 6\n')
    daemon.send_signal(signal.SIGHUP)
    # A request that comes after the signal may still be answered before it is taken.
    deadline = time.monotonic() + STOP_S
    while peer.ask("info")["tables"][0]["max_size"] != 6:
        assert time.monotonic() < deadline
    said = daemon.stop().stderr
    assert "max_size 5 -> 6" in said
    assert "server.seed is none, and 7 in what was read again: that needs a restart" in said
    assert "INFO" in said


def test_a_daemon_that_was_stopped_leaves_no_endpoint_file(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    assert daemon.endpoint_file.exists()
    daemon.stop()
    assert not daemon.endpoint_file.exists()


def test_the_port_is_free_again_at_once(start_daemon: StartDaemon) -> None:
    first = start_daemon()
    port = first.address.rpartition(":")[2]
    first.stop()
    second = start_daemon("--port", port, "--ingest-port", "0")
    assert second.address == first.address
