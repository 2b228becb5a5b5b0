"""A disk that takes its time: nobody who does not ask for durability waits for it, and how far it is can be seen."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replayd
from replayd.store import Store
from replayd_client import Client, errors
from tests.daemon.embedded import DEADLINE_S, fifo, size, until

ITEMS, A_TURN = 40, 10


@contextmanager
def stuck_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Semaphore]:
    """While inside, whatever is written waits for a release of its own."""
    let_through, is_over = threading.Semaphore(0), threading.Event()
    transact = Store._transact

    def wait(store: Store, change: Callable[[Any], None]) -> None:
        assert is_over.is_set() or let_through.acquire(timeout=DEADLINE_S)
        transact(store, change)

    monkeypatch.setattr(Store, "_transact", wait)
    try:
        yield let_through
    finally:
        is_over.set()
        let_through.release(100)


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("journal", ["off", "interval", "sync"])
def test_a_disk_that_is_stuck_holds_up_nobody_who_asks_for_nothing_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: Any
) -> None:
    tables = [fifo("t"), fifo("u")]
    with replayd.Server(tables, data_dir=tmp_path, journal=journal) as server, Client(server.address) as client:
        client.insert_batch(np.zeros((ITEMS, 1, 2)), {"t": 1.0})
        before = client.info()["store"]["checkpoints"]
        with stuck_disk(monkeypatch), Client(server.address) as other:
            asking = in_thread(client.checkpoint)
            until(lambda: "running" in other.info()["store"])
            for n in range(1, 6):
                assert len(other.sample_batch("t", 8).info.key) == 8
                assert len(other.peek("t", oldest=3).items) == 3
                if journal != "sync":
                    other.insert(np.zeros(2), {"u": 1.0})
                    assert size(other, "u") == n
            if journal == "sync":
                # Its answer promises that it is durable, so it waits; it is in the table, and nobody else waits.
                with pytest.raises(errors.DeadlineExceededError):
                    other.insert(np.zeros(2), {"u": 1.0}, timeout_ms=300)
                assert size(other, "u") == 1
            assert other.info()["store"]["checkpoints"] == before
            assert asking.is_alive()
        asking.join(DEADLINE_S)
        assert client.info()["store"]["checkpoints"] == before + 1
        client.insert(np.zeros(2), {"u": 1.0})


def test_what_waits_for_a_disk_that_is_stuck_is_bounded_and_inserts_alone_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("replayd.backlog.WAITING_BYTES", 1_000_000)
    monkeypatch.setattr("replayd.checkpoints.BYTES_A_TURN", 1)
    monkeypatch.setattr("replayd.store_writer.TRANSACTION_BYTES", 1)
    noise = np.random.default_rng(0)
    with replayd.Server([fifo("t", max_size=50)], data_dir=tmp_path) as server, Client(server.address) as client:
        client.insert_batch(noise.integers(0, 256, (50, 1, 50_000), np.uint8), {"t": 1.0})
        with stuck_disk(monkeypatch) as let_through, Client(server.address) as other:
            asking = in_thread(client.checkpoint)
            until(lambda: other.info()["store"].get("running", {}).get("chunks_total") == 50)
            sent = 0
            with pytest.raises((errors.NotDurableError, errors.DeadlineExceededError)):
                while sent < 50:
                    other.insert(noise.integers(0, 256, 50_000, np.uint8), {"t": 1.0}, timeout_ms=2000)
                    sent += 1
            # As many as fit, and not one that would push out what has no room.
            assert 15 <= sent <= 25
            told = other.info()["store"]
            assert 1_000_000 < told["running"]["rescued_bytes"] < 1_200_000
            assert "MB that left the tables and belong to a checkpoint wait for the disk" in told["inserts_wait"]
            assert (other.why("t").verdict, other.why("t").advice) == ("inserts_wait", told["inserts_wait"])
            assert f"inserts are put off: {told['inserts_wait']}" in caplog.text
            # A disk that takes a little now and then is no reason to let anybody else wait again.
            for _ in range(8):
                let_through.release()
                assert len(other.sample_batch("t", 8).info.key) == 8
            until(lambda: other.info()["store"]["running"]["rescued_bytes"] < 1_000_000)
            assert "inserts_wait" in other.info()["store"]
            assert asking.is_alive()
            waiting = in_thread(lambda: client.insert(np.zeros(50_000, np.uint8), {"t": 1.0}))
            assert waiting.is_alive()
        for thread in (asking, waiting):
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        after = client.info()["store"]
        assert "inserts_wait" not in after
        assert after["blocked_s"] > told["blocked_s"], "which grew as long as they waited"
        assert client.info()["store"]["last"]["chunks"] == 50


def test_a_checkpoint_that_is_being_written_is_seen_in_info_and_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Each turn's chunks are a transaction of their own, and each turn of the loop has a line.
    monkeypatch.setattr("replayd.checkpoints.CHUNKS_A_TURN", A_TURN)
    monkeypatch.setattr("replayd.store_writer.TRANSACTION_BYTES", 1)
    monkeypatch.setattr("replayd.checkpoints.TELL_S", 0.0)
    caplog.set_level(logging.INFO)
    with replayd.Server([fifo("t")], data_dir=tmp_path) as server, Client(server.address) as client:
        client.insert_batch(np.random.default_rng(0).random((ITEMS, 1, 100)), {"t": 1.0})
        assert "running" not in client.info()["store"]
        with stuck_disk(monkeypatch) as let_through, Client(server.address) as other:
            asking = in_thread(client.checkpoint)

            def running() -> dict[str, Any]:
                return client.info()["store"].get("running", {})  # type: ignore[no-any-return]

            until(lambda: running().get("chunks_total") == ITEMS)
            for part in range(1, ITEMS // A_TURN):
                let_through.release()
                until(lambda part=part: running()["chunks"] == part * A_TURN)  # type: ignore[misc]
            seen = running()
            assert seen["phase"] in ("chunks", "index")
            assert seen["bytes"] > (ITEMS - A_TURN) * 100
            assert seen["elapsed_s"] > 0
            other.info()
        asking.join(DEADLINE_S)
        until(lambda: running() == {})
    told = [r.getMessage() for r in caplog.records if r.getMessage().startswith("a checkpoint is being written: ")]
    for part in range(1, ITEMS // A_TURN):
        assert any(f"{part * A_TURN} of {ITEMS} chunks" in line for line in told), told
