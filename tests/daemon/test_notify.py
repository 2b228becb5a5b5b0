"""What a service manager hears of a daemon, by a socket of the test's own: real processes, and the words themselves."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from replayd.board import PATIENCE_S, STOPPING, Board
from replayd.durability import Progress
from replayd.keeper import StoreOptions
from replayd.notify import Manager, manager_of, status_text
from replayd.rate_limiters import MinSize
from replayd.selectors import Fifo, Uniform
from replayd.server import Daemon
from replayd.service import Service
from replayd.table import Table
from replayd_client import Client
from tests.daemon.conftest import ConnectPeer, StartDaemon
from tests.daemon.embedded import DEADLINE_S, fifo, hold_loading, until
from tests.daemon.harness import REPLY_S, run_replayd

STUCK = """
import pathlib, time

class Stuck:
    '''Holds up the loop until a file is there.'''

    def __init__(self, go):
        self._go = pathlib.Path(go)

    def on_insert(self, *arguments):
        while not self._go.exists():
            time.sleep(0.01)
"""


class Listener:
    """A service manager: what it was told, one message after the other."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)

    def next(self, timeout_s: float = REPLY_S) -> list[str]:
        """The lines of the next message."""
        self._socket.settimeout(timeout_s)
        return self._socket.recv(65536).decode().split("\n")

    def until(self, line: str) -> list[list[str]]:
        """All messages up to the one with a line that begins so."""
        messages = [self.next()]
        while not any(each.startswith(line) for each in messages[-1]):
            messages.append(self.next())
        return messages

    def rest(self) -> list[list[str]]:
        """What has arrived and was not read."""
        messages = []
        while True:
            try:
                messages.append(self.next(timeout_s=1e-6))
            except (TimeoutError, BlockingIOError):
                return messages

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """A manager that daemons started afterwards report to."""
    listener = Listener(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", listener.address)
    yield listener
    listener.close()


# --- a daemon ---------------------------------------------------------------------------------------------------------


def test_a_daemon_is_ready_when_it_serves_what_its_store_has(
    listener: Listener, start_daemon: StartDaemon, connect: ConnectPeer, tmp_path: Path
) -> None:
    arguments = ("--data-dir", str(tmp_path / "store"))
    first = start_daemon(*arguments)
    peer = connect(first)
    listener.until("READY=1")
    assert peer.insert("replay")["items"] == 1
    first.stop()
    end = listener.until("STOPPING=1")[-1:] + listener.rest()
    assert end[0] == ["STOPPING=1", "STATUS=stopping"]
    assert ["EXTEND_TIMEOUT_USEC=30000000"] in end, "the last checkpoint may take longer than a stop may"
    assert not any("READY=1" in message for message in end)

    second = start_daemon(*arguments)
    before = listener.until("READY=1")
    assert before[-1] == ["READY=1", "STATUS=serving"]
    assert not any("STOPPING=1" in message for message in before)
    # Not refused as it would be while the store is read.
    tables = connect(second).ask("info")["tables"]
    assert [table["size"] for table in tables] == [1]


def test_a_daemon_whose_store_takes_long_asks_for_patience_until_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = hold_loading(monkeypatch)
    listener = Listener(str(tmp_path / "notify"))
    manager = Manager(listener.address)
    store = StoreOptions(tmp_path / "store")
    daemon = Daemon([fifo("t")], "tcp://127.0.0.1:0", store=store, board=Board(), manager=manager)
    daemon.bind()
    thread = threading.Thread(target=daemon.run, args=(False,))
    thread.start()
    try:
        before = listener.until("EXTEND_TIMEOUT_USEC=30000000")
        assert before[0][0].startswith("STATUS=loading: "), before
        assert not any("READY=1" in message for message in before + listener.rest())
        go_on.set()
        listener.until("READY=1")
    finally:
        go_on.set()
        daemon.stop()
        thread.join(DEADLINE_S)
        manager.close()
        listener.close()


def test_loading_is_told_and_asks_for_patience(tmp_path: Path) -> None:
    listener = Listener(str(tmp_path / "notify"))
    manager = Manager(listener.address)
    manager.tell("loading: chunks, 1 of 9 MB, for 1 s", None, time.monotonic())
    manager.tell("loading: chunks, 2 of 9 MB, for 1 s", None, time.monotonic())
    assert listener.rest() == [["STATUS=loading: chunks, 1 of 9 MB, for 1 s"], ["EXTEND_TIMEOUT_USEC=30000000"]]
    manager.tell("", None, time.monotonic())
    manager.tell("", None, time.monotonic())
    assert listener.rest() == [["READY=1", "STATUS=serving"]]
    manager.close()
    listener.close()


@pytest.mark.parametrize("is_stopping", [False, True], ids=["loading", "stopping"])
def test_patience_is_asked_for_only_while_something_gets_on(tmp_path: Path, is_stopping: bool) -> None:
    listener = Listener(str(tmp_path / "notify"))
    manager = Manager(listener.address)
    service = Service([fifo("t")], server_id=b"\0" * 16, version="0", seed=1, lease_s=60.0, started_at=0.0)
    service.durability.path = str(tmp_path)
    board = Board()

    def asked(now: float, step: int) -> bool:
        """What the loop does, with so much written or read."""
        if is_stopping:
            service.durability.running = Progress(0.0, "chunks", step, 100, step)
            board.publish(service.report(now, brief=True), now)
            due = manager.tick(now, board.newest)
            assert due > now, "the loop must not turn in vain"
        else:
            manager.tell("loading", step, now)
        return ["EXTEND_TIMEOUT_USEC=30000000"] in listener.rest()

    now = 1000.0
    manager.tell("" if is_stopping else "loading", None, now)
    if is_stopping:
        manager.tell(STOPPING, None, now)
    listener.rest()
    for step in range(100):
        # A step each half of what it may take at most: for hours, if it gets on.
        now += PATIENCE_S / 2
        assert asked(now, step)
    while now < 1000.0 + 51 * PATIENCE_S - 10:
        now += 10
        assert asked(now, 99) == (now < 1000.0 + 50 * PATIENCE_S + PATIENCE_S)
    for _ in range(10):
        now += 10
        is_asked = asked(now, 99)
    assert not is_asked
    assert asked(now + 10, 100), "it gets on again"
    manager.close()
    listener.close()


def test_a_daemon_that_cannot_serve_is_never_ready(listener: Listener, start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    listener.until("READY=1")
    daemon.send_signal(signal.SIGSTOP)
    port = daemon.address.rpartition(":")[2]
    ended = run_replayd("serve", "--port", port, "--ingest-port", "0")
    assert ended.returncode == os.EX_CANTCREAT
    assert not any("READY=1" in message for message in listener.rest())
    daemon.send_signal(signal.SIGCONT)


def test_a_store_that_cannot_be_read_is_no_ready_daemon(listener: Listener, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "data.mdb").write_bytes(b"not a store" * 1000)
    ended = run_replayd("serve", "--port", "0", "--data-dir", str(store))
    assert ended.returncode != 0
    assert not any("READY=1" in message for message in listener.rest())


def test_the_status_says_who_waits_and_why(listener: Listener, start_daemon: StartDaemon, connect: ConnectPeer) -> None:
    daemon = start_daemon("--http", "off")
    peer = connect(daemon)
    peer.send("sample", table="replay", n=1, timeout_ms=60_000)
    assert "error" not in peer.ask("hello"), "the sample has arrived and is parked"
    while True:
        (status,) = [line for line in listener.until("STATUS=")[-1] if line.startswith("STATUS=")]
        if "samples wait" in status:
            break
    assert status.startswith("STATUS=1 table, 0 items, 0 B, 2 connections, 0 inserts/s, 0 samples/s; replay: samples")
    assert "writers must insert" in status


def test_the_status_has_the_rates_of_traffic_and_the_side_that_a_limiter_holds_back(
    listener: Listener, start_daemon: StartDaemon, connect: ConnectPeer
) -> None:
    starved = "starved,limiter=min_size,min_size_to_sample=1000"
    daemon = start_daemon("--http", "off", "--table", "busy,max_size=100", "--table", starved)
    waiter, worker = connect(daemon), connect(daemon)
    waiter.send("sample", table="starved", n=1, timeout_ms=60_000)
    line = re.compile(
        r"STATUS=2 tables, \d+ items, .*, (\S+) inserts/s, (\S+) samples/s; starved: samples wait \(1, for "
    )

    def status() -> re.Match[str] | None:
        """A step of work, and the status that came meanwhile if it tells of it."""
        assert worker.insert("busy")["items"] == 1
        assert "error" not in worker.ask("sample", table="busy", n=1, timeout_ms=60_000)
        try:
            # The pause keeps the work from taking a whole processor.
            told = listener.next(timeout_s=0.05)
        except TimeoutError:
            return None
        return next((found for each in told if (found := line.match(each)) and "0" not in found.groups()), None)

    found: list[re.Match[str]] = []

    def is_told() -> bool:
        found.extend(filter(None, [status()]))
        return bool(found)

    until(is_told)
    assert all(0 < float(rate) < 1000 for rate in found[0].groups())
    assert "writers must insert" in found[0].string


def test_a_hangup_is_told_with_the_time_at_which_it_began(
    listener: Listener, start_daemon: StartDaemon, connect: ConnectPeer
) -> None:
    daemon = start_daemon()
    listener.until("READY=1")
    assert "error" not in connect(daemon).ask("hello"), "it is in its loop"
    before = time.monotonic_ns() // 1000
    daemon.send_signal(signal.SIGHUP)
    first, second = listener.until("RELOADING=1")[-1]
    assert first == "RELOADING=1"
    name, _, value = second.partition("=")
    assert name == "MONOTONIC_USEC"
    assert before <= int(value) <= time.monotonic_ns() // 1000
    assert listener.until("READY=1")[-1] == ["READY=1"]


def test_a_stuck_loop_gives_no_sign_of_life(
    listener: Listener,
    start_daemon: StartDaemon,
    connect: ConnectPeer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go = tmp_path / "go"
    (tmp_path / "stuck.py").write_text(STUCK)
    config = tmp_path / "replayd.toml"
    config.write_text(
        f'[[table]]\nname = "replay"\nextensions = [{{ type = "stuck:Stuck", options = {{ go = "{go}" }} }}]\n'
    )
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    monkeypatch.chdir(tmp_path)
    daemon = start_daemon("--config", str(config))
    for _ in range(3):
        listener.until("WATCHDOG=1")
    peer = connect(daemon)
    assert "error" not in peer.ask("hello")
    peer.send_insert("replay")
    # Whatever it still says before the insert arrives; then nothing, twenty times as long as it may be silent.
    with pytest.raises(TimeoutError):
        while True:
            listener.next(timeout_s=2.0)
    go.touch()
    listener.until("WATCHDOG=1")


def test_a_daemon_that_is_ended_for_being_stuck_shows_where_it_was(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    # Who is answered knows that the loop runs.
    with Client(daemon.address) as client:
        client.server_info()
    daemon.send_signal(signal.SIGABRT)
    ended = daemon.wait()
    assert ended.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in ended.stderr
    assert "server.py" in ended.stderr


# --- the words --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "abstract"])
def test_both_kinds_of_addresses_are_heard(kind: str, tmp_path: Path) -> None:
    listener = Listener(str(tmp_path / "notify") if kind == "file" else f"@replayd-test-{os.getpid()}")
    manager = manager_of({"NOTIFY_SOCKET": listener.address})
    assert manager is not None
    manager.tell("", None, time.monotonic())
    assert listener.next() == ["READY=1", "STATUS=serving"]
    manager.close()
    listener.close()


def test_the_variables_are_not_left_to_children() -> None:
    environment = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    manager = manager_of(environment)
    assert manager is not None
    manager.close()
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize("address", ["", "@", "relative", "vsock:2:1234"])
def test_no_address_of_a_socket_is_no_manager(address: str) -> None:
    assert manager_of({"NOTIFY_SOCKET": address}) is None


def test_a_watchdog_of_another_process_is_not_ours(tmp_path: Path) -> None:
    listener = Listener(str(tmp_path / "notify"))
    for pid, is_ours in ((str(os.getpid()), True), ("1", False)):
        manager = manager_of({"NOTIFY_SOCKET": listener.address, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": pid})
        assert manager is not None
        manager.tell("", None, time.monotonic())
        manager.tick(1.0, None)
        assert (["WATCHDOG=1"] in listener.rest()) is is_ours
        manager.close()
    listener.close()


def test_a_manager_that_is_gone_is_told_of_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = Manager(str(tmp_path / "nobody"), watchdog_s=1.0)
    manager.tell("", None, time.monotonic())
    for now in range(10):
        manager.tick(float(now), None)
    manager.close()
    assert len(caplog.records) == 1
    assert "see that NOTIFY_SOCKET" in caplog.text


def test_the_sign_of_life_is_twice_as_often_as_wanted(tmp_path: Path) -> None:
    listener = Listener(str(tmp_path / "notify"))
    manager = Manager(listener.address, watchdog_s=30.0)
    manager.tell("", None, time.monotonic())
    listener.rest()
    dues = [manager.tick(now, None) for now in (100.0, 101.0, 114.9, 115.0)]
    assert dues == [115.0, 115.0, 115.0, 130.0]
    assert listener.rest() == [["WATCHDOG=1"]] * 2
    manager.close()
    listener.close()


def test_rates_are_of_the_last_seconds() -> None:
    table = Table("replay", Uniform(), Fifo(), 10, MinSize(1))
    service = Service([table], server_id=b"\0" * 16, version="0", seed=1, lease_s=60.0, started_at=0.0)
    board = Board()
    for second in range(10):
        report = service.report(float(second), brief=True)
        report["tables"][0]["limiter"]["inserts"] = 1000 + 200 * second if second >= 4 else 0
        report["tables"][0]["limiter"]["samples"] = 3000 * second
        board.publish(report, float(second))
    assert board.newest is not None
    assert status_text(board.newest).endswith("200 inserts/s, 3000 samples/s")


def test_the_status_tells_how_far_the_last_checkpoint_is_and_that_one_failed(tmp_path: Path) -> None:
    service = Service(
        [Table("replay", Uniform(), Fifo(), 10, MinSize(1))],
        server_id=b"\0" * 16,
        version="0",
        seed=1,
        lease_s=60.0,
        started_at=0.0,
    )
    service.durability.path = str(tmp_path)
    service.durability.last_error = "no space left on device"
    service.durability.wait("70 MB wait for the disk", 3.0)
    service.durability.running = Progress(0.0, "chunks", 5, 20)
    board = Board()
    board.publish(service.report(3.0, brief=True), 3.0)
    listener = Listener(str(tmp_path / "notify"))
    manager = Manager(listener.address)
    manager.tell("", None, time.monotonic())
    manager.tick(1e12, board.newest)
    manager.tell(STOPPING, None, time.monotonic())
    manager.tick(2e12, board.newest)
    said = [line for message in listener.rest() for line in message if line.startswith("STATUS=")]
    assert said[1].endswith(
        "; inserts wait: 70 MB wait for the disk; the last checkpoint failed: no space left on device"
    )
    assert said[-1] == "STATUS=stopping: the last checkpoint, chunks, 5 of 20 chunks, for 3.0 s"
    manager.close()
    listener.close()
