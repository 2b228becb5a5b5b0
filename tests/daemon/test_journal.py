"""Daemons with a journal: killed at any moment, with full disks; and what was acknowledged is there, once."""

from __future__ import annotations

import itertools
import math
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replayd_client import Client, errors
from tests.daemon.conftest import ConnectPeer, StartDaemon
from tests.daemon.disks import filled, small_disk
from tests.daemon.embedded import DEADLINE_S, free_port, size, until
from tests.daemon.harness import DaemonProcess, run_replayd
from tests.daemon.storm import CONFIG, Ledger, Life, act, emptied, learn, padded

ROUNDS = 4
TABLE = ("--table", "t,sampler=fifo,max_size=100000")


@pytest.fixture
def client_of() -> Iterator[Callable[[str], Client]]:
    with ExitStack() as clients:
        yield lambda address: clients.enter_context(Client(address))


def journal_of(client: Client) -> dict[str, Any]:
    return client.info()["store"]["journal"]  # type: ignore[no-any-return]


def test_a_daemon_that_is_killed_at_any_moment_has_what_it_acknowledged_once(tmp_path: Path) -> None:
    port, chance = free_port(), random.Random(1)
    config = tmp_path / "replayd.toml"
    config.write_text(CONFIG + f'[store]\npath = "{tmp_path / "data"}"\ncheckpoint_interval = "1s"\njournal = "sync"\n')
    ledger, stop, faults = Ledger(), threading.Event(), []

    def run(work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # A thread's error is the test's.
                faults.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        return thread

    def start(name: str) -> DaemonProcess:
        (tmp_path / name).mkdir()
        return DaemonProcess(tmp_path / name, "--config", str(config), "--port", str(port))

    address = f"127.0.0.1:{port}"
    with ExitStack() as ends:
        ends.callback(stop.set)
        threads = [run(lambda n=n: act(address, n, n, stop, ledger.note)) for n in range(2)]  # type: ignore[misc]
        threads.append(run(lambda: learn(address, stop)))
        for n in range(ROUNDS):
            with start(str(n)) as daemon:
                before = len(ledger.acknowledged)
                until(lambda before=before: len(ledger.acknowledged) > before or bool(faults))  # type: ignore[misc]
                threading.Event().wait(chance.random())
                daemon.kill()
                assert "ERROR" not in daemon.output()
        with start("last") as daemon, Client(address) as client:
            stop.set()
            for thread in threads:
                thread.join(2 * DEADLINE_S)
                assert not thread.is_alive(), "an actor or a learner is stuck"
            assert not faults
            assert client.info()["store"]["replayed_requests"] > 0
            ledger.compare(emptied(client))
            # Nothing was refused that had been accepted, and the state was the recorded one.
            assert "ERROR" not in daemon.output()


def test_at_most_the_last_interval_is_lost(tmp_path: Path, client_of: Callable[[str], Client]) -> None:
    port = free_port()
    config = tmp_path / "replayd.toml"
    config.write_text(
        '[[table]]\nname = "t"\nsampler = "fifo"\nmax_size = 100000\n'
        f'[store]\npath = "{tmp_path / "data"}"\njournal = "interval"\njournal_interval = "300ms"\n'
    )
    ledger, numbers = Ledger(), itertools.count()
    client = client_of(f"127.0.0.1:{port}")

    def insert() -> int:
        """The number of one item more, once it is acknowledged."""
        number = next(numbers)
        ledger.note("try", range(number, number + 1))
        client.insert_batch(padded(range(number, number + 1), 50)[:, None], {"t": 1.0})
        ledger.note("ack", range(number, number + 1))
        return number

    def durable_to() -> float:
        """Up to when all is on the disk, as the daemon says it."""
        asked_at = time.monotonic()
        return asked_at - float(client.info()["store"]["durable_age_s"])

    def start(name: str) -> DaemonProcess:
        (tmp_path / name).mkdir()
        return DaemonProcess(tmp_path / name, "--config", str(config), "--port", str(port))

    with start("first") as daemon:
        # Nobody pauses and nobody asks for a checkpoint: what makes it durable is the interval alone.
        early = insert()
        commits = journal_of(client)["commits"]
        until(lambda: insert() >= 100 and journal_of(client)["commits"] >= commits + 3)
        counted = insert()
        commits = journal_of(client)["commits"]
        until(lambda: insert() > counted and journal_of(client)["commits"] >= commits + 2)
        life = Life(durable_to(), math.inf)
        last = [insert() for _ in range(20)][-1]
        daemon.kill()
    assert life.durable_to > ledger.acknowledged[early], "its age has been that of the first item all the time"
    with start("second"):
        found = emptied(client)
        # What was acknowledged before the durable point is there, and so is what two commits came after.
        ledger.compare(found, [life])
        assert counted in found
        # What is lost is the end of what there was.
        assert found == list(range(len(found)))
        assert len(found) <= last + 1


def test_the_age_of_a_checkpoint_is_its_own_whatever_the_journal_has(
    start_daemon: StartDaemon, client_of: Callable[[str], Client], tmp_path: Path
) -> None:
    daemon = start_daemon(*TABLE, "--data-dir", str(tmp_path / "data"), "--journal", "interval")
    client = client_of(daemon.address)
    # The journal is written each second, so what it lacks stays younger.
    until(lambda: client.info()["store"]["last"]["age_s"] > 3 > client.info()["store"]["durable_age_s"])
    store = client.info()["store"]
    assert store["last"]["age_s"] == store["checkpoint_age_s"]
    shown = run_replayd("info", "--address", daemon.address)
    age = re.search(r"checkpoint 1 of (\d+) s ago", shown.stdout)
    assert age is not None, shown.stdout + shown.stderr
    assert int(age[1]) >= 3
    before_s = client.info()["store"]["checkpoint_age_s"]
    client.checkpoint()
    assert client.info()["store"]["checkpoint_age_s"] < before_s


def test_what_was_pushed_is_there_after_a_crash(
    start_daemon: StartDaemon, connect: ConnectPeer, client_of: Callable[[str], Client], tmp_path: Path
) -> None:
    data = (*TABLE, "--data-dir", str(tmp_path / "data"), "--journal", "sync")
    daemon = start_daemon(*data)
    with client_of(daemon.address).trajectory_writer(1) as writer:
        writer.append(np.zeros(2, np.float32))
        writer.create_item("t", 1.0, writer.history[-1:])
    peer = connect(daemon)
    peer.send_insert("t", push=True)
    client = client_of(daemon.address)
    until(lambda: size(client, "t") == 2 and journal_of(client)["pending_bytes"] == 0)
    daemon.kill()
    assert size(client_of(start_daemon(*data).address), "t") == 2


def test_settings_that_were_changed_live_hold_while_it_is_replayed_and_not_afterwards(
    start_daemon: StartDaemon, client_of: Callable[[str], Client], tmp_path: Path
) -> None:
    data = ("--table", "t,sampler=fifo,max_size=10", "--data-dir", str(tmp_path / "data"), "--journal", "sync")
    daemon = start_daemon(*data)
    client = client_of(daemon.address)
    client.set("t", max_size=5)
    client.insert_batch(padded(range(8), 5)[:, None], {"t": 1.0})
    client.set("t", max_size=20)
    client.insert_batch(padded(range(8, 20), 5)[:, None], {"t": 1.0})
    daemon.kill()
    again = client_of(start_daemon(*data, "--shrink-tables").address)
    assert again.set("t").after["max_size"] == 10
    assert [int(item.data[0, 0]) for item in again.peek("t", oldest=20)] == list(range(10, 20))


def test_a_journal_that_is_full_asks_for_a_checkpoint_which_trims_it(
    start_daemon: StartDaemon, client_of: Callable[[str], Client], tmp_path: Path
) -> None:
    config = tmp_path / "replayd.toml"
    config.write_text(
        '[[table]]\nname = "t"\nmax_size = 100\n'
        f'[store]\npath = "{tmp_path / "data"}"\njournal = "sync"\njournal_max_bytes = "1MiB"\n'
    )
    daemon = start_daemon("--config", str(config))
    client = client_of(daemon.address)
    for n in range(40):
        client.insert_batch(padded(range(n, n + 10), 5000)[:, None], {"t": 1.0})
    until(lambda: client.info()["store"]["checkpoints"] > 2 and journal_of(client)["size_bytes"] < 1 << 20)
    assert journal_of(client)["state"] == "whole"
    assert journal_of(client)["failures"] == 0
    # What is removed is used again.
    assert client.info()["store"]["size_bytes"] < 40 * 400_000


def test_sigterm_leaves_an_empty_journal_and_nothing_to_replay(
    start_daemon: StartDaemon, client_of: Callable[[str], Client], tmp_path: Path
) -> None:
    data = (*TABLE, "--data-dir", str(tmp_path / "data"), "--journal", "interval")
    daemon = start_daemon(*data)
    client_of(daemon.address).insert_batch(padded(range(20), 5)[:, None], {"t": 1.0})
    daemon.stop()
    again = client_of(start_daemon(*data).address)
    assert size(again, "t") == 20
    assert "replayed_requests" not in again.info()["store"]


def test_a_daemon_without_a_journal_replays_what_there_is(
    start_daemon: StartDaemon, client_of: Callable[[str], Client], tmp_path: Path
) -> None:
    data = (*TABLE, "--data-dir", str(tmp_path / "data"))
    daemon = start_daemon(*data, "--journal", "sync")
    client_of(daemon.address).insert_batch(padded(range(20), 5)[:, None], {"t": 1.0})
    daemon.kill()
    again = start_daemon(*data)
    client = client_of(again.address)
    assert size(client, "t") == 20
    assert "journal" not in client.info()["store"]
    # It is not trimmed before a checkpoint has it.
    again.kill()
    last = start_daemon(*data)
    assert size(client_of(last.address), "t") == 20


# --- full disks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "interval"])
def test_on_a_full_disk_nothing_is_acknowledged_that_is_not_durable_and_the_daemon_lives(
    tmp_path: Path, client_of: Callable[[str], Client], mode: str
) -> None:
    port = free_port()
    with small_disk(tmp_path / "disk", 12 << 20) as disk, ExitStack() as daemons:
        arguments = (*TABLE, "--port", str(port), "--data-dir", str(disk / "data"), "--journal", mode)

        def start(name: str) -> DaemonProcess:
            (tmp_path / name).mkdir()
            return daemons.enter_context(DaemonProcess(tmp_path / name, *arguments))

        daemon, client = start("first"), client_of(f"127.0.0.1:{port}")
        client.insert_batch(padded(range(10), 50)[:, None], {"t": 1.0})
        acknowledged = 10
        room = ExitStack()
        room.enter_context(filled(disk))
        refused = None
        for n in range(1, 60):
            try:
                client.insert_batch(padded(range(10 * n, 10 * n + 10), 5000)[:, None], {"t": 1.0}, timeout_ms=1500)
            except errors.ReplaydError as error:
                refused = error
                break
            acknowledged = 10 * n + 10
            if mode == "interval" and journal_of(client)["failures"]:
                break
        store = client.info()["store"]
        assert store["journal"]["state"] != "whole"
        assert store["journal"]["failures"] == 1
        assert "space" in store["journal"]["last_error"]
        if mode == "sync":
            assert refused is not None
            with pytest.raises(errors.NotDurableError, match="space"):
                client.mutate_priorities("t", {client.peek("t", oldest=1)[0].info.key: 2.0}, timeout_ms=500)
        with pytest.raises(errors.CheckpointFailedError):
            client.checkpoint()
        assert client.sample_batch("t", 4).info.key.size == 4
        # There is room again: it goes on by itself.
        room.close()
        until(lambda: journal_of(client)["state"] == "whole")
        client.insert_batch(padded(range(1000, 1010), 50)[:, None], {"t": 1.0})
        until(lambda: journal_of(client)["pending_bytes"] == 0)
        os.kill(daemon.pid, signal.SIGKILL)
        daemon.process.wait()
        daemons.pop_all()
        start("second")
        found = emptied(client)
        assert len(set(found)) == len(found)
        # The first one was drawn, and has left when the table was emptied.
        assert set(found) >= {*range(1, acknowledged), *range(1000, 1010)}
        daemons.close()
