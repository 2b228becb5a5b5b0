"""Chunks of different lengths built at once: rows anywhere in a column's array become payloads, without a call each.

Owns how raw rows are scattered into one body; what compresses is encoded chunk by chunk. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.array_messages import BLOB_RECORD
from replayd_client.codecs import ColumnCodec, encode_chunk
from replayd_client.columns import Schema
from replayd_client.equal_chunks import OWN_FRAME_BYTES
from replayd_client.messages import Buffer

Ints = NDArray[np.int64]


@dataclass(slots=True, eq=False)
class RaggedChunks:
    """n encoded chunks."""

    rows: Ints
    """[n]"""
    records: NDArray[np.void]
    """Blob records, [n, columns]."""
    ends: Ints
    """Where each payload ends in the body, [n + 1], 0 first."""
    _body: NDArray[np.uint8]

    def body(self, first: int, end: int) -> list[Buffer]:
        """The payloads of chunks `first` to `end`, as frames: small ones share one (protocol §4.3)."""
        low, high = int(self.ends[first]), int(self.ends[end])
        if high - low < OWN_FRAME_BYTES * (end - first):
            return [self._body[low:high]]
        ends = self.ends[first : end + 1].tolist()
        return [self._body[start:stop] for start, stop in pairwise(ends)]


def ragged_chunks(
    schema: Schema, columns: Sequence[NDArray[Any]], codecs: Sequence[ColumnCodec], source: Ints, rows: Ints
) -> RaggedChunks:
    """Chunks of `rows` rows each, [n], which are one behind the other the rows `source` of every column.

    `columns` are [any, *shape], C-contiguous. The first chunk shows the codecs what the data is like.
    """
    first = source[: int(rows[0])]
    records, payload = encode_chunk(schema, [column[first] for column in columns], codecs, [None] * len(columns))
    if schema.is_variable or records["codec"].any() or any(codec.choice.codec != "raw" for codec in codecs):
        return _encoded(schema, columns, codecs, source, rows, records, payload)
    return _raw(schema, columns, source, rows)


def _raw(schema: Schema, columns: Sequence[NDArray[Any]], source: Ints, rows: Ints) -> RaggedChunks:
    row_bytes = np.array([column.row_bytes for column in schema.columns], np.int64)
    total = int(row_bytes.sum())
    ends = np.concatenate([[0], np.cumsum(rows)])
    body = np.empty(int(ends[-1]) * total, np.uint8)
    chunk_rows = np.repeat(rows, rows)
    within = np.arange(len(source)) - np.repeat(ends[:-1], rows)
    start = np.repeat(ends[:-1] * total, rows)
    for column, size in zip(columns, row_bytes.tolist(), strict=True):
        if size:
            # A view in which every byte begins an element: one assignment puts all rows of the column in their places.
            kind = np.dtype((np.void, size))
            places = np.ndarray((len(body) - size + 1,), kind, body, strides=(1,))
            places[start + within * size] = column.reshape(-1).view(np.uint8).view(kind)[source]
        start += chunk_rows * size
    records = np.zeros((len(rows), len(columns)), BLOB_RECORD)
    records["stored_bytes"] = rows[:, None] * row_bytes
    return RaggedChunks(rows, records, ends * total, body)


def _encoded(
    schema: Schema,
    columns: Sequence[NDArray[Any]],
    codecs: Sequence[ColumnCodec],
    source: Ints,
    rows: Ints,
    first_records: NDArray[np.void],
    first_payload: bytes,
) -> RaggedChunks:
    ends = np.cumsum(rows).tolist()
    absent = [None] * len(columns)
    encoded = [(first_records, first_payload)]
    for low, high in pairwise(ends):
        encoded.append(encode_chunk(schema, [column[source[low:high]] for column in columns], codecs, absent))
    sizes = [len(payload) for _, payload in encoded]
    body = np.frombuffer(b"".join([payload for _, payload in encoded]), np.uint8)
    records = np.stack([records for records, _ in encoded])
    return RaggedChunks(rows, records, np.concatenate([[0], np.cumsum(sizes)]), body)
