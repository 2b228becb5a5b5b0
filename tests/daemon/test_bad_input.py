"""Hostile messages to a real daemon: each is refused to its sender alone, changes nothing, and others are served."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import msgpack
import pytest

from tests.daemon.conftest import ConnectPeer, StartDaemon
from tests.daemon.harness import REPLY_S, DaemonProcess, Peer
from tests.wire.descriptions import frames, vectors

STREAM = bytes.fromhex("0badc0de" * 4)
SCHEMA = msgpack.packb([[["x"], "float32", []]])

Frames = list[bytes]


# One daemon for all of it: what one message broke, the next one would show.
TABLES = {
    "replay": "",
    "signed": """signature = [
        { path = ["obs"], dtype = "float32", shape = [-1, 2] },
        { path = ["action"], dtype = "int32", shape = [3] },
    ]""",
}


@pytest.fixture
def hostile(connect: ConnectPeer, server: DaemonProcess) -> Peer:
    return connect(server)


@pytest.fixture
def bystander(connect: ConnectPeer, server: DaemonProcess) -> Iterator[Peer]:
    """A peer that hears nothing of what the other one does, and is served afterwards."""
    peer = connect(server)
    yield peer
    assert not peer.dealer.poll(0), "it heard of another peer's fault"
    assert peer.insert("replay")["items"] == 1
    peer.send("sample", table="replay", n=1)
    header, body = peer.receive()
    assert "error" not in header
    assert body
    peer.ask("reset", table="replay")


def state(peer: Peer) -> dict[str, Any]:
    """What a refused message must leave as it was."""
    info = peer.ask("info")
    # Who is connected, and what has been read, is seen some time after it is so.
    del info["peers"]["connected"], info["peers"]["unread_bytes"]
    return {name: info[name] for name in ("tables", "chunks", "streams", "peers")}


def header(**fields: Any) -> bytes:
    packed: bytes = msgpack.packb({"v": 1, "op": "insert", "id": 7, **fields})
    return packed


def insert(**changes: Any) -> bytes:
    """The header of a good insert of two chunks of two steps and one item, with some fields changed; None removes."""
    fields = {
        "stream": STREAM,
        "seq": 0,
        "keep_from": 0,
        "first_chunk": 0,
        "rows": struct.pack("<2I", 2, 2),
        "schemas": [SCHEMA],
        "blobs": struct.pack("<IBBH", 8, 0, 0, 0) * 2,
        "tables": ["replay"],
        "chunk": struct.pack("<Q", 0),
        "length": struct.pack("<I", 1),
        "priority": struct.pack("<d", 1.0),
        **changes,
    }
    return header(**{name: value for name, value in fields.items() if value is not None})


BODY = struct.pack("<4f", 1, 2, 3, 4)


def f64(value: float) -> bytes:
    return struct.pack("<d", value)


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def window(chunk: int, chunks: int, offset: int, length: int) -> Frames:
    return [insert(chunk=struct.pack("<Q", chunk), chunks=u32(chunks), offset=u32(offset), length=u32(length)), BODY]


HOSTILE: dict[str, tuple[Frames, str]] = {
    "random bytes": ([bytes.fromhex("c1fe00ff17a3")], "bad_message"),
    "random frames": ([b"\x93abc", b"\x00" * 40, b"\xff"], "bad_message"),
    "a frame of zeros": ([bytes(1000)], "bad_message"),
    "nothing but an identity": ([b""], "bad_message"),
    "empty frames": ([b"", b"", b""], "bad_message"),
    "a header without its body": ([insert()], "bad_message"),
    "a header cut short": ([insert()[:-3], BODY], "bad_message"),
    "ten gigabytes in a bin32": ([insert()[:-20] + b"\xc6\xff\xff\xff\xff", BODY], "bad_message"),
    "an array32 of everything": ([b"\xdd\xff\xff\xff\xff"], "limit_exceeded"),
    "a map32 of everything": ([b"\xdf\xff\xff\xff\xff"], "limit_exceeded"),
    "nesting": ([b"\x81\xa1x" + b"\x91" * 10_000 + b"\xc0"], "bad_message"),
    "a header of five megabytes": ([insert(junk=bytes(5 << 20)), BODY], "limit_exceeded"),
    "five thousand frames": ([insert(), *[b"x"] * 5000], "limit_exceeded"),
    "another version": ([header(v=2)], "unsupported_version"),
    "a version as text": ([header(v="1")], "unsupported_version"),
    "an infinite version": ([header(v=float("inf"))], "unsupported_version"),
    "an unknown op": ([header(op="drop_table")], "unknown_op"),
    "an op that is a map": ([header(op={"insert": 1})], "unknown_op"),
    "an id below zero": ([header(id=-1)], "bad_message"),
    "another table": ([insert(tables=["elsewhere"]), BODY], "unknown_table"),
    "NaN": ([insert(priority=f64(float("nan"))), BODY], "bad_priority"),
    "infinity": ([insert(priority=f64(float("inf"))), BODY], "bad_priority"),
    "a negative priority": ([insert(priority=f64(-1.0)), BODY], "bad_priority"),
    "a priority that overflows sums": ([insert(priority=f64(1e308)), BODY], "bad_priority"),
    "a chunk that was never sent": (window(2, 1, 0, 1), "missing_chunk"),
    "a window beyond the last chunk": (window(1, 2, 0, 3), "missing_chunk"),
    "a window of four billion chunks": (window(0, (1 << 32) - 1, 0, 1), "missing_chunk"),
    "a chunk number that wraps around": (window((1 << 63) - 1, 2, 0, 1), "limit_exceeded"),
    "the largest chunk number": (window((1 << 64) - 1, 1, 0, 1), "limit_exceeded"),
    "a window longer than its chunk": (window(0, 1, 0, 3), "bad_request"),
    "a window that begins behind its first chunk": (window(0, 2, 2, 1), "bad_request"),
    "a window that ends before its last chunk": (window(0, 2, 0, 2), "bad_request"),
    "offset and length that wrap around": (window(0, 1, (1 << 32) - 1, (1 << 32) - 1), "bad_request"),
    "a template's row outside the window": (
        [insert(templates=[msgpack.packb([[["x"], False, [[0, [1, 1, 1]]]]])]), BODY],
        "bad_request",
    ),
    "a template's column outside the schema": (
        [insert(templates=[msgpack.packb([[["x"], False, [[1, []]]]])]), BODY],
        "bad_request",
    ),
    "a template's row below zero": (
        [insert(templates=[msgpack.packb([[["x"], False, [[0, [0, 2, -1]]]]])]), BODY],
        "bad_message",
    ),
    "a forged template_of": ([insert(template_of=b"\xff\xff"), BODY], "bad_message"),
    "a forged table_of": ([insert(table_of=b"\x01\x00"), BODY], "bad_message"),
    "a forged schema_of": ([insert(schema_of=b"\x00\x00\xff\xff"), BODY], "bad_message"),
    "a blob of four gigabytes": ([insert(blobs=struct.pack("<IBBH", 0xFFFFFFFF, 2, 0, 0) * 2), BODY], "bad_message"),
    "rows of four billion": ([insert(rows=struct.pack("<2I", 2, 0xFFFFFFFF)), BODY], "limit_exceeded"),
    "a step of 2^126 bytes": (
        [insert(schemas=[msgpack.packb([[["x"], "float32", [1 << 62, 1 << 62]]])]), BODY],
        "limit_exceeded",
    ),
    "the last chunk number": ([insert(first_chunk=(1 << 63) - 1), BODY], "limit_exceeded"),
    "a body that is too short": ([insert(), BODY[:-1]], "bad_message"),
    "a body that is too long": ([insert(), BODY + b"\0"], "bad_message"),
    "a payload over two frames": ([insert(), BODY[:4], BODY[4:]], "bad_message"),
    "no stream": ([insert(stream=None), BODY], "bad_message"),
    "a message out of turn": ([insert(seq=1 << 62), BODY], "unknown_stream"),
    "too many samples": ([header(op="sample", table="replay", n=1 << 62)], "limit_exceeded"),
    "a table's name of a megabyte": ([header(op="reset", table="x" * (1 << 20))], "limit_exceeded"),
    "more updates than allowed": (
        [header(op="update", table="replay", keys=bytes(8 * 131_073), priorities=bytes(8 * 131_073))],
        "limit_exceeded",
    ),
}


@pytest.mark.parametrize(("message", "code"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_message_is_refused_to_its_sender_and_changes_nothing(
    message: Frames, code: str, hostile: Peer, bystander: Peer
) -> None:
    before = state(bystander)
    hostile.dealer.send_multipart(message)
    assert hostile.dealer.poll(int(REPLY_S * 1000)), "there was no reply"
    reply = [frame for frame in hostile.dealer.recv_multipart() if frame]
    assert len(reply) == 1
    told = msgpack.unpackb(reply[0])
    assert told["error"]["code"] == code, told
    assert told["error"]["message"]
    assert not hostile.dealer.poll(0), "there was a second reply"
    assert state(bystander) == before


# On PUSH gaps are allowed.
PUSHED = {name: case for name, case in HOSTILE.items() if name != "a message out of turn"}


@pytest.mark.parametrize(("message", "code"), PUSHED.values(), ids=PUSHED)
def test_a_hostile_message_that_is_pushed_is_counted_and_changes_nothing(
    message: Frames, code: str, hostile: Peer, bystander: Peer
) -> None:
    before, counted = state(bystander), bystander.ask("info")["counters"]["pushes_refused"]
    assert hostile.push is not None
    hostile.push.send_multipart(message)
    wait_until(bystander, lambda info: info["counters"]["pushes_refused"] == counted + 1)
    assert state(bystander) == before


def wait_until(peer: Peer, holds: Callable[[dict[str, Any]], bool]) -> None:
    for _ in range(20_000):
        if holds(info := peer.ask("info")):
            return
    raise AssertionError(f"it did not come to hold: {info}")


def test_every_refused_vector_is_refused_by_a_daemon_too(start_daemon: StartDaemon, connect: ConnectPeer) -> None:
    # The table of the vectors.
    daemon = start_daemon("--table", "replay,sampler=max_heap,max_size=100,min_size_to_sample=2")
    hostile, bystander = connect(daemon), connect(daemon)
    before = state(bystander)
    for vector in vectors("refusals"):
        # No socket sends a message without frames; what is pushed has no reply.
        if not vector["frames"] or vector.get("pushed"):
            continue
        hostile.dealer.send_multipart(frames(vector))
        told = msgpack.unpackb(next(frame for frame in receive(hostile) if frame))
        assert "error" in told, vector["name"]
        said = (told["error"]["code"], told["op"], told["id"])
        assert said == (vector["error"], vector["op"], vector["id"]), vector["name"]
    assert state(bystander) == before


def receive(peer: Peer) -> Frames:
    assert peer.dealer.poll(int(REPLY_S * 1000)), "there was no reply"
    return peer.dealer.recv_multipart()


OBS_ACTION = [[["obs"], "float32", [2]], [["action"], "int32", []]]
MISMATCHES = {
    "dtype": ([[["obs"], "float64", [2]], OBS_ACTION[1]], 3, ("obs", "float32[?, 2]", "float64[3, 2]")),
    "shape": ([[["obs"], "float32", [3]], OBS_ACTION[1]], 3, ("obs", "float32[?, 2]", "float32[3, 3]")),
    "dimensions": ([[["obs"], "float32", [2, 1]], OBS_ACTION[1]], 3, ("obs", "float32[?, 2]", "float32[3, 2, 1]")),
    "length": (OBS_ACTION, 2, ("action", "int32[3]", "int32[2]")),
    "missing": ([OBS_ACTION[0]], 3, ("action", "int32[3]", "no such column")),
    "additional": ([*OBS_ACTION, [["reward"], "bool", []]], 3, ("reward", "no such column", "bool")),
    "name": ([[["o"], "float32", [2]], OBS_ACTION[1]], 3, ("obs", "float32[?, 2]", "no such column")),
}


@pytest.mark.parametrize(("columns", "length", "said"), MISMATCHES.values(), ids=MISMATCHES)
def test_a_mismatch_names_path_expectation_and_what_came(
    columns: list[Any], length: int, said: tuple[str, str, str], hostile: Peer, bystander: Peer
) -> None:
    before = state(bystander)
    # Compressed blobs have any size, so that their bytes need not be made here.
    reply = hostile.ask(
        "insert",
        [bytes(len(columns))],
        stream=STREAM,
        seq=0,
        keep_from=0,
        first_chunk=0,
        rows=u32(3),
        schemas=[msgpack.packb(columns)],
        blobs=struct.pack("<IBBH", 1, 2, 0, 0) * len(columns),
        tables=["signed"],
        chunk=bytes(8),
        length=u32(length),
        priority=f64(1.0),
    )
    assert reply["error"]["code"] == "signature_mismatch"
    detail = reply["error"]["detail"]
    assert (detail["path"], detail["expected"], detail["got"]) == said
    assert all(word in reply["error"]["message"] for word in said)
    assert state(bystander) == before


def test_one_bad_item_refuses_all_of_its_message(hostile: Peer, bystander: Peer) -> None:
    before = state(bystander)
    three = {
        "tables": ["replay", "signed"],
        "table_of": struct.pack("<3H", 0, 1, 0),
        "chunk": bytes(24),
        "length": struct.pack("<3I", 1, 1, 1),
        "priority": struct.pack("<3d", 1, 1, 1),
    }
    hostile.dealer.send_multipart([insert(**three), BODY])
    told = msgpack.unpackb(receive(hostile)[0])
    assert (told["error"]["code"], told["error"]["detail"]["item"]) == ("signature_mismatch", 1)
    assert state(bystander) == before
    hostile.dealer.send_multipart([insert(), BODY])
    assert msgpack.unpackb(receive(hostile)[0])["duplicate"] is False, "its number was not spent"
    hostile.ask("close_stream", stream=STREAM)
    hostile.ask("reset", table="replay")


def test_a_refusal_in_a_stream_leaves_the_stream_as_it_was(hostile: Peer, bystander: Peer) -> None:
    stream = os.urandom(16)
    hostile.dealer.send_multipart([insert(stream=stream), BODY])
    assert "error" not in msgpack.unpackb(receive(hostile)[0])
    before = state(bystander)
    nothing = dict.fromkeys(("rows", "schemas", "blobs", "first_chunk"))
    for bad, code in (
        ({"first_chunk": 1}, "bad_request"),
        ({"first_chunk": 2, "schemas": [msgpack.packb([[["y"], "float32", []]])]}, "bad_request"),
        ({"first_chunk": 2, "chunk": struct.pack("<Q", 4)}, "missing_chunk"),
        ({**nothing, "chunk": struct.pack("<Q", 2)}, "missing_chunk"),
    ):
        hostile.dealer.send_multipart([insert(stream=stream, seq=1, **bad), *([] if "rows" in bad else [BODY])])
        assert msgpack.unpackb(receive(hostile)[0])["error"]["code"] == code
        assert state(bystander) == before
    hostile.dealer.send_multipart([insert(stream=stream, seq=1, first_chunk=2, keep_from=4), BODY])
    assert "error" not in msgpack.unpackb(receive(hostile)[0])
    hostile.ask("close_stream", stream=stream)
    hostile.ask("reset", table="replay")


@pytest.mark.parametrize("first_chunk", [1 << 31, (1 << 62) - 2])
def test_chunk_numbers_may_lie_far_ahead(first_chunk: int, hostile: Peer, bystander: Peer) -> None:
    stream = os.urandom(16)
    for seq, number in enumerate((0, first_chunk)):
        hostile.dealer.send_multipart(
            [insert(stream=stream, seq=seq, first_chunk=number, chunk=struct.pack("<Q", number)), BODY]
        )
        assert "error" not in msgpack.unpackb(receive(hostile)[0])
    hostile.dealer.send_multipart([insert(stream=stream, seq=2, first_chunk=first_chunk, chunk=bytes(8)), BODY])
    assert msgpack.unpackb(receive(hostile)[0])["error"]["code"] == "bad_request"
    across = {"chunk": bytes(8), "chunks": u32(4), "length": u32(8)}
    nothing = dict.fromkeys(("rows", "schemas", "blobs", "first_chunk"))
    hostile.dealer.send_multipart([insert(stream=stream, seq=2, **nothing, **across)])
    assert msgpack.unpackb(receive(hostile)[0])["error"]["code"] == "missing_chunk", "skipped numbers are no chunks"
    hostile.ask("close_stream", stream=stream)
    hostile.ask("reset", table="replay")


# --- below ZeroMQ -----------------------------------------------------------------------------------------------------


def handshake(server: DaemonProcess, kind: bytes = b"DEALER") -> socket.socket:
    """A TCP connection on which ZMTP 3.0 has greeted: what follows is frames."""
    raw = connection(server)
    raw.sendall(b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    metadata = b"\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
    ready = b"\x05READY" + metadata
    raw.sendall(b"\x04" + bytes([len(ready)]) + ready)
    return raw


def connection(server: DaemonProcess) -> socket.socket:
    address = urlsplit(server.address)
    assert address.hostname is not None
    assert address.port is not None
    return socket.create_connection((address.hostname, address.port), timeout=REPLY_S)


def ends(raw: socket.socket) -> bool:
    """Read until the other side closes the connection."""
    with raw:
        try:
            while raw.recv(4096):
                pass
        except ConnectionResetError:
            pass
    return True


def test_a_frame_that_claims_ten_gigabytes_ends_its_connection(server: DaemonProcess, bystander: Peer) -> None:
    raw = handshake(server)
    raw.sendall(b"\x02" + struct.pack(">Q", 10 << 30) + b"some of it")
    assert ends(raw)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\nHost: replayd\r\n\r\n" * 4, bytes(300), b"\xff" * 300])
def test_bytes_that_are_not_zeromq_disturb_nobody(said: bytes, server: DaemonProcess, bystander: Peer) -> None:
    before = state(bystander)
    with connection(server) as raw:
        raw.sendall(said)
        # It may have been closed already, or taken for a peer of ZMTP 1.0, which has no greeting.
        with contextlib.suppress(OSError):
            raw.shutdown(socket.SHUT_WR)
        assert ends(raw)
    assert state(bystander) == before


def test_a_connection_that_breaks_off_in_a_message_leaves_nothing(server: DaemonProcess, bystander: Peer) -> None:
    before = state(bystander)
    raw = handshake(server)
    start = insert()
    # A frame with more to follow, which never does.
    raw.sendall(b"\x03" + struct.pack(">Q", len(start)) + start)
    raw.close()
    assert state(bystander) == before


def test_a_peer_of_the_wrong_kind_is_turned_away(server: DaemonProcess, bystander: Peer) -> None:
    assert ends(handshake(server, b"PUSH"))
