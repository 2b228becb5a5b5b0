"""Writes the golden vectors, `python tests/wire/make_vectors.py`: messages of the protocol laid out byte by byte.

Nothing of replayd is imported: a dozen lines of msgpack below are all it takes to speak the protocol, and a fault that
both halves of the codec share shows here. Vectors are added, never changed: whoever tested against them keeps them.

A file is `{"vectors": [...]}`. A vector has a `name`, what it `shows`, its `direction` (request, reply or blob), its
`frames` in hex without ZeroMQ's envelope, and either the `message` they mean or the `error` code they are refused with.
A message has every field, defaults filled in; arrays are lists, bytes are hex. `canonical` false: other bytes may mean
the same message, and an encoder need not produce these. `pushed`: sent on PUSH.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parent / "vectors"

Vector = dict[str, Any]


# --- msgpack, the part that is needed ---------------------------------------------------------------------------------

NIL, FALSE, TRUE = b"\xc0", b"\xc2", b"\xc3"


def uint(value: int) -> bytes:
    for limit, code, size in ((1 << 8, b"\xcc", ">B"), (1 << 16, b"\xcd", ">H"), (1 << 32, b"\xce", ">I")):
        if value < 128:
            return struct.pack(">B", value)
        if value < limit:
            return code + struct.pack(size, value)
    return b"\xcf" + struct.pack(">Q", value)


def negative(value: int) -> bytes:
    """-32 to -1."""
    return struct.pack(">b", value)


def real(value: float) -> bytes:
    return b"\xcb" + struct.pack(">d", value)


def text(value: str) -> bytes:
    data = value.encode()
    head = struct.pack(">B", 0xA0 | len(data)) if len(data) < 32 else b"\xd9" + struct.pack(">B", len(data))
    return head + data


def binary(data: bytes) -> bytes:
    if len(data) < 256:
        return b"\xc4" + struct.pack(">B", len(data)) + data
    return b"\xc5" + struct.pack(">H", len(data)) + data


def array(*entries: bytes) -> bytes:
    head = struct.pack(">B", 0x90 | len(entries)) if len(entries) < 16 else b"\xdc" + struct.pack(">H", len(entries))
    return head + b"".join(entries)


def mapping(*pairs: tuple[str, bytes]) -> bytes:
    head = struct.pack(">B", 0x80 | len(pairs)) if len(pairs) < 16 else b"\xde" + struct.pack(">H", len(pairs))
    return head + b"".join(text(key) + value for key, value in pairs)


# --- the protocol's own shapes ----------------------------------------------------------------------------------------


def u64s(*values: int) -> bytes:
    return binary(struct.pack(f"<{len(values)}Q", *values))


def u32s(*values: int) -> bytes:
    return binary(struct.pack(f"<{len(values)}I", *values))


def u8s(*values: int) -> bytes:
    return binary(bytes(values))


def u16s(*values: int) -> bytes:
    return binary(struct.pack(f"<{len(values)}H", *values))


def f64s(*values: float) -> bytes:
    return binary(struct.pack(f"<{len(values)}d", *values))


def records(*blobs: tuple[int, int, int]) -> bytes:
    """Blob records from (stored bytes, codec, flags)."""
    return binary(b"".join(struct.pack("<IBBH", stored, codec, flags, 0) for stored, codec, flags in blobs))


def header(op: str, id: int, *fields: tuple[str, bytes]) -> bytes:
    return mapping(("v", uint(1)), ("op", text(op)), ("id", uint(id)), *fields)


def error(op: str, id: int, code: str, message: str, *detail: tuple[str, bytes]) -> bytes:
    fault = mapping(("code", text(code)), ("message", text(message)), ("detail", mapping(*detail)))
    return header(op, id, ("error", fault))


def path(*components: str | int) -> bytes:
    return array(*(text(part) if isinstance(part, str) else uint(part) for part in components))


def column(where: bytes, dtype: str, *shape: int) -> bytes:
    return array(where, text(dtype), array(*(uint(size) for size in shape)))


def output(where: bytes, number: int, squeeze: bool, *runs: int) -> bytes:
    """An output column of one part."""
    return array(where, TRUE if squeeze else FALSE, array(part(number, *runs)))


def joined(where: bytes, *parts: bytes) -> bytes:
    """An output column of several parts."""
    return array(where, FALSE, array(*parts))


def part(number: int, *runs: int) -> bytes:
    return array(uint(number), array(*(uint(value) if value >= 0 else negative(value) for value in runs)))


def f32(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def cells(*values: bytes) -> bytes:
    """The decoded blob of a column of bytes or str."""
    return struct.pack(f"<{len(values)}I", *map(len, values)) + b"".join(values)


def vector(name: str, shows: str, direction: str, frames: Iterable[bytes], **rest: Any) -> Vector:
    return {"name": name, "shows": shows, "direction": direction, "frames": [f.hex() for f in frames], **rest}


# --- what the messages below are made of ------------------------------------------------------------------------------

STREAM = bytes(range(16))
SERVER = bytes(range(0xF0, 0x100))

X = array(column(path("x"), "float32"))
"""One float32 a step."""
OBS_ACTION = array(column(path("obs"), "float32", 2), column(path("action"), "uint8"))
OBS_ACTION_REWARD = array(
    column(path("obs"), "float32", 2), column(path("action"), "uint8"), column(path("reward"), "float64")
)
NAME = array(column(path("name"), "str"))
"""One str a step."""
EMPTY_COLUMN = array(column(path("nothing"), "float32", 0))
LAST_ACTION = array(output(path("last"), 1, True, 1, 1, 1))
"""The action of the window's second row, without the leading axis."""
STACKED = array(output(path("obs"), 0, False, 0, 2, 1, 1, 2, 1), output(path("back"), 1, False, 1, 2, -1))
"""Rows 0 1 1 2 of obs, rows 1 0 of action."""


def chunks_of(first: int, rows: list[int], schemas: list[bytes], **fields: Any) -> dict[str, Any]:
    n = len(rows)
    return {
        "first": first,
        "rows": rows,
        "episodes": fields.pop("episodes", [0] * n),
        "schemas": [schema.hex() for schema in schemas],
        "schema_of": fields.pop("schema_of", [0] * n),
        "blobs": fields.pop("blobs"),
        "payloads": [payload.hex() for payload in fields.pop("payloads")],
        **({"policy_versions": fields["policy_versions"]} if "policy_versions" in fields else {}),
    }


def items_of(tables: list[str], chunk: list[int], length: list[int], priority: list[float], **fields: Any) -> Any:
    m = len(chunk)
    return {
        "tables": tables,
        "table_of": fields.get("table_of", [0] * m),
        "chunk": chunk,
        "chunks": fields.get("chunks", [1] * m),
        "offset": fields.get("offset", [0] * m),
        "length": length,
        "templates": [template.hex() for template in fields.get("templates", [b""])],
        "template_of": fields.get("template_of", [0] * m),
        "priority": priority,
        **({"at_max": fields["at_max"]} if "at_max" in fields else {}),
    }


def insert_of(id: int, seq: int, keep_from: int, chunks: Any, items: Any, stream: bytes = STREAM) -> dict[str, Any]:
    return {
        "op": "insert",
        "id": id,
        "stream": stream.hex(),
        "seq": seq,
        "keep_from": keep_from,
        "chunks": chunks,
        "items": items,
    }


def insert(id: int, seq: int, keep_from: int, *fields: tuple[str, bytes], stream: bytes = STREAM) -> bytes:
    """The header of an insert."""
    return header("insert", id, ("stream", binary(stream)), ("seq", uint(seq)), ("keep_from", uint(keep_from)), *fields)


ONE_CHUNK = (("first_chunk", uint(0)), ("rows", u32s(1)), ("schemas", array(binary(X))), ("blobs", records((4, 0, 0))))
ONE_ITEM = (("tables", array(text("replay"))), ("chunk", u64s(0)), ("length", u32s(1)), ("priority", f64s(1.0)))


# What follows is laid out by hand, the bytes beside what they mean.
# fmt: off

# --- requests ---------------------------------------------------------------------------------------------------------


