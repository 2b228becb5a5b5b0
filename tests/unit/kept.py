"""A service with a store, for tests without sockets: the keeper's turns are taken here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgpack

from replayd.blobs import parse_schema
from replayd.keeper import Keeper, StoreOptions
from replayd.messages import Checkpoint, Failed, Info, Request, Result, Sample, Sampled
from replayd.service import Service
from replayd.table import Table
from tests.unit.writer import StreamWriter, fifo, payloads_of, service

SCHEMA = parse_schema(msgpack.packb([[["x"], "uint8", []]]))
DEADLINE_S = 60.0
"""Bound on waiting for what must come; no expectation."""


class Kept:
    """A service that has restored what is in a directory. Leaving it ends it without a checkpoint, as a crash does."""

    def __init__(self, directory: Path, *tables: Table, **options: Any) -> None:
        self.service: Service = service(*(tables or (fifo(max_size=100_000),)), seed=1)
        self.writer = StreamWriter()
        self._woken = threading.Event()
        options.setdefault("checkpoint_interval_s", 0.0)
        self.keeper = Keeper(StoreOptions(directory, **options), self.service, self._woken.set)
        self.keeper.load()
        self._ids = 0

    def ask(self, request: Request, peer: str = "peer") -> Any:
        """The reply to a request, which must be the only one."""
        now = time.monotonic()
        self.service.handle(peer, type(request).__name__, request, now)
        # A sample that must not wait is answered when its deadline is looked at.
        self.service.tick(now)
        [(_, reply)] = self.service.drain()
        return reply

    def insert(self, payloads: Sequence[bytes], **settings: Any) -> None:
        """Insert an item for each payload, which nothing but it holds."""
        first = self.writer.next_chunk
        windows = [(first + i, 1) for i in range(len(payloads))]
        message = self.writer.insert(payloads, windows, schema=SCHEMA, keep_from=first + len(payloads), **settings)
        assert isinstance(self.ask(message), Result)

    def draw(self, n: int = 1, table: str = "t") -> list[bytes]:
        """The payloads of a sample."""
        reply = self.ask(Sample(1, table, n, 1, 0.0))
        assert isinstance(reply, Sampled), reply
        return payloads_of(reply.shown)

    def contents(self, table: str = "t") -> list[bytes]:
        """The payload of each item, oldest first; each shows one chunk."""
        items, chunks = self.service.tables[table].items, self.service.chunks
        rows = chunks.rows_of(items.chunk[items.in_order()].astype("i8"))
        body = b"".join(map(bytes, chunks.body_of(rows)))
        ends = rows["nbytes"].cumsum().tolist()
        return [body[a:b] for a, b in zip([0, *ends], ends, strict=False)]

    def begin_checkpoint(self) -> None:
        self.service.handle("operator", "checkpoint", Checkpoint(99), time.monotonic())

    def checkpoint(self) -> Result | Failed:
        """Make one, with nothing else happening; the reply to who asked."""
        self.begin_checkpoint()
        self.turn_until(lambda: self.keeper.is_done and not self.service.durability.askers)
        [(_, reply)] = self.service.drain()
        assert isinstance(reply, Result | Failed)
        return reply

    def turn_until(self, condition: Callable[[], bool]) -> None:
        """Turns as the loop takes them, until the condition holds."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            self._woken.clear()
            now = time.monotonic()
            due = self.keeper.turn(now)
            if condition():
                return
            assert now < deadline, "what was waited for did not come"
            if due is None or due > now:
                self._woken.wait(0.1 if due is None else min(0.1, due - now))

    def info(self) -> dict[str, Any]:
        return self.ask(Info(1)).fields  # type: ignore[no-any-return]

    def stop(self) -> None:
        """End as a server does that is told to."""
        self.service.stop()
        self.keeper.begin_last(time.monotonic())
        self.turn_until(lambda: self.keeper.is_done)
        self.keeper.close()

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *exception: object) -> None:
        self.keeper.close()
