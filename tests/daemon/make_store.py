"""Keeps a store of this version's format for later versions: `python tests/daemon/make_store.py FILE`.

A daemon is filled, with all that a store can have in it: every selector, chunks that items share, draws, updates,
deletions, inserts and samples that wait, a checkpoint amid that, and a journal behind it. Then it is killed. FILE has
what stands in its store, key by key; how each table was then, item by item; and what it drew next. Such files are
added to `stores/`, never changed: `test_store_formats.py` wants all of them to be read.
"""

from __future__ import annotations

import base64
import contextlib
import json
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(ROOT), str(ROOT / "client")]

from replayd import __version__
from replayd_client import Client
from replayd_client.errors import DeadlineExceededError
from tests.daemon.harness import DaemonProcess

CONFIG = """
[server]
seed = 7

[[table]]
name = "uniform"
sampler = "uniform"
max_size = 10

[[table]]
name = "prioritized"
sampler = { type = "prioritized", priority_exponent = 0.6 }
remover = "lifo"
max_size = 20
limiter = { type = "sample_to_insert_ratio", samples_per_insert = 2.0, min_size_to_sample = 2, error_buffer = 50.0 }

[[table]]
name = "fifo"
sampler = "fifo"
max_size = 10
max_times_sampled = 2

[[table]]
name = "lifo"
sampler = "lifo"
remover = "min_heap"
max_size = 10

[[table]]
name = "least"
sampler = "min_heap"
remover = "max_heap"
max_size = 10

[[table]]
name = "queue"
preset = "queue"
max_size = 3

[[table]]
name = "waits"
sampler = "fifo"
max_size = 10
limiter = { type = "min_size", min_size_to_sample = 4 }
"""
PLAIN = ("uniform", "prioritized", "fifo", "lifo", "least")
DRAWS = 6
DATA, MARK = "data.mdb", "replayd-store.json"
DATABASES = {"head": False, "index": False, "blocks": True, "journal": True}
"""Of a store, and whether their keys are integers."""


def main(path: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        config, data = Path(directory) / "replayd.toml", Path(directory) / "data"
        config.write_text(CONFIG)
        options = ("--config", str(config), "--data-dir", str(data), "--journal", "sync")
        with DaemonProcess(Path(directory), *options) as daemon, Client(daemon.address) as client:
            fill(client)
            until(lambda: client.info()["store"]["journal"]["pending_bytes"] == 0)
            kept = {
                "made_by": __version__,
                "mark": json.loads((data / MARK).read_text()),
                "config": CONFIG,
                "databases": databases_of(data),
                "tables": tables_of(client),
                "draws": draws_of(client),
            }
            daemon.kill()
    path.write_text(json.dumps(kept, indent=1) + "\n")


def fill(client: Client) -> None:
    """Have something of everything, half of it behind the checkpoint."""
    with client.trajectory_writer(3, chunk_length=2) as writer:

        def steps(first: int, stop: int) -> None:
            for n in range(first, stop):
                writer.append({"x": np.arange(3, dtype=np.float32) + n, "n": np.int64(n)})
                for place, table in enumerate(PLAIN):
                    # Priorities that differ, some of them equal.
                    writer.create_item(table, float((7 * n + place) % 11), {"x": writer.history["x"][-1 - n % 2 :]})
            writer.flush()

        steps(1, 13)
        for table in PLAIN:
            client.sample_batch(table, 5, ragged="list")
        change(client)
        for n in range(3):
            client.insert(np.float32(n), {"queue": 1.0})
        waiting = [in_thread(lambda: client.insert(np.float32(3), {"queue": 1.0}))]
        waiting.append(in_thread(lambda: client.sample_batch("waits", 4)))
        until(lambda: parked(client) == {("queue", "insert"), ("waits", "sample")})
        client.checkpoint()
        steps(13, 17)
        for n in range(5):
            client.insert(np.float32(n), {"waits": 1.0})
        client.sample_batch("queue", 1)
        for thread in waiting:
            thread.join()
        waits = in_thread(lambda: give_up(client))
        until(lambda: parked(client) == {("queue", "insert")})
        for table in PLAIN:
            client.sample_batch(table, 3, ragged="list")
        change(client)
        writer.append({"x": np.zeros(3, np.float32), "n": np.int64(-1)})
        waits.join()


def change(client: Client) -> None:
    """New priorities for some, and an end for others."""
    for place, table in enumerate(PLAIN):
        keys = [item.info.key for item in client.peek(table, oldest=10).items]
        client.mutate_priorities(table, {key: float(place + n % 3) for n, key in enumerate(keys[1:6])}, keys[:1])


def give_up(client: Client) -> None:
    """Insert where there is no room, and be told so."""
    with contextlib.suppress(DeadlineExceededError):
        client.insert(np.float32(9), {"queue": 1.0}, timeout_ms=1500)


def parked(client: Client) -> set[tuple[str, str]]:
    """Tables and sides where somebody waits."""
    return {(t["name"], entry["side"]) for t in client.info()["tables"] for entry in t["waiting"] if entry["requests"]}


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not condition():
        pause.wait(0.01)


# --- what is kept -----------------------------------------------------------------------------------------------------


def databases_of(data: Path) -> dict[str, list[list[str]]]:
    """Keys in hex and values, compressed and in base 64, of all that stands in a store."""
    with tempfile.TemporaryDirectory() as copy:
        (Path(copy) / DATA).write_bytes((data / DATA).read_bytes())
        with lmdb.open(copy, max_dbs=len(DATABASES), readonly=True, lock=False) as env:
            found = {}
            for name, is_integer in DATABASES.items():
                db = env.open_db(name.encode(), integerkey=is_integer, create=False)
                with env.begin(db=db) as txn:
                    found[name] = [
                        [key.hex(), base64.b64encode(zlib.compress(value, 9)).decode()] for key, value in txn.cursor()
                    ]
    return found


def write_store(kept: dict[str, Any], data: Path) -> None:
    """The store again, as it was kept."""
    data.mkdir()
    (data / MARK).write_text(json.dumps(kept["mark"]))
    with lmdb.open(str(data), max_dbs=len(DATABASES), map_size=1 << 24) as env:
        for name, is_integer in DATABASES.items():
            db = env.open_db(name.encode(), integerkey=is_integer)
            with env.begin(write=True, db=db) as txn:
                for key, value in kept["databases"][name]:
                    txn.put(bytes.fromhex(key), zlib.decompress(base64.b64decode(value)))


def tables_of(client: Client) -> dict[str, Any]:
    """How each table is: its counters, and its items from the oldest on."""
    return {
        table["name"]: {
            "counters": {name: table["limiter"][name] for name in ("inserts", "samples", "deletes")}
            | {name: table[name] for name in ("size", "unique_samples", "evictions", "evicted_unsampled", "episodes")},
            "items": [
                {
                    "key": int(item.info.key),
                    "priority": float(item.info.priority),
                    "times_sampled": int(item.info.times_sampled),
                    "data": data_of(item.data),
                }
                for item in (client.peek(table["name"], oldest=100).items if table["size"] else ())
            ],
        }
        for table in client.info()["tables"]
    }


def draws_of(client: Client) -> dict[str, list[int]]:
    """What is drawn next, one after the other: the generator, and all that decides about order."""
    return {
        table: [int(client.sample_batch(table, 1, ragged="list").info.key[0]) for _ in range(DRAWS)] for table in PLAIN
    }


def data_of(data: Any) -> Any:
    """An item's data in plain values."""
    return (
        {name: data_of(inner) for name, inner in data.items()} if isinstance(data, dict) else np.asarray(data).tolist()
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