def requests() -> list[Vector]:
    def request(name: str, shows: str, frames: Iterable[bytes], message: Any, **rest: Any) -> Vector:
        return vector(name, shows, "request", frames, message=message, **rest)

    x = chunks_of(0, [1], [X], blobs=[[[4, 0, 0]]], payloads=[f32(1.5)])
    one = items_of(["replay"], [0], [1], [1.0])
    empty_column = chunks_of(0, [3], [EMPTY_COLUMN], blobs=[[[0, 0, 0]]], payloads=[b""])
    empty_column_fields = (
        ("first_chunk", uint(0)),
        ("rows", u32s(3)),
        ("schemas", array(binary(EMPTY_COLUMN))),
        ("blobs", records((0, 0, 0))),
    )
    return [
        request(
            "hello",
            "a client introduces itself",
            [header("hello", 1, ("client", text("python 4242")))],
            {"op": "hello", "id": 1, "client": "python 4242"},
        ),
        request(
            "hello-anonymous",
            "the client's name may be left out",
            [header("hello", (1 << 63) - 1)],
            {"op": "hello", "id": (1 << 63) - 1, "client": ""},
            canonical=False,
        ),
        request(
            "insert-one",
            "one chunk of one step of one column, and one item that shows it; all optional fields left out",
            [insert(2, 0, 0, *ONE_CHUNK, *ONE_ITEM), f32(1.5)],
            insert_of(2, 0, 0, x, one),
        ),
        request(
            "insert-explicit-defaults",
            "optional fields may be written although they have their default",
            [
                insert(
                    2,
                    0,
                    0,
                    *ONE_CHUNK,
                    *ONE_ITEM,
                    ("episodes", u64s(0)),
                    ("schema_of", u16s(0)),
                    ("table_of", u16s(0)),
                    ("chunks", u32s(1)),
                    ("offset", u32s(0)),
                    ("templates", array(binary(b""))),
                    ("template_of", u16s(0)),
                ),
                f32(1.5),
            ],
            insert_of(2, 0, 0, x, one),
            canonical=False,
        ),
        request(
            "insert-unknown-key",
            "keys the server does not know are ignored, and keys may come in any order",
            [
                mapping(
                    ("colour", array(text("blue"), NIL)),
                    *reversed(ONE_ITEM),
                    *ONE_CHUNK,
                    ("stream", binary(STREAM)),
                    ("keep_from", uint(0)),
                    ("seq", uint(0)),
                    ("id", uint(2)),
                    ("op", text("insert")),
                    ("v", uint(1)),
                ),
                f32(1.5),
            ],
            insert_of(2, 0, 0, x, one),
            canonical=False,
        ),
        request(
            "insert-everything",
            "three chunks of two schemas in two body frames; four items in two tables with three templates, one of "
            "them over a window of two chunks",
            [
                insert(
                    300,
                    7,
                    40,
                    ("first_chunk", uint(42)),
                    ("rows", u32s(2, 1, 3)),
                    ("schemas", array(binary(OBS_ACTION), binary(OBS_ACTION_REWARD))),
                    ("blobs", records((16, 0, 0), (2, 0, 0), (8, 0, 0), (1, 0, 0), (24, 0, 0), (3, 0, 0), (24, 0, 0))),
                    ("episodes", u64s(5, 5, 6)),
                    ("schema_of", u16s(0, 0, 1)),
                    ("tables", array(text("replay"), text("größte"))),
                    ("chunk", u64s(42, 42, 44, 44)),
                    ("length", u32s(2, 2, 3, 1)),
                    ("priority", f64s(1.0, 0.0, 2.5, 1e90)),
                    ("table_of", u16s(0, 1, 0, 1)),
                    ("chunks", u32s(1, 2, 1, 1)),
                    ("offset", u32s(0, 1, 0, 2)),
                    ("template_of", u16s(0, 1, 2, 0)),
                    ("templates", array(binary(b""), binary(LAST_ACTION), binary(STACKED))),
                ),
                f32(0, 1, 2, 3) + b"\x07\x08" + f32(4, 5) + b"\x09",
                f32(6, 7, 8, 9, 10, 11) + b"\x0a\x0b\x0c" + struct.pack("<3d", 0.5, -0.5, 1.0),
            ],
            insert_of(
                300,
                7,
                40,
                chunks_of(
                    42,
                    [2, 1, 3],
                    [OBS_ACTION, OBS_ACTION_REWARD],
                    episodes=[5, 5, 6],
                    schema_of=[0, 0, 1],
                    blobs=[
                        [[16, 0, 0], [2, 0, 0]],
                        [[8, 0, 0], [1, 0, 0]],
                        [[24, 0, 0], [3, 0, 0], [24, 0, 0]],
                    ],
                    payloads=[
                        f32(0, 1, 2, 3) + b"\x07\x08",
                        f32(4, 5) + b"\x09",
                        f32(6, 7, 8, 9, 10, 11) + b"\x0a\x0b\x0c" + struct.pack("<3d", 0.5, -0.5, 1.0),
                    ],
                ),
                items_of(
                    ["replay", "größte"],
                    [42, 42, 44, 44],
                    [2, 2, 3, 1],
                    [1.0, 0.0, 2.5, 1e90],
                    table_of=[0, 1, 0, 1],
                    chunks=[1, 2, 1, 1],
                    offset=[0, 1, 0, 2],
                    templates=[b"", LAST_ACTION, STACKED],
                    template_of=[0, 1, 2, 0],
                ),
            ),
        ),
        request(
            "insert-codecs",
            "compressed and sparse blobs are opaque: the server takes their sizes as they stand",
            [
                insert(
                    4,
                    1,
                    1,
                    ("first_chunk", uint(1)),
                    ("rows", u32s(9, 1)),
                    ("schemas", array(binary(OBS_ACTION))),
                    ("blobs", records((5, 2, 1), (3, 0, 2), (7, 1, 0), (0, 0, 2))),
                ),
                b"OBS..\x01\x01\x2aOBS....",
            ],
            insert_of(
                4,
                1,
                1,
                chunks_of(
                    1,
                    [9, 1],
                    [OBS_ACTION],
                    blobs=[[[5, 2, 1], [3, 0, 2]], [[7, 1, 0], [0, 0, 2]]],
                    payloads=[b"OBS..\x01\x01\x2a", b"OBS...."],
                ),
                None,
            ),
        ),
        request(
            "insert-items-only",
            "an item over chunks that earlier messages brought; the last chunk number there is",
            [
                insert(
                    5,
                    2,
                    1,
                    ("tables", array(text("replay"))),
                    ("chunk", u64s((1 << 62) - 1)),
                    ("length", u32s(1)),
                    ("priority", f64s(0.25)),
                )
            ],
            insert_of(5, 2, 1, None, items_of(["replay"], [(1 << 62) - 1], [1], [0.25])),
        ),
        request(
            "insert-policy-versions",
            "which version of the policy acted in each of two chunks, and in a third nobody says",
            [
                insert(
                    18,
                    0,
                    0,
                    ("first_chunk", uint(0)),
                    ("rows", u32s(1, 1, 1)),
                    ("schemas", array(binary(X))),
                    ("blobs", records((4, 0, 0), (4, 0, 0), (4, 0, 0))),
                    ("policy_versions", u64s(7, (1 << 63) - 1, 0)),
                    ("tables", array(text("replay"))),
                    ("chunk", u64s(1)),
                    ("length", u32s(1)),
                    ("priority", f64s(1.0)),
                ),
                f32(1, 2, 3),
            ],
            insert_of(
                18,
                0,
                0,
                chunks_of(
                    0,
                    [1, 1, 1],
                    [X],
                    blobs=[[[4, 0, 0]]] * 3,
                    payloads=[f32(1), f32(2), f32(3)],
                    policy_versions=[7, (1 << 63) - 1, 0],
                ),
                items_of(["replay"], [1], [1], [1.0]),
            ),
        ),
        request(
            "insert-empty",
            "neither chunks nor items: only seq and keep_from move",
            [insert(6, 3, 2)],
            insert_of(6, 3, 2, None, None),
        ),
        request(
            "insert-empty-arrays",
            "empty arrays are as good as none",
            [insert(6, 3, 2, ("rows", binary(b"")), ("priority", binary(b"")))],
            insert_of(6, 3, 2, None, None),
            canonical=False,
        ),
        request(
            "insert-empty-payload",
            "a column whose step has no values: a payload of no bytes, and no body frame",
            [insert(7, 0, 0, *empty_column_fields)],
            insert_of(7, 0, 0, empty_column, None),
        ),
        request(
            "insert-empty-frame",
            "a body frame may be empty when its payloads are",
            [insert(7, 0, 0, *empty_column_fields), b""],
            insert_of(7, 0, 0, empty_column, None),
            canonical=False,
        ),
        request(
            "insert-pushed",
            "on PUSH no id is needed",
            [
                mapping(
                    ("v", uint(1)),
                    ("op", text("insert")),
                    ("stream", binary(STREAM)),
                    ("seq", uint(0)),
                    ("keep_from", uint(0)),
                    *ONE_CHUNK,
                    *ONE_ITEM,
                ),
                f32(1.5),
            ],
            insert_of(0, 0, 0, x, one),
            canonical=False,
            pushed=True,
        ),
        request(
            "sample",
            "a learner wants 256 items, at least 256, within five seconds",
            [
                header(
                    "sample",
                    8,
                    ("table", text("replay")),
                    ("n", uint(256)),
                    ("min_n", uint(256)),
                    ("timeout_ms", uint(5000)),
                )
            ],
            {"op": "sample", "id": 8, "table": "replay", "n": 256, "min_n": 256, "timeout_ms": 5000},
        ),
        request(
            "sample-defaults",
            "min_n is 1 and timeout_ms the server's cap when they are left out",
            [header("sample", 9, ("table", text("replay")), ("n", uint(1)))],
            {"op": "sample", "id": 9, "table": "replay", "n": 1, "min_n": 1, "timeout_ms": 60000},
            canonical=False,
        ),
        request(
            "update",
            "new priorities for two keys, and a third is deleted",
            [
                header(
                    "update",
                    10,
                    ("table", text("replay")),
                    ("keys", u64s(1, 1 << 52)),
                    ("priorities", f64s(0.5, 2.0)),
                    ("deletes", u64s(3)),
                )
            ],
            {
                "op": "update",
                "id": 10,
                "table": "replay",
                "keys": [1, 1 << 52],
                "priorities": [0.5, 2.0],
                "deletes": [3],
            },
        ),
        request(
            "update-deletes",
            "keys and priorities are left out when there are none",
            [header("update", 11, ("table", text("replay")), ("deletes", u64s(3, 4)))],
            {"op": "update", "id": 11, "table": "replay", "keys": [], "priorities": [], "deletes": [3, 4]},
        ),
        request(
            "update-nothing",
            "an update of nothing is allowed",
            [header("update", 12, ("table", text("replay")))],
            {"op": "update", "id": 12, "table": "replay", "keys": [], "priorities": [], "deletes": []},
        ),
        request(
            "reset",
            "a table is emptied",
            [header("reset", 13, ("table", text("replay")))],
            {"op": "reset", "id": 13, "table": "replay"},
        ),
        request("info", "state and counters are asked for", [header("info", 14)], {"op": "info", "id": 14}),
        request(
            "keepalive",
            "a stream's lease is renewed",
            [header("keepalive", 15, ("stream", binary(STREAM)))],
            {"op": "keepalive", "id": 15, "stream": STREAM.hex()},
        ),
        request(
            "close_stream",
            "a stream is given up",
            [header("close_stream", 16, ("stream", binary(STREAM)))],
            {"op": "close_stream", "id": 16, "stream": STREAM.hex()},
        ),
        request("withdraw", "samples that wait are taken back", [header("withdraw", 19)], {"op": "withdraw", "id": 19}),
        request(
            "checkpoint", "what is held is to be made durable", [header("checkpoint", 18)],
            {"op": "checkpoint", "id": 18},
        ),
        request(
            "insert-at-max",
            "two items, of which the second enters with the largest priority there is",
            [
                insert(
                    17,
                    0,
                    0,
                    *ONE_CHUNK,
                    ("tables", array(text("replay"))),
                    ("chunk", u64s(0, 0)),
                    ("length", u32s(1, 1)),
                    ("priority", f64s(0.5, 0.0)),
                    ("at_max", u8s(0, 1)),
                ),
                f32(1.5),
            ],
            insert_of(17, 0, 0, x, items_of(["replay"], [0, 0], [1, 1], [0.5, 0.0], at_max=[0, 1])),
        ),
        request(
            "why",
            "who waits at a table, and for what",
            [header("why", 18, ("table", text("replay")))],
            {"op": "why", "id": 18, "table": "replay"},
        ),
        request(
            "peek-order",
            "the two items of largest priority",
            [header("peek", 19, ("table", text("replay")), ("order", text("highest")), ("n", uint(2)))],
            {"op": "peek", "id": 19, "table": "replay", "order": "highest", "n": 2, "keys": []},
        ),
        request(
            "peek-keys",
            "items by key, in this order",
            [header("peek", 20, ("table", text("replay")), ("keys", u64s(7, 1 << 52, 3)))],
            {"op": "peek", "id": 20, "table": "replay", "order": "oldest", "n": 1, "keys": [7, 1 << 52, 3]},
        ),
        request(
            "peek-defaults",
            "order and n may be left out: the oldest item; empty keys are as good as none",
            [header("peek", 21, ("table", text("replay")), ("keys", u64s()))],
            {"op": "peek", "id": 21, "table": "replay", "order": "oldest", "n": 1, "keys": []},
            canonical=False,
        ),
        request(
            "set",
            "every setting there is; nil is unlimited",
            [
                header(
                    "set",
                    22,
                    ("table", text("replay")),
                    (
                        "changes",
                        mapping(
                            ("max_size", uint(1000)),
                            ("max_times_sampled", uint(0)),
                            ("samples_per_insert", real(1.5)),
                            ("min_size_to_sample", uint(10)),
                            ("min_diff", real(-20.5)),
                            ("max_diff", NIL),
                            ("priority_exponent", real(0.6)),
                            ("paused_inserts", FALSE),
                            ("paused_samples", TRUE),
                        ),
                    ),
                )
            ],
            {
                "op": "set",
                "id": 22,
                "table": "replay",
                "changes": {
                    "max_size": 1000,
                    "max_times_sampled": 0,
                    "samples_per_insert": 1.5,
                    "min_size_to_sample": 10,
                    "min_diff": -20.5,
                    "max_diff": None,
                    "priority_exponent": 0.6,
                    "paused_inserts": False,
                    "paused_samples": True,
                },
            },
        ),
        request(
            "set-integers",
            "numbers may be integers, of either sign",
            [
                header(
                    "set",
                    23,
                    ("table", text("replay")),
                    ("changes", mapping(("samples_per_insert", uint(2)), ("min_diff", negative(-4)))),
                )
            ],
            {"op": "set", "id": 23, "table": "replay", "changes": {"samples_per_insert": 2, "min_diff": -4}},
        ),
        request(
            "insert-str",
            "a chunk with two rows of a str column",
            [
                insert(
                    25, 0, 0, ("first_chunk", uint(0)), ("rows", u32s(2)), ("schemas", array(binary(NAME))),
                    ("blobs", records((12, 0, 0))),
                ),
                cells("é".encode(), b"no"),
            ],
            insert_of(
                25, 0, 0, chunks_of(0, [2], [NAME], blobs=[[[12, 0, 0]]], payloads=[cells("é".encode(), b"no")]), None
            ),
        ),
        request(
            "set-nothing",
            "no changes: the settings are only told",
            [header("set", 24, ("table", text("replay")), ("changes", mapping()))],
            {"op": "set", "id": 24, "table": "replay", "changes": {}},
        ),
    ]


