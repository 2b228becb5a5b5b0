"""Reading an insert: its chunks, the cutting of its body, its items.

Every size is checked against what the blobs and schemas say, for whole batches. Knows payloads only as things with a
length.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from replayd.blobs import VARIABLE, check_name, parse_schema, parse_template, step_bytes
from replayd.columns import Schema
from replayd.errors import BadMessage, BadRequest
from replayd.header import Frames, Header
from replayd.limits import BLOBS, CELLS_BYTES, CHUNK_NUMBER, CHUNK_ROWS, CHUNKS, ITEMS, SMALL_PAYLOAD_BYTES
from replayd.messages import (
    BLOB_RECORD,
    CODECS,
    FLAG_DELTA,
    FLAG_SPARSE,
    Buffer,
    ChunkBatch,
    Int64s,
    ItemBatch,
    Uint64s,
)
from replayd.slots import all_true


def read_chunks(header: Header, body: Frames) -> ChunkBatch | None:
    """The chunks of an insert, None without any. Every size in it is checked; raises PeerError for what is wrong."""
    if "rows" not in header:
        return None
    rows = header.array("rows", "<u4").astype(np.int64)
    n = len(rows)
    if n == 0:
        return None
    CHUNKS.check(n)
    if int(rows[rows.argmin()]) < 1:
        raise BadRequest("a chunk needs at least one row")
    CHUNK_ROWS.check(int(rows[rows.argmax()]))
    schemas = [parse_schema(blob) for blob in header.blobs("schemas")]
    if not schemas:
        raise BadMessage("chunks need at least one schema")
    schema_of = header.index("schema_of", n, len(schemas))
    episodes = header.array("episodes", "<u8", n, default=0)
    records, nbytes = _records(header.bin("blobs"), rows, schemas, schema_of)
    first = header.uint("first_chunk")
    CHUNK_NUMBER.check(first + n - 1)
    return ChunkBatch(
        first=first,
        rows=rows,
        episodes=episodes,
        schemas=schemas,
        schema_of=schema_of,
        records=records,
        nbytes=nbytes,
        body=body,
        stops=_stops(body, nbytes),
        policy_versions=_policy_versions(header, n) if "policy_versions" in header else None,
    )


def _policy_versions(header: Header, n: int) -> Int64s:
    """What is said of each chunk; from a number that leaves int64 there is no telling how far behind anything is."""
    versions = header.array("policy_versions", "<u8", n).astype(np.int64)
    if int(versions[versions.argmin()]) < 0:
        raise BadRequest("a policy version is below 2^63")
    return versions


def _records(raw: bytes, rows: Int64s, schemas: list[Schema], schema_of: Int64s) -> tuple[Uint64s, Int64s]:
    """The blob records, and each payload's size; every record is checked."""
    if len(schemas) == 1:
        width = len(schemas[0].columns)
        BLOBS.check(width * len(rows))
        first = raw[: width * BLOB_RECORD.itemsize]
        if raw == first * len(rows) and (len(rows) == 1 or all_true(rows == rows[0])):
            # Raw chunks of one length all look the same: one check serves them all.
            nbytes = _chunk_bytes(first, schemas[0], int(rows[0]))
            return np.frombuffer(raw, "<u8"), np.full(len(rows), nbytes)
    widths = np.array([len(schema.columns) for schema in schemas], np.int64)[schema_of]
    blobs = int(widths.sum())
    BLOBS.check(blobs)
    if len(raw) != blobs * BLOB_RECORD.itemsize:
        raise BadMessage(f"blobs has {len(raw)} bytes, {blobs} records need {blobs * BLOB_RECORD.itemsize}")
    starts = np.cumsum(widths) - widths
    steps = np.concatenate([_step_bytes(schema) for schema in schemas])
    first_step = np.cumsum([0, *(len(schema.columns) for schema in schemas[:-1])])
    column = np.arange(blobs) - np.repeat(starts - first_step[schema_of], widths)
    marks = [_variable(schema) for schema in schemas]
    variable = np.concatenate(marks)[column] if any(map(any, marks)) else None
    stored = _checked_sizes(raw, steps[column] * np.repeat(rows, widths), variable)
    return np.frombuffer(raw, "<u8"), np.add.reduceat(stored, starts)


@lru_cache(256)
def _chunk_bytes(records: bytes, schema: Schema, rows: int) -> int:
    """Payload bytes of one chunk; its records are checked."""
    if len(records) != len(schema.columns) * BLOB_RECORD.itemsize:
        raise BadMessage(f"blobs has {len(records)} bytes, a chunk has {len(schema.columns)} columns")
    marks = _variable(schema)
    return int(_checked_sizes(records, _step_bytes(schema) * rows, np.array(marks) if any(marks) else None).sum())


