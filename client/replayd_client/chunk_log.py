"""What one writer has appended: steps as rows, rows as chunks, and items that wait for their chunks to be finished.

Pure: no socket, no clock. A row has a global number from 0; a chunk holds consecutive rows of one episode, all columns,
and takes the next chunk number when it is finished. Chunks stay here until nothing can refer to them any more; those
that an item refers to, and those between, leave in messages. Who sends them is the business of `writer_core`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.chunk import Chunk, chunk_batch, decoded
from replayd_client.codecs import ColumnCodec, encode_chunk
from replayd_client.columns import Schema
from replayd_client.errors import DataError
from replayd_client.item_handle import ItemHandle
from replayd_client.messages import ChunkBatch, ItemBatch
from replayd_client.row_buffer import RowBuffer
from replayd_client.structure import Path, Structure, flatten

DEFAULT_CHUNK_LENGTH = 10
"""Steps of a chunk where nothing is said, as far as a writer keeps so many: the incumbent's default."""
DEFAULT_CHUNK_BYTES = 16 << 20
"""Uncompressed bytes of a chunk where nothing is said: large steps make short chunks."""
MESSAGE_ITEMS = 256
"""Items of a message at most; the cost of a message is spread over them."""
MESSAGE_BYTES = 1 << 20
"""Payload bytes from which on a message takes no more chunks."""
MESSAGE_BLOBS, MESSAGE_REFERENCES, MESSAGE_DESCRIPTION_BYTES = 8192, 1 << 16, 1 << 20
"""Columns of all chunks, chunks spanned by all items, bytes of all templates: the server's limits lie far above."""


@dataclass(slots=True, eq=False)
class _Item:
    handle: ItemHandle
    priority: float
    first_row: int
    last_row: int
    template: bytes
    created_at: float


@dataclass(slots=True, eq=False)
class Message:
    """What goes in one insert message."""

    chunks: ChunkBatch | None
    items: ItemBatch | None
    keep_from: int
    handles: list[ItemHandle]


