"""What a vectorised writer has appended: rows of N environments, made chunks and items many at a time.

Pure: no socket, no clock. A cut takes all rows that wait, finds the windows that are complete, and packs the rows that
they show as chunks: environment by environment, so that a window lies in consecutive chunks of one stream. Rows that a
later window needs are carried over and leave again with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.array_messages import ChunkBatch, ItemBatch
from replayd_client.codecs import ColumnCodec, WriterCodec, check_writer_codec
from replayd_client.columns import Schema
from replayd_client.outbox import FULL, READY, WAITING, Message
from replayd_client.ragged_chunks import RaggedChunks, ragged_chunks
from replayd_client.row_buffer import CHUNK_CELL_BYTES
from replayd_client.signatures import checked_priority
from replayd_client.vector_buffer import BLOCK_BYTES, AutoresetMode, VectorBuffer
from replayd_client.vector_items import Bools, EpisodeRows, Ints, VectorItem
from replayd_client.writer_report import ColumnReport, WriterReport

CHUNK_ROWS = 32
"""Steps of a chunk where nothing is said, about: its records weigh little then, and a sample fetches little else."""
BLOCK_ROWS = 8192
"""Rows that are cut together, at least, while an environment has at most BLOCK_STEPS of them."""
BLOCK_STEPS = 1024
CARRY_SHARE = 8
"""A cut waits for so many times as many steps as may have to be carried over, which then leave a second time."""
MESSAGE_CHUNKS, MESSAGE_ITEMS, MESSAGE_BLOBS, MESSAGE_BYTES = 4096, 16384, 65536, 4 << 20
"""The most of each in one message; the server's limits lie above."""
LONG_WAIT_S = 9.0
"""How much longer a cut waits that would carry over more than it takes."""