# --- requests that are refused ----------------------------------------------------------------------------------------


def refusals() -> list[Vector]:
    def refused(
        name: str, shows: str, frames: Iterable[bytes], code: str, op: str = "", id: int = 0, **rest: Any
    ) -> Vector:
        return vector(name, shows, "request", frames, error=code, op=op, id=id, **rest)

    def bad_insert(name: str, shows: str, code: str, *fields: tuple[str, bytes], body: Iterable[bytes] = ()) -> Vector:
        return refused(name, shows, [insert(1, 0, 0, *fields), *body], code, "insert", 1)

    def replaced(fields: Iterable[tuple[str, bytes]], name: str, value: bytes) -> list[tuple[str, bytes]]:
        return [(key, value if key == name else old) for key, old in fields]

    def bad_chunks(name: str, shows: str, key: str, value: bytes, code: str = "bad_message") -> Vector:
        return bad_insert(name, shows, code, *replaced(ONE_CHUNK, key, value), body=[f32(1.5)])

    def bad_items(name: str, shows: str, *fields: tuple[str, bytes], code: str = "bad_message") -> Vector:
        given = dict(fields)
        kept = [(key, value) for key, value in ONE_ITEM if key not in given]
        return bad_insert(name, shows, code, *ONE_CHUNK, *kept, *fields, body=[f32(1.5)])

    def bad_set(
        name: str, shows: str, code: str, *settings: tuple[str, bytes], changes: bytes | None = None
    ) -> Vector:
        given = mapping(*settings) if changes is None else changes
        return refused(name, shows, [header("set", 1, ("table", text("replay")), ("changes", given))], code, "set", 1)

    hello = header("hello", 1)
    sample = (("table", text("replay")), ("n", uint(1)))
    item_of_two_rows = replaced(ONE_ITEM, "length", u32s(2))
    item_of_chunk_9 = replaced(ONE_ITEM, "chunk", u64s(9))
    item_of_two_chunks = [*ONE_ITEM, ("chunks", u32s(2))]
    return [
        # The header.
        refused("no-frames", "a message needs a header", [], "bad_message"),
        refused("no-store", "a server without a store makes no checkpoint", [header("checkpoint", 1)], "no_store",
                "checkpoint", 1),
        refused("empty-header", "an empty frame is no header", [b""], "bad_message"),
        refused("not-msgpack", "0xc1 is never used in msgpack", [b"\xc1"], "bad_message"),
        refused("truncated-header", "the map's last value is missing", [hello[:-1]], "bad_message"),
        refused("trailing-bytes", "one byte behind the map", [hello + b"\x00"], "bad_message"),
        refused("header-is-an-array", "the header must be a map", [array(uint(1))], "bad_message"),
        refused("key-is-a-number", "keys are strings", [b"\x81" + uint(1) + uint(1)], "bad_message"),
        refused(
            "duplicate-key",
            "no key may stand twice",
            [mapping(("v", uint(1)), ("op", text("hello")), ("id", uint(1)), ("id", uint(2)))],
            "bad_message",
        ),
        refused(
            "duplicate-inner-key",
            "nor in a map inside an unknown field",
            [header("hello", 1, ("x", mapping(("a", NIL), ("a", NIL))))],
            "bad_message",
        ),
        refused(
            "forged-length",
            "a bin32 that claims four gigabytes in a header of thirty bytes",
            [header("hello", 1, ("x", b"\xc6\xff\xff\xff\xff"))],
            "bad_message",
        ),
        refused(
            "forged-array",
            "an array32 that claims four thousand million entries",
            [header("hello", 1, ("x", b"\xdd\xff\xff\xff\xff"))],
            "limit_exceeded",
        ),
        refused(
            "extension",
            "msgpack's extension types are not used",
            [header("hello", 1, ("x", b"\xd4\x01\x00"))],
            "bad_message",
        ),
        refused("deep-nesting", "arrays in arrays, 2000 deep", [header("hello", 1, ("x", b"\x91" * 2000 + NIL))],
                "bad_message"),
        refused("not-utf8", "strings are UTF-8", [header("hello", 1, ("x", b"\xa1\xff"))], "bad_message"),
        # Version, op, id.
        refused(
            "other-version",
            "op and id are echoed even so",
            [mapping(("v", uint(2)), ("op", text("hello")), ("id", uint(5)))],
            "unsupported_version",
            "hello",
            5,
        ),
        refused(
            "no-version",
            "the version is part of every request",
            [mapping(("op", text("hello")), ("id", uint(5)))],
            "unsupported_version",
            "hello",
            5,
        ),
        refused(
            "version-is-a-float",
            "1.0 is not 1",
            [mapping(("v", real(1.0)), ("op", text("hello")), ("id", uint(5)))],
            "unsupported_version",
            "hello",
            5,
        ),
        refused("unknown-op", "the id is echoed, the op is not", [header("explode", 5)], "unknown_op", "", 5),
        refused("no-op", "an op is needed", [mapping(("v", uint(1)), ("id", uint(5)))], "unknown_op", "", 5),
        refused("op-is-a-list", "an op is a string", [mapping(("v", uint(1)), ("op", array()), ("id", uint(5)))],
                "unknown_op", "", 5),
        refused("no-id", "on DEALER an id is needed", [mapping(("v", uint(1)), ("op", text("hello")))],
                "bad_message", "hello"),
        refused("negative-id", "ids are unsigned",
                [mapping(("v", uint(1)), ("op", text("hello")), ("id", negative(-1)))], "bad_message", "hello"),
        refused("large-id", "ids are below 2^63", [header("hello", 1 << 63)], "bad_message", "hello"),
        refused("id-is-true", "a bool is no number", [mapping(("v", uint(1)), ("op", text("info")), ("id", TRUE))],
                "bad_message", "info"),
        refused("pushed-sample", "only inserts may be pushed", [header("sample", 5, *sample)], "bad_request", "sample",
                5, pushed=True),
        # Simple ops.
        refused("client-has-a-control-character", "names have none", [header("hello", 1, ("client", text("a\nb")))],
                "bad_message", "hello", 1),
        refused("sample-no-table", "a table is needed", [header("sample", 1, ("n", uint(1)))], "bad_message",
                "sample", 1),
        refused("sample-empty-name", "names have at least one byte",
                [header("sample", 1, ("table", text("")), ("n", uint(1)))], "bad_message", "sample", 1),
        refused("sample-long-name", "names have at most 128 bytes",
                [header("sample", 1, ("table", text("ü" * 65)), ("n", uint(1)))], "limit_exceeded", "sample", 1),
        refused("sample-none", "n is at least 1", [header("sample", 1, ("table", text("t")), ("n", uint(0)))],
                "bad_request", "sample", 1),
        refused("sample-negative", "n is unsigned", [header("sample", 1, ("table", text("t")), ("n", negative(-1)))],
                "bad_message", "sample", 1),
        refused("sample-float", "n is an integer", [header("sample", 1, ("table", text("t")), ("n", real(1.0)))],
                "bad_message", "sample", 1),
        refused("update-half-a-key", "packed arrays hold whole values",
                [header("update", 1, ("table", text("t")), ("keys", binary(bytes(12))), ("priorities", f64s(1.0)))],
                "bad_message", "update", 1),
        refused("update-unequal", "keys and priorities are as many",
                [header("update", 1, ("table", text("t")), ("keys", u64s(1, 2)), ("priorities", f64s(1.0)))],
                "bad_message", "update", 1),
        refused("update-list", "arrays of numbers are packed, not msgpack arrays",
                [header("update", 1, ("table", text("t")), ("keys", array(uint(1))), ("priorities", f64s(1.0)))],
                "bad_message", "update", 1),
        refused("short-stream", "a stream's id has 16 bytes", [header("keepalive", 1, ("stream", binary(bytes(15))))],
                "bad_message", "keepalive", 1),
        refused("stream-is-text", "a stream's id is bin",
                [header("keepalive", 1, ("stream", text("0123456789abcdef")))], "bad_message", "keepalive", 1),
        # Chunks.
        bad_insert("body-without-chunks", "a body needs chunks", "bad_message", body=[f32(1.5)]),
        bad_insert("no-body", "the payloads are missing", "bad_message", *ONE_CHUNK),
        bad_insert("short-body", "a payload that is cut off", "bad_message", *ONE_CHUNK, body=[f32(1.5)[:3]]),
        bad_insert("long-body", "bytes behind the last payload", "bad_message", *ONE_CHUNK, body=[f32(1.5) + b"\0"]),
        bad_insert("split-payload", "a payload may not span frames", "bad_message", *ONE_CHUNK,
                   body=[f32(1.5)[:2], f32(1.5)[2:]]),
        bad_insert("empty-body-frame", "an empty frame beside a payload", "bad_message", *ONE_CHUNK,
                   body=[b"", f32(1.5)]),
        bad_insert("spare-body-frame", "an empty frame behind the payloads", "bad_message", *ONE_CHUNK,
                   body=[f32(1.5), b""]),
        bad_chunks("no-rows", "a chunk has at least one row", "rows", u32s(0), "bad_request"),
        bad_chunks("many-rows", "a chunk has at most 2^20 rows", "rows", u32s((1 << 20) + 1), "limit_exceeded"),
        bad_chunks("half-a-row-count", "packed arrays hold whole values", "rows", binary(bytes(5))),
        bad_chunks("far-chunk-number", "chunk numbers are below 2^62", "first_chunk", uint(1 << 62), "limit_exceeded"),
        bad_chunks("no-schema", "chunks need a schema", "schemas", array()),
        bad_chunks("missing-record", "each column of each chunk has a record", "blobs", binary(b"")),
        bad_chunks("spare-record", "and no more than one", "blobs", records((4, 0, 0), (4, 0, 0))),
        bad_chunks("unknown-codec", "codecs are 0, 1 and 2", "blobs", records((4, 3, 0))),
        bad_chunks("omitted", "OMITTED is for replies", "blobs", records((0, 0, 4))),
        bad_chunks("unknown-flag", "no other flags", "blobs", records((4, 0, 8))),
        bad_chunks("record-not-zero", "the last two bytes are zero", "blobs", binary(struct.pack("<IBBH", 4, 0, 0, 1))),
        bad_chunks("raw-size", "a raw blob has rows × step bytes", "blobs", records((5, 0, 0))),
        bad_insert("short-cells", "a raw blob of str has room for the lengths", "bad_message",
                   *replaced(replaced(ONE_CHUNK, "schemas", array(binary(NAME))), "blobs", records((3, 0, 0))),
                   body=[bytes(3)]),
        bad_insert("delta-of-cells", "bytes and str have no differences", "bad_message",
                   *replaced(replaced(ONE_CHUNK, "schemas", array(binary(NAME))), "blobs", records((5, 0, 1))),
                   body=[cells(b"a")]),
        bad_chunks("step-beyond-64-bits", "a step's size may not fit any number of a reply",
                   "schemas", array(binary(array(column(path("x"), "float32", 1 << 62, 1 << 62)))), "limit_exceeded"),
        bad_insert("far-schema", "schema_of points behind the schemas", "bad_message", *ONE_CHUNK,
                   ("schema_of", u16s(1)), body=[f32(1.5)]),
        bad_insert("two-schema-indices", "one index a chunk", "bad_message", *ONE_CHUNK,
                   ("schema_of", u16s(0, 0)), body=[f32(1.5)]),
        # Items.
        bad_items("no-tables", "items name their tables", ("tables", array())),
        bad_items("table-twice", "tables are distinct", ("tables", array(text("a"), text("a")))),
        bad_items("no-length", "items need a length", ("length", NIL)),
        bad_items("zero-length", "windows have rows", ("length", u32s(0)), code="bad_request"),
        bad_items("zero-chunks", "windows have chunks", ("chunks", u32s(0)), code="bad_request"),
        bad_items("two-lengths", "one length an item", ("length", u32s(1, 1))),
        bad_items("far-table", "table_of points behind the tables", ("table_of", u16s(1))),
        bad_items("far-template", "template_of points behind the templates", ("template_of", u16s(1))),
        bad_items("no-templates", "templates is absent or has entries", ("templates", array())),
        bad_items("far-chunk", "chunk numbers are below 2^62", ("chunk", u64s(1 << 62)), code="limit_exceeded"),
        bad_items("nan-priority", "a priority is a number", ("priority", f64s(float("nan"))), code="bad_priority"),
        bad_items("infinite-priority", "and finite", ("priority", f64s(float("inf"))), code="bad_priority"),
        bad_items("negative-priority", "and not negative", ("priority", f64s(-1.0)), code="bad_priority"),
        bad_items("huge-priority", "and at most 1e90", ("priority", f64s(1e91)), code="bad_priority"),
        bad_items("template-beyond-64-bits", "a run's last row may not fit any number of a reply",
                  ("templates", array(binary(array(output(path("x"), 0, False, 0, 1 << 63, 1 << 63))))),
                  code="limit_exceeded"),
        bad_items("template-column", "a template's column is one of the schema",
                  ("templates", array(binary(array(output(path("x"), 1, False))))), code="bad_request"),
        bad_items("template-row", "a template's rows lie in the window",
                  ("templates", array(binary(array(output(path("x"), 0, False, 1, 1, 1))))), code="bad_request"),
        bad_items("template-joined-column", "and so is that of every part", ("templates", array(binary(
            array(joined(path("x"), part(0, 0, 1, 1), part(1, 0, 1, 1)))))), code="bad_request"),
        bad_insert("template-joined-kinds", "columns that are joined are of one dtype and shape", "bad_request",
                   *replaced(replaced(ONE_CHUNK, "schemas", array(binary(OBS_ACTION))), "blobs",
                             records((8, 0, 0), (1, 0, 0))), *ONE_ITEM,
                   ("templates", array(binary(array(joined(path("x"), part(0, 0, 1, 1), part(1, 0, 1, 1)))))),
                   body=[f32(1.5, 2.5) + b"\x01"]),
        bad_insert("long-window", "a window lies in its chunks", "bad_request", *ONE_CHUNK, *item_of_two_rows,
                   body=[f32(1.5)]),
        bad_insert("absent-chunk", "a window's chunks are in the stream", "missing_chunk", *ONE_CHUNK, *item_of_chunk_9,
                   body=[f32(1.5)]),
        bad_insert("absent-last-chunk", "all of them", "missing_chunk", *ONE_CHUNK, *item_of_two_chunks,
                   body=[f32(1.5)]),
        bad_items("unknown-table", "tables are the server's", ("tables", array(text("elsewhere"))),
                  code="unknown_table"),
        # States. The server knows one table, `replay`, and no stream.
        refused("unknown-stream", "a stream begins with message 0", [insert(1, 3, 0)], "unknown_stream", "insert", 1),
        refused("keepalive-unknown-stream", "the stream is not open",
                [header("keepalive", 1, ("stream", binary(STREAM)))], "unknown_stream", "keepalive", 1),
        refused("sample-unknown-table", "tables are the server's",
                [header("sample", 1, ("table", text("elsewhere")), ("n", uint(1)))], "unknown_table", "sample", 1),
        refused("sample-large-min-n", "min_n is at most n",
                [header("sample", 1, *sample, ("min_n", uint(2)))], "bad_request", "sample", 1),
        refused("sample-no-min-n", "min_n is at least 1",
                [header("sample", 1, *sample, ("min_n", uint(0)))], "bad_request", "sample", 1),
        refused("sample-too-many", "n is at most 16384",
                [header("sample", 1, ("table", text("replay")), ("n", uint(16385)))], "limit_exceeded", "sample", 1),
        refused("update-nan", "one bad value refuses the whole request",
                [header("update", 1, ("table", text("replay")), ("keys", u64s(1, 2)),
                        ("priorities", f64s(1.0, float("nan"))))], "bad_priority", "update", 1),
        # Operators' ops, and what came with them.
        bad_items("two-policy-versions", "one for each chunk", ("policy_versions", u64s(1, 2))),
        bad_items("policy-versions-is-a-list", "arrays of numbers are packed", ("policy_versions", array(uint(1)))),
        bad_items("huge-policy-version", "versions are below 2^63", ("policy_versions", u64s(1 << 63)),
                  code="bad_request"),
        bad_items("two-at-max", "one byte an item", ("at_max", u8s(0, 1))),
        bad_items("at-max-is-a-list", "arrays of numbers are packed", ("at_max", array(uint(1)))),
        bad_items("at-max-with-a-bad-priority", "a priority must be valid also where it is not used",
                  ("at_max", u8s(1)), ("priority", f64s(float("nan"))), code="bad_priority"),
        refused("why-no-table", "a table is needed", [header("why", 1)], "bad_message", "why", 1),
        refused("why-unknown-table", "tables are the server's", [header("why", 1, ("table", text("elsewhere")))],
                "unknown_table", "why", 1),
        refused("peek-unknown-order", "orders are four",
                [header("peek", 1, ("table", text("replay")), ("order", text("random")))], "bad_request", "peek", 1),
        refused("peek-order-is-a-list", "an order is a string",
                [header("peek", 1, ("table", text("replay")), ("order", array(text("oldest"))))], "bad_request",
                "peek", 1),
        refused("peek-none", "n is at least 1", [header("peek", 1, ("table", text("replay")), ("n", uint(0)))],
                "bad_request", "peek", 1),
        refused("peek-too-many", "n is at most 1024", [header("peek", 1, ("table", text("replay")), ("n", uint(1025)))],
                "limit_exceeded", "peek", 1),
        refused("peek-too-many-keys", "and so are the keys",
                [header("peek", 1, ("table", text("replay")), ("keys", u64s(*range(1, 1026))))], "limit_exceeded",
                "peek", 1),
        refused("peek-half-a-key", "packed arrays hold whole values",
                [header("peek", 1, ("table", text("replay")), ("keys", binary(bytes(12))))], "bad_message", "peek", 1),
        refused("peek-unknown-table", "tables are the server's", [header("peek", 1, ("table", text("elsewhere")))],
                "unknown_table", "peek", 1),
        bad_set("set-no-changes", "changes are a map", "bad_message", changes=NIL),
        bad_set("set-list", "not an array", "bad_message", changes=array(text("max_size"))),
        bad_set("set-unknown-setting", "settings have names", "bad_request", ("max_sise", uint(1))),
        bad_set("set-float-size", "sizes are integers", "bad_request", ("max_size", real(10.0))),
        bad_set("set-unlimited-size", "a size is never unlimited", "bad_request", ("max_size", NIL)),
        bad_set("set-infinite-diff", "nil is unlimited, infinity is not used", "bad_request",
                ("max_diff", real(float("inf")))),
        bad_set("set-true-ratio", "a bool is no number", "bad_request", ("samples_per_insert", TRUE)),
        bad_set("set-paused-number", "what is yes or no is a bool", "bad_request", ("paused_samples", uint(1))),
        bad_set("set-paused-list", "nor an array of sides", "bad_request", ("paused_inserts", array(text("insert")))),
        bad_set("set-no-size", "a table holds an item at least", "bad_request", ("max_size", uint(0))),
        bad_set("set-small-size", "the limiter wants two items", "bad_request", ("max_size", uint(1))),
        bad_set("set-no-ratio", "ratios are above 0", "bad_request", ("samples_per_insert", uint(0))),
        bad_set("set-crossed-band", "a band has its lower end below", "bad_request", ("min_diff", uint(5)),
                ("max_diff", uint(4))),
        bad_set("set-exponent-of-another", "the sampler is not prioritized", "bad_request",
                ("priority_exponent", real(0.5))),
        refused("set-unknown-table", "tables are the server's",
                [header("set", 1, ("table", text("elsewhere")), ("changes", mapping()))], "unknown_table", "set", 1),
    ]


