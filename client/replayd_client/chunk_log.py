"""What one writer has appended: steps as rows, rows as chunks, and items that wait for their chunks to be finished.

Pure: no socket, no clock. A row has a global number from 0; a chunk holds consecutive rows of one episode, all columns,
and takes the next chunk number when it is finished. Chunks stay here until nothing can refer to them any more; those
that an item refers to, and those between, leave in messages. Who sends them is the business of `writer_core`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.array_messages import ItemBatch
from replayd_client.chunk import Chunk, chunk_batch, decoded
from replayd_client.chunk_length import ChunkLength
from replayd_client.codecs import ColumnCodec, WriterCodec, check_writer_codec, encode_chunk
from replayd_client.columns import Schema
from replayd_client.errors import DataError
from replayd_client.item_handle import ItemHandle
from replayd_client.outbox import FULL, READY, WAITING, Message
from replayd_client.pending_items import ItemColumns, PendingItem, PendingItems
from replayd_client.presence import Presence
from replayd_client.row_buffer import RowBuffer
from replayd_client.structure import Path
from replayd_client.templates import OutputColumn, Template
from replayd_client.writer_report import ColumnReport, WriterReport

MAX_CHUNK_BYTES = 16 << 20
"""Uncompressed bytes of a chunk where its length is learned: large steps make short chunks."""
MESSAGE_ITEMS = 256
"""Items of a message at most; the cost of a message is spread over them."""
MESSAGE_BYTES = 1 << 20
"""Payload bytes from which on a message takes no more chunks."""
MESSAGE_BLOBS, MESSAGE_REFERENCES, MESSAGE_DESCRIPTION_BYTES = 8192, 1 << 16, 1 << 20
"""Columns of all chunks, chunks spanned by all items, bytes of all templates: the server's limits lie far above."""


