"""Inserting whole batches: B trajectories of T steps as B chunks and B items a table, in few large messages.

For vectorised environments, and for a single step. Numbers are packed in arrays and raw payloads built by one copy into
a matrix, so nothing but compression is done per item in Python.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.cells import MAX_CELLS_BYTES
from replayd_client.codecs import WriterCodec, check_writer_codec
from replayd_client.columns import MAX_CHUNK_ROWS, Column, Schema, leaf_array, leaf_dtype, variable_bytes
from replayd_client.equal_chunks import EqualChunksEncoder
from replayd_client.errors import (
    ConnectionLostError,
    DataError,
    DeadlineExceededError,
    PriorityError,
    ReplaydError,
)
from replayd_client.insert_message import Receipt
from replayd_client.messages import AT_MAX, PRIORITY_MAX, ChunkBatch, ItemBatch
from replayd_client.pacer import Pacer
from replayd_client.pool import ConnectionPool
from replayd_client.sender import Sender
from replayd_client.signatures import TableDirectory
from replayd_client.structure import Path, flatten, path_text

MESSAGE_BYTES = 4 << 20
"""Payload bytes of a message, about: large enough that its cost is in the bytes."""
MESSAGE_CHUNKS, MESSAGE_ITEMS, MESSAGE_BLOBS = 4096, 16384, 65536
"""The most of each in one message; the server's limits lie above."""
BUSY_RETRY_S = 0.05


ShownColumn = tuple[Path, str, tuple[int, ...]]
"""Path, dtype and shape of a column of a trajectory, as signatures have them."""


@dataclass(frozen=True, slots=True)
class Rows:
    """B trajectories of T steps: arrays [B, T, *shape] in schema order."""

    schema: Schema
    arrays: list[NDArray[Any]]
    count: int
    steps: int

    @property
    def shown(self) -> tuple[ShownColumn, ...]:
        """The columns of a trajectory."""
        return _shown(self.schema, self.steps)

    @property
    def variable_bytes(self) -> NDArray[np.int64]:
        """Bytes of the bytes and str of each trajectory, [B]."""
        return variable_bytes(self.schema.columns, self.arrays)


@lru_cache(256)
def _shown(schema: Schema, steps: int) -> tuple[ShownColumn, ...]:
    return tuple((c.path, c.dtype.name, (steps, *c.shape)) for c in schema.columns)


def rows_of_batch(data: Any) -> Rows:
    """A nest of arrays [B, T, *shape]. Raises DataError if leaves are no such arrays or differ in B or T."""
    pairs = flatten(data)
    arrays = [leaf_array(leaf, path) for path, leaf in pairs]
    for (path, _), array in zip(pairs, arrays, strict=True):
        if array.ndim < 2:
            raise DataError(f"{path_text(path)}: a batch needs axes [B, T, …], got {list(array.shape)}")
        if array.shape[:2] != arrays[0].shape[:2]:
            raise DataError(
                f"{path_text(path)}: [B, T] is {list(array.shape[:2])}, but {list(arrays[0].shape[:2])} at "
                f"{path_text(pairs[0][0])}"
            )
    if not arrays:
        raise DataError("a batch needs at least one array")
    count, steps = arrays[0].shape[:2]
    if not count or not 1 <= steps <= MAX_CHUNK_ROWS:
        raise DataError(f"a batch has at least one trajectory of 1 to {MAX_CHUNK_ROWS} steps, not [{count}, {steps}]")
    return _rows([path for path, _ in pairs], arrays, count, steps)


def rows_of_step(data: Any) -> Rows:
    """One step as a batch of one trajectory of one step."""
    pairs = flatten(data)
    if not pairs:
        raise DataError("a step needs at least one value")
    return _rows([path for path, _ in pairs], [leaf_array(leaf, path)[None, None] for path, leaf in pairs], 1, 1)


