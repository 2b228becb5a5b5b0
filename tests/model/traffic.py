"""Random requests to a service with the tables `a` and `b`: three writers, a learner, an operator, and time.

The operator changes limits too, those in bytes and what is done at them among them; a writer of which a message was
refused begins anew, as a client does.
"""

from __future__ import annotations

import random
from typing import Any

import msgpack
import numpy as np

from replayd import capacity
from replayd.blobs import parse_schema, parse_template
from replayd.capacity import WHEN_FULL
from replayd.messages import (
    BLOB_RECORD,
    PEEK_ORDERS,
    ChunkBatch,
    CloseStream,
    Failed,
    Info,
    Insert,
    ItemBatch,
    KeepAlive,
    Peek,
    Reply,
    Request,
    Reset,
    Sample,
    Set,
    Update,
    Why,
    Withdraw,
)
from replayd.service import Service

TABLES = ("a", "b")
SCHEMAS = [
    parse_schema(msgpack.packb([[["x"], "uint8", []]])),
    parse_schema(msgpack.packb([[["x"], "uint8", []], [["y"], "uint8", []]])),
]
TEMPLATES = [parse_template(b""), parse_template(msgpack.packb([[["x"], False, [[0, []]]]]))]
PRIORITIES = [0.0, 0.5, 1.0, 1.0, 2.0, 7.0]
WAIT_S = 5.0
"""The longest that a sample waits."""
LEASE_S = 50.0


class Writer:
    """What a writer knows of its stream."""

    def __init__(self, id: bytes) -> None:
        self.id = id
        self.seq = 0
        self.next_chunk = 0
        self.keep_from = 0
        self.episode = 0
        self.rows: dict[int, int] = {}
        """Rows of each chunk that it may refer to."""
        self.wide_from = 1 << 60
        self.last: Insert | None = None