def _checked_sizes(raw: bytes, raw_sizes: Int64s, variable: NDArray[np.bool_] | None) -> Int64s:
    """Stored size of each blob; codec, flags and, where nothing was encoded, the size must be right: that of the rows,
    or of `variable` ones, if there are any, that of their lengths at least."""
    records = np.frombuffer(raw, BLOB_RECORD)
    codec, flags, stored = records["codec"], records["flags"], records["stored_bytes"].astype(np.int64)
    if (codec > max(CODECS)).any() or (flags & ~np.uint8(FLAG_DELTA | FLAG_SPARSE)).any() or records["zero"].any():
        raise BadMessage("a blob record has an unknown codec or flag")
    is_plain = (codec == 0) & (flags & FLAG_SPARSE == 0)
    wrong = is_plain & (stored != raw_sizes)
    if variable is not None:
        if (variable & (flags & FLAG_DELTA != 0)).any():
            raise BadMessage("a blob of bytes or str has the flag DELTA")
        CELLS_BYTES.check(int(stored[variable & is_plain].max(initial=0)))
        wrong &= ~variable | (stored < raw_sizes)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        least = "at least " if variable is not None and variable[at] else ""
        raise BadMessage(
            f"raw blob {at} has {int(stored[at])} bytes, rows × step of its column are {least}{int(raw_sizes[at])}"
        )
    return stored


@lru_cache(256)
def _step_bytes(schema: Schema) -> Int64s:
    return np.array([step_bytes(column) for column in schema.columns], np.int64)


@lru_cache(256)
def _variable(schema: Schema) -> tuple[bool, ...]:
    return tuple(column.dtype in VARIABLE for column in schema.columns)


def _stops(body: Frames, nbytes: Int64s) -> list[int]:
    """How many payloads lie before the end of each frame; each frame must end where one of them does."""
    ends: list[int] = nbytes.cumsum().tolist()
    stops: list[int] = []
    offset = first = 0
    for frame in body:
        offset += len(frame)
        stop = bisect_right(ends, offset)
        if stop == first or ends[stop - 1] != offset:
            raise BadMessage("body frames do not end where payloads end")
        stops.append(stop)
        first = stop
    if offset != ends[-1]:
        raise BadMessage(f"the body has {offset} bytes, the blobs say {ends[-1]}")
    return stops


def cut_large(chunks: ChunkBatch, own: Callable[[memoryview], Buffer]) -> None:
    """Give each large payload that shares a frame a buffer of its own, which `own` copies it into.

    A sender saves time by packing payloads. Kept as part of its frame a payload would keep all of that alive.
    """
    if len(chunks.body) == len(chunks) or int(chunks.nbytes[chunks.nbytes.argmax()]) < SMALL_PAYLOAD_BYTES:
        return
    body: list[Buffer] = []
    stops: list[int] = []
    first = 0
    for frame, stop in zip(chunks.body, chunks.stops, strict=True):
        is_large = chunks.nbytes[first:stop] >= SMALL_PAYLOAD_BYTES
        if len(is_large) == 1 or not is_large.any():
            body.append(frame)
            stops.append(stop)
        else:
            # Small payloads that follow each other stay together.
            edges = np.concatenate(([0], np.flatnonzero(is_large[1:] | is_large[:-1]) + 1, [len(is_large)]))
            cuts = np.concatenate(([0], np.cumsum(chunks.nbytes[first:stop])))[edges].tolist()
            view = memoryview(frame)
            pieces = zip(pairwise(cuts), is_large[edges[:-1]].tolist(), strict=True)
            body += [own(view[start:end]) if large else view[start:end] for (start, end), large in pieces]
            stops += (first + edges[1:]).tolist()
        first = stop
    chunks.body, chunks.stops = body, stops


def read_items(header: Header) -> ItemBatch | None:
    """The items of an insert, None without any. Whether chunks and tables are there is not asked; raises PeerError."""
    if "priority" not in header:
        return None
    priority = header.array("priority", "<f8").astype(np.float64)
    m = len(priority)
    if m == 0:
        return None
    ITEMS.check(m)
    tables = [check_name(name, "a table's name") for name in header.values("tables")]
    if not tables or len(set(tables)) != len(tables):
        raise BadMessage("items need a list of distinct tables")
    templates = [parse_template(blob) for blob in (header.blobs("templates") if "templates" in header else [b""])]
    if not templates:
        raise BadMessage("templates is empty")
    chunks = header.array("chunks", "<u4", m, default=1).astype(np.int64)
    length = header.array("length", "<u4", m).astype(np.int64)
    if int(length[length.argmin()]) < 1 or ("chunks" in header and int(chunks.min()) < 1):
        raise BadRequest("a window has at least one chunk and one row")
    chunk = header.array("chunk", "<u8", m)
    CHUNK_NUMBER.check(int(chunk[chunk.argmax()]))
    return ItemBatch(
        tables=tables,
        table_of=header.index("table_of", m, len(tables)),
        chunk=chunk.astype(np.int64),
        chunks=chunks,
        longest=int(chunks.max()) if "chunks" in header else 1,
        offset=header.array("offset", "<u4", m, default=0).astype(np.int64),
        length=length,
        templates=templates,
        template_of=header.index("template_of", m, len(templates)),
        priority=priority,
        at_max=header.array("at_max", "u1", m) != 0 if "at_max" in header else None,
    )