class ChunkLog:
    """Rows and chunks of one writer, of which the last `keep_rows` rows may be referred to."""

    def __init__(self, keep_rows: int, chunk_length: int | None, message_items: int = MESSAGE_ITEMS) -> None:
        self.keep_rows = keep_rows
        self.message_items = min(message_items, MESSAGE_ITEMS)
        self.rows = 0
        """Rows appended so far, the open step included: the number of the next one."""
        self.history_start = 0
        """First row of the history: of the episode, unless earlier ones were kept."""
        self.episode_start = 0
        self.schema: Schema | None = None
        self.structure: Structure | None = None
        self.dtype_names: list[str] = []
        self.step_is_open = False
        self._chunk_length = chunk_length
        self._born: list[int] = []
        self._missing: dict[int, set[int]] = {}
        self._buffer: RowBuffer | None = None
        self._buffer_start = 0
        self._schema_blob = b""
        self._codecs: list[ColumnCodec] = []
        self._episode = 0
        self._chunks: deque[Chunk] = deque()
        self._next_number = 0
        self._sent_end = 0
        self._unsent_bytes = 0
        self._items: deque[_Item] = deque()
        self._items_from = 0
        self._ready = 0

    # Steps.

    @property
    def oldest_row(self) -> int:
        """The first row that may still be referred to."""
        return max(self.history_start, self.rows - self.keep_rows)

    @property
    def episode_steps(self) -> int:
        """Completed steps of the episode."""
        return self.rows - self.episode_start - self.step_is_open

    def append(self, data: Any, partial_step: bool) -> None:
        """Add a step, or to the open step; raises DataError and changes nothing if a leaf does not fit."""
        leaves = self._leaves(data)
        buffer = self._buffer
        assert buffer is not None, "a writer with a schema has a buffer"
        if self.step_is_open:
            self._amend(buffer, leaves)
        else:
            try:
                buffer.append(leaves)
            except DataError:
                if all(leaf is not None for leaf in leaves):
                    raise
                if all(leaf is None for leaf in leaves):
                    raise DataError("a step needs at least one value") from None
                buffer.append(leaves, partial=True)
                self._missing[self.rows] = {number for number, leaf in enumerate(leaves) if leaf is None}
            self.rows += 1
        self.step_is_open = partial_step
        if not partial_step and buffer.is_full:
            self.cut()

    def is_present(self, column: int, row: int) -> bool:
        """Whether the row has the column."""
        return row >= self._born[column] and column not in self._missing.get(row, ())

    def all_present(self, column: int, first: int, last: int) -> bool:
        """Whether all rows from `first` to `last` have the column."""
        if first < self._born[column]:
            return False
        return not self._missing or all(
            column not in missing for row, missing in self._missing.items() if first <= row <= last
        )

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
            self.history_start = self.rows
        self._trim()

    def cut(self) -> None:
        """Finish the chunk that is being filled, as far as its steps are complete."""
        buffer = self._buffer
        if buffer is None:
            return
        open_row = self._take_open_row(buffer) if self.step_is_open else None
        count = buffer.length - (open_row is not None)
        if count:
            arrays = [array[:count] for array in buffer.arrays()]
            present = [None if has is None or has[:count].all() else has[:count] for has in buffer.present()]
            records, payload = encode_chunk(buffer.schema, arrays, self._codecs, present)
            self._chunks.append(
                Chunk(
                    self._next_number,
                    self._buffer_start,
                    count,
                    self._episode,
                    buffer.schema,
                    self._schema_blob,
                    records.tobytes(),
                    payload,
                )
            )
            self._next_number += 1
            self._unsent_bytes += len(payload)
            self._buffer_start += count
            while self._ready < len(self._items) and self._items[self._ready].last_row < self._buffer_start:
                self._ready += 1
        buffer.clear()
        if open_row is not None:
            buffer.append(open_row, partial=True)
        self._trim()

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
    def has_full_message(self) -> bool:
        """Whether waiting for more items or chunks would not make the next message any better."""
        return self._ready >= self.message_items or (self._ready > 0 and self._unsent_bytes >= MESSAGE_BYTES)

    @property
    def waiting_items(self) -> int:
        """Items that wait for the open chunk."""
        return len(self._items) - self._ready

    @property
    def waits_for_open_step(self) -> bool:
        """Whether an item shows a step that is still open, so that it cannot be sent."""
        return self.step_is_open and bool(self._items) and self._items[-1].last_row == self.rows - 1

    def ready_since(self) -> float | None:
        return self._items[0].created_at if self._ready else None

    def waiting_since(self) -> float | None:
        return self._items[self._ready].created_at if self.waiting_items else None

    def add_item(
        self, handle: ItemHandle, priority: float, first_row: int, last_row: int, template: bytes, now: float
    ) -> None:
        assert self.oldest_row <= first_row <= last_row < self.rows, "an item lies outside what is kept"
        if self._ready == len(self._items) and last_row < self._buffer_start:
            self._ready += 1
        self._items_from = min(self._items_from, first_row) if self._items else first_row
        self._items.append(_Item(handle, priority, first_row, last_row, template, now))

    def columns_in(self, first_row: int) -> int:
        """Columns that every chunk of a window which begins with this row has: later schemas only add some."""
        assert self.schema is not None, "a window lies in rows, which have a schema"
        if first_row >= self._buffer_start:
            return len(self.schema.columns)
        return len(self._chunks[self._find(first_row)].schema.columns)

    def take_message(self) -> Message | None:
        """The next message of finished chunks and ready items, or None if no item is ready. Chunks that do not fit
        leave first, by themselves."""
        if not self._ready:
            return None
        chunks: list[Chunk] = []
        items: list[_Item] = []
        nbytes = blobs = references = 0
        templates: dict[bytes, None] = {}
        base = self._chunks[0].number
        is_full = False
        while self._ready and not is_full and len(items) < self.message_items:
            item = self._items[0]
            last = self._chunks[self._find(item.last_row)].number
            references += last - self._chunks[self._find(item.first_row)].number + 1
            templates[item.template] = None
            if items and (references > MESSAGE_REFERENCES or sum(map(len, templates)) > MESSAGE_DESCRIPTION_BYTES):
                break
            while self._sent_end <= last:
                chunk = self._chunks[max(self._sent_end, base) - base]
                blobs += len(chunk.schema.columns)
                if chunks and (
                    nbytes >= MESSAGE_BYTES or blobs > MESSAGE_BLOBS or chunk.number != chunks[-1].number + 1
                ):
                    is_full = True
                    break
                chunks.append(chunk)
                nbytes += len(chunk.payload)
                self._unsent_bytes -= len(chunk.payload)
                self._sent_end = chunk.number + 1
            else:
                items.append(self._items.popleft())
                self._ready -= 1
        batch = self._item_batch(items) if items else None
        self._items_from = min((item.first_row for item in self._items), default=0)
        self._trim()
        return Message(chunk_batch(chunks), batch, self._keep_from(), [item.handle for item in items])

    def drop_items(self) -> int:
        """Forget the items that have not left; return how many."""
        count = len(self._items)
        self._items.clear()
        self._ready = 0
        return count

    def values(self, column: int, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Copies of these cells, [n, *shape], from the open buffer and from finished chunks."""
        assert self.schema is not None, "a cell has a column"
        spec = self.schema.columns[column]
        out = np.empty((len(rows), *spec.shape), spec.dtype)
        for place, row in enumerate(rows.tolist()):
            if row >= self._buffer_start:
                assert self._buffer is not None, "an open row lies in the buffer"
                out[place] = self._buffer.arrays()[column][row - self._buffer_start]
        finished = rows < self._buffer_start
        for index in sorted({self._find(row) for row in rows[finished].tolist()}):
            chunk = self._chunks[index]
            mine = (rows >= chunk.first_row) & (rows < chunk.end_row)
            out[mine] = decoded(chunk, column)[rows[mine] - chunk.first_row]
        return out

    # Helpers, in the order of their callers.

    def _leaves(self, data: Any) -> Sequence[Any]:
        """The step's leaves in schema order, None for a column that it lacks; new columns enter the schema."""
        if self.structure is not None:
            try:
                return self.structure.leaves(data)
            except DataError:
                pass
        found = {path: leaf for path, leaf in flatten(data) if leaf is not None}
        known = () if self.schema is None else self.schema.paths
        added = [path for path in found if path not in known]
        if added:
            self._extend(data, added, found)
        elif not found and not self.step_is_open:
            raise DataError("a step needs at least one value")
        assert self.schema is not None, "an open step, or one with values, has a schema"
        return [found.get(path) for path in self.schema.paths]

    def _extend(self, data: Any, added: list[Path], found: dict[Path, Any]) -> None:
        new = Schema.infer(added, [found[path] for path in added])
        first_step = self.schema is None
        schema = new if self.schema is None else Schema((*self.schema.columns, *new.columns))
        structure = Structure(data) if first_step else Structure.from_paths(schema.paths)
        if structure.paths != schema.paths:
            structure = Structure.from_paths(schema.paths)
        # Tried before anything changes: a step that is refused must leave the schema as it was.
        RowBuffer(schema, 1).append([found.get(path) for path in schema.paths], partial=True)
        if self._buffer is None:
            self._buffer = RowBuffer(schema, self._capacity(schema))
        else:
            self._buffer.grow(schema)
        if self.step_is_open:
            self._missing.setdefault(self.rows - 1, set()).update(range(len(self._born), len(schema.columns)))
        self._born.extend([self.rows - self.step_is_open] * len(new.columns))
        self._codecs.extend(ColumnCodec(column) for column in new.columns)
        self.schema, self.structure = schema, structure
        self.dtype_names = [column.dtype.name for column in schema.columns]
        self._schema_blob = schema.encode()

    def _capacity(self, schema: Schema) -> int:
        if self._chunk_length is not None:
            return self._chunk_length
        step_bytes = sum(column.row_bytes for column in schema.columns)
        return max(1, min(self.keep_rows, DEFAULT_CHUNK_LENGTH, DEFAULT_CHUNK_BYTES // max(step_bytes, 1)))

    def _amend(self, buffer: RowBuffer, leaves: Sequence[Any]) -> None:
        buffer.amend(leaves)
        missing = self._missing.get(self.rows - 1)
        if missing is not None:
            missing.difference_update(number for number, leaf in enumerate(leaves) if leaf is not None)
            if not missing:
                del self._missing[self.rows - 1]

    def _take_open_row(self, buffer: RowBuffer) -> list[Any]:
        last = buffer.length - 1
        missing = self._missing.get(self.rows - 1, ())
        return [None if number in missing else array[last].copy() for number, array in enumerate(buffer.arrays())]

    def _trim(self) -> None:
        """Let go of chunks that nothing can refer to any more."""
        keep = self.oldest_row
        if self._items:
            keep = min(keep, self._items_from)
        while self._chunks and self._chunks[0].end_row <= keep:
            chunk = self._chunks.popleft()
            if chunk.number >= self._sent_end:
                self._unsent_bytes -= len(chunk.payload)
        if self._missing:
            for row in [row for row in self._missing if row < keep]:
                del self._missing[row]

    def _find(self, row: int) -> int:
        """Index of the finished chunk that has this row."""
        return bisect_right(self._chunks, row, key=lambda chunk: chunk.first_row) - 1

    def _keep_from(self) -> int:
        return self._chunks[0].number if self._chunks else self._next_number

    def _item_batch(self, items: list[_Item]) -> ItemBatch:
        places = [(self._find(item.first_row), self._find(item.last_row)) for item in items]
        first = [self._chunks[low] for low, _ in places]
        tables = list(dict.fromkeys(item.handle.table for item in items))
        templates = list(dict.fromkeys(item.template for item in items))
        return ItemBatch(
            tables=tables,
            chunk=np.array([chunk.number for chunk in first], "<u8"),
            length=np.array([item.last_row - item.first_row + 1 for item in items], "<u4"),
            priority=np.array([item.priority for item in items], "<f8"),
            table_of=np.array([tables.index(item.handle.table) for item in items], "<u2") if len(tables) > 1 else None,
            chunks=np.array([high - low + 1 for low, high in places], "<u4"),
            offset=np.array(
                [item.first_row - chunk.first_row for item, chunk in zip(items, first, strict=True)], "<u4"
            ),
            templates=templates,
            template_of=np.array([templates.index(item.template) for item in items], "<u2")
            if len(templates) > 1
            else None,
        )
