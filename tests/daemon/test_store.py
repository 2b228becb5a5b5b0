"""Daemons with a store: killed, stopped, restarted, copied, on full disks; and clients that notice nothing."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replayd
from replayd.keeper import StoreOptions
from replayd.server import Daemon
from replayd.store_files import DATA, MARK
from replayd_client import Client, errors
from tests.daemon.conftest import StartDaemon
from tests.daemon.disks import small_disk
from tests.daemon.embedded import DEADLINE_S, fifo, free_port, hold_loading, size, until
from tests.daemon.harness import START_S, DaemonProcess, Peer, run_replayd

TABLE = ("--table", "t,sampler=fifo,max_size=100000")


@pytest.fixture
def client_of() -> Iterator[Callable[[str], Client]]:
    with ExitStack() as clients:
        yield lambda address: clients.enter_context(Client(address))


def rows(first: int, n: int) -> np.ndarray[Any, Any]:
    """Trajectories of one step of 800 bytes, numbered in their first value; the others do not compress."""
    made = np.random.default_rng(first).random((n, 1, 100))
    made[:, 0, 0] = np.arange(first, first + n)
    return made


def numbers(client: Client, table: str = "t") -> list[int]:
    """The numbers of a table's items, oldest first; a peek shows 1024 at most."""
    n = size(client, table)
    assert n <= 1024
    return [int(item.data[0, 0]) for item in client.peek(table, oldest=n)] if n else []


# --- ends and restarts ------------------------------------------------------------------------------------------------


def test_sigterm_saves_all_and_a_restart_has_it(
    start_daemon: StartDaemon, client_of: Callable[[str], Client], tmp_path: Path
) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    daemon = start_daemon(*TABLE, *data)
    client = client_of(daemon.address)
    client.insert_batch(rows(0, 500), {"t": 1.0})
    client.mutate_priorities("t", deletes=client.peek("t", oldest=1).items[0][0][:1])
    identity = client.info()["server_id"]
    ended = daemon.stop()
    assert "checkpoint 1: 499 items" in ended.stderr
    again = start_daemon(*TABLE, *data)
    other = client_of(again.address)
    assert numbers(other) == list(range(1, 500))
    assert other.info()["server_id"] == identity
    assert other.info()["store"]["restored_generation"] == 1


def test_a_killed_daemon_has_all_of_its_last_checkpoint_and_draws_what_the_other_one_drew(
    start_daemon: StartDaemon, client_of: Callable[[str], Client], tmp_path: Path
) -> None:
    table = "t,sampler=prioritized,priority_exponent=0.8,max_size=500"
    arguments = ("--table", table, "--data-dir", str(tmp_path / "data"))
    daemon = start_daemon(*arguments)
    client = client_of(daemon.address)
    # More than there is room for, so that some are evicted too.
    client.insert_batch(rows(0, 600), {"t": 1.0})
    keys = [item.info.key for item in client.peek("t", oldest=500)]
    client.mutate_priorities("t", {key: 1.0 + n for n, key in enumerate(keys[::3])}, deletes=keys[1::7])
    draws(client)
    before = held(client)
    assert len(before) == 500 - len(keys[1::7])
    assert sum(item[2] for item in before) == 80
    client.checkpoint()
    then = draws(client)
    # After the moment, and so lost.
    client.mutate_priorities("t", deletes=keys[:1])
    daemon.kill()
    again = client_of(start_daemon(*arguments).address)
    assert held(again) == before
    assert draws(again) == then


def held(client: Client) -> list[tuple[int, float, int, str]]:
    """Each item, oldest first: key, priority, times sampled, and a hash of its data."""
    items = client.peek("t", oldest=size(client, "t"))
    hashes = [hashlib.sha256(item.data.tobytes()).hexdigest() for item in items]
    return [(i.info.key, i.info.priority, i.info.times_sampled, hash) for i, hash in zip(items, hashes, strict=True)]


def draws(client: Client) -> list[tuple[list[int], bytes]]:
    """Five batches: keys and data."""
    batches = [client.sample_batch("t", 16) for _ in range(5)]
    return [(batch.info.key.tolist(), batch.data.tobytes()) for batch in batches]


