"""Any frames at all: the server decodes them or raises Undecodable, the client decodes them or raises ProtocolError.

Nothing else may come out of a codec, and nothing may be allocated because a length says so. What does decode, a service
answers, and stays whole.
"""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayd import selectors
from replayd.blobs import parse_schema, parse_template
from replayd.errors import WIRE_ERRORS, BadMessage, LimitExceeded
from replayd.limits import NESTING, STEP_BYTES
from replayd.messages import Failed, Request
from replayd.rate_limiters import MinSize
from replayd.service import Service
from replayd.table import Table
from replayd.wire import Undecodable, decode, encode
from replayd_client.columns import Schema
from replayd_client.errors import DataError, ProtocolError
from replayd_client.templates import Template
from replayd_client.wire import decode_reply
from tests.wire.descriptions import frames, vectors

Frames = list[bytes]
Draw = Callable[[st.SearchStrategy[Any]], Any]

EVERYTHING = [vector for group in ("requests", "refusals", "session", "replies", "errors") for vector in vectors(group)]
REQUESTS = [frames(vector) for vector in EVERYTHING if vector["direction"] == "request"]
# The one reply with a body of 16 KiB only makes the others rarer.
REPLIES = [
    frames(vector) for vector in EVERYTHING if vector["direction"] == "reply" and vector["name"] != "sample-frames"
]
BLOBS = [frames(vector)[0] for vector in vectors("blobs") if vector["kind"] != "column"]
CODES = {error.code for error in WIRE_ERRORS}


def service() -> Service:
    table = Table("replay", selectors.MaxHeap(), selectors.Fifo(), 100, MinSize(2))
    return Service([table], server_id=bytes(16), version="1", seed=0, started_at=0.0)


def server_reads(given: Frames, pushed: bool = False) -> tuple[str, Request] | None:
    """The request, or None for frames that are none; anything else fails the test."""
    try:
        return decode(given, pushed=pushed)
    except Undecodable as undecodable:
        fault = undecodable
    assert fault.error.code in CODES
    asked = service()
    asked.refuse("peer", fault.op, fault.id, fault.error)
    [(_, refusal)] = asked.drain()
    assert decode_reply(encode(refusal)).id == fault.id, "the sender could not read why it was refused"
    return None


def client_reads(given: Frames) -> None:
    with contextlib.suppress(ProtocolError):
        decode_reply(given)


# --- frames of many kinds ---------------------------------------------------------------------------------------------


def flip_a_bit(draw: Draw, given: Frames) -> Frames:
    return at_a_place(draw, given, lambda data, at: data[:at] + bytes([data[at] ^ 1 << draw(BITS)]) + data[at + 1 :])


def cut_a_frame(draw: Draw, given: Frames) -> Frames:
    return at_a_place(draw, given, lambda data, at: data[:at])


def put_bytes_in(draw: Draw, given: Frames) -> Frames:
    return at_a_place(draw, given, lambda data, at: data[:at] + draw(st.binary(min_size=1, max_size=9)) + data[at:])


def forge_a_length(draw: Draw, given: Frames) -> Frames:
    """Lengths and counts are one to eight bytes somewhere; they become as large as they can be, or 0."""
    size = draw(st.sampled_from((1, 2, 4, 8)))
    forged = draw(st.sampled_from((b"\xff", b"\x7f", b"\x00"))) * size
    return at_a_place(draw, given, lambda data, at: data[:at] + forged + data[at + len(forged) :])


def claim_more(draw: Draw, given: Frames) -> Frames:
    """A msgpack head that promises thousands of millions of bytes or entries."""
    head = draw(st.sampled_from([bytes([code]) + b"\xff\xff\xff\xff" for code in (0xC6, 0xC9, 0xDB, 0xDD, 0xDF)]))
    return at_a_place(draw, given, lambda data, at: data[:at] + head + data[at:])


def drop_a_frame(draw: Draw, given: Frames) -> Frames:
    at = draw(st.integers(0, max(len(given) - 1, 0)))
    return given[:at] + given[at + 1 :]


def repeat_a_frame(draw: Draw, given: Frames) -> Frames:
    at = draw(st.integers(0, max(len(given) - 1, 0)))
    return given[: at + 1] + given[at:]


def shuffle_frames(draw: Draw, given: Frames) -> Frames:
    return list(draw(st.permutations(given)))


