"""The client's half of the codec against the server's: what one writes, the other reads as meant."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest

from replayd import messages, wire
from replayd.errors import WIRE_ERRORS
from replayd_client import errors
from replayd_client.array_messages import BLOB_RECORD, ChunkBatch, InsertReply, ItemBatch, SampleReply, UpdateReply
from replayd_client.array_wire import encode_insert, encode_sample, encode_update
from replayd_client.columns import Column, Schema
from replayd_client.errors import error_from_wire
from replayd_client.messages import DoneReply, ErrorReply, HelloReply, InfoReply, ResetReply
from replayd_client.templates import OutputColumn, Template
from replayd_client.wire import (
    decode_reply,
    encode_close_stream,
    encode_hello,
    encode_info,
    encode_keepalive,
    encode_reset,
)
from tests.wire.descriptions import payloads_in

STREAM = bytes(range(16))
SCHEMA = Schema((Column(("x",), np.dtype("u1"), (2,)),)).encode()
TEMPLATE = Template((OutputColumn(("x",), True, ((0, ((0, 1, 1),)),)),)).encode()


def read(frames: list[Any]) -> Any:
    return wire.decode([bytes(frame) for frame in frames])[1]


def header(frames: list[Any]) -> dict[str, Any]:
    fields: dict[str, Any] = msgpack.unpackb(frames[0])
    return fields


def chunk_batch(**fields: Any) -> ChunkBatch:
    records = np.zeros(2, BLOB_RECORD)
    records["stored_bytes"] = 4
    made: dict[str, Any] = {
        "first": 7,
        "rows": np.array([2, 2]),
        "schemas": [SCHEMA],
        "records": records.tobytes(),
        "body": [b"abcdefgh"],
    }
    return ChunkBatch(**{**made, **fields})


def item_batch(**fields: Any) -> ItemBatch:
    made: dict[str, Any] = {
        "tables": ["t"],
        "chunk": np.array([7, 8]),
        "length": np.array([2, 1]),
        "priority": np.array([0.5, 2.0]),
    }
    return ItemBatch(**{**made, **fields})


def test_the_server_reads_simple_requests_as_meant() -> None:
    assert read(encode_hello(1, "me")) == messages.Hello(1, "me")
    assert read(encode_hello(1, "")) == messages.Hello(1, "")
    assert read(encode_sample(2, "t", 9, 3, 250)) == messages.Sample(2, "t", 9, 3, 0.25)
    assert read(encode_reset(3, "t")) == messages.Reset(3, "t")
    assert read(encode_info(4)) == messages.Info(4)
    assert read(encode_keepalive(5, STREAM)) == messages.KeepAlive(5, STREAM)
    assert read(encode_close_stream(6, STREAM)) == messages.CloseStream(6, STREAM)


def test_the_server_reads_an_update_as_meant() -> None:
    update = read(encode_update(1, "t", np.array([3, 1 << 63], "u8"), np.array([0.5, 1.5]), np.array([9], "u8")))
    assert (update.table, update.keys.tolist(), update.priorities.tolist()) == ("t", [3, 1 << 63], [0.5, 1.5])
    assert update.deletes.tolist() == [9]
    nothing = np.zeros(0)
    assert len(read(encode_update(1, "t", nothing, nothing, nothing)).keys) == 0


def test_the_server_reads_an_insert_as_meant() -> None:
    items = item_batch(
        tables=["t", "u"],
        table_of=np.array([1, 0]),
        chunks=np.array([2, 1]),
        offset=np.array([0, 1]),
        templates=[b"", TEMPLATE],
        template_of=np.array([0, 1]),
    )
    insert = read(encode_insert(5, STREAM, 6, 4, chunk_batch(episodes=np.array([1, 2])), items))
    assert (insert.id, insert.stream, insert.seq, insert.keep_from) == (5, STREAM, 6, 4)
    assert insert.chunks.first == 7
    assert insert.chunks.rows.tolist() == [2, 2]
    assert insert.chunks.episodes.tolist() == [1, 2]
    assert [schema.blob for schema in insert.chunks.schemas] == [SCHEMA]
    assert payloads_in(insert.chunks) == [b"abcd", b"efgh"]
    assert list(insert.items.tables) == ["t", "u"]
    assert insert.items.table_of.tolist() == [1, 0]
    assert insert.items.chunk.tolist() == [7, 8]
    assert insert.items.chunks.tolist() == [2, 1]
    assert insert.items.offset.tolist() == [0, 1]
    assert insert.items.length.tolist() == [2, 1]
    assert [template.blob for template in insert.items.templates] == [b"", TEMPLATE]
    assert insert.items.template_of.tolist() == [0, 1]
    assert insert.items.priority.tolist() == [0.5, 2.0]


def test_what_has_its_default_is_left_out() -> None:
    zeros = np.zeros(2, np.uint64)
    chunks = chunk_batch(episodes=zeros, schema_of=zeros)
    items = item_batch(table_of=zeros, chunks=np.ones(2), offset=zeros, template_of=zeros)
    fields = header(encode_insert(1, STREAM, 0, 0, chunks, items))
    assert fields.keys() == {
        *("v", "op", "id", "stream", "seq", "keep_from", "first_chunk", "rows", "schemas", "blobs"),
        *("tables", "chunk", "length", "priority"),
    }


def test_an_insert_of_nothing_only_moves_the_numbers() -> None:
    insert = read(encode_insert(1, STREAM, 3, 9, None, None))
    assert (insert.seq, insert.keep_from, insert.chunks, insert.items) == (3, 9, None, None)


def test_empty_payloads_take_no_frame() -> None:
    schema = Schema((Column((), np.dtype("u1"), (0,)),)).encode()
    frames = encode_insert(1, STREAM, 0, 0, chunk_batch(schemas=[schema], records=bytes(16), body=[b""]), None)
    assert len(frames) == 1
    assert read(frames).chunks.nbytes.tolist() == [0, 0]


@pytest.mark.parametrize("error", WIRE_ERRORS, ids=lambda error: error.code)
def test_every_error_of_the_server_has_a_class_of_its_own(error: Any) -> None:
    frames = wire.encode(messages.Failed("sample", 8, error.code, "because", {"who_must_act": "learners"}))
    reply = decode_reply(frames)
    assert isinstance(reply, ErrorReply)
    assert (reply.id, reply.op, str(reply.error)) == (8, "sample", "because")
    assert reply.error.code == error.code
    assert type(reply.error).code == error.code
    assert reply.error.detail == {"who_must_act": "learners"}


def test_an_error_that_nobody_knows_yet_keeps_its_code() -> None:
    error = error_from_wire("too_modern", "", {})
    assert type(error) is errors.ServerError
    assert (error.code, str(error)) == ("too_modern", "too_modern")


@pytest.mark.parametrize(
    ("code", "base"),
    [
        ("timeout", TimeoutError),
        ("shutting_down", ConnectionError),
        ("unknown_table", ValueError),
        ("bad_priority", ValueError),
        ("signature_mismatch", ValueError),
        ("never_grantable", ValueError),
        ("bad_message", RuntimeError),
    ],
)
def test_errors_are_caught_by_pythons_own_bases_too(code: str, base: type[Exception]) -> None:
    error = error_from_wire(code, "text", {"a": 1})
    assert isinstance(error, base)
    assert isinstance(error, errors.ReplaydError)


def test_errors_survive_pickling() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(error_from_wire("timeout", "text", {"who_must_act": "writers"})))  # noqa: S301
    assert (type(error), str(error), error.detail, error.code) == (
        errors.DeadlineExceededError,
        "text",
        {"who_must_act": "writers"},
        "timeout",
    )


def test_the_client_reads_simple_replies_as_meant() -> None:
    def reply(op: str, **fields: Any) -> Any:
        return decode_reply(wire.encode(messages.Result(op, 3, fields)))

    assert reply("insert", first_key=9, items=2, duplicate=True) == InsertReply(3, 9, 2, True)
    assert reply("insert", items=0, duplicate=False) == InsertReply(3, None, 0, False)
    assert reply("reset", removed=4) == ResetReply(3, 4)
    assert reply("keepalive") == DoneReply(3, "keepalive")
    assert reply("close_stream") == DoneReply(3, "close_stream")
    info = reply("info", uptime_s=1.5)
    assert isinstance(info, InfoReply)
    assert info.fields["uptime_s"] == 1.5
    update = reply("update", updated=1, deleted=2, missing=np.array([5], np.uint64))
    assert isinstance(update, UpdateReply)
    assert (update.updated, update.deleted, update.missing.tolist()) == (1, 2, [5])


def test_the_client_reads_hello_as_meant() -> None:
    fields = {
        "server_id": STREAM,
        "server": "replayd 1",
        "versions": [1],
        "codecs": [0, 2],
        "window_messages": 5,
        "window_bytes": 6,
        "lease_ms": 7,
        "max_wait_ms": 8,
        "limits": {"items": 9},
        "tables": {"free": {}, "tight": {"signature": [[["a", 0], "float32", [None, 3]]]}},
    }
    reply = decode_reply(wire.encode(messages.Result("hello", 1, fields)))
    assert isinstance(reply, HelloReply)
    assert reply.tables["free"].signature is None
    assert reply.tables["tight"].signature == ((("a", 0), "float32", (None, 3)),)
    assert (reply.window_messages, reply.window_bytes, reply.lease_ms, reply.max_wait_ms) == (5, 6, 7, 8)


def test_the_client_reads_a_sample_with_and_without_defaults() -> None:
    def sampled(**changed: Any) -> SampleReply:
        ones = np.ones(2, np.int64)
        fields: dict[str, Any] = {
            "id": 1,
            "keys": np.array([4, 5], np.uint64),
            "priorities": np.array([0.5, 1.0]),
            "probabilities": np.array([0.25, 0.75]),
            "times_sampled": ones,
            "table_sizes": ones * 9,
            "chunk": np.array([0, 1]),
            "chunks": ones,
            "offset": ones * 0,
            "length": ones * 2,
            "templates": [b""],
            "template_of": ones * 0,
            "rows": np.array([2, 2]),
            "nbytes": 8,
            "schemas": [SCHEMA],
            "schema_of": ones * 0,
            "records": np.array([4, 4], np.uint64),
            "body": [b"abcdefgh"],
        }
        fields.update(changed)
        shown = messages.Shown(**{name: fields[name] for name in messages.Shown.__dataclass_fields__})
        made = messages.Sampled(fields["id"], shown, fields["probabilities"], fields["table_sizes"])
        reply = decode_reply(wire.encode(made))
        assert isinstance(reply, SampleReply)
        return reply

    plain = sampled()
    assert plain.shown.keys.tolist() == [4, 5]
    assert plain.shown.priorities.tolist() == [0.5, 1.0]
    assert plain.probabilities.tolist() == [0.25, 0.75]
    assert plain.table_sizes.tolist() == [9, 9]
    assert (plain.shown.chunks.tolist(), plain.shown.offset.tolist(), plain.shown.length.tolist()) == (
        [1, 1],
        [0, 0],
        [2, 2],
    )
    assert (plain.shown.templates, plain.shown.template_of.tolist()) == ([b""], [0, 0])
    assert plain.shown.schema_of.tolist() == [0, 0]
    assert plain.shown.records["stored_bytes"].tolist() == [4, 4]
    assert b"".join(plain.shown.body) == b"abcdefgh"
    full = sampled(offset=np.array([0, 1]), templates=[b"", TEMPLATE], template_of=np.array([1, 0]))
    assert full.shown.offset.tolist() == [0, 1]
    assert (full.shown.templates, full.shown.template_of.tolist()) == ([b"", TEMPLATE], [1, 0])


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"op": "dance"},
        {"op": 3},
        {"id": -1},
        {"id": True},
        {"items": None},
        {"items": "2"},
        {"first_key": -4},
        {"duplicate": 1},
        {"error": []},
        {"error": {"code": 1, "message": ""}},
    ],
)
def test_a_reply_that_is_not_in_order_is_a_protocol_error(change: dict[str, Any]) -> None:
    fields = {"v": 1, "op": "insert", "id": 1, "items": 2, "first_key": 3, "duplicate": False}
    assert decode_reply([msgpack.packb(fields)]) == InsertReply(1, 3, 2, False)
    with pytest.raises(errors.ProtocolError):
        decode_reply([msgpack.packb({**fields, **change})])


def test_a_body_where_none_belongs_is_a_protocol_error() -> None:
    with pytest.raises(errors.ProtocolError):
        decode_reply([msgpack.packb({"v": 1, "op": "reset", "id": 1, "removed": 2}), b"x"])
