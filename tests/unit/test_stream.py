"""The exactly-once sender against a simulated server: lost answers, cut lines, restarts, refusals, gaps, windows."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replayd_client.array_messages import BLOB_RECORD, ChunkBatch, InsertReply, ItemBatch
from replayd_client.errors import error_from_wire
from replayd_client.messages import ErrorReply
from replayd_client.stream import InsertStream

SCHEMA = msgpack.packb([[[], "uint8", [4]]])


def chunk_batch(first: int, count: int) -> ChunkBatch:
    """Chunks of one step whose payload is their own number."""
    records = np.zeros(count, BLOB_RECORD)
    records["stored_bytes"] = 4
    body = [np.arange(first, first + count, dtype="<u4").tobytes()]
    return ChunkBatch(first, np.ones(count, "u4"), [SCHEMA], records.tobytes(), body)


def item_batch(chunks: list[int], marks: list[int], table: str = "t") -> ItemBatch:
    """Items of one step each; an item's priority is its mark."""
    return ItemBatch([table], np.array(chunks, "u8"), np.ones(len(chunks), "u4"), np.array(marks, "f8"))


@dataclass
class SimulatedStream:
    next_seq: int = 0
    next_chunk: int = 0
    keep_from: int = 0
    chunks: set[int] = field(default_factory=set)
    outcomes: dict[int, tuple[int, int]] = field(default_factory=dict)


class SimulatedServer:
    """What protocol §6.2 asks of a server, for one table."""

    def __init__(self, number: int) -> None:
        self.server_id = bytes([number] * 16)
        self.streams: dict[bytes, SimulatedStream] = {}
        self.items: list[int] = []
        self.parked: deque[tuple[int, tuple[int, int]]] = deque()
        self.parking = False
        self.refuse: set[int] = set()

    def handle(self, frames: list[Any]) -> InsertReply | ErrorReply | None:
        header = msgpack.unpackb(frames[0])
        request_id, seq = header["id"], header["seq"]
        stream = self.streams.get(header["stream"])
        if stream is None:
            if seq != 0:
                return error(request_id, "unknown_stream")
            stream = SimulatedStream()
        if seq < stream.next_seq:
            return self.reply(request_id, stream.outcomes[seq], duplicate=True)
        if seq > stream.next_seq:
            return error(request_id, "sequence_gap", expected=stream.next_seq)
        outcome = self.accept(stream, header, b"".join(frames[1:]))
        if isinstance(outcome, str):
            return error(request_id, outcome)
        self.streams[header["stream"]] = stream
        stream.outcomes[seq] = outcome
        stream.next_seq += 1
        if self.parking and outcome[1]:
            self.parked.append((request_id, outcome))
            return None
        return self.reply(request_id, outcome, duplicate=False)

    def accept(self, stream: SimulatedStream, header: dict[str, Any], body: bytes) -> tuple[int, int] | str:
        marks = np.frombuffer(header.get("priority", b""), "<f8").astype(int).tolist()
        if self.refuse.intersection(marks):
            return "signature_mismatch"
        fresh: list[int] = []
        if "rows" in header:
            first, count = header["first_chunk"], len(header["rows"]) // 4
            assert first >= stream.next_chunk, "chunk numbers went back"
            fresh = list(range(first, first + count))
            assert np.frombuffer(body, "<u4").tolist() == fresh, "a chunk came with another's payload"
        else:
            assert not body
        wanted = np.frombuffer(header.get("chunk", b""), "<u8").tolist()
        if not stream.chunks.union(fresh).issuperset(wanted):
            return "missing_chunk"
        stream.chunks.update(fresh)
        stream.next_chunk = max(stream.next_chunk, *[number + 1 for number in fresh], 0)
        stream.keep_from = max(stream.keep_from, header["keep_from"])
        stream.chunks = {number for number in stream.chunks if number >= stream.keep_from}
        first_key = len(self.items)
        self.items.extend(marks)
        return first_key, len(marks)

    def reply(self, request_id: int, outcome: tuple[int, int], *, duplicate: bool) -> InsertReply:
        first_key, items = outcome
        return InsertReply(request_id, first_key if items else None, items, duplicate)

    def unpark(self) -> list[InsertReply | ErrorReply]:
        replies = [self.reply(request_id, outcome, duplicate=False) for request_id, outcome in self.parked]
        self.parked.clear()
        return replies