def _rows(paths: list[Path], arrays: list[NDArray[Any]], count: int, steps: int) -> Rows:
    schema = _schema(tuple((path, leaf_dtype(a, path), a.shape[2:]) for path, a in zip(paths, arrays, strict=True)))
    ordered = [np.ascontiguousarray(a, column.array_dtype) for a, column in zip(arrays, schema.columns, strict=True)]
    rows = Rows(schema, ordered, count, steps)
    if schema.is_variable:
        largest = int(rows.variable_bytes.max())
        if largest > MAX_CELLS_BYTES:
            raise DataError(f"the bytes and str of a trajectory take {largest} bytes, the limit is {MAX_CELLS_BYTES}")
    return rows


@lru_cache(256)
def _schema(columns: tuple[tuple[Path, np.dtype[Any], tuple[int, ...]], ...]) -> Schema:
    return Schema(tuple(Column(*column) for column in columns))


def priorities_of(priorities: Mapping[str, Any], count: int) -> dict[str, NDArray[np.float64]]:
    """Priorities [count] for each table, AT_MAX for "max". Raises DataError for other shapes, PriorityError for bad
    values."""
    if not isinstance(priorities, Mapping) or not priorities:
        raise DataError("priorities must map at least one table to a priority")
    result = {}
    for table, value in priorities.items():
        if isinstance(value, str) and value == "max":
            result[table] = np.full(count, AT_MAX)
            continue
        try:
            array = np.asarray(value, np.float64)
            if array.shape != (count,):
                array = np.broadcast_to(array, (count,))
            values = np.ascontiguousarray(array)
        except (TypeError, ValueError):
            raise DataError(f"table {table!r}: priorities must be a number, an array [{count}] or 'max'") from None
        good = (values >= 0) & (values <= PRIORITY_MAX)
        if not good.all():
            bad = np.flatnonzero(~good)
            raise PriorityError(
                f"table {table!r}: priorities must be finite, at least 0 and at most {PRIORITY_MAX:g}, "
                f"got {float(values[bad[0]])!r} at position {int(bad[0])}",
                detail={"table": table, "indices": bad[:64].tolist()},
            )
        result[table] = values
    return result


