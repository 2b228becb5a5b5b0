"""Chunks of one length, built at once from arrays [n, T, …]: blob records and body, with as few copies as may be.

Owns the memory in which the columns of raw chunks are gathered, and uses it again. What compresses is encoded chunk by
chunk. Knows no stream and no socket.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.array_messages import BLOB_RECORD
from replayd_client.chunk import body_of
from replayd_client.codecs import ColumnCodec, WriterCodec, encode_chunk
from replayd_client.columns import Schema
from replayd_client.messages import Buffer

OWN_FRAME_BYTES = 128 * 1024
"""Raw payloads from this size on go in frames of their own, smaller ones share one (protocol §4.3).

A frame that is sent from where it lies costs its sender 20 µs, whatever its size, since pyzmq learns by a message to a
thread of its own when the memory is free again; a copy costs as much for 100 kB. So what is smaller shares the 20 µs.
"""
BLOCK_BYTES = 8 << 20
"""Memory that columns are gathered in, a message's worth; only what is used of it is ever touched."""
KEPT_BYTES = 48 << 20
"""Blocks kept for the next messages, in all: for what a stream has on its way at most, and one message more."""


@dataclass(slots=True, eq=False)
class EqualChunks:
    """n encoded chunks."""

    records: bytes
    """Blob records, n times those of the columns."""
    body: list[Buffer]
    is_lent: bool
    """Whether the body is the memory of the arrays themselves."""


class EqualChunksEncoder:
    """Encodes batch after batch of one schema."""

    def __init__(self, schema: Schema, codec: WriterCodec) -> None:
        self._schema = schema
        self._codecs = [ColumnCodec(column, codec) for column in schema.columns]
        self._memory = _Blocks()

    def encode(self, arrays: list[NDArray[Any]], *, may_lend: bool) -> EqualChunks:
        """Chunks of arrays [n, T, *shape] in schema order, C-contiguous, n ≥ 1.

        The first chunk shows the codecs what the data is like. With `may_lend` the body may be the arrays themselves.
        """
        count = len(arrays[0])
        if self._schema.is_variable:
            return _one_by_one([self._encode_one(arrays, number) for number in range(count)])
        passes_raw = [codec.passes_raw(array[0].nbytes) for codec, array in zip(self._codecs, arrays, strict=True)]
        if not all(passes_raw):
            encoded = [self._encode_one(arrays, 0)]
            if encoded[0][0]["codec"].any() or any(codec.choice.codec != "raw" for codec in self._codecs):
                return _one_by_one([*encoded, *(self._encode_one(arrays, number) for number in range(1, count))])
        rows = [array.reshape(count, -1).view(np.uint8) for array in arrays]
        records = np.zeros(len(rows), BLOB_RECORD)
        records["stored_bytes"] = [row.shape[1] for row in rows]
        is_lent = may_lend and len(rows) == 1
        matrix = rows[0] if is_lent else self._gathered(rows)
        body = [matrix] if matrix.shape[1] < OWN_FRAME_BYTES else list(matrix)
        return EqualChunks(records.tobytes() * count, body, is_lent)

    def _encode_one(self, arrays: list[NDArray[Any]], number: int) -> tuple[NDArray[np.void], bytes]:
        return encode_chunk(self._schema, [array[number] for array in arrays], self._codecs, [None] * len(arrays))

    def _gathered(self, columns: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
        """The columns' rows side by side, uint8[n, bytes of all]."""
        count, width = len(columns[0]), sum(column.shape[1] for column in columns)
        matrix = self._memory.take(count * width).reshape(count, width)
        start = 0
        for column in columns:
            matrix[:, start : start + column.shape[1]] = column
            start += column.shape[1]
        return matrix


class _Blocks:
    """Memory for what is gathered, used again when nothing refers to it any more: neither a message that may be sent
    again nor libzmq. Pieces that are taken one after the other lie so, where a block has room.

    Fresh memory costs more than the copy into it: 0.7 to 2 µs for each page of 4 KiB that is touched first.
    """

    def __init__(self) -> None:
        self._blocks: list[NDArray[np.uint8]] = []
        """The last one is in use."""
        self._used = 0

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        if not self._blocks or not self._fits(nbytes):
            self._turn(nbytes)
        start = self._used
        self._used += nbytes
        return self._blocks[-1][start : self._used]

    def _fits(self, nbytes: int) -> bool:
        if self._is_free(-1):
            self._used = 0
        return self._used + nbytes <= len(self._blocks[-1])

    def _turn(self, nbytes: int) -> None:
        """Go on in a block that is free, the longest unused if there is one, or in a new one."""
        for index in range(len(self._blocks)):
            if len(self._blocks[index]) >= nbytes and self._is_free(index):
                self._blocks.append(self._blocks.pop(index))
                break
        else:
            self._blocks.append(np.empty(max(nbytes, BLOCK_BYTES), np.uint8))
            while len(self._blocks) > 1 and sum(map(len, self._blocks)) > KEPT_BYTES:
                del self._blocks[0]
        self._used = 0

    def _is_free(self, index: int) -> bool:
        # Two: the list's and the argument's. A view of the block would be a third.
        return sys.getrefcount(self._blocks[index]) == 2


def _one_by_one(encoded: list[tuple[NDArray[np.void], bytes]]) -> EqualChunks:
    """Chunks of which each has its own records."""
    records = b"".join([records.tobytes() for records, _ in encoded])
    return EqualChunks(records, body_of([payload for _, payload in encoded]), is_lent=False)