def error(request_id: int, code: str, **detail: Any) -> ErrorReply:
    return ErrorReply(request_id, "insert", error_from_wire(code, code, detail))


class Line:
    """A stream and a server with a connection between them that can be cut at any point."""

    def __init__(self, **bounds: Any) -> None:
        ids = itertools.count(1)
        self.numbers = itertools.count()
        self.server = SimulatedServer(0)
        self.stream = InsertStream(lambda: next(ids).to_bytes(16, "big"), **bounds)
        self.now = 0.0
        self.to_server: deque[list[Any]] = deque()
        self.to_client: deque[InsertReply | ErrorReply] = deque()
        self.ids = itertools.count(1)
        self.window = (64, 1 << 20)
        self.connect()

    def connect(self) -> None:
        self.to_server.clear()
        self.to_client.clear()
        self.stream.on_session(self.server.server_id, *self.window)

    def restart(self) -> None:
        self.server = SimulatedServer(self.server.server_id[0] + 1)
        self.connect()

    def send(self) -> int:
        """Send all that may go; return how many messages went."""
        count = 0
        while (transmission := self.stream.next_transmission(self.now)) is not None:
            request_id = next(self.ids)
            self.to_server.append(transmission.frames(request_id))
            self.stream.sent(transmission, request_id, self.now)
            count += 1
        self.stream.validate()
        return count

    def serve(self, count: int = 1 << 30) -> None:
        while self.to_server and count:
            count -= 1
            reply = self.server.handle(self.to_server.popleft())
            if reply is not None:
                self.to_client.append(reply)

    def receive(self, count: int = 1 << 30) -> None:
        while self.to_client and count:
            count -= 1
            self.stream.on_reply(self.to_client.popleft(), self.now)
            self.stream.validate()

    def settle(self) -> None:
        """Run until nothing moves; time passes, so that pauses end."""
        for _ in range(1000):
            self.now += 2.0
            self.server.parking = False
            self.to_client.extend(self.server.unpark())
            moved = self.send() + len(self.to_server) + len(self.to_client)
            self.serve()
            self.receive()
            if not moved and not self.stream.unacknowledged_messages:
                return
        raise AssertionError("the stream does not come to rest")


def test_messages_are_numbered_from_zero_and_acknowledged_with_their_keys() -> None:
    line = Line()
    first = line.stream.put(chunk_batch(0, 2), item_batch([0, 1], [10, 11]), keep_from=1)
    second = line.stream.put(None, item_batch([1], [12]), keep_from=2)
    line.settle()
    assert line.server.items == [10, 11, 12]
    assert (first.first_key, second.first_key) == (0, 2)


@pytest.mark.parametrize("served", range(5))
@pytest.mark.parametrize("received", range(5))
def test_a_cut_at_any_point_neither_loses_nor_repeats_an_item(served: int, received: int) -> None:
    line = Line()
    receipts = [line.stream.put(chunk_batch(i, 1), item_batch([i], [i]), keep_from=max(0, i - 1)) for i in range(4)]
    line.send()
    line.serve(served)
    line.receive(received)
    line.connect()
    line.settle()
    assert line.server.items == [0, 1, 2, 3]
    assert [receipt.first_key for receipt in receipts] == [0, 1, 2, 3]


@pytest.mark.parametrize("served", range(5))
@pytest.mark.parametrize("received", range(5))
def test_a_restart_at_any_point_brings_every_open_item_with_its_chunks(served: int, received: int) -> None:
    line = Line()
    receipts = [
        line.stream.put(chunk_batch(i, 1), item_batch([max(0, i - 1)], [i]), keep_from=max(0, i - 1)) for i in range(4)
    ]
    line.send()
    line.serve(served)
    line.receive(received)
    acknowledged = [receipt.done for receipt in receipts]
    line.restart()
    later = line.stream.put(None, item_batch([2], [99]), keep_from=3)
    line.settle()
    assert line.server.items == [i for i in range(4) if not acknowledged[i]] + [99]
    assert later.done


