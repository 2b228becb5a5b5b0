"""How whole batches become insert messages: B trajectories of T steps as B chunks and B items a table, in few of them.

Numbers are packed in arrays, so nothing but compression is done per item in Python. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.array_messages import ChunkBatch, ItemBatch
from replayd_client.batch_rows import Rows
from replayd_client.chunk import PACKED_PAYLOAD_BYTES
from replayd_client.codecs import WriterCodec
from replayd_client.columns import Schema
from replayd_client.equal_chunks import OWN_FRAME_BYTES, EqualChunksEncoder
from replayd_client.messages import Buffer

MESSAGE_BYTES, LARGE_MESSAGE_BYTES = 8 << 20, 16 << 20
"""Payload bytes of a message, about; the second where payloads have frames of their own, which the server does not
copy. A message costs it about a millisecond beside its bytes, so there are many; more would only keep others waiting
that come after it."""
MESSAGE_CHUNKS, MESSAGE_ITEMS, MESSAGE_BLOBS = 4096, 16384, 65536
"""The most of each in one message; the server's limits lie above."""


Made = tuple[ChunkBatch, ItemBatch]
"""Chunks and the items that show them, one each a table: a message, or what is to be part of one."""


class BatchMessages:
    """Makes the messages of one stream, whose chunks it numbers: batches of one schema, of any length and steps."""

    def __init__(self, schema: Schema, codec: WriterCodec) -> None:
        self.schema = schema
        self.codec = codec
        self._next_chunk = 0
        self._schema_blob = schema.encode()
        self._encoder = EqualChunksEncoder(schema, codec)

    def most_bytes(self, rows: Rows) -> int:
        """Of a message with such trajectories."""
        row_bytes = sum(array.nbytes for array in rows.arrays) // rows.count
        return MESSAGE_BYTES if row_bytes < OWN_FRAME_BYTES else LARGE_MESSAGE_BYTES

    def parts(self, rows: Rows, tables: int) -> Iterator[slice]:
        """The trajectories of each message; each is an item of so many tables."""
        most = min(MESSAGE_CHUNKS, max(MESSAGE_ITEMS // tables, 1), max(MESSAGE_BLOBS // len(rows.arrays), 1))
        fixed_bytes = rows.steps * sum(column.row_bytes for column in rows.schema.columns if not column.is_variable)
        if not rows.schema.is_variable:
            size = min(max(self.most_bytes(rows) // max(fixed_bytes, 1), 1), most)
            yield from (slice(start, min(start + size, rows.count)) for start in range(0, rows.count, size))
            return
        ends = np.append(0, np.cumsum(rows.variable_bytes + fixed_bytes))
        start = 0
        while start < rows.count:
            fitting = int(np.searchsorted(ends, ends[start] + MESSAGE_BYTES, side="right")) - 1
            stop = min(max(fitting, start + 1), start + most, rows.count)
            yield slice(start, stop)
            start = stop

    def message(
        self, rows: Rows, priorities: Mapping[str, NDArray[np.float64]], part: slice, *, may_lend: bool
    ) -> Made:
        """The next message, of these trajectories and of priorities [B] for each table.

        With `may_lend` its body may be the memory of `rows` itself.
        """
        n = part.stop - part.start
        numbers = np.arange(self._next_chunk, self._next_chunk + n, dtype="<u8")
        encoded = self._encoder.encode([array[part] for array in rows.arrays], may_lend=may_lend)
        chunks = ChunkBatch(
            first=self._next_chunk,
            rows=np.full(n, rows.steps, "<u4"),
            schemas=[self._schema_blob],
            records=encoded.records,
            body=encoded.body,
            # Trajectories of a batch have nothing to do with each other: each is an episode of its own.
            episodes=numbers,
            is_lent=encoded.is_lent,
        )
        self._next_chunk = chunks.end
        tables = list(priorities)
        if len(tables) == 1:
            return chunks, ItemBatch(tables, numbers, chunks.rows, priorities[tables[0]][part].copy())
        items = ItemBatch(
            tables=tables,
            chunk=np.tile(numbers, len(tables)),
            length=np.tile(chunks.rows, len(tables)),
            priority=np.concatenate([priorities[table][part] for table in tables]),
            table_of=np.repeat(np.arange(len(tables), dtype="<u2"), n),
        )
        return chunks, items


def joined(parts: list[Made]) -> Made:
    """One message of several that were made one after the other."""
    if len(parts) == 1:
        return parts[0]
    chunks, items = [chunks for chunks, _ in parts], [items for _, items in parts]
    tables = list(dict.fromkeys(table for each in items for table in each.tables))
    return (
        ChunkBatch(
            first=chunks[0].first,
            rows=np.concatenate([each.rows for each in chunks]),
            schemas=chunks[0].schemas,
            records=b"".join([each.records for each in chunks]),
            body=_packed([frame for each in chunks for frame in each.body]),
            episodes=np.concatenate([each.episodes for each in chunks if each.episodes is not None]),
            policy_versions=_policy_versions(chunks),
        ),
        ItemBatch(
            tables=tables,
            chunk=np.concatenate([each.chunk for each in items]),
            length=np.concatenate([each.length for each in items]),
            priority=np.concatenate([each.priority for each in items]),
            table_of=np.concatenate([_table_of(each, tables) for each in items]) if len(tables) > 1 else None,
        ),
    )


def _policy_versions(chunks: list[ChunkBatch]) -> NDArray[np.uint64] | None:
    """Those of all chunks; None if there is none of any."""
    if all(each.policy_versions is None for each in chunks):
        return None
    absent = (np.zeros(len(each), "<u8") for each in chunks)
    said = [each.policy_versions for each in chunks]
    return np.concatenate([none if some is None else some for some, none in zip(said, absent, strict=True)])


def _table_of(items: ItemBatch, tables: list[str]) -> NDArray[np.uint16]:
    """The place of each item's table among these."""
    places = np.array([tables.index(table) for table in items.tables], "<u2")
    return np.full(len(items), places[0]) if items.table_of is None else places[items.table_of]


def _packed(frames: list[Buffer]) -> list[Buffer]:
    """Fewer frames: matrices that lie one behind the other in memory as one, and small payloads together."""
    body: list[Buffer] = []
    small: list[bytes] = []
    for frame in frames:
        if isinstance(frame, bytes) and len(frame) < PACKED_PAYLOAD_BYTES:
            small.append(frame)
            continue
        if small:
            body.append(b"".join(small))
            small = []
        last: Any = body[-1] if body else None
        if _is_matrix(frame) and _is_matrix(last) and frame.base is last.base and _address(frame) == _end(last):
            start = _address(last) - _address(frame.base)
            body[-1] = frame.base[None, start : start + last.nbytes + frame.nbytes]
        else:
            body.append(frame)
    if small:
        body.append(b"".join(small))
    return body


def _is_matrix(frame: Buffer) -> bool:
    """Whether it is raw payloads that share a frame, in memory of which there may be more; alone they are vectors."""
    return isinstance(frame, np.ndarray) and frame.ndim == 2 and frame.base is not None


def _end(array: NDArray[np.uint8]) -> int:
    return _address(array) + array.nbytes


def _address(array: NDArray[np.uint8]) -> int:
    return int(array.__array_interface__["data"][0])