class ChunkLog:
    """Rows and chunks of one writer, of which the last `keep_rows` rows may be referred to.

    `chunk_length` is a constant, or None for one that is learned (see `ChunkLength`).
    """

    def __init__(
        self,
        keep_rows: int,
        chunk_length: int | None,
        message_items: int = MESSAGE_ITEMS,
        codec: WriterCodec = "auto",
    ) -> None:
        check_writer_codec(codec)
        self.keep_rows = keep_rows
        self.message_items = min(message_items, MESSAGE_ITEMS)
        self.rows = 0
        """Rows appended so far, the open step included: the number of the next one."""
        self.history_start = 0
        """First row of the history: of the episode, unless earlier ones were kept."""
        self.oldest_row = 0
        """The first row that may still be referred to."""
        self.episode_start = 0
        self.presence = Presence()
        self.schema: Schema | None = None
        self.column_of: dict[Path, int] = {}
        self.dtype_names: list[str] = []
        self.step_is_open = False
        self._chunk_length = chunk_length
        self._tuner = ChunkLength() if chunk_length is None else None
        self._buffer: RowBuffer | None = None
        self._buffer_start = 0
        self._schema_blob = b""
        self._codec = codec
        self._codecs: list[ColumnCodec] = []
        self._step_bytes = 0
        # Of each column: of a row that has it; and of all rows in finished chunks, as appended and as stored.
        self._row_bytes: list[int] = []
        self._bytes_in: list[int] = []
        self._bytes_stored: list[int] = []
        self._chunks_finished = 0
        self._episode = self.policy_version = 0
        self._chunks: list[Chunk] = []
        self._first_rows: list[int] = []
        self._next_number = 0
        self._sent_end = 0
        self._unsent_bytes = 0
        self._items = PendingItems()
        self._items_from = 0
        self._ready = 0

    # Steps.

    @property
    def episode_steps(self) -> int:
        """Completed steps of the episode."""
        return self.rows - self.episode_start - self.step_is_open

    @property
    def chunk_length(self) -> int:
        """Steps at which the next chunk is full."""
        if self._tuner is None:
            assert self._chunk_length is not None, "a length that is not learned is a constant"
            return self._chunk_length
        return self._tuner.length

    def configure(self, keep_rows: int, max_chunk_length: int | None) -> None:
        """Keep at least so many rows from now on, and let no further chunk have more than so many steps."""
        # What is forgotten does not come back: more is kept from here on.
        self.keep_rows = max(self.keep_rows, keep_rows)
        if max_chunk_length is not None:
            if self._tuner is not None:
                self._tuner.bound(max_chunk_length)
            else:
                self._chunk_length = min(self.chunk_length, max_chunk_length)
            self.cut()

    def append(self, leaves: Sequence[Any], partial_step: bool) -> None:
        """Add a step, or to the open step: a value for each column, None where there is none. Raises DataError and
        changes nothing if one does not fit."""
        buffer = self._buffer
        assert buffer is not None, "a log with columns has a buffer"
        if self.step_is_open:
            self._amend(buffer, leaves)
        else:
            if not buffer.append_like_last(leaves):
                self._append_unlike(buffer, leaves)
            self.rows += 1
        self._appended(buffer, partial_step)

    def append_named(self, cells: Mapping[Path, Any], partial_step: bool) -> None:
        """As `append`, with the values there are by path: those of new paths become columns."""
        added = [path for path in cells if path not in self.column_of]
        if added:
            self._extend(added, cells)
        elif not cells and not self.step_is_open:
            raise DataError("a step needs at least one value")
        self.append([cells.get(path) for path in self.column_of], partial_step)

    def append_empty(self, partial_step: bool) -> None:
        """Add a step without any value, which its later parts may have. There must be columns."""
        assert self._buffer is not None, "a log with columns has a buffer"
        assert not self.step_is_open, "an empty step is a step of its own"
        self._buffer.append([None] * len(self.column_of), partial=True)
        self.presence.lack(self.rows, range(len(self.column_of)))
        self.rows += 1
        self._appended(self._buffer, partial_step)

    def close_step(self) -> None:
        """The open step gets no more columns."""
        self.step_is_open = False

    def end_episode(self, clear: bool) -> None:
        """Begin a new episode; with `clear` nothing before it can be referred to any more."""
        self.close_step()
        self.cut()
        self._episode += 1
        self.episode_start = self.rows
        if clear:
            self.history_start = self.oldest_row = self.rows
        self._trim()

    def cut(self) -> None:
        """Finish the chunk that is being filled, as far as its steps are complete."""
        buffer = self._buffer
        if buffer is None:
            return
        open_row = self._take_open_row(buffer) if self.step_is_open else None
        count = buffer.length - (open_row is not None)
        if count:
            self._finish(buffer, count)
        capacity = self._capacity
        if buffer.capacity != capacity:
            self._buffer = buffer = RowBuffer(buffer.schema, capacity)
        else:
            buffer.clear()
        if open_row is not None:
            buffer.append(open_row, partial=True)
        self._trim()

    def values(self, column: int, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Copies of these cells, [n, *shape], from the open buffer and from finished chunks."""
        assert self.schema is not None, "a cell has a column"
        spec = self.schema.columns[column]
        out = np.empty((len(rows), *spec.shape), spec.array_dtype)
        is_open = rows >= self._buffer_start
        if is_open.any():
            assert self._buffer is not None, "an open row lies in the buffer"
            out[is_open] = self._buffer.arrays()[column][rows[is_open] - self._buffer_start]
        for index in sorted({self._find(row) for row in rows[~is_open].tolist()}):
            chunk = self._chunks[index]
            mine = (rows >= chunk.first_row) & (rows < chunk.end_row)
            out[mine] = decoded(chunk, column)[rows[mine] - chunk.first_row]
        return out

    def report(self) -> WriterReport:
        columns = {}
        if self.schema is not None:
            for column, appended, stored in zip(self.schema.columns, self._bytes_in, self._bytes_stored, strict=True):
                columns["/".join(map(str, column.path))] = ColumnReport(appended, stored)
        length = self.chunk_length if self._buffer is None else self._buffer.capacity
        return WriterReport(self._buffer_start, self._chunks_finished, length, columns)

    # Items.

    @property
    def items(self) -> int:
        """Items that have not left."""
        return len(self._items)

    @property
    def ready_items(self) -> int:
        """Items whose chunks are all finished, and those before them."""
        return self._ready

    @property
    def waiting_items(self) -> int:
        """Items that wait for the open chunk."""
        return len(self._items) - self._ready

    @property
    def standing(self) -> int:
        ready = self._ready
        standing = WAITING if len(self._items) > ready else 0
        if ready:
            standing |= READY
            if ready >= self.message_items or self._unsent_bytes >= MESSAGE_BYTES:
                standing |= FULL
        return standing

    def holds_back(self, handle: ItemHandle) -> bool:
        """Whether this item waits for the open chunk."""
        return any(item.handle is handle for item in self._items[self._ready :])

    def ready_since(self) -> float | None:
        return self._items[0].created_at if self._ready else None

    def waiting_since(self) -> float | None:
        return self._items[self._ready].created_at if self.waiting_items else None

    def add_item(
        self, handle: ItemHandle, priority: float, first_row: int, last_row: int, template: bytes, now: float
    ) -> None:
        assert self.oldest_row <= first_row <= last_row < self.rows, "an item lies outside what is kept"
        items = self._items
        if last_row < self._buffer_start and self._ready == len(items):
            self._ready += 1
        if first_row < self._items_from or not items:
            self._items_from = first_row
        # What the constructor of a named tuple does, without its call of a Python function.
        items.append(tuple.__new__(PendingItem, (handle, priority, first_row, last_row, template, now)))

    def take_message(self) -> Message | None:
        """The next message of finished chunks and ready items, or None if no item is ready. Chunks that do not fit
        leave first, by themselves."""
        if not self._ready:
            return None
        ready = self._items.head(min(self._ready, self.message_items))
        low, high = ready.spans(self._first_rows)
        count = ready.fitting(low, high, MESSAGE_REFERENCES, MESSAGE_DESCRIPTION_BYTES)
        needed = np.maximum.accumulate(high[:count])
        base = self._chunks[0].number
        at = start = max(self._sent_end - base, 0)
        nbytes = blobs = 0
        while at <= needed[-1]:
            chunk = self._chunks[at]
            blobs += len(chunk.schema.columns)
            if at > start and (nbytes >= MESSAGE_BYTES or blobs > MESSAGE_BLOBS):
                break
            nbytes += len(chunk.payload)
            at += 1
        # Those leave whose chunks have all left or leave with them.
        count = int(np.searchsorted(needed, at))
        chunks = self._chunks[start:at]
        if chunks:
            self._sent_end = chunks[-1].number + 1
            self._unsent_bytes -= nbytes
        batch: ItemBatch | None = None
        handles: Sequence[ItemHandle] = ()
        if count:
            items = ready.head(count)
            del self._items[:count]
            self._ready -= count
            self._items_from = min([item.first_row for item in self._items], default=0)
            batch = items.batch(low[:count], high[:count], base, self._first_rows)
            handles = items.handles
            if self._tuner is not None and self._tuner.wants_items:
                self._measure(self._tuner, items, low, high)
        self._trim()
        return Message(chunk_batch(chunks), batch, self._keep_from(), handles)

    # Helpers, in the order of their callers.

    def _appended(self, buffer: RowBuffer, partial_step: bool) -> None:
        oldest = self.rows - self.keep_rows
        if oldest > self.oldest_row:
            self.oldest_row = oldest
        self.step_is_open = partial_step
        if not partial_step and buffer.length >= buffer.full_length:
            self.cut()

    def _extend(self, added: Sequence[Path], cells: Mapping[Path, Any]) -> None:
        new = Schema.infer(added, [cells[path] for path in added])
        schema = new if self.schema is None else Schema((*self.schema.columns, *new.columns))
        # Tried before anything changes: a step that is refused must leave the schema as it was.
        RowBuffer(schema, 1).append([cells.get(path) for path in schema.paths], partial=True)
        if self.step_is_open and self._buffer is not None:
            self._buffer.check_absent([cells.get(path) for path in self.column_of])
        self._row_bytes = [column.row_bytes for column in schema.columns]
        self._step_bytes = sum(self._row_bytes)
        if self._buffer is None:
            self._buffer = RowBuffer(schema, self._capacity)
        else:
            self._buffer.grow(schema)
            self._items.replace_template(b"", _whole_window(list(self.column_of)))
        self.presence.add_columns(len(added), self.rows - self.step_is_open)
        if self.step_is_open:
            self.presence.lack(self.rows - 1, range(len(self.column_of), len(schema.columns)))
        self._codecs.extend(ColumnCodec(column, self._codec) for column in new.columns)
        self._bytes_in += [0] * len(added)
        self._bytes_stored += [0] * len(added)
        self.schema = schema
        self.column_of = {path: column for column, path in enumerate(schema.paths)}
        self.dtype_names = [column.dtype.name for column in schema.columns]
        self._schema_blob = schema.encode()
        self._widen(schema)

    def _widen(self, schema: Schema) -> None:
        """Give the chunks that may still be shown the new columns, without a value: a window has one schema all along.

        Those that have left leave again, under new numbers, if an item needs them. That happens once for a column.
        """
        is_sent = bool(self._chunks) and self._chunks[0].number < self._sent_end
        for chunk in self._chunks:
            chunk.widen(schema, self._schema_blob)
            if is_sent:
                chunk.number = self._next_number
                self._next_number += 1
        if is_sent:
            self._unsent_bytes = sum(len(chunk.payload) for chunk in self._chunks)

    @property
    def _capacity(self) -> int:
        if self._tuner is None:
            return self.chunk_length
        return max(1, min(self._tuner.length, MAX_CHUNK_BYTES // max(self._step_bytes, 1)))

    def _append_unlike(self, buffer: RowBuffer, leaves: Sequence[Any]) -> None:
        try:
            buffer.append(leaves)
        except DataError:
            if all(leaf is not None for leaf in leaves):
                raise
            if all(leaf is None for leaf in leaves):
                raise DataError("a step needs at least one value") from None
            buffer.append(leaves, partial=True)
            self.presence.lack(self.rows, [number for number, leaf in enumerate(leaves) if leaf is None])

    def _amend(self, buffer: RowBuffer, leaves: Sequence[Any]) -> None:
        buffer.amend(leaves)
        self.presence.fill(self.rows - 1, [number for number, leaf in enumerate(leaves) if leaf is not None])

    def _take_open_row(self, buffer: RowBuffer) -> list[Any]:
        last = buffer.length - 1
        row = self.rows - 1
        return [
            array[last:].copy()[0] if self.presence.is_present(number, row) else None
            for number, array in enumerate(buffer.arrays())
        ]

    def _finish(self, buffer: RowBuffer, count: int) -> None:
        """Encode the first `count` rows of the buffer as a chunk."""
        arrays, present = buffer.arrays(), buffer.present()
        if count < buffer.length:
            arrays = [array[:count] for array in arrays]
            present = [None if has is None or has[:count].all() else has[:count] for has in present]
        records, payload = encode_chunk(buffer.schema, arrays, self._codecs, present)
        chunk = Chunk(
            self._next_number,
            self._buffer_start,
            count,
            self._episode,
            buffer.schema,
            self._schema_blob,
            records.tobytes(),
            payload,
            self.policy_version,
        )
        self._chunks.append(chunk)
        self._first_rows.append(self._buffer_start)
        self._next_number += 1
        self._chunks_finished += 1
        self._unsent_bytes += len(payload)
        self._buffer_start += count
        self._bytes_stored = [*map(add, self._bytes_stored, records["stored_bytes"].tolist())]
        if buffer.is_plain:
            appended = [count * row_bytes for row_bytes in self._row_bytes]
        else:
            columns = zip(buffer.schema.columns, arrays, present, strict=True)
            appended = [column.bytes_in(array, has) for column, array, has in columns]
        self._bytes_in = [*map(add, self._bytes_in, appended)]
        if self._tuner is not None:
            self._tuner.saw_chunk(len(payload), count)
        items, ready, end = self._items, self._ready, self._buffer_start
        while ready < len(items) and items[ready].last_row < end:
            ready += 1
        self._ready = ready

    def _trim(self) -> None:
        """Let go of chunks that nothing can refer to any more."""
        keep = self.oldest_row
        if self._items and self._items_from < keep:
            keep = self._items_from
        gone = 0
        while gone < len(self._chunks) and self._chunks[gone].end_row <= keep:
            chunk = self._chunks[gone]
            if chunk.number >= self._sent_end:
                self._unsent_bytes -= len(chunk.payload)
            gone += 1
        if gone:
            del self._chunks[:gone]
            del self._first_rows[:gone]
        self.presence.forget_before(keep)

    def _find(self, row: int) -> int:
        """Index of the finished chunk that has this row."""
        return bisect_right(self._first_rows, row) - 1

    def _keep_from(self) -> int:
        return self._chunks[0].number if self._chunks else self._next_number

    def _measure(self, tuner: ChunkLength, items: ItemColumns, low: NDArray[np.int64], high: NDArray[np.int64]) -> None:
        for item in range(min(len(items), ChunkLength.ITEMS)):
            chunks = self._chunks[int(low[item]) : int(high[item]) + 1]
            steps = int(items.last_row[item] - items.first_row[item]) + 1
            tuner.saw_item(
                sum(len(chunk.payload) for chunk in chunks), len(chunks), sum(chunk.rows for chunk in chunks), steps
            )


def _whole_window(paths: Sequence[Path]) -> bytes:
    """A template that shows the first columns of a schema, which have these paths, over a whole window."""
    return Template(tuple(OutputColumn(path, False, ((number, ()),)) for number, path in enumerate(paths))).encode()
