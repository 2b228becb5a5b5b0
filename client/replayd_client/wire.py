"""The client's half of the wire protocol: requests to frames, frames to replies. Pure: no socket, no clock.

Owns every operation that carries no experience; those that do are in `array_wire`, which the first reply of theirs
loads. This module and what it imports must not know numpy: a command that asks a daemon for a few words imports them,
and has a tenth of a second for all that it does. An optional field is left out when it holds its default. Any bytes at
all either decode or raise `ProtocolError`: what the server says is checked for form here, before anything is sized by
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from replayd_client.errors import ProtocolError, error_from_wire
from replayd_client.header import VERSION, Fields, pack_header, read_header
from replayd_client.messages import (
    Buffer,
    CheckpointReply,
    DoneReply,
    ErrorReply,
    HelloReply,
    InfoReply,
    ResetReply,
    SetReply,
    TableDescription,
    WaitingSide,
    WhyReply,
)

if TYPE_CHECKING:
    from replayd_client.array_messages import InsertReply, PeekReply, SampleReply, UpdateReply

Reply: TypeAlias = (
    "HelloReply | InsertReply | SampleReply | UpdateReply | ResetReply | InfoReply | WhyReply | PeekReply | SetReply | "
    "CheckpointReply | DoneReply | ErrorReply"
)
Decoder = Callable[[int, Fields, Sequence[Buffer]], "Reply"]
"""Makes a reply of its request id, its header, and the frames behind that."""


WITH_ARRAYS = ("insert", "sample", "update", "peek")
"""The operations of `array_wire`."""
WITH_BODY = ("sample", "peek")
"""Those whose replies have frames behind the header."""


# --- requests ---------------------------------------------------------------------------------------------------------


def encode_hello(request_id: int, client: str) -> list[Buffer]:
    return [pack_header("hello", request_id, {"client": client})]


def encode_reset(request_id: int, table: str) -> list[Buffer]:
    return [pack_header("reset", request_id, {"table": table})]


def encode_info(request_id: int) -> list[Buffer]:
    return [pack_header("info", request_id, {})]


def encode_why(request_id: int, table: str) -> list[Buffer]:
    return [pack_header("why", request_id, {"table": table})]


def encode_withdraw(request_id: int) -> list[Buffer]:
    return [pack_header("withdraw", request_id, {})]


def encode_set(request_id: int, table: str, changes: Mapping[str, Any]) -> list[Buffer]:
    """`changes`: settings by name; None is unlimited."""
    return [pack_header("set", request_id, {"table": table, "changes": dict(changes)})]


def encode_keepalive(request_id: int, stream: bytes) -> list[Buffer]:
    return [pack_header("keepalive", request_id, {"stream": stream})]


def encode_close_stream(request_id: int, stream: bytes) -> list[Buffer]:
    return [pack_header("close_stream", request_id, {"stream": stream})]


def encode_checkpoint(request_id: int) -> list[Buffer]:
    return [pack_header("checkpoint", request_id, {})]


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
    decoder = _DECODERS.get(op) or _decoder_of_arrays(op)
    if decoder is None:
        raise ProtocolError(f"a reply to the unknown operation {op[:64]!r}")
    if len(frames) > 1 and op not in WITH_BODY:
        raise ProtocolError(f"a reply to {op} has {len(frames) - 1} body frames, and takes none")
    return decoder(request_id, fields, frames[1:])


def _decoder_of_arrays(op: str) -> Decoder | None:
    """That of an operation of `array_wire`, which is imported for the first of them; None: nobody knows it."""
    if op not in WITH_ARRAYS:
        return None
    from replayd_client.array_wire import DECODERS

    _DECODERS.update(DECODERS)
    return DECODERS[op]


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


_DECODERS: dict[str, Decoder] = {
    "hello": _decode_hello,
    "reset": _decode_reset,
    "info": _decode_info,
    "why": _decode_why,
    "set": _decode_set,
    "keepalive": lambda request_id, fields, body: DoneReply(request_id, "keepalive"),
    "close_stream": lambda request_id, fields, body: DoneReply(request_id, "close_stream"),
    "withdraw": lambda request_id, fields, body: DoneReply(request_id, "withdraw"),
    "checkpoint": _decode_checkpoint,
}
