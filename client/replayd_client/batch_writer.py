"""The batch writer: whole batches, one call each, which does not wait until the server has them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from replayd_client.batch_messages import BatchMessages
from replayd_client.batch_rows import Rows, priorities_of, rows_of_batch
from replayd_client.codecs import WriterCodec, check_writer_codec
from replayd_client.columns import Schema
from replayd_client.errors import DataError, ReplaydError
from replayd_client.messages import BLOB_RECORD
from replayd_client.outbox import FULL, READY, Message
from replayd_client.pacer import Pacer
from replayd_client.pool import ConnectionPool
from replayd_client.sender import deadline_after
from replayd_client.signatures import TableDirectory
from replayd_client.writer_core import WriterCore
from replayd_client.writer_life import WriterLife
from replayd_client.writer_report import ColumnReport, WriterReport


class BatchWriter(WriterLife):
    """Inserts batches of trajectories as `Client.insert_batch` does, and goes on while they are on their way. Made by
    `Client.batch_writer`.

    Batches are copied, and arrive in their order. A call waits only while as much is unacknowledged as a server lets a
    client leave so. Errors of the server are raised by the next call. All batches have the columns of the first; their
    numbers of trajectories and of steps may differ. One thread at a time uses a writer; a context manager, which
    flushes and closes.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        pacer: Pacer,
        directory: TableDirectory,
        codec: WriterCodec,
        timeout_ms: float | None,
    ) -> None:
        self._log = BatchLog(codec)
        self._directory = directory
        self._timeout_ms = timeout_ms
        self._core = WriterCore(pool, pacer, self._log, max_in_flight_items=None, timeout_ms=timeout_ms)

    @property
    def core(self) -> WriterCore:
        """For its client, which closes it at the end."""
        return self._core

    def insert(self, data: Any, priorities: Mapping[str, Any]) -> None:
        """Insert B trajectories of T steps, a nest of arrays [B, T, …], as B items of each table.

        `priorities` gives each table a number, an array [B] or "max", as for `Client.insert_batch`.

        Raises DataError, PriorityError, UnknownTableError and SignatureError, and nothing was added then. Raises
        DeadlineExceededError when there is no room in time (the message says who must act), ConnectionLostError without
        a server, and the server's refusal of what was inserted earlier; of the batch `trajectories_open` in the error's
        detail were added and go on being delivered, and `trajectories_not_sent` were not.
        """
        rows = rows_of_batch(data)
        checked = priorities_of(priorities, rows.count)
        for table in checked:
            self._directory.check(table, rows.shown, deadline_after(self._timeout_ms))
        added = 0
        try:
            for part in self._core.call("insert", self._log.begin, rows, checked):
                self._core.call("insert", self._log.add, rows, checked, part, time.monotonic())
                added = part.stop
        except ReplaydError as error:
            detail = {**error.detail, "trajectories_open": added, "trajectories_not_sent": rows.count - added}
            text = f"{error} Of this batch {added} trajectories had been added." if added else str(error)
            raise type(error)(text, detail=detail, code=error.code) from error.__cause__

    def flush(self, timeout_ms: float | Literal["own"] | None = "own") -> None:
        """Wait until all that was inserted is acknowledged. Deadline and errors as of `TrajectoryWriter.flush`."""
        self._core.flush(0, timeout_ms)


class BatchLog:
    """The outbox of a batch writer: messages that are complete, each of which leaves as soon as there is room."""

    def __init__(self, codec: WriterCodec) -> None:
        check_writer_codec(codec)
        self._codec = codec
        self._maker: BatchMessages | None = None
        self._messages: deque[tuple[Message, float]] = deque()
        self._ready = 0
        self._steps = self._chunks = self._last_steps = 0
        self._bytes_in, self._bytes_stored = np.zeros((2, 0), np.int64)

    def begin(self, rows: Rows, priorities: Mapping[str, NDArray[np.float64]]) -> list[slice]:
        """The parts that `add` takes of a batch. Raises DataError if it has not the columns of those before it."""
        if self._maker is None:
            self._maker = BatchMessages(rows.schema, self._codec)
            self._bytes_in, self._bytes_stored = np.zeros((2, len(rows.schema.columns)), np.int64)
        elif self._maker.schema != rows.schema:
            raise DataError(
                f"a batch writer writes batches of the same columns: {_text(self._maker.schema)}; this one has "
                f"{_text(rows.schema)}"
            )
        return list(self._maker.parts(rows, len(priorities)))

    def add(self, rows: Rows, priorities: Mapping[str, NDArray[np.float64]], part: slice, now: float) -> None:
        """Add some trajectories of a batch; they are copied."""
        assert self._maker is not None, "a batch begins before it is added"
        chunks, items = self._maker.message(rows, priorities, part, may_lend=False)
        self._messages.append((Message(chunks, items, chunks.end, ()), now))
        self._ready += len(items)
        self._steps += len(chunks) * rows.steps
        self._chunks += len(chunks)
        self._last_steps = rows.steps
        self._bytes_in += [
            column.bytes_in(array[part].reshape(-1, *column.shape), None)
            for column, array in zip(rows.schema.columns, rows.arrays, strict=True)
        ]
        records = np.frombuffer(chunks.records, BLOB_RECORD).reshape(len(chunks), -1)
        self._bytes_stored += records["stored_bytes"].sum(axis=0, dtype=np.int64)

    # What the core asks.

    @property
    def items(self) -> int:
        return self._ready

    @property
    def ready_items(self) -> int:
        return self._ready

    @property
    def waiting_items(self) -> int:
        return 0

    @property
    def standing(self) -> int:
        return READY | FULL if self._messages else 0

    def ready_since(self) -> float | None:
        return self._messages[0][1] if self._messages else None

    def waiting_since(self) -> float | None:
        return None

    def close_step(self) -> None:
        """Steps are never open here."""

    def cut(self) -> None:
        """Chunks are always finished here."""

    def take_message(self) -> Message | None:
        if not self._messages:
            return None
        message, _ = self._messages.popleft()
        assert message.items is not None, "a batch has items"
        self._ready -= len(message.items)
        return message

    def report(self) -> WriterReport:
        columns: dict[str, ColumnReport] = {}
        if self._maker is not None:
            stored = zip(self._maker.schema.columns, self._bytes_in.tolist(), self._bytes_stored.tolist(), strict=True)
            columns = {"/".join(map(str, column.path)): ColumnReport(*nbytes) for column, *nbytes in stored}
        return WriterReport(self._steps, self._chunks, self._last_steps, columns)


def _text(schema: Schema) -> str:
    return ", ".join(map(str, schema.columns))