def test_clients_notice_a_restart_by_nothing_but_time(tmp_path: Path, client_of: Callable[[str], Client]) -> None:
    port = free_port()
    arguments = (*TABLE, "--port", str(port), "--data-dir", str(tmp_path / "data"))

    def start(name: str) -> DaemonProcess:
        (tmp_path / name).mkdir()
        return DaemonProcess(tmp_path / name, *arguments)

    client = client_of(f"127.0.0.1:{port}")
    with start("first") as first:
        writer = client.trajectory_writer(3, chunk_length=1)
        for n in range(10):
            writer.append(np.full(100, float(n)))
            writer.create_item("t", 1.0, writer.history[-1:])
        writer.flush()
        assert client.checkpoint().items == 10
        first.kill()
        # These wait for the daemon that comes back.
        for n in range(10, 20):
            writer.append(np.full(100, float(n)))
            writer.create_item("t", 1.0, writer.history[-3:])
        with start("second"):
            writer.flush()
            writer.close()
            client.insert_batch(rows(20, 5), {"t": 1.0})
            assert size(client, "t") == 25
            shown = [item.data[:, 0].tolist() for item in client.peek("t", oldest=25)]
            assert shown[:10] == [[n] for n in range(10)]
            assert shown[10:20] == [[n - 2, n - 1, n] for n in range(10, 20)]
            assert shown[20:] == [[n] for n in range(20, 25)]


def test_a_daemon_that_is_killed_again_and_again_doubles_nothing(
    tmp_path: Path, client_of: Callable[[str], Client]
) -> None:
    port = free_port()
    arguments = ("--table", "t,max_size=1000", "--port", str(port), "--data-dir", str(tmp_path / "data"))
    client = client_of(f"127.0.0.1:{port}")
    stop, next_number, faults = threading.Event(), 0, []

    def work() -> None:
        nonlocal next_number
        try:
            with client.trajectory_writer(2, chunk_length=1, timeout_ms=DEADLINE_S * 1000) as writer:
                while not stop.is_set():
                    writer.append(np.full(100, float(next_number)))
                    writer.create_item("t", 1.0, writer.history[-1:])
                    next_number += 1
                    stop.wait(0.002)
                writer.flush(timeout_ms=DEADLINE_S * 1000)
        except Exception as error:  # A thread's error is the test's.
            faults.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    moments = random.Random(1)
    for n in range(3):
        (tmp_path / str(n)).mkdir()
        with DaemonProcess(tmp_path / str(n), *arguments) as daemon:
            saved = client.checkpoint().items
            until(lambda saved=saved: size(client, "t") > min(saved, 999))
            threading.Event().wait(moments.random() / 20)
            daemon.kill()
    (tmp_path / "last").mkdir()
    with DaemonProcess(tmp_path / "last", *arguments):
        stop.set()
        thread.join(DEADLINE_S)
        assert not faults
        found = numbers(client)
        assert len(set(found)) == len(found), "an item is there twice"
        assert found == sorted(found)
        assert found[-1] == next_number - 1


# --- loading ----------------------------------------------------------------------------------------------------------


def test_whoever_asks_while_a_store_is_read_is_told_so_and_then_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client_of: Callable[[str], Client], zmq_context: Any
) -> None:
    with replayd.Server([fifo("t")], data_dir=tmp_path) as server, Client(server.address) as client:
        client.insert_batch(rows(0, 10), {"t": 1.0})
    go_on = hold_loading(monkeypatch)
    daemon = Daemon([fifo("t")], "tcp://127.0.0.1:0", store=StoreOptions(tmp_path))
    daemon.bind()
    thread = threading.Thread(target=daemon.run, args=(False,))
    thread.start()
    try:
        peer = Peer(zmq_context, daemon.router_address)
        for op in ("hello", "info", "checkpoint"):
            error = peer.ask(op)["error"]
            assert error["code"] == "loading"
            named = {"phase", "done_bytes", "total_bytes", "items", "total_items", "elapsed_s"}
            assert error["detail"].keys() == named
        assert peer.ask("explode")["error"]["code"] == "unknown_op"
        with pytest.raises(errors.ConnectionLostError, match="reading its store"):
            client_of(daemon.router_address).info(timeout_ms=300)
        waiting = client_of(daemon.router_address)
        inserting = threading.Thread(target=waiting.insert_batch, args=(rows(10, 1), {"t": 1.0}))
        inserting.start()
        go_on.set()
        inserting.join(DEADLINE_S)
        assert numbers(waiting) == list(range(11))
        assert "error" not in peer.ask("hello")
        peer.close()
    finally:
        go_on.set()
        daemon.stop()
        thread.join(DEADLINE_S)


# --- what cannot be loaded --------------------------------------------------------------------------------------------