class BatchSender:
    """An insert stream for batches of one schema and codec, used by one call at a time; the pacer looks after what a
    call left behind."""

    def __init__(self, pool: ConnectionPool, pacer: Pacer, schema: Schema, codec: WriterCodec) -> None:
        self._sender = Sender(pool)
        self._pacer = pacer
        self._lock = threading.Lock()
        self._next_chunk = 0
        self._schema = schema
        self._codec = codec
        self._schema_blob = schema.encode()
        self._encoder = EqualChunksEncoder(schema, codec)

    @property
    def is_idle(self) -> bool:
        """Whether everything has been acknowledged."""
        return not self._sender.stream.unacknowledged_messages

    def accepts(self, schema: Schema, codec: WriterCodec) -> bool:
        """Whether data of this schema may go on this stream, stored so: schemas of a stream extend each other."""
        return self._schema == schema and self._codec == codec

    def insert(
        self, rows: Rows, priorities: dict[str, NDArray[np.float64]], deadline: float | None
    ) -> dict[str, NDArray[np.uint64]]:
        """Send a batch and wait until it is in the tables; the keys, u64[B] for each table.

        Raises DeadlineExceededError, ConnectionLostError and the server's error if it refused some; each says what
        became of how many trajectories, see `_with_fate`.
        """
        started = time.monotonic()
        with self._lock:
            receipts: list[Receipt] = []
            stream = self._sender.stream
            try:
                # Before anything is encoded: the first time that can take longer than a short deadline allows, and a
                # server that nobody has talked to yet must not pass for one that is gone.
                self._sender.open(deadline, "insert")
                for chunks, items in self._messages(rows, priorities):
                    self._sender.wait(lambda: stream.has_room, deadline, "insert", since=started)
                    receipts.append(self._sender.put(chunks, items, chunks.end))
                    self._next_chunk = chunks.end
                self._sender.wait(lambda: all(receipt.done for receipt in receipts), deadline, "insert", since=started)
            except ReplaydError as error:
                # What has not left yet never will: whoever tries again must not insert it twice.
                count = stream.withdraw(receipts)
                sent = receipts[: len(receipts) - count]
                raise _with_fate(error, rows.count, sent, len(priorities)) from error.__cause__
            finally:
                stream.refusals.clear()
                if not self.is_idle:
                    # What is still on its way must not change with the caller's arrays.
                    self._sender.own_payloads()
                    self._pacer.add(self)
            refusal = next((receipt.error for receipt in receipts if receipt.error is not None), None)
            if refusal is not None:
                raise _with_fate(refusal, rows.count, receipts, len(priorities))
            return self._keys(receipts, list(priorities))

    def tick(self, now: float) -> float:
        if not self._lock.acquire(blocking=False):
            return now + BUSY_RETRY_S
        try:
            self._sender.carry(0.0)
            self._sender.stream.refusals.clear()
            if self.is_idle:
                self._pacer.discard(self)
                return math.inf
            return self._sender.next_tick(now)
        finally:
            self._lock.release()

    def close(self) -> None:
        self._pacer.discard(self)
        with self._lock:
            self._sender.close()

    def forget(self) -> None:
        """In a forked child: leave the parent's socket alone."""
        self._sender.forget()

    def _messages(
        self, rows: Rows, priorities: dict[str, NDArray[np.float64]]
    ) -> Iterator[tuple[ChunkBatch, ItemBatch]]:
        tables = list(priorities)
        columns = len(rows.arrays)
        most = min(MESSAGE_CHUNKS, max(MESSAGE_ITEMS // len(tables), 1), max(MESSAGE_BLOBS // columns, 1))
        for part in _parts(rows, most):
            n = part.stop - part.start
            numbers = np.arange(self._next_chunk, self._next_chunk + n, dtype="<u8")
            chunks = self._chunks([array[part] for array in rows.arrays], numbers)
            if len(tables) == 1:
                yield chunks, ItemBatch(tables, numbers, chunks.rows, priorities[tables[0]][part].copy())
                continue
            items = ItemBatch(
                tables=tables,
                chunk=np.tile(numbers, len(tables)),
                length=np.tile(chunks.rows, len(tables)),
                priority=np.concatenate([priorities[table][part] for table in tables]),
                table_of=np.repeat(np.arange(len(tables), dtype="<u2"), n),
            )
            yield chunks, items

    def _chunks(self, arrays: list[NDArray[Any]], numbers: NDArray[np.uint64]) -> ChunkBatch:
        """Chunks with these numbers of arrays [n, T, …]."""
        encoded = self._encoder.encode(arrays)
        return ChunkBatch(
            first=self._next_chunk,
            rows=np.full(len(numbers), arrays[0].shape[1], "<u4"),
            schemas=[self._schema_blob],
            records=encoded.records,
            body=encoded.body,
            # Trajectories of a batch have nothing to do with each other: each is an episode of its own.
            episodes=numbers,
            is_lent=encoded.is_lent,
        )

    def _keys(self, receipts: list[Receipt], tables: list[str]) -> dict[str, NDArray[np.uint64]]:
        parts: dict[str, list[NDArray[np.uint64]]] = {table: [] for table in tables}
        for receipt in receipts:
            assert receipt.first_key is not None, "an acknowledged message with items has keys"
            n = receipt.items // len(tables)
            for number, table in enumerate(tables):
                first = receipt.first_key + number * n
                parts[table].append(np.arange(first, first + n, dtype=np.uint64))
        return {table: np.concatenate(keys) for table, keys in parts.items()}


def _parts(rows: Rows, most: int) -> Iterator[slice]:
    """The trajectories of each message, at most so many and of about MESSAGE_BYTES."""
    fixed_bytes = rows.steps * sum(column.row_bytes for column in rows.schema.columns if not column.is_variable)
    if not rows.schema.is_variable:
        size = min(max(MESSAGE_BYTES // max(fixed_bytes, 1), 1), most)
        yield from (slice(start, min(start + size, rows.count)) for start in range(0, rows.count, size))
        return
    ends = np.append(0, np.cumsum(rows.variable_bytes + fixed_bytes))
    start = 0
    while start < rows.count:
        fitting = int(np.searchsorted(ends, ends[start] + MESSAGE_BYTES, side="right")) - 1
        stop = min(max(fitting, start + 1), start + most, rows.count)
        yield slice(start, stop)
        start = stop


def _with_fate(error: ReplaydError, count: int, sent: Sequence[Receipt], tables: int) -> ReplaydError:
    """The error that ended an insert of `count` trajectories, with what became of them: in its words, and as numbers in
    its detail, which add up to `count`.

    `trajectories_acknowledged` are in their tables, `trajectories_refused` are not. `trajectories_open` were sent and
    not answered: they may have been applied, and if not will be, exactly once and as long as the client is open, since
    their stream goes on with them. `trajectories_not_sent` never will be. What is inserted again is to be of the last
    and of the refused alone.
    """
    acknowledged = sum(receipt.items for receipt in sent if receipt.done and receipt.error is None) // tables
    refused = sum(receipt.items for receipt in sent if receipt.error is not None) // tables
    unanswered = sum(receipt.items for receipt in sent if not receipt.done) // tables
    fate = {
        "trajectories_acknowledged": acknowledged,
        "trajectories_refused": refused,
        "trajectories_open": unanswered,
        "trajectories_not_sent": count - acknowledged - refused - unanswered,
    }
    words = (
        "in their tables",
        "refused",
        "sent and may or may not have been applied (this client goes on delivering them exactly once, so they must not "
        "be inserted again)",
        "not sent and will not be",
    )
    told = ", ".join(f"{number} {word}" for number, word in zip(fate.values(), words, strict=True) if number)
    text = str(error) if str(error).endswith((".", "?")) else f"{error}."
    return type(error)(f"{text} Trajectories: {told}.", detail={**error.detail, **fate}, code=error.code)


class BatchSenders:
    """The batch senders of a client: a call gets one that no other call and no held-back items are using."""

    MOST = 16
    """Streams with items that a limiter holds back: beyond them a call waits on one of these."""

    def __init__(self, pool: ConnectionPool, pacer: Pacer, directory: TableDirectory) -> None:
        self._pool = pool
        self._pacer = pacer
        self._directory = directory
        self._lock = threading.Lock()
        self._free: list[BatchSender] = []
        self._closed = False

    def insert(
        self, rows: Rows, priorities: dict[str, NDArray[np.float64]], codec: WriterCodec, deadline: float | None
    ) -> dict[str, NDArray[np.uint64]]:
        """As `BatchSender.insert`. Raises SignatureError and UnknownTableError, and DataError for an unknown codec."""
        check_writer_codec(codec)
        try:
            for table in priorities:
                self._directory.check(table, rows.shown, deadline)
        except (DeadlineExceededError, ConnectionLostError) as error:
            raise _with_fate(error, rows.count, (), len(priorities)) from error.__cause__
        sender = self._take(rows.schema, codec)
        try:
            return sender.insert(rows, priorities, deadline)
        finally:
            self._give_back(sender)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
        for sender in free:
            sender.close()

    def forget(self) -> None:
        """In a forked child: the streams are the parent's."""
        for sender in self._free:
            sender.forget()
        self._lock = threading.Lock()
        self._free = []

    def _take(self, schema: Schema, codec: WriterCodec) -> BatchSender:
        with self._lock:
            fitting = [sender for sender in self._free if sender.accepts(schema, codec)]
            chosen = next((sender for sender in reversed(fitting) if sender.is_idle), None)
            if chosen is None and len(fitting) >= self.MOST:
                chosen = fitting[0]
            if chosen is not None:
                self._free.remove(chosen)
                return chosen
        return BatchSender(self._pool, self._pacer, schema, codec)

    def _give_back(self, sender: BatchSender) -> None:
        with self._lock:
            if not self._closed:
                self._free.append(sender)
                # Streams of schemas that are not used any more give way, oldest first, unless something is held back.
                surplus = [old for old in self._free[: -self.MOST] if old.is_idle]
                self._free = [kept for kept in self._free if kept not in surplus]
            else:
                surplus = [sender]
        for old in surplus:
            old.close()
