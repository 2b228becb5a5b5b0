"""The client's half of the wire protocol: requests to frames, frames to replies. Pure: no socket, no clock.

Arrays of numbers travel as packed little-endian bytes; an optional field is left out when it holds its default.
Any bytes at all either decode or raise `ProtocolError`: what the server says is checked for form here, before anything
is sized by it. What a payload holds is the business of `codecs` and `batches`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from replayd_client.errors import ProtocolError, error_from_wire
from replayd_client.header import Fields, read_header
from replayd_client.messages import (
    AT_MAX,
    BLOB_RECORD,
    Buffer,
    CheckpointReply,
    ChunkBatch,
    DoneReply,
    ErrorReply,
    HelloReply,
    InfoReply,
    InsertReply,
    ItemBatch,
    Numbers,
    PeekReply,
    Reply,
    ResetReply,
    SampleReply,
    SetReply,
    ShownItems,
    TableDescription,
    UpdateReply,
    WaitingSide,
    WhyReply,
    nbytes_of,
)

__all__ = [
    "AT_MAX",
    "BLOB_RECORD",
    "VERSION",
    "CheckpointReply",
    "ChunkBatch",
    "DoneReply",
    "ErrorReply",
    "HelloReply",
    "InfoReply",
    "InsertReply",
    "ItemBatch",
    "PeekReply",
    "Reply",
    "ResetReply",
    "SampleReply",
    "SetReply",
    "ShownItems",
    "TableDescription",
    "UpdateReply",
    "WhyReply",
    "decode_reply",
    "encode_checkpoint",
    "encode_close_stream",
    "encode_hello",
    "encode_info",
    "encode_insert",
    "encode_keepalive",
    "encode_peek",
    "encode_reset",
    "encode_sample",
    "encode_set",
    "encode_update",
    "encode_why",
    "encode_withdraw",
]

VERSION = 1


# --- requests ---------------------------------------------------------------------------------------------------------


def encode_hello(request_id: int, client: str) -> list[Buffer]:
    return [_header("hello", request_id, {"client": client})]


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
    return [_header("insert", request_id, fields), *body]


def encode_sample(request_id: int, table: str, n: int, min_n: int, timeout_ms: int) -> list[Buffer]:
    return [_header("sample", request_id, {"table": table, "n": n, "min_n": min_n, "timeout_ms": timeout_ms})]


def encode_update(request_id: int, table: str, keys: Numbers, priorities: Numbers, deletes: Numbers) -> list[Buffer]:
    fields: dict[str, Any] = {"table": table}
    if len(keys):
        fields["keys"] = _pack(keys, "<u8")
        fields["priorities"] = _pack(priorities, "<f8")
    if len(deletes):
        fields["deletes"] = _pack(deletes, "<u8")
    return [_header("update", request_id, fields)]


def encode_reset(request_id: int, table: str) -> list[Buffer]:
    return [_header("reset", request_id, {"table": table})]


def encode_info(request_id: int) -> list[Buffer]:
    return [_header("info", request_id, {})]


def encode_why(request_id: int, table: str) -> list[Buffer]:
    return [_header("why", request_id, {"table": table})]


def encode_peek(request_id: int, table: str, order: str, n: int, keys: Numbers) -> list[Buffer]:
    """Items by key if there are `keys`, else the first n in an order: oldest, newest, highest or lowest."""
    if len(keys):
        return [_header("peek", request_id, {"table": table, "keys": _pack(keys, "<u8")})]
    return [_header("peek", request_id, {"table": table, "order": order, "n": n})]


def encode_withdraw(request_id: int) -> list[Buffer]:
    return [_header("withdraw", request_id, {})]


def encode_set(request_id: int, table: str, changes: Mapping[str, Any]) -> list[Buffer]:
    """`changes`: settings by name; None is unlimited."""
    return [_header("set", request_id, {"table": table, "changes": dict(changes)})]


def encode_keepalive(request_id: int, stream: bytes) -> list[Buffer]:
    return [_header("keepalive", request_id, {"stream": stream})]


def encode_close_stream(request_id: int, stream: bytes) -> list[Buffer]:
    return [_header("close_stream", request_id, {"stream": stream})]


def encode_checkpoint(request_id: int) -> list[Buffer]:
    return [_header("checkpoint", request_id, {})]


def _header(op: str, request_id: int, fields: Mapping[str, Any]) -> bytes:
    packed: bytes = msgpack.packb({"v": VERSION, "op": op, "id": request_id, **fields})
    return packed


def _pack(values: Numbers, dtype: str) -> bytes:
    return np.ascontiguousarray(values, dtype=dtype).tobytes()


def _pack_optional(fields: dict[str, Any], name: str, values: Numbers | None, dtype: str, *, default: int) -> None:
    if values is not None and (values != default).any():
        fields[name] = _pack(values, dtype)


# --- replies ----------------------------------------------------------------------------------------------------------


def decode_reply(frames: Sequence[Buffer]) -> Reply:
    """Decode one message from the server. The payload frames of items are taken as they are, without a copy."""
    if not frames:
        raise ProtocolError("a reply without frames")
    fields = read_header(memoryview(frames[0]))
    op, request_id = fields.text("op"), fields.uint("id")
    if "error" in fields.values:
        error = fields.child("error")
        detail = error.values.get("detail")
        detail = detail if isinstance(detail, dict) else {}
        return ErrorReply(request_id, op, error_from_wire(error.text("code"), error.text("message"), detail))
    if fields.uint("v") != VERSION:
        raise ProtocolError(f"the server answered in version {fields.values.get('v')!r} of the protocol, not {VERSION}")
    decoder = _DECODERS.get(op)
    if decoder is None:
        raise ProtocolError(f"a reply to the unknown operation {op[:64]!r}")
    if len(frames) > 1 and op not in ("sample", "peek"):
        raise ProtocolError(f"a reply to {op} has {len(frames) - 1} body frames, and takes none")
    return decoder(request_id, fields, frames[1:])


def _decode_hello(request_id: int, fields: Fields, body: Sequence[Buffer]) -> HelloReply:
    server_id = fields.binary("server_id")
    if len(server_id) != 16:
        raise fields.wrong("server_id", "16 bytes")
    limits = fields.child("limits")
    tables = fields.child("tables")
    return HelloReply(
        id=request_id,
        server_id=server_id,
        server=fields.text("server"),
        versions=fields.uints("versions"),
        codecs=fields.uints("codecs"),
        window_messages=fields.uint("window_messages"),
        window_bytes=fields.uint("window_bytes"),
        lease_ms=fields.uint("lease_ms"),
        max_wait_ms=fields.uint("max_wait_ms"),
        limits={name: limits.uint(name) for name in limits.values},
        tables={name: _decode_table(tables.child(name)) for name in tables.values},
    )


def _decode_table(fields: Fields) -> TableDescription:
    columns = fields.values.get("signature")
    if columns is None:
        return TableDescription(None)
    if not isinstance(columns, list):
        raise fields.wrong("signature", "an array of columns")
    signature = []
    for column in columns:
        match column:
            case [list(path), str(dtype), list(shape)] if all(_is_path_part(part) for part in path) and all(
                size is None or (type(size) is int and size >= 0) for size in shape
            ):
                signature.append((tuple(path), dtype, tuple(shape)))
            case _:
                raise fields.wrong("signature", "an array of [path, dtype, shape]")
    return TableDescription(tuple(signature))


def _is_path_part(part: object) -> bool:
    return isinstance(part, str) or (type(part) is int and part >= 0)


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
    probabilities = fields.array("probabilities", "<f8", len(shown))
    return SampleReply(request_id, shown, probabilities, fields.array("table_sizes", "<u8", len(shown)))


def _decode_peek(request_id: int, fields: Fields, body: Sequence[Buffer]) -> PeekReply:
    shown = _shown(fields, body)
    return PeekReply(request_id, shown, fields.array("ages_s", "<f8", len(shown)), fields.array("missing", "<u8"))


def _shown(fields: Fields, body: Sequence[Buffer]) -> ShownItems:
    keys = fields.array("keys", "<u8")
    m = len(keys)
    rows = fields.array("rows", "<u4")
    templates = fields.blobs("templates", default=[b""])
    # Where there is nothing to show there is no schema either.
    schemas = fields.blobs("schemas") if m else []
    return ShownItems(
        keys=keys,
        priorities=fields.array("priorities", "<f8", m),
        times_sampled=fields.array("times_sampled", "<u4", m),
        chunk=fields.array("chunk", "<u4", m),
        chunks=fields.array("chunks", "<u4", m, default=1),
        offset=fields.array("offset", "<u4", m, default=0),
        length=fields.array("length", "<u4", m),
        templates=templates,
        template_of=fields.indices("template_of", "<u2", m, len(templates)),
        rows=rows,
        schemas=schemas,
        schema_of=fields.indices("schema_of", "<u2", len(rows), len(schemas)),
        records=_records(fields.binary("blobs")),
        body=body,
    )


def _records(data: bytes) -> NDArray[np.void]:
    if len(data) % BLOB_RECORD.itemsize:
        raise ProtocolError(f"blobs must be records of {BLOB_RECORD.itemsize} bytes, got {len(data)} bytes")
    return np.frombuffer(data, BLOB_RECORD)


def _decode_update(request_id: int, fields: Fields, body: Sequence[Buffer]) -> UpdateReply:
    return UpdateReply(request_id, fields.uint("updated"), fields.uint("deleted"), fields.array("missing", "<u8"))


def _decode_reset(request_id: int, fields: Fields, body: Sequence[Buffer]) -> ResetReply:
    return ResetReply(request_id, fields.uint("removed"))


def _decode_info(request_id: int, fields: Fields, body: Sequence[Buffer]) -> InfoReply:
    return InfoReply(request_id, fields.values)


def _decode_why(request_id: int, fields: Fields, body: Sequence[Buffer]) -> WhyReply:
    return WhyReply(
        id=request_id,
        table=fields.text("table"),
        verdict=fields.text("verdict"),
        advice=fields.text("advice"),
        waiting=tuple(_waiting_side(entry) for entry in fields.children("waiting")),
        paused=fields.texts("paused"),
        size=fields.uint("size"),
        max_size=fields.uint("max_size"),
        limiter=fields.child("limiter").values,
    )


def _waiting_side(fields: Fields) -> WaitingSide:
    return WaitingSide(
        side=fields.text("side"),
        requests=fields.uint("requests"),
        items=fields.uint("items"),
        peers=fields.uint("peers"),
        who=fields.texts("who"),
        waited_s=fields.number("waited_s"),
        blocked_by=fields.text("blocked_by"),
        who_must_act=fields.text("who_must_act"),
        why=fields.text("why"),
        needs_inserts=fields.uint_or_none("needs_inserts"),
        needs_samples=fields.uint_or_none("needs_samples"),
    )


def _decode_set(request_id: int, fields: Fields, body: Sequence[Buffer]) -> SetReply:
    removed = fields.uint("removed") if "removed" in fields.values else 0
    hint = fields.text("hint") if "hint" in fields.values else ""
    return SetReply(request_id, fields.child("before").values, fields.child("after").values, removed, hint)


def _decode_checkpoint(request_id: int, fields: Fields, body: Sequence[Buffer]) -> CheckpointReply:
    return CheckpointReply(
        id=request_id,
        path=fields.text("path"),
        host=fields.text("host"),
        generation=fields.uint("generation"),
        duration_s=fields.number("duration_s"),
        held_ms=fields.number("held_ms"),
        items=fields.uint("items"),
        chunks=fields.uint("chunks"),
        nbytes=fields.uint("bytes"),
        size_bytes=fields.uint("size_bytes"),
    )


_DECODERS: dict[str, Callable[[int, Fields, Sequence[Buffer]], Reply]] = {
    "hello": _decode_hello,
    "insert": _decode_insert,
    "sample": _decode_sample,
    "update": _decode_update,
    "reset": _decode_reset,
    "info": _decode_info,
    "why": _decode_why,
    "peek": _decode_peek,
    "set": _decode_set,
    "keepalive": lambda request_id, fields, body: DoneReply(request_id, "keepalive"),
    "close_stream": lambda request_id, fields, body: DoneReply(request_id, "close_stream"),
    "withdraw": lambda request_id, fields, body: DoneReply(request_id, "withdraw"),
    "checkpoint": _decode_checkpoint,
}
