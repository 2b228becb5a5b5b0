"""A store that a disk has damaged: the daemon serves what is whole, and counts what is not wherever one looks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from replayd.store import Store
from replayd_client import Client
from tests.daemon.conftest import StartDaemon
from tests.daemon.embedded import until
from tests.daemon.harness import run_replayd
from tests.daemon.test_http import get

TABLES = ("--table", "t,sampler=fifo,max_size=1000", "--table", "u,sampler=fifo,max_size=1000")
CHUNK_BYTES = 8192


def noise(first: int, n: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Trajectories of one step, numbered in its first value, which nothing compresses."""
    made = np.random.default_rng(first).integers(0, 256, (n, 1, CHUNK_BYTES), np.uint8)
    made[:, 0, 0] = np.arange(first, first + n)
    return made


def spoil(store: Store, database: str, pick: Callable[[list[int]], int]) -> None:
    """Change the last byte of what stands under one of the keys."""
    with store._env.begin(write=True, db=store._db[database]) as txn:
        number = pick([int.from_bytes(key, sys.byteorder) for key in txn.cursor().iternext(values=False)])
        key = number.to_bytes(8, sys.byteorder)
        value = txn.get(key)
        txn.put(key, value[:-1] + bytes([value[-1] ^ 1]))


def test_what_damage_takes_is_counted_and_told_and_the_rest_is_served(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    data = (*TABLES, "--data-dir", str(tmp_path / "data"))
    daemon = start_daemon(*data, "--journal", "sync")
    with Client(daemon.address) as client:
        assert "lost_items" not in client.info()["store"], "it began empty"
        # Each chunk is in an item of both tables.
        client.insert_batch(noise(0, 20), {"t": 1.0, "u": 1.0})
        client.checkpoint()
        for n in range(20, 25):
            client.insert_batch(noise(n, 1), {"t": 1.0})
        until(lambda: client.info()["store"]["journal"]["pending_bytes"] == 0)
        daemon.kill()
    with Store(tmp_path / "data") as store:
        spoil(store, "blocks", max)
        # The end of the journal, by which the others' times could have been told.
        for n in (-2, -1):
            spoil(store, "journal", lambda numbers: sorted(numbers)[n])  # noqa: B023 - called at once
    again = start_daemon(*data)
    with Client(again.address) as client:
        kept = [item.data[0, 0] for item in client.peek("t", oldest=100)]
        # The last payload of the block; and of the journal all but its first three inserts.
        assert kept == [*range(19), 20, 21, 22]
        told = client.info()["store"]
        assert (told["lost_items"], told["lost_chunks"]) == (2, 1)
        # What the damaged parts say that they have: a request each, and that time has passed.
        assert told["lost_requests"] >= 2
        until(lambda: get(again.http_address, "/readyz")[0] == 200)
        metrics = get(again.http_address, "/metrics")[1].splitlines()
        for name in ("items", "chunks", "requests"):
            assert f"replayd_lost_{name} {float(told[f'lost_{name}'])}" in metrics
        said = run_replayd("info", "--address", again.address).stdout
        assert f"damage took 2 items, 1 chunk, {told['lost_requests']} requests of what the daemon began with" in said
        assert "1 items of table 't', 1 items of table 'u'" in again.output()
        client.checkpoint()
    again.stop()
    with Client(start_daemon(*data).address) as client:
        # What was lost is not lost again.
        assert [client.info()["store"][f"lost_{name}"] for name in ("items", "chunks", "requests")] == [0, 0, 0]