# --- replies ----------------------------------------------------------------------------------------------------------


def sampled(op: str = "sample", **fields: Any) -> dict[str, Any]:
    m, n = len(fields["keys"]), len(fields["rows"])
    message = {
        "op": op,
        "chunks": [1] * m,
        "offset": [0] * m,
        "templates": [b""],
        "template_of": [0] * m,
        "schema_of": [0] * n,
        **fields,
    }
    for name in ("templates", "schemas", "payloads"):
        message[name] = [data.hex() for data in message[name]]
    return message


def replies() -> list[Vector]:
    def reply(name: str, shows: str, frames: Iterable[bytes], message: Any, **rest: Any) -> Vector:
        return vector(name, shows, "reply", frames, message=message, **rest)

    large = bytes(16384)
    return [
        reply(
            "hello",
            "what a server says of itself; of its limits only three are shown here",
            [
                header(
                    "hello", 1, ("server_id", binary(SERVER)), ("server", text("replayd 1.0")),
                    ("versions", array(uint(1))), ("codecs", array(uint(0), uint(1), uint(2))),
                    ("window_messages", uint(128)), ("window_bytes", uint(1 << 26)), ("lease_ms", uint(60000)),
                    ("max_wait_ms", uint(60000)),
                    ("limits", mapping(("frames", uint(4097)), ("chunks", uint(16384)), ("items", uint(16384)))),
                    ("tables", mapping(
                        ("replay", mapping()),
                        ("frames", mapping(("signature", array(
                            array(path("obs", 0), text("uint8"), array(NIL, uint(84), uint(84))),
                            array(path("action"), text("int32"), array()),
                        )))),
                    )),
                )
            ],
            {
                "op": "hello", "id": 1, "server_id": SERVER.hex(), "server": "replayd 1.0", "versions": [1],
                "codecs": [0, 1, 2], "window_messages": 128, "window_bytes": 1 << 26, "lease_ms": 60000,
                "max_wait_ms": 60000, "limits": {"frames": 4097, "chunks": 16384, "items": 16384},
                "tables": {
                    "replay": {},
                    "frames": {"signature": [[["obs", 0], "uint8", [None, 84, 84]], [["action"], "int32", []]]},
                },
            },
        ),
        reply(
            "insert",
            "three items are in their tables: their keys are 258, 259 and 260",
            [header("insert", 2, ("items", uint(3)), ("duplicate", FALSE), ("first_key", uint(258)))],
            {"op": "insert", "id": 2, "items": 3, "duplicate": False, "first_key": 258},
        ),
        reply(
            "insert-duplicate",
            "the same message again: the same keys, and nothing more",
            [header("insert", 3, ("items", uint(3)), ("duplicate", TRUE), ("first_key", uint(258)))],
            {"op": "insert", "id": 3, "items": 3, "duplicate": True, "first_key": 258},
        ),
        reply(
            "insert-no-items",
            "without items there is no first_key",
            [header("insert", 4, ("items", uint(0)), ("duplicate", FALSE))],
            {"op": "insert", "id": 4, "items": 0, "duplicate": False, "first_key": None},
        ),
        reply(
            "sample-defaults-omitted",
            "one item that shows one chunk of one step: everything that has its default is left out",
            [
                header(
                    "sample", 5, ("keys", u64s(1)), ("priorities", f64s(1.0)), ("probabilities", f64s(0.25)),
                    ("times_sampled", u32s(1)), ("table_sizes", u64s(4)), ("chunk", u32s(0)), ("length", u32s(1)),
                    ("rows", u32s(1)), ("schemas", array(binary(X))), ("blobs", records((4, 0, 0))),
                ),
                f32(1.5),
            ],
            sampled(
                id=5, keys=[1], priorities=[1.0], probabilities=[0.25], times_sampled=[1], table_sizes=[4], chunk=[0],
                length=[1], rows=[1], schemas=[X], blobs=[[[4, 0, 0]]], payloads=[f32(1.5)],
            ),
        ),
        reply(
            "sample-everything",
            "four items over three chunks of two schemas, the first one drawn twice; windows of two chunks, offsets, "
            "and three templates",
            [
                header(
                    "sample", 6, ("keys", u64s(7, 7, 8, 1 << 52)), ("priorities", f64s(1.0, 1.0, 0.5, 1e90)),
                    ("probabilities", f64s(0.25, 0.25, 0.125, 1.0)), ("times_sampled", u32s(1, 2, 1, 9)),
                    ("table_sizes", u64s(10, 10, 10, 9)), ("chunk", u32s(0, 0, 1, 2)), ("length", u32s(2, 2, 1, 2)),
                    ("rows", u32s(2, 1, 3)), ("schemas", array(binary(OBS_ACTION), binary(OBS_ACTION_REWARD))),
                    ("blobs", records((16, 0, 0), (2, 0, 0), (8, 0, 0), (1, 0, 0), (24, 0, 0), (3, 0, 0), (24, 0, 0))),
                    ("chunks", u32s(2, 2, 1, 1)), ("offset", u32s(1, 1, 0, 1)),
                    ("templates", array(binary(b""), binary(LAST_ACTION), binary(STACKED))),
                    ("template_of", u16s(0, 0, 0, 1)), ("schema_of", u16s(0, 0, 1)),
                ),
                f32(0, 1, 2, 3) + b"\x07\x08" + f32(4, 5) + b"\x09" + f32(6, 7, 8, 9, 10, 11) + b"\x0a\x0b\x0c"
                + struct.pack("<3d", 0.5, -0.5, 1.0),
            ],
            sampled(
                id=6, keys=[7, 7, 8, 1 << 52], priorities=[1.0, 1.0, 0.5, 1e90], probabilities=[0.25, 0.25, 0.125, 1.0],
                times_sampled=[1, 2, 1, 9], table_sizes=[10, 10, 10, 9], chunk=[0, 0, 1, 2], length=[2, 2, 1, 2],
                rows=[2, 1, 3], schemas=[OBS_ACTION, OBS_ACTION_REWARD],
                blobs=[[[16, 0, 0], [2, 0, 0]], [[8, 0, 0], [1, 0, 0]], [[24, 0, 0], [3, 0, 0], [24, 0, 0]]],
                chunks=[2, 2, 1, 1], offset=[1, 1, 0, 1], templates=[b"", LAST_ACTION, STACKED],
                template_of=[0, 0, 0, 1], schema_of=[0, 0, 1],
                payloads=[
                    f32(0, 1, 2, 3) + b"\x07\x08", f32(4, 5) + b"\x09",
                    f32(6, 7, 8, 9, 10, 11) + b"\x0a\x0b\x0c" + struct.pack("<3d", 0.5, -0.5, 1.0),
                ],
            ),
        ),
        reply(
            "sample-omitted",
            "only actions are shown, so obs is not sent: its records have size 0 and the flag OMITTED",
            [
                header(
                    "sample", 7, ("keys", u64s(9)), ("priorities", f64s(1.0)), ("probabilities", f64s(1.0)),
                    ("times_sampled", u32s(1)), ("table_sizes", u64s(1)), ("chunk", u32s(0)), ("length", u32s(2)),
                    ("rows", u32s(2)), ("schemas", array(binary(OBS_ACTION))), ("blobs", records((0, 0, 4), (2, 0, 0))),
                    ("templates", array(binary(LAST_ACTION))),
                ),
                b"\x07\x08",
            ],
            sampled(
                id=7, keys=[9], priorities=[1.0], probabilities=[1.0], times_sampled=[1], table_sizes=[1], chunk=[0],
                length=[2], rows=[2], schemas=[OBS_ACTION], blobs=[[[0, 0, 4], [2, 0, 0]]], templates=[LAST_ACTION],
                payloads=[b"\x07\x08"],
            ),
        ),
        reply(
            "sample-frames",
            "payloads below 16 KiB share a frame, a larger one has a frame of its own",
            [
                header(
                    "sample", 8, ("keys", u64s(1, 2, 3)), ("priorities", f64s(1.0, 1.0, 1.0)),
                    ("probabilities", f64s(0.5, 0.5, 0.5)), ("times_sampled", u32s(1, 1, 1)),
                    ("table_sizes", u64s(3, 3, 3)), ("chunk", u32s(0, 1, 2)), ("length", u32s(1, 1, 1)),
                    ("rows", u32s(1, 4096, 1)), ("schemas", array(binary(X))),
                    ("blobs", records((4, 0, 0), (16384, 0, 0), (4, 0, 0))),
                ),
                f32(1), large, f32(2),
            ],
            sampled(
                id=8, keys=[1, 2, 3], priorities=[1.0, 1.0, 1.0], probabilities=[0.5, 0.5, 0.5],
                times_sampled=[1, 1, 1], table_sizes=[3, 3, 3], chunk=[0, 1, 2], length=[1, 1, 1], rows=[1, 4096, 1],
                schemas=[X], blobs=[[[4, 0, 0]], [[16384, 0, 0]], [[4, 0, 0]]], payloads=[f32(1), large, f32(2)],
            ),
        ),
        reply(
            "sample-no-bytes",
            "chunks without bytes: there is no body",
            [
                header(
                    "sample", 9, ("keys", u64s(1)), ("priorities", f64s(1.0)), ("probabilities", f64s(1.0)),
                    ("times_sampled", u32s(1)), ("table_sizes", u64s(1)), ("chunk", u32s(0)), ("length", u32s(3)),
                    ("rows", u32s(3)), ("schemas", array(binary(EMPTY_COLUMN))), ("blobs", records((0, 0, 0))),
                ),
            ],
            sampled(
                id=9, keys=[1], priorities=[1.0], probabilities=[1.0], times_sampled=[1], table_sizes=[1], chunk=[0],
                length=[3], rows=[3], schemas=[EMPTY_COLUMN], blobs=[[[0, 0, 0]]], payloads=[b""],
            ),
        ),
        reply(
            "sample-later-fields",
            "fields of a later revision are ignored",
            [
                header(
                    "sample", 5, ("keys", u64s(1)), ("priorities", f64s(1.0)), ("probabilities", f64s(0.25)),
                    ("times_sampled", u32s(1)), ("table_sizes", u64s(4)), ("chunk", u32s(0)), ("length", u32s(1)),
                    ("rows", u32s(1)), ("schemas", array(binary(X))), ("blobs", records((4, 0, 0))),
                    ("ages_s", f64s(0.5)), ("notes", mapping(("any", array(NIL, TRUE)))),
                ),
                f32(1.5),
            ],
            sampled(
                id=5, keys=[1], priorities=[1.0], probabilities=[0.25], times_sampled=[1], table_sizes=[4], chunk=[0],
                length=[1], rows=[1], schemas=[X], blobs=[[[4, 0, 0]]], payloads=[f32(1.5)],
            ),
            canonical=False,
        ),
        reply(
            "update",
            "one priority was set, one item deleted, and two keys were not there",
            [header("update", 10, ("updated", uint(1)), ("deleted", uint(1)), ("missing", u64s(2, 99)))],
            {"op": "update", "id": 10, "updated": 1, "deleted": 1, "missing": [2, 99]},
        ),
        reply(
            "update-none-missing",
            "missing is there also when it is empty",
            [header("update", 11, ("updated", uint(0)), ("deleted", uint(0)), ("missing", u64s()))],
            {"op": "update", "id": 11, "updated": 0, "deleted": 0, "missing": []},
        ),
        reply(
            "reset",
            "so many items were removed",
            [header("reset", 12, ("removed", uint(70000)))],
            {"op": "reset", "id": 12, "removed": 70000},
        ),
        reply(
            "info",
            "numbers, words, maps and arrays of them; the keys are in §11",
            [
                header(
                    "info", 13, ("server_id", binary(SERVER)), ("uptime_s", real(1.5)),
                    ("tables", array(mapping(("name", text("replay")), ("size", uint(3)), ("waiting", array())))),
                    ("streams", mapping(("open", uint(1)), ("expired", uint(0)))),
                )
            ],
            {
                "op": "info", "id": 13, "server_id": SERVER.hex(), "uptime_s": 1.5,
                "tables": [{"name": "replay", "size": 3, "waiting": []}], "streams": {"open": 1, "expired": 0},
            },
        ),
        reply("keepalive", "nothing to tell", [header("keepalive", 14)], {"op": "keepalive", "id": 14}),
        reply("withdraw", "nothing to tell", [header("withdraw", 17)], {"op": "withdraw", "id": 17}),
        reply("close_stream", "nothing to tell", [header("close_stream", 15)], {"op": "close_stream", "id": 15}),
        reply(
            "checkpoint",
            "three items are durable; two of their chunks had to be written",
            [
                header(
                    "checkpoint", 16, ("path", text("/var/lib/replayd")), ("host", text("lab")),
                    ("generation", uint(7)), ("duration_s", real(0.5)), ("held_ms", real(1.25)), ("items", uint(3)),
                    ("chunks", uint(2)), ("bytes", uint(70000)), ("size_bytes", uint(1 << 20)),
                )
            ],
            {
                "op": "checkpoint", "id": 16, "path": "/var/lib/replayd", "host": "lab", "generation": 7,
                "duration_s": 0.5, "held_ms": 1.25, "items": 3, "chunks": 2, "bytes": 70000, "size_bytes": 1 << 20,
            },
        ),
        reply(
            "why-flowing",
            "nobody waits; what is unlimited is absent from the limiter",
            [
                header(
                    "why", 16, ("table", text("replay")), ("verdict", text("flowing")),
                    ("advice", text("nobody waits")), ("waiting", array()), ("paused", array()), ("size", uint(3)),
                    ("max_size", uint(1000)),
                    ("limiter", mapping(
                        ("samples_per_insert", real(1.0)), ("min_size_to_sample", uint(2)), ("inserts", uint(3)),
                        ("samples", uint(1)), ("deletes", uint(0)), ("cursor", real(2.0)), ("size", uint(3)),
                    )),
                )
            ],
            {
                "op": "why", "id": 16, "table": "replay", "verdict": "flowing", "advice": "nobody waits", "waiting": [],
                "paused": [], "size": 3, "max_size": 1000,
                "limiter": {
                    "samples_per_insert": 1.0, "min_size_to_sample": 2, "inserts": 3, "samples": 1, "deletes": 0,
                    "cursor": 2.0, "size": 3,
                },
            },
        ),
        reply(
            "why-deadlock",
            "each side waits for the other: an insert for a sample, a sample for inserts",
            [
                header(
                    "why", 17, ("table", text("replay")), ("verdict", text("deadlock")), ("advice", text("widen it")),
                    ("waiting", array(
                        mapping(
                            ("side", text("insert")), ("requests", uint(1)), ("items", uint(2)), ("peers", uint(1)),
                            ("who", array(text("actor.py 7@box"))), ("waited_s", real(2.5)),
                            ("blocked_by", text("max_diff")),
                            ("who_must_act", text("learners")), ("why", text("the cursor 4 may not pass max_diff 4")),
                            ("needs_samples", uint(1)),
                        ),
                        mapping(
                            ("side", text("sample")), ("requests", uint(2)), ("items", uint(200)), ("peers", uint(2)),
                            ("who", array(text("learn.py 8@box"), text("unnamed"))),
                            ("waited_s", real(1.5)), ("blocked_by", text("min_n")), ("who_must_act", text("writers")),
                            ("why", text("4 can pass now")), ("needs_inserts", uint(96)),
                        ),
                    )),
                    ("paused", array()), ("size", uint(4)), ("max_size", uint(1000)),
                    ("limiter", mapping(("cursor", real(4.0)), ("max_diff", real(4.0)))),
                )
            ],
            {
                "op": "why", "id": 17, "table": "replay", "verdict": "deadlock", "advice": "widen it",
                "waiting": [
                    {
                        "side": "insert", "requests": 1, "items": 2, "peers": 1, "who": ["actor.py 7@box"],
                        "waited_s": 2.5, "blocked_by": "max_diff", "who_must_act": "learners",
                        "why": "the cursor 4 may not pass max_diff 4", "needs_samples": 1,
                    },
                    {
                        "side": "sample", "requests": 2, "items": 200, "peers": 2,
                        "who": ["learn.py 8@box", "unnamed"], "waited_s": 1.5, "blocked_by": "min_n",
                        "who_must_act": "writers", "why": "4 can pass now", "needs_inserts": 96,
                    },
                ],
                "paused": [], "size": 4, "max_size": 1000, "limiter": {"cursor": 4.0, "max_diff": 4.0},
            },
        ),
        reply(
            "why-paused",
            "a paused side needs an operator, so nothing says how much of the other side would help",
            [
                header(
                    "why", 18, ("table", text("replay")), ("verdict", text("paused")), ("advice", text("resume it")),
                    ("waiting", array(
                        mapping(
                            ("side", text("sample")), ("requests", uint(1)), ("items", uint(1)), ("peers", uint(1)),
                            ("who", array()), ("waited_s", real(0.5)), ("blocked_by", text("paused")),
                            ("who_must_act", text("operator")), ("why", text("it was paused")),
                        ),
                    )),
                    ("paused", array(text("sample"))), ("size", uint(4)), ("max_size", uint(1000)),
                    ("limiter", mapping(("cursor", real(4.0)))),
                )
            ],
            {
                "op": "why", "id": 18, "table": "replay", "verdict": "paused", "advice": "resume it",
                "waiting": [
                    {
                        "side": "sample", "requests": 1, "items": 1, "peers": 1, "who": [], "waited_s": 0.5,
                        "blocked_by": "paused", "who_must_act": "operator", "why": "it was paused",
                    },
                ],
                "paused": ["sample"], "size": 4, "max_size": 1000, "limiter": {"cursor": 4.0},
            },
        ),
        reply(
            "peek",
            "two items over two chunks, one never drawn; of three keys asked for one was not there",
            [
                header(
                    "peek", 19, ("keys", u64s(7, 1 << 52)), ("priorities", f64s(1.0, 0.5)),
                    ("times_sampled", u32s(0, 3)), ("ages_s", f64s(12.5, 0.25)), ("missing", u64s(3)),
                    ("chunk", u32s(0, 0)), ("length", u32s(2, 2)), ("rows", u32s(2, 1)),
                    ("schemas", array(binary(OBS_ACTION))),
                    ("blobs", records((16, 0, 0), (2, 0, 0), (8, 0, 0), (1, 0, 0))), ("chunks", u32s(1, 2)),
                    ("offset", u32s(0, 1)),
                ),
                f32(0, 1, 2, 3) + b"\x07\x08" + f32(4, 5) + b"\x09",
            ],
            sampled(
                "peek", id=19, keys=[7, 1 << 52], priorities=[1.0, 0.5], times_sampled=[0, 3], ages_s=[12.5, 0.25],
                missing=[3], chunk=[0, 0], chunks=[1, 2], offset=[0, 1], length=[2, 2], rows=[2, 1],
                schemas=[OBS_ACTION], blobs=[[[16, 0, 0], [2, 0, 0]], [[8, 0, 0], [1, 0, 0]]],
                payloads=[f32(0, 1, 2, 3) + b"\x07\x08", f32(4, 5) + b"\x09"],
            ),
        ),
        reply(
            "peek-nothing",
            "nothing was found: no schema, no body",
            [
                header(
                    "peek", 20, ("keys", u64s()), ("priorities", f64s()), ("times_sampled", u32s()), ("ages_s", f64s()),
                    ("missing", u64s(9, 4)), ("chunk", u32s()), ("length", u32s()), ("rows", u32s()),
                    ("schemas", array()), ("blobs", records()),
                ),
            ],
            sampled(
                "peek", id=20, keys=[], priorities=[], times_sampled=[], ages_s=[], missing=[9, 4], chunk=[], length=[],
                rows=[], schemas=[], blobs=[], payloads=[],
            ),
        ),
        reply(
            "set",
            "a band was opened; nil is unlimited, and every setting is told",
            [
                header(
                    "set", 21,
                    ("before", mapping(
                        ("max_size", uint(1000)), ("max_times_sampled", uint(0)), ("samples_per_insert", real(1.5)),
                        ("min_size_to_sample", uint(10)), ("min_diff", NIL), ("max_diff", real(20.0)),
                        ("priority_exponent", real(0.5)), ("paused_inserts", FALSE), ("paused_samples", FALSE),
                    )),
                    ("after", mapping(
                        ("max_size", uint(1000)), ("max_times_sampled", uint(0)), ("samples_per_insert", real(1.5)),
                        ("min_size_to_sample", uint(10)), ("min_diff", NIL), ("max_diff", NIL),
                        ("priority_exponent", real(0.5)), ("paused_inserts", FALSE), ("paused_samples", TRUE),
                    )),
                )
            ],
            {
                "op": "set", "id": 21,
                "before": {
                    "max_size": 1000, "max_times_sampled": 0, "samples_per_insert": 1.5, "min_size_to_sample": 10,
                    "min_diff": None, "max_diff": 20.0, "priority_exponent": 0.5, "paused_inserts": False,
                    "paused_samples": False,
                },
                "after": {
                    "max_size": 1000, "max_times_sampled": 0, "samples_per_insert": 1.5, "min_size_to_sample": 10,
                    "min_diff": None, "max_diff": None, "priority_exponent": 0.5, "paused_inserts": False,
                    "paused_samples": True,
                },
            },
        ),
    ]


