"""Who gives a sample up before its answer takes it back: what is inserted afterwards is there for others."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replayd
from replayd_client import Client, interruptible
from tests.daemon.embedded import DEADLINE_S, until
from tests.daemon.harness import DaemonProcess

pytest_plugins = ["tests.daemon.embedded_fixtures"]


@pytest.fixture
def client(serve: Any, client_of: Any) -> Client:
    found: Client = client_of(serve(replayd.Table.queue("t", 100)))
    return found


def insert(client: Client, number: int) -> None:
    client.insert_batch({"x": np.array([[number]])}, {"t": 1.0})


def take(client: Client) -> int:
    return int(client.sample_batch("t", 1, timeout_ms=DEADLINE_S * 1000).data["x"][0, 0])


def waiting(client: Client) -> int:
    return sum(side["requests"] for side in client.server_info()["t"].waiting)


def test_a_closed_dataset_waits_for_nothing(client: Client) -> None:
    insert(client, 1)
    for how in ("close", "leave", "drop"):
        made = iter(client.dataset("t", 2, min_batch_size=1))
        assert len(next(made)) == 1
        until(lambda: waiting(client) == 1)
        match how:
            case "close":
                made.close()
            case "leave":
                with made:
                    pass
            case "drop":
                del made
                until(lambda: waiting(client) == 0)
        insert(client, 2)
        assert take(client) == 2
        insert(client, 1)


def test_an_interrupted_call_leaves_nothing_behind_at_the_server(client: Client) -> None:
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        with Client(client.server_address) as other:
            until(lambda: waiting(other) == 1)
        signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(interrupt)
            with pytest.raises(KeyboardInterrupt):
                client.sample_batch("t", 1, timeout_ms=None)
            done.result(DEADLINE_S)
    finally:
        signal.signal(signal.SIGINT, before)
    until(lambda: waiting(client) == 0)
    insert(client, 7)
    assert take(client) == 7


def test_a_dataset_ends_although_its_server_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruptible, "WITHDRAW_S", 0.05)
    with DaemonProcess(tmp_path, "--table", "t,preset=queue,max_size=10") as daemon, Client(daemon.address) as client:
        insert(client, 1)
        made = client.dataset("t", 2, min_batch_size=1)
        next(made)
        until(lambda: waiting(client) == 1)
        daemon.send_signal(signal.SIGSTOP)
        try:
            made.close()
        finally:
            daemon.send_signal(signal.SIGCONT)