def test_a_stream_that_the_server_forgot_is_opened_anew_with_the_chunks_it_may_refer_to() -> None:
    line = Line()
    line.stream.put(chunk_batch(0, 3), item_batch([0], [1]), keep_from=1)
    line.settle()
    line.server.streams.clear()
    line.stream.put(None, item_batch([2], [2]), keep_from=1)
    line.stream.put(chunk_batch(5, 1), item_batch([5], [3]), keep_from=1)
    line.settle()
    assert line.server.items == [1, 2, 3]
    assert len(line.server.streams) == 1


def test_items_parked_when_the_stream_ends_are_not_sent_twice() -> None:
    line = Line()
    line.server.parking = True
    parked = line.stream.put(chunk_batch(0, 1), item_batch([0], [1]), keep_from=0)
    line.send()
    line.serve()
    line.server.streams.clear()
    line.stream.put(None, item_batch([0], [2]), keep_from=0)
    line.send()
    line.serve()
    line.receive()
    line.settle()
    assert line.server.items == [1, 2]
    assert parked.first_key == 0


def test_a_message_that_comes_late_to_a_new_stream_finds_its_chunks_there() -> None:
    line = Line()
    line.stream.put(chunk_batch(0, 1), None, keep_from=0)
    line.settle()
    line.server.parking = True
    early = line.stream.put(None, item_batch([0], [1]), keep_from=0)
    line.send()
    line.serve()
    line.server.streams.clear()
    later = line.stream.put(chunk_batch(1, 1), item_batch([1], [2]), keep_from=1)
    line.send()
    line.serve()
    line.receive()
    line.send()
    line.serve()
    line.server.parked.clear()
    line.connect()
    line.settle()
    assert (early.error, later.error) == (None, None)


def test_a_gap_is_filled_from_the_number_that_the_server_expects() -> None:
    line = Line()
    for i in range(4):
        line.stream.put(chunk_batch(i, 1), item_batch([i], [i]), keep_from=i)
    line.send()
    del line.to_server[1]
    line.settle()
    assert line.server.items == [0, 1, 2, 3]


def test_a_gap_below_what_was_acknowledged_opens_a_new_stream() -> None:
    line = Line()
    line.stream.put(chunk_batch(0, 1), item_batch([0], [0]), keep_from=0)
    line.settle()
    for stream in line.server.streams.values():
        stream.next_seq = 0
    line.stream.put(None, item_batch([0], [1]), keep_from=0)
    line.settle()
    assert line.server.items == [0, 1]


@pytest.mark.parametrize("code", ["shutting_down", "loading"])
def test_a_server_that_does_not_serve_now_is_asked_again_later(code: str) -> None:
    line = Line()
    receipt = line.stream.put(chunk_batch(0, 1), item_batch([0], [7]), keep_from=0)
    for _ in range(3):
        line.now += 2.0
        assert line.send() == 1
        request_id = msgpack.unpackb(line.to_server.popleft()[0])["id"]
        line.stream.on_reply(error(request_id, code), line.now)
        assert not receipt.done
    assert line.stream.next_transmission(line.now) is None, "the pause comes first"
    line.settle()
    assert line.server.items == [7]


def test_a_refused_message_is_reported_and_its_chunks_reach_the_server_for_later_items() -> None:
    line = Line()
    line.server.refuse = {1}
    refused = line.stream.put(chunk_batch(0, 2), item_batch([0], [1]), keep_from=0)
    behind = line.stream.put(None, item_batch([1], [2]), keep_from=0)
    line.send()
    later = line.stream.put(chunk_batch(2, 1), item_batch([0], [3]), keep_from=0)
    line.settle()
    assert line.stream.refusals == [refused]
    assert refused.error is not None
    assert refused.error.code == "signature_mismatch"
    assert behind.done
    assert later.done
    assert line.server.items == [2, 3]