def errors() -> list[Vector]:
    def failed(
        name: str, op: str, id: int, code: str, message: str, *pairs: tuple[str, bytes], detail: dict[str, Any]
    ) -> Vector:
        described = {"op": op, "id": id, "error": {"code": code, "message": message, "detail": detail}}
        shows = f"an error reply with code {code}"
        return vector(name, shows, "reply", [error(op, id, code, message, *pairs)], message=described)

    limiter = mapping(
        ("samples_per_insert", real(1.0)), ("min_size_to_sample", uint(2)), ("inserts", uint(1)), ("samples", uint(0)),
        ("deletes", uint(0)), ("cursor", real(1.0)), ("size", uint(1)),
    )
    limiter_numbers = {
        "samples_per_insert": 1.0, "min_size_to_sample": 2, "inserts": 1, "samples": 0, "deletes": 0, "cursor": 1.0,
        "size": 1,
    }
    return [
        failed("bad_message", "", 0, "bad_message", "the header is not a msgpack map", detail={}),
        failed("bad_request", "sample", 1, "bad_request", "n must be at least 1", detail={}),
        failed("unsupported_version", "hello", 2, "unsupported_version", "version 2 is not spoken here",
               ("versions", array(uint(1))), detail={"versions": [1]}),
        failed("unknown_op", "", 3, "unknown_op", "there is no op 'explode'",
               ("ops", array(text("hello"), text("insert"))), detail={"ops": ["hello", "insert"]}),
        failed("unknown_table", "reset", 4, "unknown_table", "there is no table 'elsewhere'",
               ("table", text("elsewhere")), ("tables", array(text("replay"))),
               detail={"table": "elsewhere", "tables": ["replay"]}),
        failed("unknown_stream", "keepalive", 5, "unknown_stream", "the stream is not open here",
               ("stream", binary(STREAM)), detail={"stream": STREAM.hex()}),
        failed("sequence_gap", "insert", 6, "sequence_gap", "message 9 came before 7", ("expected", uint(7)),
               detail={"expected": 7}),
        failed("missing_chunk", "insert", 7, "missing_chunk", "item 0 spans chunk 3", ("item", uint(0)),
               ("chunk", uint(3)), detail={"item": 0, "chunk": 3}),
        failed("signature_mismatch", "insert", 8, "signature_mismatch", "column obs: expected float32[?, 2]",
               ("path", text("obs")), ("expected", text("float32[?, 2]")), ("got", text("float32[2, 3]")),
               ("item", uint(1)),
               detail={"path": "obs", "expected": "float32[?, 2]", "got": "float32[2, 3]", "item": 1}),
        failed("bad_priority", "insert", 9, "bad_priority", "priorities must be finite", ("indices", array(uint(0))),
               detail={"indices": [0]}),
        failed("bad_priority-of-keys", "update", 10, "bad_priority", "priorities must be finite",
               ("keys", array(uint(1 << 52))), detail={"keys": [1 << 52]}),
        failed("limit_exceeded", "sample", 11, "limit_exceeded", "samples is 16384, got 20000",
               ("limit", text("samples")), ("value", uint(16384)), ("got", uint(20000)),
               detail={"limit": "samples", "value": 16384, "got": 20000}),
        failed("table_full", "insert", 20, "table_full", "replay holds 90 of 100 bytes", ("table", text("replay")),
               ("limit", text("max_bytes")), ("value", uint(100)), ("held", uint(90)), ("needed", uint(20)),
               detail={"table": "replay", "limit": "max_bytes", "value": 100, "held": 90, "needed": 20}),
        failed("never_grantable", "sample", 12, "never_grantable", "its limit is 8", ("table", text("replay")),
               ("largest", uint(8)), ("limiter", limiter),
               detail={"table": "replay", "largest": 8, "limiter": limiter_numbers}),
        failed("timeout", "sample", 13, "timeout", "it holds 1 of min_size_to_sample 2 items",
               ("table", text("replay")), ("blocked_by", text("min_size_to_sample")),
               ("who_must_act", text("writers")), ("size", uint(1)), ("limiter", limiter),
               detail={"table": "replay", "blocked_by": "min_size_to_sample", "who_must_act": "writers", "size": 1,
                       "limiter": limiter_numbers}),
        failed("withdrawn", "sample", 21, "withdrawn", "the peer took this sample back", detail={}),
        failed("shutting_down", "info", 14, "shutting_down", "the server is stopping", detail={}),
        failed("loading", "hello", 16, "loading", "the server is reading its store", ("phase", text("chunks")),
               ("done_bytes", uint(5)), ("total_bytes", uint(9)), ("elapsed_s", real(1.5)),
               detail={"phase": "chunks", "done_bytes": 5, "total_bytes": 9, "elapsed_s": 1.5}),
        failed("no_store", "checkpoint", 17, "no_store", "the server was started without a store", detail={}),
        failed("checkpoint_failed", "checkpoint", 18, "checkpoint_failed", "no space left on device",
               ("path", text("/var/lib/replayd")), ("reason", text("no space left on device")),
               detail={"path": "/var/lib/replayd", "reason": "no space left on device"}),
        failed("not_durable", "insert", 20, "not_durable", "the disk takes no more", ("reason", text("no space")),
               detail={"reason": "no space"}),
        failed("forbidden", "reset", 19, "forbidden", "reset takes the role admin", ("name", text("actor-7")),
               ("roles", array(text("actor"))), ("needed", array(text("admin"))),
               detail={"name": "actor-7", "roles": ["actor"], "needed": ["admin"]}),
        failed("code-of-a-later-version", "info", 15, "too_windy", "codes may be added", detail={}),
    ]


