"""The operations that carry experience, as `wire` has the others: inserts, samples, updates of priorities, peeks.

Owns the form of arrays in a header, packed little-endian bytes, and of the payload frames behind it. What a payload
holds is the business of `codecs` and `batches`. Pure; any bytes at all either decode or raise `ProtocolError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.array_messages import (
    BLOB_RECORD,
    ChunkBatch,
    InsertReply,
    ItemBatch,
    Numbers,
    PeekReply,
    SampleReply,
    ShownItems,
    UpdateReply,
    nbytes_of,
)
from replayd_client.errors import ProtocolError
from replayd_client.header import Fields, pack_header
from replayd_client.messages import Buffer

# --- requests ---------------------------------------------------------------------------------------------------------


def encode_insert(
    request_id: int, stream: bytes, seq: int, keep_from: int, chunks: ChunkBatch | None, items: ItemBatch | None
) -> list[Buffer]:
    fields: dict[str, Any] = {"stream": stream, "seq": seq, "keep_from": keep_from}
    body: Sequence[Buffer] = ()
    if chunks is not None:
        fields["first_chunk"] = chunks.first
        fields["rows"] = _pack(chunks.rows, "<u4")
        fields["schemas"] = list(chunks.schemas)
        fields["blobs"] = chunks.records
        _pack_optional(fields, "episodes", chunks.episodes, "<u8", default=0)
        _pack_optional(fields, "schema_of", chunks.schema_of, "<u2", default=0)
        _pack_optional(fields, "policy_versions", chunks.policy_versions, "<u8", default=0)
        # A body frame may be empty only if all payloads are, so an empty one says nothing and is left out.
        body = [frame for frame in chunks.body if nbytes_of(frame)]
    if items is not None:
        fields["tables"] = list(items.tables)
        fields["chunk"] = _pack(items.chunk, "<u8")
        fields["length"] = _pack(items.length, "<u4")
        at_max = np.isnan(items.priority)
        fields["priority"] = _pack(np.where(at_max, 0.0, items.priority), "<f8")
        _pack_optional(fields, "table_of", items.table_of, "<u2", default=0)
        _pack_optional(fields, "chunks", items.chunks, "<u4", default=1)
        _pack_optional(fields, "offset", items.offset, "<u4", default=0)
        _pack_optional(fields, "template_of", items.template_of, "<u2", default=0)
        if any(items.templates):
            fields["templates"] = list(items.templates)
        _pack_optional(fields, "at_max", at_max, "u1", default=0)
    return [pack_header("insert", request_id, fields), *body]


def encode_sample(request_id: int, table: str, n: int, min_n: int, timeout_ms: int) -> list[Buffer]:
    return [pack_header("sample", request_id, {"table": table, "n": n, "min_n": min_n, "timeout_ms": timeout_ms})]


def encode_update(request_id: int, table: str, keys: Numbers, priorities: Numbers, deletes: Numbers) -> list[Buffer]:
    fields: dict[str, Any] = {"table": table}
    if len(keys):
        fields["keys"] = _pack(keys, "<u8")
        fields["priorities"] = _pack(priorities, "<f8")
    if len(deletes):
        fields["deletes"] = _pack(deletes, "<u8")
    return [pack_header("update", request_id, fields)]


def encode_peek(request_id: int, table: str, order: str, n: int, keys: Numbers) -> list[Buffer]:
    """Items by key if there are `keys`, else the first n in an order: oldest, newest, highest or lowest."""
    if len(keys):
        return [pack_header("peek", request_id, {"table": table, "keys": _pack(keys, "<u8")})]
    return [pack_header("peek", request_id, {"table": table, "order": order, "n": n})]


def _pack(values: Numbers, dtype: str) -> bytes:
    return np.ascontiguousarray(values, dtype=dtype).tobytes()


def _pack_optional(fields: dict[str, Any], name: str, values: Numbers | None, dtype: str, *, default: int) -> None:
    if values is not None and (values != default).any():
        fields[name] = _pack(values, dtype)


# --- replies ----------------------------------------------------------------------------------------------------------


def _decode_insert(request_id: int, fields: Fields, body: Sequence[Buffer]) -> InsertReply:
    duplicate = fields.values.get("duplicate", False)
    if not isinstance(duplicate, bool):
        raise fields.wrong("duplicate", "a bool")
    first_key, items = fields.uint_or_none("first_key"), fields.uint("items")
    if items and (first_key is None or first_key + items > 1 << 63):
        raise fields.wrong("first_key", "the first of as many keys as there are items")
    return InsertReply(request_id, first_key, items, duplicate)


def _decode_sample(request_id: int, fields: Fields, body: Sequence[Buffer]) -> SampleReply:
    shown = _shown(fields, body)
    probabilities = _array(fields, "probabilities", "<f8", len(shown))
    return SampleReply(request_id, shown, probabilities, _array(fields, "table_sizes", "<u8", len(shown)))


def _decode_peek(request_id: int, fields: Fields, body: Sequence[Buffer]) -> PeekReply:
    shown = _shown(fields, body)
    return PeekReply(request_id, shown, _array(fields, "ages_s", "<f8", len(shown)), _array(fields, "missing", "<u8"))


def _shown(fields: Fields, body: Sequence[Buffer]) -> ShownItems:
    keys = _array(fields, "keys", "<u8")
    m = len(keys)
    rows = _array(fields, "rows", "<u4")
    templates = fields.blobs("templates", default=[b""])
    # Where there is nothing to show there is no schema either.
    schemas = fields.blobs("schemas") if m else []
    return ShownItems(
        keys=keys,
        priorities=_array(fields, "priorities", "<f8", m),
        times_sampled=_array(fields, "times_sampled", "<u4", m),
        chunk=_array(fields, "chunk", "<u4", m),
        chunks=_array(fields, "chunks", "<u4", m, default=1),
        offset=_array(fields, "offset", "<u4", m, default=0),
        length=_array(fields, "length", "<u4", m),
        templates=templates,
        template_of=_indices(fields, "template_of", "<u2", m, len(templates)),
        rows=rows,
        schemas=schemas,
        schema_of=_indices(fields, "schema_of", "<u2", len(rows), len(schemas)),
        records=_records(fields.binary("blobs")),
        body=body,
    )


def _records(data: bytes) -> NDArray[np.void]:
    if len(data) % BLOB_RECORD.itemsize:
        raise ProtocolError(f"blobs must be records of {BLOB_RECORD.itemsize} bytes, got {len(data)} bytes")
    return np.frombuffer(data, BLOB_RECORD)


def _decode_update(request_id: int, fields: Fields, body: Sequence[Buffer]) -> UpdateReply:
    return UpdateReply(request_id, fields.uint("updated"), fields.uint("deleted"), _array(fields, "missing", "<u8"))


def _array(fields: Fields, key: str, dtype: str, count: int | None = None, default: int | None = None) -> Numbers:
    """A packed array of `count` values (None: as many as there are); absent: `count` times the default."""
    if default is not None and count is not None and fields.values.get(key) is None:
        return np.full(count, default, dtype)
    data = fields.binary(key)
    size = np.dtype(dtype).itemsize
    if len(data) % size or (count is not None and len(data) != count * size):
        expected = f"{count} values" if count is not None else "values"
        raise ProtocolError(f"{fields.name}: {key} must be {expected} of {size} bytes, got {len(data)} bytes")
    return np.frombuffer(data, dtype)


def _indices(fields: Fields, key: str, dtype: str, count: int, size: int) -> Numbers:
    """A packed array of indices below `size`; absent: all 0."""
    values = _array(fields, key, dtype, count, default=0)
    if count and int(values.max()) >= size:
        raise ProtocolError(f"{fields.name}: {key} points at entry {int(values.max())} of {size}")
    return values


DECODERS: dict[str, Callable[[int, Fields, Sequence[Buffer]], InsertReply | SampleReply | UpdateReply | PeekReply]] = {
    "insert": _decode_insert,
    "sample": _decode_sample,
    "update": _decode_update,
    "peek": _decode_peek,
}
"""By operation, for `wire.decode_reply`."""