def add_a_frame(draw: Draw, given: Frames) -> Frames:
    at = draw(st.integers(0, len(given)))
    return [*given[:at], draw(st.one_of(st.just(b""), st.binary(max_size=20))), *given[at:]]


def split_a_frame(draw: Draw, given: Frames) -> Frames:
    if not given:
        return given
    which = draw(st.integers(0, len(given) - 1))
    at = draw(st.integers(0, len(given[which])))
    return [*given[:which], given[which][:at], given[which][at:], *given[which + 1 :]]


def at_a_place(draw: Draw, given: Frames, change: Callable[[bytes, int], bytes]) -> Frames:
    places = [which for which, frame in enumerate(given) if frame]
    if not places:
        return given
    which = draw(st.sampled_from(places))
    at = draw(st.integers(0, len(given[which]) - 1))
    return [*given[:which], change(given[which], at), *given[which + 1 :]]


BITS = st.integers(0, 7)
MUTATIONS = (
    flip_a_bit, cut_a_frame, put_bytes_in, forge_a_length, claim_more, drop_a_frame, repeat_a_frame, shuffle_frames,
    add_a_frame, split_a_frame,
)  # fmt: skip


@st.composite
def mutated(draw: Draw, corpus: list[Frames]) -> Frames:
    given = draw(st.sampled_from(corpus))
    for mutate in draw(st.lists(st.sampled_from(MUTATIONS), min_size=1, max_size=3)):
        given = mutate(draw, given)
    return list(given)


NUMBERS = st.one_of(
    st.integers(0, 3),
    st.sampled_from([(1 << bits) + more for bits in (8, 16, 20, 31, 32, 53, 62, 63, 64) for more in (-1, 0)][:-1]),
)
FLOATS = st.one_of(st.floats(), st.sampled_from([0.0, -0.0, 1e90, 1.7e308]))


def packed(code: str, values: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[bytes]:
    fitting = st.lists(values.map(lambda v: min(v, most) if most else v), max_size=4)
    return fitting.map(lambda list_: struct.pack(f"<{len(list_)}{code}", *list_))


ARRAYS = st.one_of(
    packed("Q", NUMBERS, (1 << 64) - 1),
    packed("I", NUMBERS, (1 << 32) - 1),
    packed("H", NUMBERS, (1 << 16) - 1),
    packed("d", FLOATS, 0),
    st.lists(st.tuples(NUMBERS, BITS, BITS), max_size=4).map(
        lambda blobs: b"".join(struct.pack("<IBBH", min(n, (1 << 32) - 1), c, f, 0) for n, c, f in blobs)
    ),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.integers(-2, 0), FLOATS, st.text(max_size=4), ARRAYS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@cache
def known_maps(kind: str) -> list[tuple[dict[str, Any], Frames]]:
    """Vectors whose header is a map, taken apart."""
    found = []
    for message in REQUESTS if kind == "request" else REPLIES:
        with contextlib.suppress(ValueError, msgpack.UnpackException):
            header = msgpack.unpackb(message[0]) if message else None
            if isinstance(header, dict):
                found.append((header, message[1:]))
    assert len(found) > 10
    return found


@st.composite
def strange_fields(draw: Draw, kind: str) -> Frames:
    """A message whose form is right and some of whose fields are not."""
    header, body = draw(st.sampled_from(known_maps(kind)))
    header = dict(header)
    names = sorted({name for known, _ in known_maps(kind) for name in known if isinstance(name, str)})
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3)):
        if draw(st.booleans()) or name not in header:
            header[name] = draw(st.one_of(ARRAYS, NUMBERS) if draw(st.booleans()) else VALUES)
        else:
            del header[name]
    return [msgpack.packb(header), *body]


RAW = st.lists(st.binary(max_size=40), max_size=4)
ANY_REQUEST = st.one_of(RAW, mutated(REQUESTS), mutated(REPLIES), strange_fields("request"))
ANY_REPLY = st.one_of(RAW, mutated(REPLIES), mutated(REQUESTS), strange_fields("reply"))


# --- what they may lead to --------------------------------------------------------------------------------------------


@given(ANY_REQUEST, st.booleans())
def test_any_frames_are_a_request_or_undecodable(given: Frames, pushed: bool) -> None:
    server_reads(given, pushed)


@given(ANY_REQUEST)
def test_frames_that_are_views_are_read_like_bytes(given: Frames) -> None:
    server_reads([memoryview(frame) for frame in given])  # type: ignore[list-item]


