"""What a batch writer has been given: chunks and items that are complete, gathered until a message is worth sending.

Pure: no socket, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from operator import add

import numpy as np
from numpy.typing import NDArray

from replayd_client.array_messages import BLOB_RECORD
from replayd_client.batch_messages import (
    MESSAGE_BLOBS,
    MESSAGE_CHUNKS,
    MESSAGE_ITEMS,
    BatchMessages,
    Made,
    joined,
)
from replayd_client.batch_rows import Rows
from replayd_client.codecs import WriterCodec, check_writer_codec
from replayd_client.columns import Schema
from replayd_client.errors import DataError
from replayd_client.outbox import FULL, READY, Message
from replayd_client.writer_report import ColumnReport, WriterReport


class BatchLog:
    """The outbox of a batch writer. A message leaves when another batch like the last would not fit in it."""

    def __init__(self, codec: WriterCodec) -> None:
        check_writer_codec(codec)
        self._codec = codec
        self._maker: BatchMessages | None = None
        self._full: deque[list[Made]] = deque()
        self._open: list[Made] = []
        self._fill: tuple[int, ...] = _EMPTY
        """Bytes, chunks, items and blobs of the open message."""
        self._items = self.policy_version = 0
        self._since: float | None = None
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
        chunks, items = made = self._maker.message(rows, priorities, part, may_lend=False)
        if self.policy_version:
            chunks.policy_versions = np.full(len(chunks), self.policy_version, "<u8")
        size = (chunks.nbytes, len(chunks), len(items), len(chunks) * len(rows.arrays))
        most_bytes = self._maker.most_bytes(rows)
        if not self._has_room(size, most_bytes):
            self._seal()
        self._open.append(made)
        self._fill = tuple(map(add, self._fill, size))
        if not self._has_room(size, most_bytes):
            self._seal()
        if self._since is None:
            self._since = now
        self._items += len(items)
        self._count(rows, part, chunks.records)

    # What the core asks.

    @property
    def items(self) -> int:
        return self._items

    @property
    def ready_items(self) -> int:
        return self._items

    @property
    def waiting_items(self) -> int:
        return 0

    @property
    def standing(self) -> int:
        return (READY if self._items else 0) | (FULL if self._full else 0)

    def ready_since(self) -> float | None:
        return self._since

    def waiting_since(self) -> float | None:
        return None

    def close_step(self) -> None:
        """Steps are never open here."""

    def cut(self) -> None:
        """Chunks are always finished here."""

    def take_message(self) -> Message | None:
        if not self._full:
            self._seal()
        if not self._full:
            return None
        chunks, items = joined(self._full.popleft())
        self._items -= len(items)
        if not self._items:
            self._since = None
        return Message(chunks, items, chunks.end, ())

    def report(self) -> WriterReport:
        columns: dict[str, ColumnReport] = {}
        if self._maker is not None:
            stored = zip(self._maker.schema.columns, self._bytes_in.tolist(), self._bytes_stored.tolist(), strict=True)
            columns = {"/".join(map(str, column.path)): ColumnReport(*nbytes) for column, *nbytes in stored}
        return WriterReport(self._steps, self._chunks, self._last_steps, columns)

    # Helpers, in the order of their callers.

    def _has_room(self, size: tuple[int, ...], most_bytes: int) -> bool:
        most = (most_bytes, MESSAGE_CHUNKS, MESSAGE_ITEMS, MESSAGE_BLOBS)
        return all(filled + more <= limit for filled, more, limit in zip(self._fill, size, most, strict=True))

    def _seal(self) -> None:
        if self._open:
            self._full.append(self._open)
            self._open = []
            self._fill = _EMPTY

    def _count(self, rows: Rows, part: slice, packed_records: bytes) -> None:
        count = part.stop - part.start
        self._steps += count * rows.steps
        self._chunks += count
        self._last_steps = rows.steps
        self._bytes_in += [
            column.bytes_in(array[part].reshape(count * rows.steps, *column.shape), None)
            for column, array in zip(rows.schema.columns, rows.arrays, strict=True)
        ]
        records = np.frombuffer(packed_records, BLOB_RECORD).reshape(count, -1)
        self._bytes_stored += records["stored_bytes"].sum(axis=0, dtype=np.int64)


_EMPTY = (0, 0, 0, 0)


def _text(schema: Schema) -> str:
    return ", ".join(map(str, schema.columns))
