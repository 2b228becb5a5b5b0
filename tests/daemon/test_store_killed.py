"""Daemons that are killed while they write a checkpoint: what was there before is there, and nothing else piles up."""

from __future__ import annotations

import contextlib
import random
import threading
from pathlib import Path

import numpy as np

from replayd.store import Store
from replayd.store_blocks import BlockMap
from replayd.store_files import DATA, LOCK, MARK
from replayd.store_format import block_contents
from replayd_client import Client, errors
from tests.daemon.embedded import until
from tests.daemon.harness import DaemonProcess

ITEMS, ROW = 50_000, 100
TABLE = ("--table", f"t,sampler=fifo,max_size={ITEMS}")
MOMENTS = ((0.0, 0.3), (0.4, 0.8), (0.85, 1.05))
"""Shares of what the writer writes between which it is killed: amid the chunks, and amid the index."""


def rows(first: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """A table full of trajectories of one step, numbered in their first value; the others do not compress."""
    made = np.random.default_rng(first).random((ITEMS, 1, ROW), np.float32)
    made[:, 0, 0] = np.arange(first, first + ITEMS)
    return made


def written_bytes(daemon: DaemonProcess) -> int:
    """What the process has given to the system to be written so far."""
    told = dict(line.split(": ") for line in Path(f"/proc/{daemon.pid}/io").read_text().splitlines())
    return int(told["wchar"])


def ask_for_checkpoint(address: str) -> threading.Thread:
    def ask() -> None:
        with Client(address) as client, contextlib.suppress(errors.ReplaydError):
            client.checkpoint(timeout_ms=60_000)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread


def test_a_daemon_that_is_killed_while_it_writes_has_a_whole_checkpoint_and_nothing_piles_up(tmp_path: Path) -> None:
    chance, data = random.Random(5), tmp_path / "data"
    whole_bytes = once_bytes = 0
    for n in range(len(MOMENTS) + 1):
        (tmp_path / str(n)).mkdir()
        with (
            DaemonProcess(tmp_path / str(n), *TABLE, "--data-dir", str(data)) as daemon,
            Client(daemon.address) as client,
        ):
            if n == 0:
                client.insert_batch(rows(0), {"t": 1.0})
                before = written_bytes(daemon)
                client.checkpoint()
                whole_bytes, once_bytes = written_bytes(daemon) - before, (data / DATA).stat().st_size
                assert whole_bytes > ITEMS * ROW * 4
            check(client)
            assert {path.name for path in data.iterdir()} == {DATA, LOCK, MARK}
            # Whatever those before have left: there is room for the last one, and for one that is being written.
            assert (data / DATA).stat().st_size < 2.2 * once_bytes
            if n == len(MOMENTS):
                daemon.stop()
                break
            client.insert_batch(rows((n + 1) * ITEMS), {"t": 1.0})
            target = written_bytes(daemon) + round(chance.uniform(*MOMENTS[n]) * whole_bytes)
            asking = ask_for_checkpoint(daemon.address)
            until(lambda d=daemon, t=target, a=asking: written_bytes(d) >= t or not a.is_alive())  # type: ignore[misc]
            daemon.kill()
    check_store(data)


def check(client: Client) -> None:
    """The table has all of one checkpoint."""
    oldest, newest = client.peek("t", oldest=3), client.peek("t", newest=3)
    found = sorted((item.data[0] for item in (*oldest.items, *newest.items)), key=lambda row: row[0])
    first = int(found[0][0])
    assert first % ITEMS == 0
    expected = rows(first)[:, 0]
    assert np.array_equal(found, [*expected[:3], *expected[-3:]])
    assert client.server_info()["t"].current_size == ITEMS
    store = client.info()["store"]
    assert (store.get("lost_items", 0), store.get("lost_chunks", 0)) == (0, 0)


def check_store(data: Path) -> None:
    """It has nothing but what the last checkpoint names."""
    with Store(data) as store:
        assert store.head is not None
        live = np.sort(store.read_index()["chunks"]["uids"])
        blocks = BlockMap()
        for number, value in store.blocks():
            blocks.add(number, *block_contents(value))
        assert blocks.survey(live).dead == []
        named = {key for entry in store.head.arrays for key in entry.piece_keys()}
        with store._env.begin(db=store._db["index"]) as txn:
            assert set(txn.cursor().iternext(values=False)) == named
