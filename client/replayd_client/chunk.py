"""A finished chunk: consecutive rows of one writer, encoded; and chunks as what an insert message carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.array_messages import BLOB_RECORD, ChunkBatch
from replayd_client.codecs import RAW, SPARSE, decode_rows
from replayd_client.columns import Schema
from replayd_client.messages import Buffer

PACKED_PAYLOAD_BYTES = 16 * 1024
"""Smaller payloads share a frame (protocol §4.3)."""

_ABSENT = np.array((0, RAW, SPARSE, 0), BLOB_RECORD).tobytes()
"""The blob of a column that no row has."""


@dataclass(slots=True, eq=False)
class Chunk:
    number: int
    first_row: int
    rows: int
    episode: int
    schema: Schema
    schema_blob: bytes
    records: bytes
    payload: bytes
    policy_version: int
    """Of the policy that acted in it; 0: not said."""

    @property
    def end_row(self) -> int:
        return self.first_row + self.rows

    def widen(self, schema: Schema, schema_blob: bytes) -> None:
        """Give it the columns that this schema has more; no row has a value there."""
        self.records += _ABSENT * (len(schema.columns) - len(self.schema.columns))
        self.schema, self.schema_blob = schema, schema_blob


def chunk_batch(chunks: list[Chunk]) -> ChunkBatch | None:
    if not chunks:
        return None
    schemas = list(dict.fromkeys(chunk.schema_blob for chunk in chunks))
    return ChunkBatch(
        first=chunks[0].number,
        rows=np.array([chunk.rows for chunk in chunks], "<u4"),
        schemas=schemas,
        records=b"".join(chunk.records for chunk in chunks),
        body=body_of([chunk.payload for chunk in chunks]),
        episodes=np.array([chunk.episode for chunk in chunks], "<u8"),
        schema_of=np.array([schemas.index(chunk.schema_blob) for chunk in chunks], "<u2") if len(schemas) > 1 else None,
        policy_versions=np.array([chunk.policy_version for chunk in chunks], "<u8"),
    )


def body_of(payloads: list[bytes]) -> list[Buffer]:
    body: list[Buffer] = []
    small: list[bytes] = []
    for payload in payloads:
        if len(payload) < PACKED_PAYLOAD_BYTES:
            small.append(payload)
            continue
        if small:
            body.append(b"".join(small))
            small = []
        body.append(payload)
    if small:
        body.append(b"".join(small))
    return body


def decoded(chunk: Chunk, column: int) -> NDArray[Any]:
    """All rows of a column of a finished chunk; rows that lack it hold anything."""
    records = np.frombuffer(chunk.records, BLOB_RECORD)
    start = int(records["stored_bytes"][:column].sum())
    record = records[column]
    data = memoryview(chunk.payload)[start : start + int(record["stored_bytes"])]
    spec = chunk.schema.columns[column]
    out = np.empty((chunk.rows, *spec.shape), spec.array_dtype)
    decode_rows(spec, data, int(record["codec"]), int(record["flags"]), out)
    return out