# --- blobs ------------------------------------------------------------------------------------------------------------


def blobs() -> list[Vector]:
    def schema(name: str, shows: str, blob: bytes, columns: list[Any]) -> Vector:
        return vector(f"schema-{name}", shows, "blob", [blob], kind="schema", message=columns)

    def template(name: str, shows: str, blob: bytes, outputs: list[Any]) -> Vector:
        return vector(f"template-{name}", shows, "blob", [blob], kind="template", message=outputs)

    def bad_schema(name: str, shows: str, blob: bytes, code: str = "bad_message") -> Vector:
        return vector(f"refused-schema-{name}", shows, "blob", [blob], kind="schema", error=code)

    def bad_template(name: str, shows: str, blob: bytes, code: str = "bad_message") -> Vector:
        return vector(f"refused-template-{name}", shows, "blob", [blob], kind="template", error=code)

    def data(
        name: str, shows: str, blob: bytes, codec: int, flags: int, dtype: str, shape: list[int], rows: Any
    ) -> Vector:
        """`rows`: the values of each row, None for a row in which the column is missing."""
        message = {"codec": codec, "flags": flags, "dtype": dtype, "shape": shape, "rows": rows}
        return vector(f"column-{name}", shows, "blob", [blob], kind="column", message=message)

    dtypes = (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
        "float64", "complex64", "complex128", "bytes", "str",
    )
    ramp = list(range(64))
    return [
        schema("bare-array", "a step that is one array: the path is empty", array(column(path(), "float32", 3)),
               [[[], "float32", [3]]]),
        schema("nested", "keys of maps and positions in lists",
               array(column(path("obs", "pos", 0), "int16", 2, 3), column(path("obs", "größe"), "bool")),
               [[["obs", "pos", 0], "int16", [2, 3]], [["obs", "größe"], "bool", []]]),
        schema("every-dtype", "all sixteen",
               array(*(column(path(dtype), dtype) for dtype in dtypes)), [[[dtype], dtype, []] for dtype in dtypes]),
        schema("unusual-names", "any characters but control characters",
               array(column(path(" "), "uint8"), column(path("\u00a0"), "uint8"), column(path("\u200b🙂"), "uint8")),
               [[[" "], "uint8", []], [["\u00a0"], "uint8", []], [["\u200b🙂"], "uint8", []]]),
        schema("zero-size", "a dimension may be 0", EMPTY_COLUMN, [[["nothing"], "float32", [0]]]),
        template("identity", "no bytes: every column over the whole window", b"", []),
        template("columns", "two columns over the whole window, under other names",
                 array(output(path("a"), 1, False), output(path("b", 0), 0, False)),
                 [[["a"], False, [[1, []]]], [["b", 0], False, [[0, []]]]]),
        template("squeezed", "one row without its leading axis", LAST_ACTION,
                 [[["last"], True, [[1, [[1, 1, 1]]]]]]),
        template("squeezed-window", "the whole window, which must have one row", array(output(path("x"), 0, True)),
                 [[["x"], True, [[0, []]]]]),
        template("runs", "rows in any order, repeated, and backwards", STACKED,
                 [[["obs"], False, [[0, [[0, 2, 1], [1, 2, 1]]]]], [["back"], False, [[1, [[1, 2, -1]]]]]]),
        template("same-row", "stride 0 shows a row again and again", array(output(path("x"), 0, False, 3, 4, 0)),
                 [[["x"], False, [[0, [[3, 4, 0]]]]]]),
        template("joined", "rows 0 and 1 of one column, row 2 of another, row 0 of the first",
                 array(joined(path("x"), part(0, 0, 2, 1), part(1, 2, 1, 1), part(0, 0, 1, 1))),
                 [[["x"], False, [[0, [[0, 2, 1]]], [1, [[2, 1, 1]]], [0, [[0, 1, 1]]]]]]),
        # What neither side takes.
        bad_schema("empty", "a schema has columns", array()),
        bad_schema("not-msgpack", "a schema is msgpack", b"\xc1"),
        bad_schema("map", "a schema is an array", mapping()),
        bad_schema("trailing", "nothing behind the array", X + b"\0"),
        bad_schema("dtype", "dtypes are named in §4.1", array(column(path("x"), "object"))),
        bad_schema("byte-order", "without byte order", array(column(path("x"), "<f4"))),
        bad_schema("twice", "paths are distinct", array(column(path("x"), "float32"), column(path("x"), "float32"))),
        bad_schema("inside", "no column inside another",
                   array(column(path("x"), "float32"), column(path("x", "y"), "float32"))),
        bad_schema("mixed", "a container has keys or positions, not both",
                   array(column(path("x", "y"), "float32"), column(path("x", 0), "float32"))),
        bad_schema("dimensions", "at most 16", array(column(path("x"), "float32", *[1] * 17)), "limit_exceeded"),
        bad_schema("huge-step", "a step is below 2^31 bytes", array(column(path("x"), "float32", 1 << 20, 1 << 20)),
                   "limit_exceeded"),
        bad_schema("huge-step-of-nothing", "also when a zero hides it",
                   array(column(path("x"), "float32", 0, 1 << 62, 1 << 62)), "limit_exceeded"),
        bad_schema("negative-shape", "sizes are unsigned",
                   array(array(path("x"), text("float32"), array(negative(-1))))),
        bad_schema("deep", "a path has at most 16 components", array(column(path(*"abcdefghijklmnopq"), "float32")),
                   "limit_exceeded"),
        bad_template("empty-array", "a template has output columns", array()),
        bad_template("two-fields", "an output column has three", array(array(path("x"), FALSE))),
        bad_template("no-parts", "and at least one part", array(joined(path("x")))),
        bad_template("half-a-part", "a part has a column and runs", array(joined(path("x"), array(uint(0))))),
        bad_template("joined-window", "a part without runs is the only one",
                     array(joined(path("x"), part(0, 0, 1, 1), part(1)))),
        bad_template("joined-squeeze", "two rows cannot be squeezed", array(
            array(path("x"), TRUE, array(part(0, 0, 1, 1), part(1, 0, 1, 1))))),
        bad_template("far-column", "a schema has at most 512 columns", array(output(path("x"), 512, False)),
                     "limit_exceeded"),
        bad_template("outside", "rows lie in the window", array(output(path("x"), 0, False, 0, 2, -1))),
        bad_template("half-a-run", "runs are triples", array(output(path("x"), 0, False, 0, 1))),
        bad_template("no-rows", "each run has rows", array(output(path("x"), 0, False, 0, 0, 1))),
        bad_template("squeeze", "only one row can be squeezed", array(output(path("x"), 0, True, 0, 2, 0))),
        bad_template("far-stride", "a stride stays below 2^20, used or not",
                     array(output(path("x"), 0, False, 0, 1, 1 << 20)), "limit_exceeded"),
        data("raw", "rows one behind the other, little-endian", f32(1.5, -2.0, 3.25, 0.5), 0, 0, "float32", [2],
             [[1.5, -2.0], [3.25, 0.5]]),
        data("raw-delta", "each row but the first is XORed with the row before", b"\x05\x03\x00\x80", 0, 1, "uint8", [],
             [0x05, 0x06, 0x06, 0x86]),
        data("raw-delta-wide", "bytewise, whatever the dtype", f32(1.5) + struct.pack("<I", 0x80000000) + bytes(4), 0,
             1, "float32", [], [1.5, -1.5, -1.5]),
        data("sparse", "rows 0 and 9 of ten are there", b"\x01\x02" + struct.pack("<2h", 7, -7), 0, 2, "int16", [],
             [7, *[None] * 8, -7]),
        data("sparse-delta", "the difference is that of rows which are there", b"\x05\x10\x01", 0, 3, "uint8", [],
             [0x10, None, 0x11]),
        data("sparse-nothing", "a column missing from every row", b"", 0, 2, "int16", [], [None, None]),
        data("no-rows-of-bytes", "steps of no values", b"", 0, 0, "float32", [0], [[], []]),
        data("bytes", "the lengths of all values, then all values; here in hex", cells(b"\0\xff", b"", b"x"), 0, 0,
             "bytes", [], ["00ff", "", "78"]),
        data("str", "lengths are those of the UTF-8", cells("größe".encode(), b"a", "🙂".encode(), b""), 0, 0, "str",
             [2], [["größe", "a"], ["🙂", ""]]),
        data("sparse-str", "rows 1 and 2 of three are there", b"\x06" + cells(b"a", b"bc"), 0, 2, "str", [],
             [None, "a", "bc"]),
        data("no-str", "steps of no values have no lengths", b"", 0, 0, "str", [0], [[], []]),
        data("blosc2-bytes", "40 values, which blosc2 compressed with ZSTD", bytes.fromhex(BLOSC2_CELLS), 2, 0, "bytes",
             [], [(b"frame %d " % (n % 3) * (n % 4)).hex() for n in range(40)]),
        data("blosc1", "a blosc1 chunk which stores its bytes plainly",
             struct.pack("<4B3I", 2, 1, 2, 1, 8, 8, 24) + b"abcdefgh", 1, 0, "uint8", [4],
             [[97, 98, 99, 100], [101, 102, 103, 104]]),
        data("blosc2-lz4", "64 rows, shuffled and compressed by blosc2 with LZ4", bytes.fromhex(BLOSC2_LZ4), 2, 0,
             "int64", [], ramp),
        data("blosc2-zstd-delta", "64 rows, differences compressed by blosc2 with ZSTD", bytes.fromhex(BLOSC2_ZSTD), 2,
             1, "int64", [], ramp),
        data("sparse-blosc2", "a bitmap, and a chunk with the rows that are there",
             b"\xff" * 8 + b"\x00" + bytes.fromhex(BLOSC2_LZ4), 2, 2, "int64", [], [*ramp, None, None, None]),
    ]