def refused(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_replayd("serve", "--port", "0", *arguments)


def test_a_store_that_cannot_be_loaded_ends_the_daemon_in_a_code_that_says_why(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with replayd.Server([fifo("t")], data_dir=data) as server, Client(server.address) as client:
        client.insert_batch(rows(0, 10), {"t": 1.0})
    other = refused("--table", "u", "--data-dir", str(data))
    assert other.returncode == os.EX_CONFIG
    assert "table 't' has 10 items in the store" in other.stderr
    with replayd.Server([fifo("t")], data_dir=data):
        in_use = refused(*TABLE, "--data-dir", str(data))
    assert in_use.returncode == os.EX_CANTCREAT
    assert "another process" in in_use.stderr
    os.truncate(data / DATA, 20_000)
    damaged = refused(*TABLE, "--data-dir", str(data))
    assert damaged.returncode == os.EX_DATAERR
    assert "--allow-empty" in damaged.stderr
    nowhere = refused(*TABLE, "--data-dir", "/proc/nowhere")
    assert nowhere.returncode == os.EX_CANTCREAT
    assert "`--data-dir` or `[store] path` must name a directory" in nowhere.stderr
    for ended in (other, in_use, damaged, nowhere):
        assert "Traceback" not in ended.stderr


def test_options_of_a_store_need_one() -> None:
    ended = refused("--strict")
    assert ended.returncode == os.EX_USAGE
    assert "--data-dir" in ended.stderr


# --- the disk ---------------------------------------------------------------------------------------------------------


def test_a_last_checkpoint_that_the_disk_does_not_take_is_an_exit_code(
    start_daemon: StartDaemon, client_of: Callable[[str], Client], tmp_path: Path
) -> None:
    daemon = start_daemon(*TABLE, "--data-dir", str(tmp_path / "data"))
    client = client_of(daemon.address)
    client.insert_batch(rows(0, 2000), {"t": 1.0})
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    with pytest.raises(errors.CheckpointFailedError):
        client.checkpoint()
    assert size(client, "t") == 2000
    daemon.send_signal(signal.SIGTERM)
    ended = daemon.wait()
    assert ended.returncode == os.EX_IOERR
    assert "the last checkpoint is not on the disk" in ended.stderr


def test_a_daemon_lives_through_a_full_disk(
    start_daemon: StartDaemon, client_of: Callable[[str], Client], tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 60 << 20) as disk:
        daemon = start_daemon(*TABLE, "--data-dir", str(disk / "data"))
        client = client_of(daemon.address)
        client.insert_batch(rows(0, 1000), {"t": 1.0})
        client.checkpoint()
        client.insert_batch(rows(1000, 90_000), {"t": 1.0})
        for _ in range(3):
            with pytest.raises(errors.CheckpointFailedError, match="[Nn]o .*space"):
                client.checkpoint()
        client.insert_batch(rows(91_000, 10), {"t": 1.0})
        assert client.info()["store"]["failures"] == 3
        # What was written in vain takes no room, so with less to keep it works again; and the daemon never ended.
        client.set("t", max_size=1000)
        assert client.checkpoint().items == 1000
        daemon.kill()
        again = start_daemon("--table", "t,sampler=fifo,max_size=1000", "--data-dir", str(disk / "data"))
        assert numbers(client_of(again.address)) == list(range(90_010, 91_010))
        again.stop()


# --- copies -----------------------------------------------------------------------------------------------------------


def replayd_json(*arguments: str) -> Any:
    ended = run_replayd(*arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_hot_copy_is_a_store_of_its_own(
    start_daemon: StartDaemon, client_of: Callable[[str], Client], tmp_path: Path
) -> None:
    daemon = start_daemon(*TABLE, "--data-dir", str(tmp_path / "data"))
    client = client_of(daemon.address)
    client.insert_batch(rows(0, 300), {"t": 1.0})
    said = run_replayd("checkpoint", "--address", daemon.address, "--to", str(tmp_path / "copy"))
    assert said.returncode == 0, said.stderr
    assert "checkpoint 1 of 300 items" in said.stdout
    assert f"copied to {tmp_path / 'copy'}" in said.stdout
    client.insert_batch(rows(300, 100), {"t": 1.0})
    fork = start_daemon(*TABLE, "--data-dir", str(tmp_path / "copy"))
    assert numbers(client_of(fork.address)) == list(range(300))
    again = run_replayd("checkpoint", "--address", daemon.address, "--to", str(tmp_path / "copy"))
    assert again.returncode == os.EX_CANTCREAT
    assert "is there already" in again.stderr
    assert size(client, "t") == 400


def test_a_rotation_removes_the_oldest_copies_and_nothing_else(
    start_daemon: StartDaemon, client_of: Callable[[str], Client], tmp_path: Path
) -> None:
    daemon = start_daemon(*TABLE, "--data-dir", str(tmp_path / "data"))
    client = client_of(daemon.address)
    copies = tmp_path / "copies"
    copies.mkdir()
    # Named like a copy, but without the mark; and with the mark, but named otherwise.
    (copies / "20200101T000000Z-checkpoint-1").mkdir()
    (copies / "20200101T000000Z-checkpoint-1" / DATA).write_bytes(b"somebody's")
    (copies / "mine").mkdir()
    made = []
    for n in range(4):
        client.insert_batch(rows(10 * n, 10), {"t": 1.0})
        answer = replayd_json("checkpoint", "--address", daemon.address, "--to", str(copies), "--keep", "2")
        made.append(Path(answer["copy"]["path"]))
        assert answer["copy"]["removed"] == [str(path) for path in made[n - 2 : n - 1] if n >= 2]
        if n == 0:
            shutil.copy(made[0] / MARK, copies / "mine" / MARK)
    assert {path.name for path in copies.iterdir()} == {
        made[2].name, made[3].name, "mine", "20200101T000000Z-checkpoint-1",
    }  # fmt: skip
    fork = start_daemon(*TABLE, "--data-dir", str(made[2]))
    assert numbers(client_of(fork.address)) == list(range(30))


def test_a_copy_is_brought_back_and_what_was_there_is_put_aside(
    start_daemon: StartDaemon, client_of: Callable[[str], Client], tmp_path: Path
) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    daemon = start_daemon(*TABLE, "--data-dir", str(data))
    client = client_of(daemon.address)
    client.insert_batch(rows(0, 10), {"t": 1.0})
    assert run_replayd("checkpoint", "--address", daemon.address, "--to", str(copy)).returncode == 0
    client.insert_batch(rows(10, 10), {"t": 1.0})
    running = run_replayd("restore", str(copy), "--data-dir", str(data))
    assert running.returncode == os.EX_CANTCREAT, running.stderr
    daemon.stop()
    there = run_replayd("restore", str(copy), "--data-dir", str(data))
    assert (there.returncode, "--replace" in there.stderr) == (os.EX_CANTCREAT, True)
    back = run_replayd("restore", str(copy), "--data-dir", str(data), "--replace", "--json")
    assert back.returncode == 0, back.stderr
    [aside] = [path for path in data.iterdir() if path.is_dir()]
    told = json.loads(back.stdout)
    assert (told["data_dir"], told["generation"], told["aside"]) == (str(data), 1, str(aside))
    again = start_daemon(*TABLE, "--data-dir", str(data))
    assert numbers(client_of(again.address)) == list(range(10))
    before = start_daemon(*TABLE, "--data-dir", str(aside))
    assert numbers(client_of(before.address)) == list(range(20))


def test_what_is_no_copy_is_not_brought_back(tmp_path: Path) -> None:
    (tmp_path / "no-copy").mkdir()
    ended = run_replayd("restore", str(tmp_path / "no-copy"), "--data-dir", str(tmp_path / "data"))
    assert ended.returncode == os.EX_DATAERR
    assert MARK in ended.stderr
    assert run_replayd("restore", str(tmp_path / "no-copy")).returncode == os.EX_USAGE


def test_the_file_names_the_store(
    start_daemon: StartDaemon, client_of: Callable[[str], Client], tmp_path: Path
) -> None:
    config = tmp_path / "replayd.toml"
    config.write_text(
        f'[store]\npath = "{tmp_path / "data"}"\ncheckpoint_interval = "100ms"\ncheckpoint_on_stop = false\n'
        '[[table]]\nname = "t"\n'
    )
    daemon = start_daemon("--config", str(config))
    client = client_of(daemon.address)
    client.insert_batch(rows(0, 10), {"t": 1.0})
    seen = client.info()["store"]["checkpoints"]
    until(lambda: client.info()["store"]["checkpoints"] >= seen + 2)
    said = run_replayd("info", "--address", daemon.address)
    assert f"store {tmp_path / 'data'}" in said.stdout
    assert "s ago" in said.stdout
    assert "the last checkpoint" not in daemon.stop().stderr
    assert numbers(client_of(start_daemon("--config", str(config)).address)) == list(range(10))


# --- without one ------------------------------------------------------------------------------------------------------


def test_a_daemon_without_a_store_says_so(daemon: DaemonProcess, client_of: Callable[[str], Client]) -> None:
    with pytest.raises(errors.NoStoreError, match="--data-dir"):
        client_of(daemon.address).checkpoint()
    said = run_replayd("checkpoint", "--address", daemon.address, timeout_s=START_S)
    assert said.returncode == os.EX_CONFIG
    assert "without a store" in said.stderr
