"""Small inserts that are taken together do what they do one by one: the same answers, the same state."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random
from typing import Any

import msgpack
import numpy as np
import pytest

from replayd import rate_limiters, selectors
from replayd.header import Frames
from replayd.leases import Leases
from replayd.limits import Limit
from replayd.messages import Peeked, Peer, Reply, Sampled
from replayd.reception import Reception
from replayd.service import Service
from replayd.table import Table
from replayd.wire import Undecodable, decode, encode
from replayd_client.item_windows import ItemWindows
from replayd_client.specs import TensorSpec
from replayd_client.wire import decode_reply

X = msgpack.packb([[["x"], "uint8", []]])
XY = msgpack.packb([[["x"], "uint8", []], [["y"], "int16", [2]]])
SHOWS_X = msgpack.packb([[["x"], False, [[0, []]]]])
STREAMS = [bytes([65 + i]) * 16 for i in range(3)]
PEERS: list[Peer] = [(b"one",), (b"two",), None]

Message = tuple[Peer, list[bytes]]


def made() -> Service:
    tables = [
        Table("small", selectors.Fifo(), selectors.Fifo(), 5, rate_limiters.MinSize(1)),
        Table("random", selectors.Uniform(), selectors.Lifo(), 4, rate_limiters.MinSize(1)),
        Table("best", selectors.Prioritized(1.0), selectors.MinHeap(), 4, rate_limiters.MinSize(1)),
        Table("narrow", selectors.Fifo(), selectors.Fifo(), 9, rate_limiters.Queue(3), 1),
        Table(
            "signed", selectors.Fifo(), selectors.Fifo(), 9, rate_limiters.MinSize(1),
            signature={"x": TensorSpec((None,), np.uint8)},
        ),
    ]  # fmt: skip
    return Service(tables, server_id=b"s" * 16, version="t", seed=1, started_at=0.0)


TABLES = ["small", "random", "best", "narrow", "signed"]


class Writer:
    """Makes plausible messages of one stream, and some that are wrong."""

    def __init__(self, stream: bytes) -> None:
        self.stream = stream
        self.seq = self.number = 0
        self.schema = X

    def message(self, chance: Random) -> list[bytes]:
        at_least = 0 if chance.random() < 0.1 else 1
        rows = [chance.randint(1, 3) for _ in range(chance.randint(at_least, 3))]
        if chance.random() < 0.1:
            self.schema = XY
        first = self.number + (chance.random() < 0.05)
        self.number = first + len(rows)
        fields: dict[str, Any] = {"v": 1, "op": "insert", "id": chance.randint(0, 99), "stream": self.stream}
        fields |= {"seq": self.seq, "keep_from": max(0, self.number - chance.randint(0, 2))}
        self.seq += chance.random() < 0.97
        width = 1 if self.schema == X else 5
        payloads = [chance.randbytes(count * width) for count in rows]
        if rows:
            sizes = [(count,) if width == 1 else (count, 4 * count) for count in rows]
            fields |= {"first_chunk": first, "rows": np.array(rows, "<u4").tobytes(), "schemas": [self.schema]}
            fields["blobs"] = b"".join(struct.pack("<IBBH", size, 0, 0, 0) for chunk in sizes for size in chunk)
            if chance.random() < 0.5:
                fields["episodes"] = np.array(sorted(chance.randint(0, 3) for _ in rows), "<u8").tobytes()
            if self.seq % 3 == 0:
                fields["policy_versions"] = np.arange(first, self.number, dtype="<u8").tobytes()
        items = chance.randint(0, 3) if self.number else 0
        if items:
            self._items(fields, chance, items, first, rows)
        if chance.random() < 0.03:
            wrong = chance.choice(["rows", "blobs", "priority", "chunk", "length", "stream", "table_of"])
            if isinstance(fields.get(wrong), bytes):
                fields[wrong] += bytes(chance.choice([1, 4, 8]))
        body = [b"".join(payloads)] if chance.random() < 0.5 else payloads
        if chance.random() < 0.03:
            body = [*body, b"?"]
        return [msgpack.packb(fields), *(frame for frame in body if frame)]

    def _items(self, fields: dict[str, Any], chance: Random, items: int, first: int, rows: list[int]) -> None:
        names = chance.sample(TABLES, chance.randint(1, 2))
        fields["tables"] = names if chance.random() < 0.97 else ["nowhere"]
        if len(fields["tables"]) > 1:
            fields["table_of"] = np.array([chance.randint(0, 1) for _ in range(items)], "<u2").tobytes()
        windows = []
        for _ in range(items):
            if rows and chance.random() < 0.75:
                at = chance.randrange(len(rows))
                offset = chance.randrange(rows[at])
                windows.append((first + at, 1, offset, chance.randint(1, rows[at] - offset)))
            else:
                # Chunks from before, which may be gone or of another length.
                start = chance.randint(max(0, self.number - 3), self.number - 1)
                windows.append((start, chance.randint(1, 2), 0, chance.randint(1, 4)))
        for name, column in zip(("chunk", "chunks", "offset", "length"), zip(*windows, strict=True), strict=True):
            fields[name] = np.array(column, "<u8" if name == "chunk" else "<u4").tobytes()
        priorities = [float("nan")] if chance.random() < 0.03 else [0.0, 1.0, 2.0, 3.5]
        fields["priority"] = np.array([chance.choice(priorities) for _ in range(items)]).tobytes()
        if chance.random() < 0.5:
            fields["templates"] = [SHOWS_X]
        if chance.random() < 0.1:
            fields["at_max"] = bytes(items)


class SteadyWriter(Writer):
    """Makes messages that all look alike: one chunk and one item each, and rarely another or a wrong one."""

    def __init__(self, stream: bytes, chance: Random, table: str, faults: float = 0.04) -> None:
        super().__init__(stream)
        self._table = table
        self._faults = faults
        self._has_episodes = chance.random() < 0.5
        self._has_versions = chance.random() < 0.3
        self._id = chance.choice([0, 120, 250, 65530])
        self._rows = chance.choice([None, 1, 2, 2])
        """Of each chunk, if they do not differ."""

    def message(self, chance: Random) -> list[bytes]:
        if chance.random() < self._faults:
            return super().message(chance)
        rows, self._id = self._rows or chance.randint(1, 3), self._id + 1
        fields: dict[str, Any] = {"id": self._id, "v": 1, "op": "insert", "stream": self.stream, "seq": self.seq}
        fields |= {"keep_from": self.number, "first_chunk": self.number, "rows": struct.pack("<I", rows)}
        fields |= {"schemas": [self.schema], "tables": [self._table], "chunk": struct.pack("<Q", self.number)}
        width = 1 if self.schema == X else 5
        sizes = (rows,) if width == 1 else (rows, 4 * rows)
        fields["blobs"] = b"".join(struct.pack("<IBBH", size, 0, 0, 0) for size in sizes)
        fields |= {"offset": struct.pack("<I", rows - 1), "length": struct.pack("<I", 1)}
        fields["priority"] = struct.pack("<d", chance.choice([0.0, 1.0, 2.5]))
        if self._has_episodes:
            fields["episodes"] = struct.pack("<Q", self.number // 3)
        if self._has_versions:
            fields["policy_versions"] = struct.pack(
                "<Q", chance.choice([7, 8, 1 << 63] if chance.random() < 0.05 else [9])
            )
        if chance.random() < self._faults:
            wrong = chance.choice(["seq", "chunk", "length", "priority", "rows", "stream", "blobs", "op", "tables"])
            fields[wrong] = {
                "seq": fields["seq"] + 1, "tables": ["xxxxx"], "op": "sample", "priority": struct.pack("<d", -1.0),
                "chunk": struct.pack("<Q", max(0, self.number - chance.randint(0, 2))),
            }.get(wrong) or bytes(len(fields[wrong]))  # fmt: skip
        self.seq, self.number = self.seq + 1, self.number + 1
        return [msgpack.packb(fields), chance.randbytes(rows * width)]


def one_by_one(service: Service, messages: Sequence[Message]) -> None:
    for peer, frames in messages:
        try:
            op, request = decode(frames, pushed=peer is None)
        except Undecodable as fault:
            service.refuse(peer, fault.op, fault.id, fault.error)
        else:
            service.handle(peer, op, request, 1.0)


class Taken:
    """A recorder, which tells whether messages were taken together with those before them."""

    def __init__(self) -> None:
        self.go_on: list[bool] = []

    def refusal(self, op: str) -> None:
        return None

    def record(self, peer: Peer, op: str, frames: Frames, now: float, *, goes_on: bool) -> None:
        self.go_on.append(goes_on)

    def record_read(self, peer: Peer, nbytes: int, replies: int) -> None: ...

    def end_turn(self, now: float, *, is_due: bool) -> None: ...


class Turns:
    """As the daemon takes the messages of its turns."""

    def __init__(self, service: Service) -> None:
        self._taken = Taken()
        self._reception = Reception(service, bytes, lambda fault, now: None, self._taken)

    def take(self, messages: Sequence[Message]) -> bool:
        """Whether they were all taken at once."""
        self._taken.go_on = []
        for peer, frames in messages:
            self._reception.take(peer, frames, 1.0)
        self._reception.settle(1.0)
        return self._taken.go_on == [n > 0 for n in range(len(messages))]


def together(service: Service, messages: Sequence[Message]) -> bool:
    return Turns(service).take(messages)


def answers(service: Service) -> list[Any]:
    """What each reply says; of items what they are, whatever the order of schemas and templates behind them."""
    return [(peer, _said(reply)) for peer, reply in service.drain()]


def _said(reply: Reply) -> Any:
    if not isinstance(reply, Sampled | Peeked):
        return reply
    shown = decode_reply([memoryview(frame) for frame in encode(reply)]).shown  # type: ignore[union-attr]
    said = zip(shown.keys.tolist(), shown.priorities.tolist(), shown.times_sampled.tolist(), strict=True)
    return [
        (*words, paths, [array.tolist() for array in arrays])
        for words, (paths, arrays) in zip(said, ItemWindows(shown), strict=True)
    ]


def ask(service: Service, **fields: Any) -> None:
    op, request = decode([msgpack.packb({"v": 1, "id": 1, **fields})])
    service.handle((b"learner",), op, request, 2.0)


@pytest.mark.parametrize("seed", range(200))
def test_messages_taken_together_do_what_they_do_one_by_one(seed: int) -> None:
    chance = Random(seed)
    writers = [Writer(stream) for stream in STREAMS]
    one, other = made(), made()
    turns = Turns(other)
    for _ in range(5):
        chosen = [chance.randrange(len(writers)) for _ in range(chance.randint(2, 6))]
        messages = [(PEERS[n], writers[n].message(chance)) for n in chosen]
        take_both_ways(one, turns, other, messages)
        for table in chance.sample(TABLES, 2):
            look_at_both(one, other, table, chance.randint(1, 3))
    one.validate()
    other.validate()


@pytest.mark.parametrize("seed", range(60))
def test_messages_that_look_alike_do_what_they_do_one_by_one(seed: int) -> None:
    chance = Random(seed)
    table = chance.choice(TABLES)
    writers = [SteadyWriter(stream, chance, table if chance.random() < 0.8 else "small") for stream in STREAMS]
    one, other = made(), made()
    turns = Turns(other)
    for _ in range(8):
        chosen = [chance.randrange(len(writers)) for _ in range(chance.randint(2, 12))]
        messages = [(PEERS[n], writers[n].message(chance)) for n in chosen]
        take_both_ways(one, turns, other, messages)
        look_at_both(one, other, table, chance.randint(1, 3))
    one.validate()
    other.validate()


@pytest.mark.parametrize("seed", range(40))
def test_messages_taken_together_are_bounded_by_leases_as_one_by_one(seed: int) -> None:
    chance = Random(seed)
    writers = [Writer(stream) for stream in STREAMS]
    one, other = made(), made()
    for service in (one, other):
        service.streams.leases = Leases(Limit("all_leased_bytes", 9 + seed, ""), Limit("peer_leased_bytes", 15, ""))
    turns = Turns(other)
    for _ in range(8):
        chosen = [chance.randrange(len(writers)) for _ in range(chance.randint(2, 6))]
        # Streams go from one connection to another.
        messages = [(PEERS[(n + chance.randrange(2)) % 3], writers[n].message(chance)) for n in chosen]
        take_both_ways(one, turns, other, messages)
        assert one.streams.leases == other.streams.leases
        one.validate()
        other.validate()
    assert one.counters.refused + one.counters.pushes_refused > 0


def take_both_ways(one: Service, turns: Turns, other: Service, messages: list[Message]) -> None:
    """Acknowledgements are the same, which come table by table."""
    one_by_one(one, messages)
    turns.take(messages)
    assert sorted(answers(one), key=repr) == sorted(answers(other), key=repr)


def look_at_both(one: Service, other: Service, table: str, n: int) -> None:
    for service in (one, other):
        ask(service, op="sample", table=table, n=n, timeout_ms=0)
        ask(service, op="peek", table=table, n=9)
    assert answers(one) == answers(other)


def test_most_messages_that_look_alike_are_taken_at_once() -> None:
    taken = 0
    for seed in range(30):
        chance = Random(seed)
        writers = [SteadyWriter(stream, chance, "small", faults=0.0) for stream in STREAMS]
        turns = Turns(made())
        taken += sum(turns.take([(PEERS[n % 3], writers[n % 3].message(chance)) for n in range(9)]) for _ in range(8))
    assert taken > 200


def test_most_plausible_messages_are_taken_at_once() -> None:
    taken = 0
    for seed in range(100):
        chance = Random(seed)
        writers = [Writer(stream) for stream in STREAMS]
        taken += together(made(), [(PEERS[n], writer.message(chance)) for n, writer in enumerate(writers)])
    assert taken > 30


def plain(stream: bytes, seq: int, changes: dict[str, Any]) -> list[bytes]:
    fields = {"v": 1, "op": "insert", "id": seq, "stream": stream, "seq": seq, "keep_from": seq + 1, "first_chunk": seq}
    fields |= {"rows": struct.pack("<I", 2), "schemas": [X], "blobs": struct.pack("<IBBH", 2, 0, 0, 0)}
    fields |= {"chunk": struct.pack("<Q", seq), "length": struct.pack("<I", 2), "priority": struct.pack("<d", 1.0)}
    fields["tables"] = ["small"]
    return [msgpack.packb({**fields, **changes}), b"ab"]


def test_plain_messages_of_many_streams_are_taken_at_once() -> None:
    service = made()
    messages = [(PEERS[0], plain(stream, seq, {})) for seq in range(4) for stream in STREAMS]
    assert together(service, messages)
    assert len(service.drain()) == len(messages)
    service.validate()


@pytest.mark.parametrize(
    "changes",
    [
        {"seq": 9},
        {"tables": ["nowhere"]},
        {"priority": struct.pack("<d", float("inf"))},
        {"length": struct.pack("<I", 3)},
        {"chunk": struct.pack("<Q", 7)},
        {"rows": struct.pack("<II", 2, 2)},
        {"blobs": struct.pack("<IBBH", 1, 0, 0, 0)},
        {"blobs": struct.pack("<IBBH", 2, 9, 0, 0)},
        {"schema_of": struct.pack("<H", 1)},
        {"table_of": struct.pack("<H", 1)},
        {"template_of": struct.pack("<H", 1)},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_one_message_that_is_refused_takes_no_other_with_it(changes: dict[str, Any]) -> None:
    service = made()
    good, bad, last = STREAMS
    refused = plain(bad, 1, {"seq": 0, **changes})
    messages = [(PEERS[0], plain(good, 0, {})), (PEERS[1], refused), (PEERS[0], plain(last, 0, {}))]
    assert not together(service, messages)
    replies = service.drain()
    assert [type(reply).__name__ for _, reply in replies] == ["Result", "Failed", "Result"]
    assert service.tables["small"].size == 2
    service.validate()