@given(ANY_REPLY)
def test_any_frames_are_a_reply_or_a_protocol_error(given: Frames) -> None:
    client_reads(given)


@st.composite
def strange_inserts(draw: Draw) -> Frames:
    """The next insert of the session's stream, with chunks and items that may not be in it."""
    [later] = [vector for vector in vectors("session") if vector["name"] == "insert-2-request"]
    header, *body = frames(later)
    fields = msgpack.unpackb(header)
    u16, u32, u64 = (packed(code, NUMBERS, (1 << bits) - 1) for code, bits in (("H", 16), ("I", 32), ("Q", 64)))
    strange = {
        "seq": NUMBERS, "keep_from": NUMBERS, "first_chunk": NUMBERS, "rows": u32, "schema_of": u16,
        "episodes": u64, "policy_versions": u64, "table_of": u16, "chunk": u64, "chunks": u32, "offset": u32,
        "length": u32, "template_of": u16,
        "templates": st.lists(st.sampled_from(BLOBS), max_size=2),
        "schemas": st.lists(st.sampled_from(BLOBS), max_size=2),
        "priority": packed("d", FLOATS, 0), "tables": st.lists(st.sampled_from(["replay", "elsewhere"]), max_size=2),
    }  # fmt: skip
    for name in draw(st.lists(st.sampled_from(sorted(strange)), min_size=1, max_size=4, unique=True)):
        fields[name] = draw(strange[name])
    return [msgpack.packb(fields), *body]


STRANGE = st.one_of(st.tuples(strange_inserts(), st.booleans()), st.tuples(ANY_REQUEST, st.booleans()))


@given(st.lists(STRANGE, min_size=1, max_size=4))
def test_whatever_decodes_is_answered_and_leaves_the_service_whole(messages: list[tuple[Frames, bool]]) -> None:
    asked = service()
    for vector in vectors("session"):
        if vector["name"] == "insert-1-request":
            op, request = decode(frames(vector))
            assert asked.handle(vector["peer"], op, request, now=0.0) is None
    asked.drain()
    waiting = 0
    for now, (message, pushed) in enumerate(messages, start=1):
        read = server_reads(message, pushed)
        if read is None:
            continue
        asked.handle(None if pushed else "peer", *read, now=float(now))
        asked.validate()
        answers = asked.drain()
        waiting += (not pushed) - len(answers)
        for _, reply in answers:
            decode_reply(encode(reply))
    asked.stop()
    assert waiting == len(asked.drain()), "not every request has exactly one answer"


@st.composite
def descriptions(draw: Draw) -> bytes:
    path = st.lists(st.one_of(st.text(max_size=2), NUMBERS), max_size=3)
    # Up to 2^31 − 33 bytes a step both sides agree; a test of limits looks at the rest.
    sizes = st.lists(NUMBERS.filter(lambda size: not (1 << 31) - 33 < size <= 1 << 31), max_size=1) | st.lists(
        st.integers(0, 1 << 9), max_size=3
    )
    column = st.tuples(path, st.sampled_from(["float32", "bool", "str", "object"]), sizes)
    numbers = st.one_of(NUMBERS, st.integers(-3, 0))
    parts = st.lists(st.tuples(numbers, st.lists(numbers, max_size=6)), max_size=3)
    output = st.tuples(path, st.booleans(), parts)
    made = st.lists(st.one_of(column, output, VALUES), max_size=3).map(msgpack.packb)
    blob: bytes = draw(st.one_of(made, mutated([[blob] for blob in BLOBS]).map(b"".join), st.binary(max_size=40)))
    return blob


@given(descriptions())
def test_a_description_which_the_server_takes_can_be_read_by_clients(blob: bytes) -> None:
    for parse, read in ((parse_schema, Schema.decode), (parse_template, Template.decode)):
        try:
            parse(blob)
        except (BadMessage, LimitExceeded):
            with contextlib.suppress(DataError):
                read(blob)
        else:
            read(blob)


def test_the_largest_step_is_the_same_on_both_sides() -> None:
    blob = msgpack.packb([[["x"], "uint8", [STEP_BYTES.value]]])
    parse_schema(blob)
    Schema.decode(blob)


# --- memory -----------------------------------------------------------------------------------------------------------