@pytest.mark.parametrize("limit", ["window_messages", "window_bytes", "streams", "all_leased_bytes"])
def test_a_limit_that_passes_by_itself_refuses_nothing(limit: str) -> None:
    line = Line()
    receipt = line.stream.put(chunk_batch(0, 1), item_batch([0], [7]), keep_from=0)
    line.send()
    request_id = msgpack.unpackb(line.to_server.popleft()[0])["id"]
    line.stream.on_reply(error(request_id, "limit_exceeded", limit=limit), line.now)
    line.settle()
    assert receipt.first_key == 0
    assert line.stream.refusals == []


def test_a_limit_that_does_not_pass_is_told_again_and_again_with_since_when(caplog: pytest.LogCaptureFixture) -> None:
    line = Line()
    line.stream.put(chunk_batch(0, 1), item_batch([0], [7]), keep_from=0)
    began, told = line.now, []
    while line.now < began + 200:
        line.send()
        request_id = msgpack.unpackb(line.to_server.popleft()[0])["id"]
        line.stream.on_reply(error(request_id, "limit_exceeded", limit="all_leased_bytes"), line.now)
        told += [(line.now - began, record.getMessage()) for record in caplog.records]
        caplog.clear()
        line.now = line.stream.retry_at
    times = [round(at) for at, _ in told]
    assert times[0] == 5
    assert all(0 < later - at <= 61 for at, later in itertools.pairwise([*times, 200])), times
    assert all(f"have waited for {at:.0f} s" in text for at, text in told)
    put_off = line.stream.put_off
    assert put_off is not None
    assert (put_off[0].detail["limit"], put_off[1]) == ("all_leased_bytes", began)
    line.settle()
    assert line.stream.put_off is None


def put_off_once(line: Line) -> None:
    """A message that was put off for what writers keep, and is on its way again."""
    line.stream.put(chunk_batch(0, 1), item_batch([0], [7]), keep_from=0)
    line.send()
    request_id = msgpack.unpackb(line.to_server.popleft()[0])["id"]
    line.stream.on_reply(error(request_id, "limit_exceeded", limit="all_leased_bytes"), line.now)
    assert line.stream.put_off is not None
    line.now = line.stream.retry_at
    line.send()


def test_a_message_that_is_taken_and_waits_for_its_answer_is_put_off_no_more() -> None:
    line = Line()
    put_off_once(line)
    # One behind it that is yet to go does not wait for that limit either.
    line.stream.put(chunk_batch(1, 1), item_batch([1], [8]), keep_from=0)
    assert line.stream.put_off is None


@pytest.mark.parametrize("code", ["not_durable", "loading", "shutting_down"])
def test_a_message_that_now_waits_for_something_else_is_not_put_off_for_a_limit(code: str) -> None:
    line = Line()
    put_off_once(line)
    request_id = msgpack.unpackb(line.to_server.popleft()[0])["id"]
    line.stream.on_reply(error(request_id, code), line.now)
    assert line.stream.put_off is None


def test_chunks_that_are_refused_by_themselves_do_not_go_round_for_ever() -> None:
    line = Line()
    accept = line.server.accept
    line.server.accept = lambda stream, header, body: "limit_exceeded" if body else accept(stream, header, body)  # type: ignore[method-assign]
    line.stream.put(chunk_batch(0, 1), item_batch([0], [1]), keep_from=0)
    line.stream.put(None, item_batch([0], [2]), keep_from=0)
    line.settle()
    assert [receipt.error.code for receipt in line.stream.refusals if receipt.error] == [
        "limit_exceeded",
        "missing_chunk",
    ]


def test_no_more_is_in_flight_than_the_server_grants() -> None:
    line = Line()
    line.window = (3, 1 << 20)
    line.connect()
    for i in range(10):
        line.stream.put(chunk_batch(i, 1), item_batch([i], [i]), keep_from=i)
    assert not line.stream.has_room
    assert line.send() == 3
    line.serve(1)
    line.receive()
    assert line.send() == 1
    line.settle()
    assert line.server.items == list(range(10))
    assert line.stream.has_room


