"""The server's half of the codec: frames → requests, replies → frames (protocol.md).

Every limit on what comes in is enforced here. Any frames either decode or raise Undecodable, nothing else. Frames are
opaque buffers with a length; nothing here knows sockets, tables or what a payload means.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgpack
import numpy as np

from replayd.blobs import check_name, is_uint, parse_schema, parse_template, step_bytes
from replayd.columns import Schema
from replayd.errors import BadMessage, BadRequest, PeerError, UnknownOp, UnsupportedVersion
from replayd.limits import (
    BLOBS,
    CHUNK_ROWS,
    CHUNKS,
    DESCRIPTIONS,
    FRAMES,
    HEADER_BYTES,
    ITEMS,
    MAX_WAIT_MS,
    MESSAGE_BYTES,
    SMALL_PAYLOAD_BYTES,
)
from replayd.messages import (
    BLOB_RECORD,
    CODECS,
    FLAG_DELTA,
    FLAG_SPARSE,
    OPS,
    ChunkBatch,
    CloseStream,
    Failed,
    Hello,
    Info,
    Insert,
    Int64s,
    ItemBatch,
    KeepAlive,
    Payload,
    Reply,
    Request,
    Reset,
    Sample,
    Sampled,
    Update,
)

VERSION = 1

CHUNK_NUMBER_END = 1 << 62
"""Chunk numbers stay below it, so that no sum of a number and a count of chunks leaves 64 bits."""

Fields = dict[str, Any]
Frames = Sequence[Any]


class Undecodable(Exception):
    """A message that is no request; `op` and `id` as far as they could be read."""

    def __init__(self, error: PeerError, op: str = "", id: int = 0) -> None:
        super().__init__(str(error))
        self.error = error
        self.op = op
        self.id = id


# --- requests ---------------------------------------------------------------------------------------------------------


def decode(frames: Frames, *, pushed: bool = False) -> tuple[str, Request]:
    """The request in these frames (no identity, no delimiter), and its op. A pushed message must be an insert; it needs
    no id.
    """
    op, id = "", 0
    try:
        fields = _header(frames)
        version, named, echo = fields.get("v"), fields.get("op"), fields.get("id")
        # Read before anything is judged: whoever is refused wants to know which of its requests it was.
        op = named if isinstance(named, str) and named in _READERS else ""
        id = echo if is_uint(echo) else 0
        if type(version) is not int or version != VERSION:
            raise UnsupportedVersion(f"protocol version {str(version)[:20]} is not spoken here", versions=[VERSION])
        if not op:
            raise UnknownOp(f"there is no op {str(named)[:40]!r}", ops=list(_READERS))
        if not pushed or "id" in fields:
            id = _uint(fields, "id")
        if pushed and op != "insert":
            raise BadRequest(f"only inserts may be pushed, not {op}")
        return op, _READERS[op](id, fields, frames[1:])
    except PeerError as error:
        raise Undecodable(error, op, id) from error


def _header(frames: Frames) -> Fields:
    if not frames:
        raise BadMessage("a message needs a header frame")
    FRAMES.check(len(frames))
    HEADER_BYTES.check(len(frames[0]))
    MESSAGE_BYTES.check(sum(map(len, frames)))
    try:
        fields = msgpack.unpackb(
            frames[0],
            raw=False,
            object_pairs_hook=_map,
            ext_hook=_no_extension,
            max_array_len=DESCRIPTIONS.value,
            max_map_len=64,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise BadMessage(f"the header is not one msgpack map: {str(error)[:200]}") from error
    if not isinstance(fields, dict):
        raise BadMessage("the header is not a msgpack map")
    return fields


def _map(pairs: list[tuple[Any, Any]]) -> Fields:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key stands twice in a map")
    return fields


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not used")


def _hello(id: int, fields: Fields, body: Frames) -> Hello:
    client = fields.get("client", "")
    return Hello(id, check_name(client, "client") if client else "")


def _insert(id: int, fields: Fields, body: Frames) -> Insert:
    chunks = _chunks(fields, body)
    if chunks is None and body:
        raise BadMessage("a body without chunks")
    return Insert(
        id=id,
        stream=_stream(fields),
        seq=_uint(fields, "seq"),
        keep_from=_uint(fields, "keep_from"),
        chunks=chunks,
        items=_items(fields),
        nbytes=sum(map(len, body)),
    )


def _sample(id: int, fields: Fields, body: Frames) -> Sample:
    n = _uint(fields, "n")
    min_n = _uint(fields, "min_n", 1)
    timeout_ms = _uint(fields, "timeout_ms", MAX_WAIT_MS.value)
    if n < 1:
        raise BadRequest("n must be at least 1")
    return Sample(id, _table(fields), n, min_n, timeout_ms / 1000)


def _update(id: int, fields: Fields, body: Frames) -> Update:
    keys = _array(fields, "keys", "<u8", optional=True)
    priorities = _array(fields, "priorities", "<f8", len(keys), optional=True)
    return Update(id, _table(fields), keys, priorities, _array(fields, "deletes", "<u8", optional=True))


def _reset(id: int, fields: Fields, body: Frames) -> Reset:
    return Reset(id, _table(fields))


def _info(id: int, fields: Fields, body: Frames) -> Info:
    return Info(id)


def _keepalive(id: int, fields: Fields, body: Frames) -> KeepAlive:
    return KeepAlive(id, _stream(fields))


def _close_stream(id: int, fields: Fields, body: Frames) -> CloseStream:
    return CloseStream(id, _stream(fields))


_READERS: dict[str, Callable[[int, Fields, Frames], Request]] = {
    "hello": _hello,
    "insert": _insert,
    "sample": _sample,
    "update": _update,
    "reset": _reset,
    "info": _info,
    "keepalive": _keepalive,
    "close_stream": _close_stream,
}
assert list(_READERS) == list(OPS)


# --- chunks and items of an insert ------------------------------------------------------------------------------------


def _chunks(fields: Fields, body: Frames) -> ChunkBatch | None:
    if "rows" not in fields:
        return None
    rows = _array(fields, "rows", "<u4").astype(np.int64)
    n = len(rows)
    if n == 0:
        return None
    CHUNKS.check(n)
    if int(rows.min()) < 1:
        raise BadRequest("a chunk needs at least one row")
    CHUNK_ROWS.check(int(rows.max()))
    schemas = [parse_schema(blob) for blob in _blobs(fields, "schemas")]
    if not schemas:
        raise BadMessage("chunks need at least one schema")
    schema_of = _index(fields, "schema_of", n, len(schemas))
    episodes = _array(fields, "episodes", "<u8", n, default=0)
    layouts, nbytes = _layouts(_bin(fields, "blobs"), rows, schemas, schema_of)
    first = _uint(fields, "first_chunk")
    if first + n > CHUNK_NUMBER_END:
        raise BadRequest("chunk numbers must stay below 2^62")
    return ChunkBatch(
        first=first,
        rows=rows,
        episodes=episodes,
        schemas=schemas,
        schema_of=schema_of,
        layouts=layouts,
        nbytes=nbytes,
        payloads=_payloads(body, nbytes),
    )


def _layouts(raw: bytes, rows: Int64s, schemas: list[Schema], schema_of: Int64s) -> tuple[list[bytes], Int64s]:
    """Each chunk's blob records, and its payload's size; every record is checked."""
    if len(schemas) == 1:
        width = len(schemas[0].columns) * BLOB_RECORD.itemsize
        layout = raw[:width]
        if raw == layout * len(rows) and (rows == rows[0]).all():
            # Raw chunks of one length all look the same: one check and one object serve them all.
            return [layout] * len(rows), np.full(len(rows), _layout_bytes(layout, schemas[0], int(rows[0])))
    widths = np.array([len(schema.columns) for schema in schemas], np.int64)[schema_of]
    blobs = int(widths.sum())
    if len(raw) != blobs * BLOB_RECORD.itemsize:
        raise BadMessage(f"blobs has {len(raw)} bytes, {blobs} records need {blobs * BLOB_RECORD.itemsize}")
    BLOBS.check(blobs)
    starts = np.cumsum(widths) - widths
    steps = np.concatenate([_step_bytes(schema) for schema in schemas])
    first_step = np.cumsum([0, *(len(schema.columns) for schema in schemas[:-1])])
    column = np.arange(blobs) - np.repeat(starts - first_step[schema_of], widths)
    stored = _checked_sizes(raw, steps[column] * np.repeat(rows, widths))
    ends = [*(starts * BLOB_RECORD.itemsize).tolist(), len(raw)]
    return [raw[a:b] for a, b in itertools.pairwise(ends)], np.add.reduceat(stored, starts)


@lru_cache(256)
def _layout_bytes(layout: bytes, schema: Schema, rows: int) -> int:
    """Payload bytes of one chunk; its records are checked."""
    if len(layout) != len(schema.columns) * BLOB_RECORD.itemsize:
        raise BadMessage(f"blobs has {len(layout)} bytes, a chunk has {len(schema.columns)} columns")
    return int(_checked_sizes(layout, _step_bytes(schema) * rows).sum())


def _checked_sizes(raw: bytes, raw_sizes: Int64s) -> Int64s:
    """Stored size of each blob; codec, flags and, where nothing was encoded, the size must be right."""
    records = np.frombuffer(raw, BLOB_RECORD)
    codec, flags, stored = records["codec"], records["flags"], records["stored_bytes"].astype(np.int64)
    if (codec > max(CODECS)).any() or (flags & ~np.uint8(FLAG_DELTA | FLAG_SPARSE)).any() or records["zero"].any():
        raise BadMessage("a blob record has an unknown codec or flag")
    wrong = (codec == 0) & (flags & FLAG_SPARSE == 0) & (stored != raw_sizes)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise BadMessage(
            f"raw blob {at} has {int(stored[at])} bytes, rows × step of its column are {int(raw_sizes[at])}"
        )
    return stored


@lru_cache(256)
def _step_bytes(schema: Schema) -> Int64s:
    return np.array([step_bytes(column) for column in schema.columns], np.int64)


def _payloads(body: Frames, nbytes: Int64s) -> list[Payload]:
    """Cut the body where the sizes say. A large payload alone in its frame is kept as it came."""
    cumulated = np.cumsum(nbytes)
    ends: list[int] = cumulated.tolist()
    payloads: list[Payload] = []
    offset = 0
    for frame in body:
        size = len(frame)
        first, stop = len(payloads), bisect_right(ends, offset + size)
        if stop == first or ends[stop - 1] != offset + size:
            raise BadMessage("body frames do not end where payloads end")
        if stop == first + 1 and size >= SMALL_PAYLOAD_BYTES:
            payloads.append(frame)
        else:
            data = bytes(frame)
            cuts = [0, *(cumulated[first:stop] - offset).tolist()]
            payloads += [data[a:b] for a, b in itertools.pairwise(cuts)]
        offset += size
    if offset != ends[-1]:
        raise BadMessage(f"the body has {offset} bytes, the blobs say {ends[-1]}")
    payloads += [b""] * (len(ends) - len(payloads))
    return payloads


def _items(fields: Fields) -> ItemBatch | None:
    if "priority" not in fields:
        return None
    priority = _array(fields, "priority", "<f8").astype(np.float64)
    m = len(priority)
    if m == 0:
        return None
    ITEMS.check(m)
    tables = [check_name(name, "a table's name") for name in _list(fields, "tables")]
    if not tables or len(set(tables)) != len(tables):
        raise BadMessage("items need a list of distinct tables")
    templates = [parse_template(blob) for blob in (_blobs(fields, "templates") if "templates" in fields else [b""])]
    if not templates:
        raise BadMessage("templates is empty")
    chunks = _array(fields, "chunks", "<u4", m, default=1).astype(np.int64)
    length = _array(fields, "length", "<u4", m).astype(np.int64)
    if int(length.min()) < 1 or ("chunks" in fields and int(chunks.min()) < 1):
        raise BadRequest("a window has at least one chunk and one row")
    chunk = _array(fields, "chunk", "<u8", m)
    if int(chunk.max()) >= CHUNK_NUMBER_END:
        raise BadRequest("chunk numbers must stay below 2^62")
    return ItemBatch(
        tables=tables,
        table_of=_index(fields, "table_of", m, len(tables)),
        chunk=chunk.astype(np.int64),
        chunks=chunks,
        longest=int(chunks.max()) if "chunks" in fields else 1,
        offset=_array(fields, "offset", "<u4", m, default=0).astype(np.int64),
        length=length,
        templates=templates,
        template_of=_index(fields, "template_of", m, len(templates)),
        priority=priority,
    )


# --- fields -----------------------------------------------------------------------------------------------------------


def _uint(fields: Fields, name: str, default: int | None = None) -> int:
    value = fields.get(name, default)
    if not is_uint(value):
        raise BadMessage(f"{name} must be an unsigned integer below 2^63")
    return value


def _bin(fields: Fields, name: str) -> bytes:
    value = fields.get(name)
    if not isinstance(value, bytes):
        raise BadMessage(f"{name} must be bin")
    return value


def _list(fields: Fields, name: str) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list):
        raise BadMessage(f"{name} must be an array")
    DESCRIPTIONS.check(len(value))
    return value


def _blobs(fields: Fields, name: str) -> list[bytes]:
    blobs = _list(fields, name)
    if not all(isinstance(blob, bytes) for blob in blobs):
        raise BadMessage(f"{name} must be an array of bin")
    return blobs


def _stream(fields: Fields) -> bytes:
    stream = _bin(fields, "stream")
    if len(stream) != 16:
        raise BadMessage("stream must be 16 bytes")
    return stream


def _table(fields: Fields) -> str:
    return check_name(fields.get("table"), "table")


def _array(
    fields: Fields, name: str, dtype: str, n: int | None = None, *, default: int | None = None, optional: bool = False
) -> np.ndarray[tuple[int], np.dtype[Any]]:
    """A packed array of n values (any number if None). Absent: n times `default`, or empty if `optional`."""
    if name not in fields and default is not None:
        assert n is not None
        return np.full(n, default, dtype)
    raw = b"" if optional and name not in fields else _bin(fields, name)
    size = np.dtype(dtype).itemsize
    if len(raw) % size or (n is not None and len(raw) != n * size):
        wanted = f"{n} values" if n is not None else "a multiple"
        raise BadMessage(f"{name} has {len(raw)} bytes, it must be {wanted} of {size}")
    return np.frombuffer(raw, dtype)


def _index(fields: Fields, name: str, n: int, among: int) -> Int64s:
    if name not in fields:
        return np.zeros(n, np.int64)
    index = _array(fields, name, "<u2", n).astype(np.int64)
    if int(index.max()) >= among:
        raise BadMessage(f"{name} points to entry {int(index.max())} of {among}")
    return index


# --- replies ----------------------------------------------------------------------------------------------------------


def encode(reply: Reply) -> list[Any]:
    """The frames of a reply: header, then payloads."""
    if isinstance(reply, Sampled):
        return [_pack(_sampled_fields(reply)), *_body(reply)]
    head: Fields = {"v": VERSION, "op": reply.op, "id": reply.id}
    if isinstance(reply, Failed):
        head["error"] = {"code": reply.code, "message": reply.message, "detail": reply.detail}
    else:
        head.update(reply.fields)
    return [_pack(head)]


def _sampled_fields(reply: Sampled) -> Fields:
    fields: Fields = {
        "v": VERSION,
        "op": "sample",
        "id": reply.id,
        "keys": reply.keys.astype("<u8").tobytes(),
        "priorities": reply.priorities.astype("<f8").tobytes(),
        "probabilities": reply.probabilities.astype("<f8").tobytes(),
        "times_sampled": reply.times_sampled.astype("<u4").tobytes(),
        "table_sizes": reply.table_sizes.astype("<u8").tobytes(),
        "chunk": reply.chunk.astype("<u4").tobytes(),
        "length": reply.length.astype("<u4").tobytes(),
        "rows": reply.rows.astype("<u4").tobytes(),
        "schemas": list(reply.schemas),
        "blobs": b"".join(reply.layouts),
    }
    # What has its default is left out.
    if (reply.chunks != 1).any():
        fields["chunks"] = reply.chunks.astype("<u4").tobytes()
    if reply.offset.any():
        fields["offset"] = reply.offset.astype("<u4").tobytes()
    if list(reply.templates) != [b""]:
        fields["templates"] = list(reply.templates)
    if len(reply.templates) > 1:
        fields["template_of"] = reply.template_of.astype("<u2").tobytes()
    if len(reply.schemas) > 1:
        fields["schema_of"] = reply.schema_of.astype("<u2").tobytes()
    return fields


def _body(reply: Sampled) -> list[Any]:
    """Small payloads joined, large ones in frames of their own, in order."""
    if int(reply.nbytes.max()) < SMALL_PAYLOAD_BYTES:
        joined = b"".join(reply.payloads)
        return [joined] if joined else []
    frames: list[Any] = []
    small: list[Any] = []
    for payload in reply.payloads:
        if len(payload) < SMALL_PAYLOAD_BYTES:
            small.append(payload)
            continue
        if small:
            frames.append(b"".join(small))
            small = []
        frames.append(payload)
    if small:
        frames.append(b"".join(small))
    return [frame for frame in frames if len(frame)]


def _pack(fields: Fields) -> bytes:
    packed = msgpack.packb(fields, use_bin_type=True, default=_plain)
    assert isinstance(packed, bytes)
    return packed


def _plain(value: Any) -> Any:
    """numpy values on their way out: arrays are packed little-endian, scalars are numbers. An integer comes here when it
    has more than 64 bits, as what a peer asked for may have: the refusal tells the largest number there is.
    """
    if isinstance(value, np.ndarray):
        return value.astype(value.dtype.newbyteorder("<")).tobytes()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, int):
        return (1 << 64) - 1 if value > 0 else -1 << 63
    raise TypeError(f"{type(value).__name__} has no place in a header")
