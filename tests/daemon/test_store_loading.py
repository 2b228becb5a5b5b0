"""A daemon that reads a store, part by part: what it answers meanwhile, and what it writes into its log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replayd
from replayd.keeper import StoreOptions
from replayd.server import Daemon
from replayd.store import Store
from replayd_client import Client
from tests.daemon.embedded import DEADLINE_S, fifo, size, until
from tests.daemon.harness import Peer

ITEMS, A_BLOCK = 60, 20


def test_who_asks_again_and_again_sees_it_come_nearer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, zmq_context: Any
) -> None:
    monkeypatch.setattr("replayd.checkpoints.CHUNKS_A_TURN", A_BLOCK)
    with replayd.Server([fifo("t")], data_dir=tmp_path) as server, Client(server.address) as client:
        client.insert_batch(np.random.default_rng(0).random((ITEMS, 1, 25_000)), {"t": 1.0})
    # Each block waits to be let through; then lines need not be a second apart.
    let_through, blocks = threading.Semaphore(0), Store.blocks
    monkeypatch.setattr("replayd.loading.TOLD_S", 0.0)

    def slowly(store: Store) -> Iterator[tuple[int, memoryview]]:
        for block in blocks(store):
            assert let_through.acquire(timeout=DEADLINE_S)
            yield block

    monkeypatch.setattr(Store, "blocks", slowly)
    caplog.set_level(logging.INFO)
    daemon = Daemon([fifo("t")], "tcp://127.0.0.1:0", store=StoreOptions(tmp_path))
    daemon.bind()
    thread = threading.Thread(target=daemon.run, args=(False,))
    thread.start()
    peer = Peer(zmq_context, daemon.router_address)
    told: list[dict[str, Any]] = []

    def seen(parts: int) -> bool:
        told.append(peer.ask("info")["error"]["detail"])
        return told[-1]["done_bytes"] * ITEMS > told[-1]["total_bytes"] * A_BLOCK * (parts - 0.5)

    try:
        until(lambda: seen(0) and told[-1]["phase"] == "chunks")
        for parts in range(1, ITEMS // A_BLOCK):
            let_through.release()
            until(lambda parts=parts: seen(parts))  # type: ignore[misc]
            assert told[-1]["total_items"] == ITEMS
            assert told[-1]["remaining_s"] > 0
        let_through.release()
        with Client(daemon.router_address) as client:
            assert size(client, "t") == ITEMS
    finally:
        let_through.release(ITEMS)
        peer.close()
        daemon.stop()
        thread.join(DEADLINE_S)
    assert {detail["phase"] for detail in told} <= {"opening", "index", "chunks"}
    done = [detail["done_bytes"] for detail in told]
    assert done == sorted(done)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("loading: chunks")]
    assert any("about" in line and f"of {ITEMS} items" in line and line.endswith("s left") for line in lines)
    assert len({line.partition(", for ")[0] for line in lines}) >= 2


def test_what_is_asked_for_while_it_loads_is_done_once_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zmq_context: Any
) -> None:
    with replayd.Server([fifo("t")], data_dir=tmp_path):
        pass
    let_through, opened = threading.Event(), Store.__init__

    def slowly(store: Store, *arguments: Any, **options: Any) -> None:
        assert let_through.wait(DEADLINE_S)
        opened(store, *arguments, **options)

    monkeypatch.setattr(Store, "__init__", slowly)
    reloaded = threading.Event()
    # Nothing else makes its loop turn: nobody looks at bulletins, and whoever asks something has asked before.
    daemon = Daemon([fifo("t")], "tcp://127.0.0.1:0", store=StoreOptions(tmp_path), reload=lambda *_: reloaded.set())
    daemon.bind()
    thread = threading.Thread(target=daemon.run, args=(False,))
    thread.start()
    peer = Peer(zmq_context, daemon.router_address)
    try:
        daemon.read_settings_again()
        for _ in range(2):  # With the second answer what woke it is taken.
            assert peer.ask("hello")["error"]["code"] == "loading"
        assert not reloaded.is_set()
        let_through.set()
        assert reloaded.wait(DEADLINE_S)
    finally:
        let_through.set()
        daemon.stop()
        thread.join(DEADLINE_S)
        peer.close()