def test_one_message_is_allowed_however_large_and_the_next_waits_for_it() -> None:
    line = Line()
    line.window = (8, 100)
    line.connect()
    for i in range(3):
        line.stream.put(chunk_batch(i, 1), item_batch([i], [i]), keep_from=i)
    assert line.send() == 1
    line.settle()
    assert line.server.items == [0, 1, 2]


def test_items_in_flight_are_bounded_by_the_writers_own_limit() -> None:
    line = Line(max_items=2)
    line.stream.put(chunk_batch(0, 1), item_batch([0, 0], [1, 2]), keep_from=0)
    assert not line.stream.has_room
    line.settle()
    assert line.stream.has_room


def test_what_has_not_left_can_be_withdrawn() -> None:
    line = Line()
    line.window = (1, 1 << 20)
    line.connect()
    receipts = [line.stream.put(chunk_batch(i, 1), item_batch([i], [i]), keep_from=i + 1) for i in range(3)]
    line.send()
    assert line.stream.withdraw(receipts) == 1, "a message that has its number stays"
    line.stream.validate()
    line.stream.put(chunk_batch(3, 1), item_batch([3], [3]), keep_from=4)
    line.settle()
    assert line.server.items == [0, 1, 3]


def test_a_silent_stream_is_kept_alive_at_a_third_of_its_lease() -> None:
    line = Line()
    assert line.stream.keepalives(1e6, 60.0) == []
    line.now = 100.0
    line.stream.put(chunk_batch(0, 1), None, keep_from=0)
    line.send()
    assert line.stream.keepalives(119.0, 60.0) == []
    assert line.stream.keepalives(120.0, 60.0) == list(line.server.streams) or line.stream.stream_to_close
    assert line.stream.keepalives(121.0, 60.0) == []


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.sampled_from(["send", "serve", "receive"]), st.integers(1, 4), st.just(0)),
        st.tuples(st.sampled_from(["cut", "restart", "forget", "park", "unpark", "refuse"]), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(ACTIONS)
def test_whatever_happens_every_item_ends_in_a_table_once_or_in_an_error(actions: list[tuple[str, int, int]]) -> None:
    line = Line(max_messages=6)
    next_chunk = mark = keep_from = 0
    live: dict[int, Any] = {}
    for action, a, b in actions:
        match action:
            case "put":
                chunks = chunk_batch(next_chunk + b % 2, a) if a else None
                if chunks is not None:
                    next_chunk = chunks.end
                on_line = [n for k in line.stream._kept for n in range(k.batch.first, k.batch.end) if n >= keep_from]
                marks = list(range(mark, mark + b)) if on_line else []
                mark += len(marks)
                items = item_batch([on_line[i % len(on_line)] for i in range(len(marks))], marks) if marks else None
                keep_from = max(keep_from, next_chunk - 3)
                receipt = line.stream.put(chunks, items, keep_from)
                live.update(dict.fromkeys(marks, receipt))
            case "send":
                line.send()
            case "serve":
                line.serve(a)
            case "receive":
                line.receive(a)
            case "cut":
                line.server.parked.clear()
                line.connect()
            case "restart":
                line.restart()
                live = {m: receipt for m, receipt in live.items() if not receipt.done}
            case "forget":
                # A lease that ends while an accepted message is unanswered is the one case that nobody can tell apart.
                unanswered = {m for m, receipt in live.items() if not receipt.done}
                if not unanswered.intersection(line.server.items):
                    line.server.streams.clear()
            case "park":
                line.server.parking = True
            case "unpark":
                line.to_client.extend(line.server.unpark())
                line.server.parking = False
            case "refuse":
                line.server.refuse.add(mark)
    line.settle()
    assert all(receipt.done for receipt in live.values())
    refused = [m for m, receipt in live.items() if receipt.error is not None]
    applied = line.server.items
    assert len(set(applied)) == len(applied), "an item was applied twice"
    assert set(applied) >= set(live) - set(refused), "an item was lost"
    assert not set(applied).intersection(refused)
    assert all(receipt.error.code == "signature_mismatch" for receipt in live.values() if receipt.error), (
        "refused for no reason"
    )