HELLO = msgpack.packb({"v": 1, "op": "hello", "id": 1})
FORGED = {
    "bin32": b"\xc6\xff\xff\xff\xff",
    "ext32": b"\xc9\xff\xff\xff\xff\x01",
    "str32": b"\xdb\xff\xff\xff\xff",
    "array32": b"\xdd\xff\xff\xff\xff",
    "map32": b"\xdf\xff\xff\xff\xff",
    "arrays in arrays": b"\xdd\x00\x00\x01\x00" * 1000,
    "maps in arrays": b"\x91\x81\xa1x" * 10_000,
    "empty arrays": b"\xdc\x01\x00" + b"\xdc\x01\x00" + b"\x90" * 256 + b"\xc0" * 255,
}


@pytest.mark.parametrize("read", [server_reads, client_reads])
@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_forged_length_costs_no_memory(forged: bytes, read: Callable[[Frames], object]) -> None:
    given = [b"\x84" + HELLO[1:] + b"\xa1x" + forged]
    assert peak_bytes(lambda: read(given)) < 4 << 20


@pytest.mark.parametrize("field", ["rows", "priority", "length", "chunk", "blobs", "episodes", "policy_versions"])
def test_an_array_that_is_too_long_costs_a_few_times_its_own_size(field: str) -> None:
    [inserted] = [v for v in vectors("requests") if v["name"] == "insert-one"]
    header, *body = frames(inserted)
    fields = msgpack.unpackb(header)
    fields[field] = fields.get(field, bytes(8)) * 400_000
    given = [msgpack.packb(fields), *body]
    assert peak_bytes(lambda: server_reads(given)) < 5 * len(given[0])


def test_huge_counts_in_packed_arrays_cost_no_memory() -> None:
    """Rows, chunks and lengths of four thousand million each, and what they would take is refused or not made."""
    [inserted] = [v for v in vectors("requests") if v["name"] == "insert-one"]
    header, *body = frames(inserted)
    for field in ("rows", "length", "chunks", "offset"):
        given = [msgpack.packb({**msgpack.unpackb(header), field: b"\xff" * 4}), *body]
        assert peak_bytes(lambda given=given: handled(given)) < 4 << 20


@pytest.mark.parametrize("first_chunk", [1 << 24, 1 << 61])
def test_chunk_numbers_far_ahead_of_their_stream_cost_no_memory(first_chunk: int) -> None:
    asked = service()
    opening, later = (v for v in vectors("session") if v["name"] in ("insert-1-request", "insert-2-request"))
    assert asked.handle("peer", *decode(frames(opening)), now=0.0) is None
    header, *body = frames(later)
    fields = {
        **msgpack.unpackb(header),
        "first_chunk": first_chunk,
        "keep_from": 0,
        "chunk": bytes(8),
        "chunks": b"\1\0\0\0",
    }
    fields["length"] = b"\1\0\0\0"
    request = decode([msgpack.packb(fields), *body])
    assert peak_bytes(lambda: asked.handle("peer", *request, now=1.0)) < 4 << 20
    asked.validate()


def handled(given: Frames) -> None:
    read = server_reads(given)
    if read is not None:
        asked = service()
        asked.handle("peer", *read, now=0.0)
        asked.validate()


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("depth", [1, 7, 8, 9, 100, 500, 900, 1000, 1010, 1020, 1023, 1024, 1100, 20_000])
@pytest.mark.parametrize("place", ["op", "v", "id", "table", "client", "nobody knows it", "schemas", "changes"])
def test_nesting_of_any_depth_is_refused_or_read(place: str, depth: int) -> None:
    nested = b"\x91" * depth + b"\x90"
    if place == "schemas":
        nested = b"\x91" + msgpack.packb(b"\x93\x90" + nested + b"\x90")
    if place == "changes":
        nested = b"\x81\xa8max_size" + nested
    fields = {
        "v": 1,
        "op": {"table": "reset", "client": "hello", "schemas": "insert", "changes": "set"}.get(place, "info"),
    }
    fields |= {"id": 1, "rows": bytes([1, 0, 0, 0]), "first_chunk": 0, "table": "t"}
    packed = b"".join(msgpack.packb(key) + msgpack.packb(value) for key, value in fields.items() if key != place)
    header = bytes([0x80 + len(fields) + (place not in fields)]) + packed + msgpack.packb(place) + nested
    message = [header, b""] if place == "schemas" else [header]
    with contextlib.suppress(Undecodable):
        decode(message)
        assert depth <= NESTING.value
        return
    with pytest.raises(Undecodable) as caught:
        decode(message)
    fault = caught.value
    encode(Failed(fault.op, fault.id, fault.error.code, fault.error.message, fault.error.detail))