class VectorLog:
    """Rows, chunks and items of N environments."""

    def __init__(
        self,
        num_envs: int,
        items: Sequence[VectorItem],
        mode: AutoresetMode,
        chunk_length: int | None,
        codec: WriterCodec = "auto",
    ) -> None:
        check_writer_codec(codec)
        self.num_envs = num_envs
        self.mode = mode
        self._items = list(items)
        self._chunk_rows = chunk_length or CHUNK_ROWS
        self._codec = codec
        self._buffer: VectorBuffer | None = None
        self._next_chunk = self.policy_version = 0
        self._version_before = 0
        """Of the policy that acted in the rows of the last cut, some of which come again."""
        self._messages: deque[Message] = deque()
        self._ready = 0
        self._ready_since: float | None = None
        self._waiting_since: float | None = None
        self._chunks_finished = 0

    def begin(self, schema: Schema, observed: Sequence[bool]) -> None:
        """Say what the steps have, and which of the columns are observed before an action is taken."""
        row_bytes = max(sum(column.row_bytes for column in schema.columns), 1)
        carried = max(item.window for item in self._items) - 1
        steps = max(self._chunk_rows, CARRY_SHARE * carried, min(BLOCK_STEPS, BLOCK_ROWS // self.num_envs))
        steps = max(min(steps, BLOCK_BYTES // (self.num_envs * row_bytes)), 1)
        self._schema = schema
        self._schema_blob = schema.encode()
        self._codecs = [ColumnCodec(column, self._codec) for column in schema.columns]
        self._bytes_in, self._stored = np.zeros((2, len(schema.columns)), np.int64)
        templates = [item.shown(schema)[0] for item in self._items]
        self._templates = list(dict.fromkeys(templates))
        self._tables = list(dict.fromkeys(item.table for item in self._items))
        # By the number of the declaration.
        self._priorities = np.array([checked_priority(item.priority) for item in self._items], "<f8")
        self._table_of = np.array([self._tables.index(item.table) for item in self._items], "<u2")
        self._template_of = np.array([self._templates.index(template) for template in templates], "<u2")
        self._buffer = VectorBuffer(schema, self.num_envs, carried + steps + 1, carried, self.mode, observed)

    def append(self, leaves: Sequence[Any], ends: Bools, final: Sequence[NDArray[Any]], now: float) -> None:
        """Add a step of all environments, as `VectorBuffer.append`."""
        buffer = self._buffer
        assert buffer is not None, "columns are known before there are rows"
        buffer.append(leaves, ends, final)
        if self._waiting_since is None:
            self._waiting_since = now
        if buffer.is_full:
            self.cut()

    def end_episodes(self) -> None:
        """All episodes end with the rows that they have."""
        if self._buffer is not None:
            self._buffer.end_episodes()

    # What the core asks.

    @property
    def items(self) -> int:
        return self._ready + self.waiting_items

    @property
    def ready_items(self) -> int:
        return self._ready

    @property
    def waiting_items(self) -> int:
        """Rows that wait for a cut: how many items they make is known then."""
        buffer = self._buffer
        if buffer is None or not buffer.has_news:
            return 0
        return max(buffer.new_slots, 1) * self.num_envs

    @property
    def standing(self) -> int:
        return (READY | FULL if self._messages else 0) | (WAITING if self.waiting_items else 0)

    def ready_since(self) -> float | None:
        return self._ready_since if self._messages else None

    def waiting_since(self) -> float | None:
        since, buffer = self._waiting_since, self._buffer
        if since is not None and buffer is not None and buffer.new_slots < buffer.carried:
            return since + LONG_WAIT_S
        return since

    def close_step(self) -> None:
        """Steps are never open here."""

    def take_message(self) -> Message | None:
        if not self._messages:
            return None
        message = self._messages.popleft()
        self._ready -= 0 if message.items is None else len(message.items)
        return message

    def report(self) -> WriterReport:
        buffer = self._buffer
        if buffer is None:
            return WriterReport(0, 0, self._chunk_rows, {})
        columns = {
            "/".join(map(str, column.path)): ColumnReport(appended, stored)
            for column, appended, stored in zip(
                self._schema.columns, self._bytes_in.tolist(), self._stored.tolist(), strict=True
            )
        }
        return WriterReport(buffer.steps, self._chunks_finished, self._chunk_rows, columns)

    def cut(self) -> None:
        """Make messages of all windows that are complete."""
        self._ready_since, self._waiting_since = self._waiting_since, None
        buffer = self._buffer
        if buffer is None or not buffer.has_news:
            return
        rows = buffer.take()
        windows = self._windows(rows)
        if len(windows.first):
            self._add_messages(buffer, rows, windows)
        buffer.carry(rows, np.min([item.needed_from(buffer.position) for item in self._items], axis=0))
        self._version_before = self.policy_version

    # Helpers, in the order of their callers.

    def _windows(self, rows: EpisodeRows) -> _Windows:
        """The windows of all kinds, in the order of their last rows."""
        found = [item.windows(rows) for item in self._items]
        first = np.concatenate([starts for starts, _ in found])
        last = np.concatenate([ends for _, ends in found])
        kind = np.repeat(np.arange(len(found)), [len(starts) for starts, _ in found])
        if len(found) > 1 or self._items[0].shorten:
            order = np.argsort(last, kind="stable")
            first, last, kind = first[order], last[order], kind[order]
        return _Windows(first, last, kind)

    def _pieces(self, buffer: VectorBuffer, rows: EpisodeRows, windows: _Windows) -> tuple[Ints, Ints]:
        """The rows that leave, as indices: those that a window shows; and the lengths of the chunks that they make, one
        behind the other."""
        count = len(rows.position)
        change = np.bincount(windows.first, minlength=count + 1) - np.bincount(windows.last + 1, minlength=count + 1)
        shown: Ints = np.flatnonzero(np.cumsum(change[:count]) > 0)
        episode = rows.episode[shown]
        is_start = np.ones(len(shown), np.bool_)
        is_start[1:] = (np.diff(shown) != 1) | (episode[1:] != episode[:-1])
        if self._schema.is_variable:
            # Where values may be of any length, a chunk also ends before it has too many bytes.
            filled = np.cumsum(buffer.row_cell_bytes(rows.source[shown])) // CHUNK_CELL_BYTES
            is_start[1:] |= filled[1:] != filled[:-1]
        start = np.flatnonzero(is_start)
        length = np.diff(np.append(start, len(shown)))
        # A run of n rows becomes p chunks of about equal length; number i of them begins at its row ⌊i · n / p⌋.
        parts = np.maximum(np.rint(length / self._chunk_rows).astype(np.int64), 1)
        piece = np.arange(int(parts.sum())) - np.repeat(np.cumsum(parts) - parts, parts)
        first = np.repeat(start, parts) + piece * np.repeat(length, parts) // np.repeat(parts, parts)
        return shown, np.diff(np.append(first, len(shown)))

    def _add_messages(self, buffer: VectorBuffer, rows: EpisodeRows, windows: _Windows) -> None:
        shown, lengths = self._pieces(buffer, rows, windows)
        columns = [buffer.column(number) for number in range(len(self._schema.columns))]
        chunks = ragged_chunks(self._schema, columns, self._codecs, rows.source[shown], lengths)
        self._chunks_finished += len(lengths)
        self._bytes_in += [
            column.bytes_in(array[rows.source[shown]], None) if column.is_variable else column.row_bytes * len(shown)
            for column, array in zip(self._schema.columns, columns, strict=True)
        ]
        self._stored += chunks.records["stored_bytes"].sum(axis=0, dtype=np.int64)
        place = np.zeros(len(rows.position), np.int64)
        place[shown] = np.arange(len(shown))
        chunk_of = np.repeat(np.arange(len(lengths)), lengths)
        first, last = place[windows.first], place[windows.last]
        low, high = chunk_of[first], chunk_of[last]
        items = ItemBatch(
            tables=self._tables,
            chunk=(low + self._next_chunk).astype("<u8"),
            length=(windows.last - windows.first + 1).astype("<u4"),
            priority=self._priorities[windows.kind],
            table_of=self._table_of[windows.kind],
            chunks=(high - low + 1).astype("<u4"),
            offset=(first - (np.cumsum(lengths) - lengths)[low]).astype("<u4"),
            templates=self._templates,
            template_of=self._template_of[windows.kind],
        )
        begins = shown[np.cumsum(lengths) - lengths]
        # A chunk that begins with rows which came before is as old as they are.
        versions = np.where(rows.is_new[begins], self.policy_version, self._version_before)
        self._messages.extend(self._split(chunks, rows.episode[begins], versions, items, low, high))
        self._next_chunk += len(lengths)
        self._ready += len(items)

    def _split(
        self, chunks: RaggedChunks, episodes: Ints, versions: Ints, items: ItemBatch, low: Ints, high: Ints
    ) -> Iterator[Message]:
        """Messages of these chunks and items, in order, each item with or behind its last chunk."""
        count = len(chunks.rows)
        most = max(min(MESSAGE_CHUNKS, MESSAGE_BLOBS // len(self._schema.columns)), 1)
        # What the items from each one on need at least.
        needed = np.append(np.minimum.accumulate(low[::-1])[::-1], count)
        chunk = item = 0
        while chunk < count or item < len(items):
            fitting = int(np.searchsorted(chunks.ends, chunks.ends[chunk] + MESSAGE_BYTES, side="right")) - 1
            end = min(max(fitting, chunk + 1), chunk + most, count)
            item_end = min(int(np.searchsorted(high, end)), item + MESSAGE_ITEMS)
            batch = None
            if end > chunk:
                batch = ChunkBatch(
                    first=self._next_chunk + chunk,
                    rows=chunks.rows[chunk:end].astype("<u4"),
                    schemas=[self._schema_blob],
                    records=chunks.records[chunk:end].tobytes(),
                    body=chunks.body(chunk, end),
                    episodes=episodes[chunk:end].astype("<u8"),
                    policy_versions=versions[chunk:end].astype("<u8"),
                )
            part = _part(items, item, item_end) if item_end > item else None
            yield Message(batch, part, self._next_chunk + int(needed[item_end]), ())
            chunk, item = end, item_end


@dataclass(slots=True, eq=False)
class _Windows:
    """Windows over rows: indices of the first and the last row of each, and the number of its declaration, [m]."""

    first: Ints
    last: Ints
    kind: Ints


def _part(items: ItemBatch, start: int, end: int) -> ItemBatch:
    """Some of the items; what is the same for all of a message is left out."""

    def part(array: NDArray[Any] | None, default: int) -> NDArray[Any] | None:
        if array is None or (array[start:end] == default).all():
            return None
        return array[start:end]

    return ItemBatch(
        tables=items.tables,
        chunk=items.chunk[start:end],
        length=items.length[start:end],
        priority=items.priority[start:end],
        table_of=part(items.table_of, 0),
        chunks=part(items.chunks, 1),
        offset=part(items.offset, 0),
        templates=items.templates,
        template_of=part(items.template_of, 0),
    )