BLOSC2_LZ4 = (
    "0501250800020000000200008400000001000000000001000000000000000000240000004000000000010203040506070809"
    "0a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b"
    "3c3d3e3f00000000000000000000000000000000000000000000000000000000"
)
BLOSC2_ZSTD = (
    "0501950800020000000200006700000000000000000005000000000000000000240000003f00000028b52ffd600001ad0100"
    "62080b0bb025e90c453315b3814c01ff6663b361b3b15960b3b1d9b0d9d86cb0d9d86cd86c6c16d86c6c366c36363b3f5402"
    "000301"
)
"""Chunks as the blosc2 library wrote them (64 values of 8 bytes, 0 to 63)."""
BLOSC2_CELLS = (
    "0501950180020000800200009800000000000000000005000000000000000000240000007000000028b52ffd608001350300"
    "a40200000000080000001000000018006672616d6520312032303231303231303231303231303231303231302920f0950353"
    "1e3c70aff2b317ee557ef6857b959fbd70aff2b317ee55feec857b959fbd70aff2b317eeadfcec857b35435d4c0e9c181a0c"
    "4c09"
)
"""Likewise (the lengths and the bytes of 40 values)."""


# --- one session ------------------------------------------------------------------------------------------------------


def session() -> list[Vector]:
    """A whole session in order, the worked example of protocol.md §13."""
    actor = bytes.fromhex("a0a1a2a3a4a5a6a7a8a9aaabacadaeaf")
    first = f32(0.5, -1.0, 0.25, 2.0) + b"\x01\x00"
    second = f32(1.5, 4.0) + b"\x02"
    return [
        vector(
            "hello-request", "the actor introduces itself", "request",
            [header("hello", 1, ("client", text("actor 7")))],
            message={"op": "hello", "id": 1, "client": "actor 7"}, peer="actor",
        ),
        vector(
            "hello-reply", "the server has one table; its limits are left out here", "reply",
            [
                header(
                    "hello", 1, ("server_id", binary(SERVER)), ("server", text("replayd 1.0")),
                    ("versions", array(uint(1))), ("codecs", array(uint(0), uint(1), uint(2))),
                    ("window_messages", uint(128)), ("window_bytes", uint(1 << 26)), ("lease_ms", uint(60000)),
                    ("max_wait_ms", uint(60000)), ("limits", mapping()), ("tables", mapping(("replay", mapping()))),
                )
            ],
            message={
                "op": "hello", "id": 1, "server_id": SERVER.hex(), "server": "replayd 1.0", "versions": [1],
                "codecs": [0, 1, 2], "window_messages": 128, "window_bytes": 1 << 26, "lease_ms": 60000,
                "max_wait_ms": 60000, "limits": {}, "tables": {"replay": {}},
            },
            peer="actor",
        ),
        vector(
            "insert-1-request", "chunk 0 with two steps, and an item that shows both", "request",
            [
                insert(
                    2, 0, 0, ("first_chunk", uint(0)), ("rows", u32s(2)), ("schemas", array(binary(OBS_ACTION))),
                    ("blobs", records((16, 0, 0), (2, 0, 0))), ("tables", array(text("replay"))), ("chunk", u64s(0)),
                    ("length", u32s(2)), ("priority", f64s(1.0)), stream=actor,
                ),
                first,
            ],
            message=insert_of(
                2, 0, 0,
                chunks_of(0, [2], [OBS_ACTION], blobs=[[[16, 0, 0], [2, 0, 0]]], payloads=[first]),
                items_of(["replay"], [0], [2], [1.0]), actor,
            ),
            peer="actor",
        ),
        vector(
            "insert-1-reply", "the item is in the table and has key 1", "reply",
            [header("insert", 2, ("items", uint(1)), ("duplicate", FALSE), ("first_key", uint(1)))],
            message={"op": "insert", "id": 2, "items": 1, "duplicate": False, "first_key": 1}, peer="actor",
        ),
        vector(
            "sample-request", "the learner wants an item, but the table asks for two before it gives one: it waits",
            "request",
            [
                header(
                    "sample", 1, ("table", text("replay")), ("n", uint(1)), ("min_n", uint(1)),
                    ("timeout_ms", uint(5000)),
                )
            ],
            message={"op": "sample", "id": 1, "table": "replay", "n": 1, "min_n": 1, "timeout_ms": 5000},
            peer="learner",
        ),
        vector(
            "insert-2-request", "chunk 1 with one step, and an item over the last step of chunk 0 and that one",
            "request",
            [
                insert(
                    3, 1, 1, ("first_chunk", uint(1)), ("rows", u32s(1)), ("schemas", array(binary(OBS_ACTION))),
                    ("blobs", records((8, 0, 0), (1, 0, 0))), ("tables", array(text("replay"))), ("chunk", u64s(0)),
                    ("length", u32s(2)), ("priority", f64s(2.0)), ("chunks", u32s(2)), ("offset", u32s(1)),
                    stream=actor,
                ),
                second,
            ],
            message=insert_of(
                3, 1, 1,
                chunks_of(1, [1], [OBS_ACTION], blobs=[[[8, 0, 0], [1, 0, 0]]], payloads=[second]),
                items_of(["replay"], [0], [2], [2.0], chunks=[2], offset=[1]), actor,
            ),
            peer="actor",
        ),
        vector(
            "insert-2-reply", "the second item is in the table and has key 2", "reply",
            [header("insert", 3, ("items", uint(1)), ("duplicate", FALSE), ("first_key", uint(2)))],
            message={"op": "insert", "id": 3, "items": 1, "duplicate": False, "first_key": 2}, peer="actor",
        ),
        vector(
            "sample-reply", "which lets the learner's request pass: the item of the largest priority", "reply",
            [
                header(
                    "sample", 1, ("keys", u64s(2)), ("priorities", f64s(2.0)), ("probabilities", f64s(1.0)),
                    ("times_sampled", u32s(1)), ("table_sizes", u64s(2)), ("chunk", u32s(0)), ("length", u32s(2)),
                    ("rows", u32s(2, 1)), ("schemas", array(binary(OBS_ACTION))),
                    ("blobs", records((16, 0, 0), (2, 0, 0), (8, 0, 0), (1, 0, 0))), ("chunks", u32s(2)),
                    ("offset", u32s(1)),
                ),
                first + second,
            ],
            message=sampled(
                id=1, keys=[2], priorities=[2.0], probabilities=[1.0], times_sampled=[1], table_sizes=[2], chunk=[0],
                length=[2], rows=[2, 1], schemas=[OBS_ACTION],
                blobs=[[[16, 0, 0], [2, 0, 0]], [[8, 0, 0], [1, 0, 0]]], chunks=[2], offset=[1],
                payloads=[first, second],
            ),
            peer="learner",
        ),
        vector(
            "update-request", "new priorities for keys 1 and 99, and key 2 is deleted", "request",
            [
                header(
                    "update", 2, ("table", text("replay")), ("keys", u64s(1, 99)), ("priorities", f64s(0.5, 1.0)),
                    ("deletes", u64s(2)),
                )
            ],
            message={"op": "update", "id": 2, "table": "replay", "keys": [1, 99], "priorities": [0.5, 1.0],
                     "deletes": [2]},
            peer="learner",
        ),
        vector(
            "update-reply", "key 99 was not in the table", "reply",
            [header("update", 2, ("updated", uint(1)), ("deleted", uint(1)), ("missing", u64s(99)))],
            message={"op": "update", "id": 2, "updated": 1, "deleted": 1, "missing": [99]}, peer="learner",
        ),
    ]


# fmt: on
GROUPS = {
    "requests": requests,
    "refusals": refusals,
    "replies": replies,
    "errors": errors,
    "blobs": blobs,
    "session": session,
}


def rendered(group: str) -> str:
    """The contents of a group's file."""
    vectors = GROUPS[group]()
    names = [vector["name"] for vector in vectors]
    assert len(set(names)) == len(names), f"{group}: a name stands twice"
    return json.dumps({"vectors": vectors}, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for group in GROUPS:
        (VECTORS / f"{group}.json").write_text(rendered(group), encoding="utf-8")