class Traffic:
    """Makes requests and remembers what was said: (peer, request or None for time passing, time, replies)."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 100.0
        self.connection = 0
        """Peers are named after it: who connects again is another peer."""
        self.said: list[tuple[str, Request | None, float, list[tuple[Any, Reply]]]] = []
        self._writers = [Writer(bytes([i]) * 16) for i in range(3)]
        self._request_id = 0
        self._serial = 0

    def step(self, service: Service) -> None:
        """One thing happens."""
        kinds = [self._insert] * 8 + [self._sample] * 5 + [self._update] * 2 + [self._look, self._resend]
        rare = [self._reset, self._set, self._end_stream, self._withdraw]
        kind = self.random.choice([*kinds, self._pause, self.random.choice(rare)])
        kind(service)

    def pass_time(self, service: Service, seconds: float) -> None:
        self.now += seconds
        service.tick(self.now)
        self.said.append(("", None, self.now, service.drain()))

    def _ask(self, service: Service, peer: str, request: Request) -> None:
        peer = f"{peer} {self.connection}"
        service.handle(peer, type(request).__name__, request, self.now)
        self.said.append((peer, request, self.now, service.drain()))

    def _id(self) -> int:
        self._request_id += 1
        return self._request_id

    def _table(self) -> str:
        return self.random.choice(TABLES)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _insert(self, service: Service) -> None:
        writer = self.random.choice(self._writers)
        first, new = writer.next_chunk + self.random.choice([0, 0, 0, 2]), self.random.choice([0, 1, 1, 2, 4])
        if self.random.random() < 0.1:
            writer.wide_from = min(writer.wide_from, first)
        chunks = self._chunks(writer, first, new) if new else None
        count = self.random.randint(0, 5) if writer.rows else 0
        items = self._items(writer, count) if count else None
        keep_from = self.random.randint(max(writer.keep_from, writer.next_chunk - 4), writer.next_chunk)
        request = Insert(self._id(), writer.id, writer.seq, keep_from, chunks, items, nbytes=10)
        writer.seq += 1
        writer.keep_from = keep_from
        writer.rows = {number: rows for number, rows in writer.rows.items() if number >= keep_from}
        writer.last = request
        self._ask(service, "writer", request)
        if self._was_refused(request):
            self._begin_anew(writer)

    def _was_refused(self, request: Request) -> bool:
        """Whether the last thing that was said is that there is no room for it."""
        return any(isinstance(reply, Failed) and reply.id == request.id for _, reply in self.said[-1][3])

    def _begin_anew(self, writer: Writer) -> None:
        self._serial += 1
        self._writers[self._writers.index(writer)] = Writer(self._serial.to_bytes(16, "big"))

    def _resend(self, service: Service) -> None:
        last = self.random.choice(self._writers).last
        if last is not None:
            again = Insert(self._id(), last.stream, last.seq, last.keep_from, last.chunks, last.items, last.nbytes)
            self._ask(service, "writer", again)

    def _sample(self, service: Service) -> None:
        n = self.random.randint(1, 6)
        min_n = self.random.choice([1, 1, self.random.randint(1, n)])
        self._ask(service, "learner", Sample(self._id(), self._table(), n, min_n, self.random.choice([0.0, WAIT_S])))

    def _withdraw(self, service: Service) -> None:
        self._ask(service, "learner", Withdraw(self._id()))

    def _update(self, service: Service) -> None:
        name = self._table()
        items = service.tables[name].items
        there = [*items.key[items.in_order()].tolist(), 1, self._request_id]
        keys = np.array([self.random.choice(there) for _ in range(4)], np.uint64)
        values = np.array([self.random.choice(PRIORITIES) for _ in keys], np.float64)
        deletes = np.array([key for key in there if self.random.random() < 0.05], np.uint64)
        self._ask(service, "learner", Update(self._id(), name, keys, values, deletes))

    def _reset(self, service: Service) -> None:
        self._ask(service, "operator", Reset(self._id(), self._table()))

    def _look(self, service: Service) -> None:
        name = self._table()
        nothing = np.zeros(0, np.uint64)
        self._ask(service, "operator", Peek(self._id(), name, self.random.choice(PEEK_ORDERS), 99, nothing))
        self._ask(service, "operator", Why(self._id(), name))
        self._ask(service, "operator", Info(self._id()))

    def _set(self, service: Service) -> None:
        changes: dict[str, Any] = {
            "max_size": self.random.randint(5, 30),
            "max_times_sampled": self.random.choice([0, 0, 1, 3]),
            "max_diff": self.random.choice([None, 6.5, 20.0]),
            "max_bytes": self.random.choice([None, None, capacity.ITEM_BYTES * self.random.randint(4, 20) + 10]),
            "when_full": self.random.choice(WHEN_FULL),
            "paused_inserts": self.random.random() < 0.25,
            "paused_samples": self.random.random() < 0.25,
        }
        self._ask(service, "operator", Set(self._id(), self._table(), changes))

    def _end_stream(self, service: Service) -> None:
        which = self.random.randrange(len(self._writers))
        stream = self._writers[which].id
        if self.random.random() < 0.5:
            self._ask(service, "writer", KeepAlive(self._id(), stream))
            return
        self._ask(service, "writer", CloseStream(self._id(), stream))
        self._begin_anew(self._writers[which])

    def _pause(self, service: Service) -> None:
        self.pass_time(service, self.random.choice([1.0, WAIT_S, 30.0]))

    # --- what is in an insert -----------------------------------------------------------------------------------------

    def _chunks(self, writer: Writer, first: int, n: int) -> ChunkBatch:
        rows = [self.random.randint(1, 3) for _ in range(n)]
        wide = [first + i >= writer.wide_from for i in range(n)]
        schemas = [SCHEMAS[w] for w in sorted(set(wide))]
        widths = [2 if w else 1 for w in wide]
        records = np.zeros(sum(widths), BLOB_RECORD)
        records["stored_bytes"] = np.repeat(rows, widths)
        if self.random.random() < 0.3:
            writer.episode += 1
        writer.next_chunk = first + n
        writer.rows.update({first + i: count for i, count in enumerate(rows)})
        payloads = [self.random.randbytes(count * width) for count, width in zip(rows, widths, strict=True)]
        return ChunkBatch(
            first=first,
            rows=np.array(rows, np.int64),
            episodes=np.full(n, writer.episode, np.uint64),
            schemas=schemas,
            schema_of=np.array([schemas.index(SCHEMAS[w]) for w in wide], np.int64),
            records=records.view(np.uint64),
            nbytes=np.array([len(payload) for payload in payloads], np.int64),
            body=[b"".join(payloads)],
            stops=[n],
            policy_versions=np.full(n, self.random.randint(0, 9), np.int64) if self.random.random() < 0.2 else None,
        )

    def _items(self, writer: Writer, n: int) -> ItemBatch:
        names = [self._table() for _ in range(n)]
        tables = sorted(set(names))
        windows = [self._window(writer) for _ in range(n)]
        at_max = np.array([self.random.random() < 0.3 for _ in range(n)])
        return ItemBatch(
            tables=tables,
            table_of=np.array([tables.index(name) for name in names], np.int64),
            chunk=np.array([window[0] for window in windows], np.int64),
            chunks=np.array([window[1] for window in windows], np.int64),
            longest=max(window[1] for window in windows),
            offset=np.array([window[2] for window in windows], np.int64),
            length=np.array([window[3] for window in windows], np.int64),
            templates=TEMPLATES,
            template_of=np.array([self.random.randint(0, 1) for _ in range(n)], np.int64),
            priority=np.array([self.random.choice(PRIORITIES) for _ in range(n)], np.float64),
            at_max=at_max if self.random.random() < 0.5 else None,
        )

    def _window(self, writer: Writer) -> tuple[int, int, int, int]:
        """First chunk, number of chunks, offset and length."""
        first = self.random.choice(sorted(writer.rows))
        last = first
        while last + 1 in writer.rows and last - first < 2 and self.random.random() < 0.5:
            last += 1
        rows = [writer.rows[number] for number in range(first, last + 1)]
        offset = self.random.randint(0, rows[0] - 1)
        end = self.random.randint(max(sum(rows[:-1]), offset) + 1, sum(rows))
        return first, last - first + 1, offset, end - offset
