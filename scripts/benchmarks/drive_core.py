"""The service alone, without sockets and processes around it: what a learner's Sample costs where all else goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from benchmarks.worker import Turns, main
from replayd import rate_limiters, selectors
from replayd.messages import Insert, Request, Sample, Sampled, Update
from replayd.service import Service
from replayd.table import Table
from replayd.wire import decode

TABLE, PAYLOAD = "ranked", 16
FILL_ITEMS, BETWEEN_ITEMS = 10_000, 64
"""Of a message while the table fills, and of one between two samples afterwards."""
MOST_CALLS, MEAN_OF_S = 2000, 0.2
PEER = (b"benchmark",)
BLOB = np.dtype([("stored_bytes", "<u4"), ("codec", "u1"), ("filter", "u1"), ("reserved", "<u2")])


def sample(items: int, counts: list[int]) -> Turns:
    """Each turn tells the µs of CPU an item of a sample of so many, from the request to the reply as it is encoded.

    Before each sample, in time that is not counted, come an insert into the full table, which evicts as many, and new
    priorities for what was drawn last: no draw finds what the one before it left.
    """
    table = Table(TABLE, selectors.Prioritized(0.6), selectors.Fifo(), items, rate_limiters.MinSize(1))
    service = Service([table], server_id=bytes(16), version="0", seed=1, started_at=0.0)
    rng = np.random.default_rng(0)
    writer = _Writer(rng)
    for start in range(0, items, FILL_ITEMS):
        _reply(service, "insert", writer.insert(min(FILL_ITEMS, items - start)))
    yield {}
    while True:
        yield {f"n = {count}": _mean_us(service, writer, rng, count) / count for count in counts}


def _mean_us(service: Service, writer: _Writer, rng: np.random.Generator, count: int) -> float:
    wish = Sample(0, TABLE, count, 1, 0.0)
    took_s = 0.0
    calls = 0
    while took_s < MEAN_OF_S and calls < MOST_CALLS:
        _reply(service, "insert", writer.insert(BETWEEN_ITEMS))
        started = time.thread_time()
        drawn = _reply(service, "sample", wish)
        took_s += time.thread_time() - started
        calls += 1
        assert isinstance(drawn, Sampled)
        assert len(drawn.probabilities) == count
        keys = drawn.shown.keys
        _reply(service, "update", Update(0, TABLE, keys, rng.random(count) + 0.1, keys[:0]))
    return took_s * 1e6 / calls


def _reply(service: Service, op: str, request: Request) -> Any:
    error = service.handle(PEER, op, request, 0.0)
    assert error is None, error
    ((_, reply),) = service.drain()
    return reply


class _Writer:
    """Inserts as a client of ours sends them: one chunk of one step an item."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._stream = os.urandom(16)
        self._schemas = [msgpack.packb([[["x"], "float32", [PAYLOAD // 4]]])]
        self._messages = self._chunks = 0

    def insert(self, count: int) -> Request:
        blobs = np.zeros(count, BLOB)
        blobs["stored_bytes"] = PAYLOAD
        numbers = np.arange(self._chunks, self._chunks + count, dtype="<u8")
        ones = np.ones(count, "<u4").tobytes()
        header = {
            "v": 1,
            "op": "insert",
            "id": self._messages,
            "stream": self._stream,
            "seq": self._messages,
            "keep_from": self._chunks + count,
            "first_chunk": self._chunks,
            "rows": ones,
            "schemas": self._schemas,
            "blobs": blobs.tobytes(),
            "tables": [TABLE],
            "chunk": numbers.tobytes(),
            "length": ones,
            "priority": (self._rng.random(count) + 0.1).tobytes(),
        }
        self._messages += 1
        self._chunks += count
        _, request = decode([msgpack.packb(header), self._rng.bytes(count * PAYLOAD)])
        assert isinstance(request, Insert)
        return request


ROLES: dict[str, Callable[..., Turns]] = {"sample": sample}

if __name__ == "__main__":
    main(ROLES)
