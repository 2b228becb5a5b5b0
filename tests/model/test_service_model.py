"""The whole service against naive tables: the same requests, the same answers, and every count re-derived after each
step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replayd import capacity, intake, rate_limiters, selectors
from replayd.columns import Column, Schema, Template
from replayd.messages import (
    BLOB_RECORD,
    PEEK_ORDERS,
    ChunkBatch,
    CloseStream,
    Failed,
    Insert,
    ItemBatch,
    KeepAlive,
    Peek,
    Peeked,
    Reset,
    Result,
    Sample,
    Sampled,
    Set,
    Update,
    Why,
    Withdraw,
)
from replayd.service import Service
from replayd.table import Table
from tests.model.naive import NaiveItem, NaiveSample, NaiveServer, NaiveTable
from tests.model.naive_service import due_first
from tests.unit.writer import payloads_of

SCHEMA = Schema(b"schema", (Column(("x",), "uint8", ()),))
IDENTITY = Template(b"")
KINDS = ("Fifo", "Lifo", "MinHeap", "MaxHeap")
LEASE_S = 50.0
ITEM_BYTES, CHUNK_BYTES = 2, 1
"""So little in these tests that payloads, of 3 to 9 bytes, decide who fits."""
max_bytes = st.none() | st.integers(12, 60)
when_full = st.sampled_from(["evict", "block", "reject"])
priorities = st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0, 7.0])

tables = st.builds(
    NaiveTable,
    sampler=st.sampled_from(KINDS),
    remover=st.sampled_from(KINDS),
    max_size=st.integers(5, 12),
    max_times_sampled=st.sampled_from([0, 0, 1, 2, 3]),
    spi=st.sampled_from([0.5, 1.0, 2.0]),
    min_size=st.integers(1, 5),
    min_diff=st.sampled_from([-3.0, 0.0, 1.0]),
    max_diff=st.sampled_from([4.0, 6.5, 1e9]),
    max_bytes=max_bytes,
    when_full=when_full,
)

# Where draws are often kept for a request: items expire soon, and few may be missing.
expiring_tables = st.builds(
    NaiveTable,
    sampler=st.sampled_from(KINDS),
    remover=st.sampled_from(KINDS),
    max_size=st.just(12),
    max_times_sampled=st.sampled_from([2, 3]),
    spi=st.just(2.0),
    min_size=st.integers(2, 5),
    min_diff=st.just(-3.0),
    max_diff=st.just(1e9),
)


class Streams:
    """What the model knows of one writer: its chunks' payloads by number, and the numbers it still holds."""

    def __init__(self, id: bytes) -> None:
        self.id = id
        self.seq = 0
        self.next_chunk = 0
        self.keep_from = 0
        self.payloads: dict[int, bytes] = {}
        self.last: Insert | None = None
        self.last_key: int | None = None
        self.heard_at = 0.0


class ServiceMachine(RuleBasedStateMachine):
    @initialize(naive=st.tuples(tables, tables | expiring_tables), server_bytes=st.none() | st.integers(30, 90))
    def start(self, naive: tuple[NaiveTable, NaiveTable], server_bytes: int | None) -> None:
        self.steps = 0
        self.patch = pytest.MonkeyPatch()
        for module in (capacity, intake):
            self.patch.setattr(module, "ITEM_BYTES", ITEM_BYTES)
            self.patch.setattr(module, "CHUNK_BYTES", CHUNK_BYTES)
            # All chunks here have one.
            self.patch.setattr(module, "COLUMN_BYTES", 0)
        self.naive = dict(zip(["a", "b"], naive, strict=True))
        self.naive_server = NaiveServer(list(naive), ITEM_BYTES, CHUNK_BYTES, server_bytes)
        self.service = Service(
            [
                Table(
                    name,
                    getattr(selectors, n.sampler)(),
                    getattr(selectors, n.remover)(),
                    n.max_size,
                    rate_limiters.RateLimiter(n.spi, n.min_size, n.min_diff, n.max_diff),
                    n.max_times_sampled,
                    max_bytes=n.max_bytes,
                    when_full=n.when_full,
                )
                for name, n in self.naive.items()
            ],
            server_id=b"s" * 16,
            version="test",
            seed=1,
            started_at=0.0,
            lease_s=LEASE_S,
            max_bytes=server_bytes,
        )
        self.now = 0.0
        self.request_id = 0
        self.next_key = 1
        self.streams = [Streams(bytes([i]) * 16) for i in range(2)]
        self.waiting: dict[int, int] = {}
        """Ticket (first request id of an insert) → items not applied."""
        self.again: dict[int, int] = {}
        """Ticket → resends that came while it was parked; each is answered too."""
        self.serial = 0

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()

    # --- rules ------------------------------------------------------------------------------------------------------

    @rule(data=st.data(), which=st.integers(0, 1), new=st.integers(0, 3), skip=st.sampled_from([0, 0, 0, 2]))
    def insert(self, data: st.DataObject, which: int, new: int, skip: int) -> None:
        stream = self.streams[which]
        first, before = stream.next_chunk + skip, (stream.next_chunk, dict(stream.payloads))
        rows = data.draw(st.lists(st.integers(1, 3), min_size=new, max_size=new))
        for i, count in enumerate(rows):
            self.serial += 1
            stream.payloads[first + i] = self.serial.to_bytes(3, "big") * count
        if new:
            stream.next_chunk = first + new
        count = data.draw(st.integers(0, 4)) if stream.payloads else 0
        items = [self._item(data, stream) for _ in range(count)]
        names = [data.draw(st.sampled_from(["a", "b"])) for _ in items]
        keep_from = data.draw(st.integers(stream.keep_from, stream.next_chunk))
        request = Insert(
            id=self._id(),
            stream=stream.id,
            seq=stream.seq,
            keep_from=keep_from,
            chunks=self._chunks(stream, first, rows) if new else None,
            items=self._items(items, names) if items else None,
            nbytes=10,
        )
        first_key = self.next_key
        made = [
            NaiveItem(first_key + n, priority, (tuple(map(stream.payloads.__getitem__, window[0])), *window[1:]), 0)
            for n, (window, priority) in enumerate(items)
        ]
        mine = {name: [item for item, to in zip(made, names, strict=True) if to == name] for name in sorted(set(names))}
        refusals = [code for name, few in mine.items() if (code := self.naive[name].refusal(few))]
        if refusals:
            error = self.service.handle("writer", "insert", request, self.now)
            assert error is not None
            assert error.code == refusals[0]
            assert len(self.service.drain()) == 1
            stream.next_chunk, stream.payloads = before
            return
        self.waiting[request.id] = len(items)
        self.next_key += len(items)
        for item, name in zip(made, names, strict=True):
            self.naive[name].pending_inserts.append((request.id, item))
        stream.seq += 1
        stream.keep_from = keep_from
        stream.payloads = {n: p for n, p in stream.payloads.items() if n >= keep_from}
        stream.last, stream.last_key = request, first_key if items else None
        stream.heard_at = self.now
        self._ask("writer", "insert", request, [] if items else [(request.id, None)], order=names)

    @precondition(lambda self: any(stream.last for stream in self.streams))
    @rule(data=st.data())
    def resend(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from([s for s in self.streams if s.last]))
        assert stream.last is not None
        before = self.service.counters.duplicates
        waits = self.waiting.get(stream.last.id, 0) > 0
        stream.heard_at = self.now
        self.service.handle("writer", "insert", stream.last, self.now)
        replies = self.service.drain()
        assert self.service.counters.duplicates == before + 1
        if waits:
            assert replies == []
            self.again[stream.last.id] = self.again.get(stream.last.id, 0) + 1
        else:
            [(peer, reply)] = replies
            assert peer == "writer"
            assert isinstance(reply, Result)
            assert reply.fields["duplicate"]
            assert reply.fields.get("first_key") == stream.last_key

    @rule(name=st.sampled_from(["a", "b"]), n=st.integers(1, 6), min_n=st.integers(1, 6), wait=st.sampled_from([0, 5]))
    def sample(self, name: str, n: int, min_n: int, wait: int) -> None:
        request = Sample(self._id(), name, n, min(min_n, n), float(wait))
        self.service.handle("learner", "sample", request, self.now)
        replies = self.service.drain()
        if len(replies) == 1 and isinstance(replies[0][1], Failed) and replies[0][1].code == "never_grantable":
            assert self.naive[name].grant(n) < request.min_n
            return
        self.naive[name].pending_samples.append(NaiveSample(request.id, n, request.min_n, self.now + wait))
        self._compare(replies, self._pump([name]))

    @rule()
    def withdraw(self) -> None:
        names = [name for name in ("a", "b") if self.naive[name].pending_samples]
        waiting = [sample.id for name in names for sample in self.naive[name].pending_samples]
        for name in names:
            self.naive[name].pending_samples.clear()
        request = Withdraw(self._id())
        self.service.handle("learner", "withdraw", request, self.now)
        replies = self.service.drain()
        withdrawn, others = replies[: len(waiting)], replies[len(waiting) + 1 :]
        found = [(reply.id, getattr(reply, "code", "")) for _, reply in withdrawn]
        assert found == [(id, "withdrawn") for id in waiting]
        assert replies[len(waiting)] == ("learner", Result("withdraw", request.id))
        self._compare(others, self._pump(names))

    @rule(
        name=st.sampled_from(["a", "b"]),
        updates=st.dictionaries(st.integers(1, 40), priorities, max_size=4),
        deletes=st.sets(st.integers(1, 40), max_size=3),
    )
    def update(self, name: str, updates: dict[int, float], deletes: set[int]) -> None:
        known = {item.key for item in self.naive[name].items}
        missing = sorted((set(updates) | deletes) - known)
        updated, deleted = self.naive[name].update(updates, deletes)
        request = Update(
            self._id(),
            name,
            np.array(list(updates), np.uint64),
            np.array(list(updates.values()), np.float64),
            np.array(list(deletes), np.uint64),
        )
        self.service.handle("learner", "update", request, self.now)
        (_, reply), *others = self.service.drain()
        assert isinstance(reply, Result)
        assert (reply.fields["updated"], reply.fields["deleted"]) == (updated, deleted)
        assert reply.fields["missing"].tolist() == missing
        self._compare(others, self._pump([name]))

    @rule(name=st.sampled_from(["a", "b"]))
    def reset(self, name: str) -> None:
        removed = self.naive[name].reset()
        self.service.handle("operator", "reset", Reset(self._id(), name), self.now)
        (_, reply), *others = self.service.drain()
        assert isinstance(reply, Result)
        assert reply.fields["removed"] == removed
        self._compare(others, self._pump([name]))

    @rule(
        name=st.sampled_from(["a", "b"]),
        max_size=st.integers(5, 12),
        max_times_sampled=st.integers(0, 3),
        max_diff=st.sampled_from([4.0, 6.5, None]),
        paused=st.sampled_from([[], [], ["insert"], ["sample"], ["insert", "sample"]]),
        limit=st.tuples(max_bytes, when_full),
    )
    def change_settings(
        self,
        name: str,
        max_size: int,
        max_times_sampled: int,
        max_diff: float | None,
        paused: list[str],
        limit: tuple[int | None, str],
    ) -> None:
        changes = {
            "max_size": max_size,
            "max_times_sampled": max_times_sampled,
            "max_diff": max_diff,
            "max_bytes": limit[0],
            "when_full": limit[1],
            "paused_inserts": "insert" in paused,
            "paused_samples": "sample" in paused,
        }
        self.service.handle("operator", "set", Set(self._id(), name, changes), self.now)
        (_, reply), *others = self.service.drain()
        assert isinstance(reply, Result)
        assert {key: reply.fields["after"][key] for key in changes} == changes
        naive = self.naive[name]
        naive.max_diff, naive.paused = 1e9 if max_diff is None else max_diff, tuple(paused)
        naive.max_bytes, naive.when_full = limit
        naive.resize(max_size, max_times_sampled)
        self._compare(others, self._pump([name]))

    @rule(
        name=st.sampled_from(["a", "b"]),
        order=st.sampled_from(PEEK_ORDERS),
        n=st.integers(1, 5),
        keys=st.lists(st.integers(1, 40), max_size=4, unique=True),
    )
    def peek(self, name: str, order: str, n: int, keys: list[int]) -> None:
        self.service.handle("operator", "peek", Peek(self._id(), name, order, n, np.array(keys, np.uint64)), self.now)
        [(_, reply)] = self.service.drain()
        assert isinstance(reply, Peeked)
        naive = self.naive[name]
        if keys:
            here = {item.key: item for item in naive.items}
            assert reply.shown.keys.tolist() == [key for key in keys if key in here]
            assert reply.missing.tolist() == [key for key in keys if key not in here]
        elif order in ("highest", "lowest"):
            assert reply.shown.priorities.tolist() == [item.priority for item in naive.peek(order, n)]
        else:
            assert reply.shown.keys.tolist() == [item.key for item in naive.peek(order, n)]

    @rule(name=st.sampled_from(["a", "b"]))
    def why(self, name: str) -> None:
        self.service.handle("operator", "why", Why(self._id(), name), self.now)
        [(_, reply)] = self.service.drain()
        assert isinstance(reply, Result)
        naive = self.naive[name]
        sides = [side["side"] for side in reply.fields["waiting"]]
        assert sides == ["insert"] * bool(naive.pending_inserts) + ["sample"] * bool(naive.pending_samples)
        for side in reply.fields["waiting"]:
            self._what_it_needs_sets_it_free(naive, side)

    @rule(which=st.integers(0, 1))
    def close_stream(self, which: int) -> None:
        self.service.handle("writer", "close_stream", CloseStream(self._id(), self.streams[which].id), self.now)
        self.service.drain()
        self._forget(which)

    @rule(which=st.integers(0, 1))
    def keepalive(self, which: int) -> None:
        stream = self.streams[which]
        self.service.handle("writer", "keepalive", KeepAlive(self._id(), stream.id), self.now)
        [(_, reply)] = self.service.drain()
        assert isinstance(reply, Result if stream.seq else Failed)
        if stream.seq:
            stream.heard_at = self.now

    @rule(seconds=st.sampled_from([1.0, 6.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.service.tick(self.now)
        replies = dict(self._by_id(self.service.drain()))
        while due := due_first(self.naive, self.now):
            name, request = due
            self._expire_one(self.naive[name], request, replies)
            self._compare_part(replies, self._pump([name]))
        assert not replies, f"unexpected replies {replies}"
        for which, stream in enumerate(self.streams):
            if stream.seq and stream.heard_at + LEASE_S <= self.now:
                self._forget(which)

    # --- agreement --------------------------------------------------------------------------------------------------

    @invariant()
    def counts_are_what_holds_them(self) -> None:
        if not hasattr(self, "service"):
            return
        # It takes half of a step, and a count that is wrong stays so: after each third step, of 40, it finds as much.
        self.steps += 1
        if self.steps % 3 == 0:
            self.service.validate()
        for name, naive in self.naive.items():
            table = self.service.tables[name]
            live = table.items.in_order()
            assert table.items.key[live].tolist() == [item.key for item in naive.items]
            assert table.items.priority[live].tolist() == [item.priority for item in naive.items]
            assert table.items.times_sampled[live].tolist() == [item.times_sampled for item in naive.items]
            counted = (table.limiter.inserts, table.limiter.samples, table.limiter.deletes)
            assert counted == (naive.inserts, naive.samples, naive.deletes)
            assert table.capacity.nbytes == naive.held()
        assert self.service.capacity.nbytes == self.naive_server.held()

    def _what_it_needs_sets_it_free(self, naive: NaiveTable, side: dict[str, Any]) -> None:
        """So many requests of the other side, and no fewer, let the head pass: by the equations, nothing else
        happening.
        """
        if side["side"] == "insert" and naive.can_insert():
            (_, head), *_ = naive.pending_inserts
            assert side["blocked_by"] == ("paused" if "insert" in naive.paused else naive.full_by(head))
            return
        if side["blocked_by"] == "paused" or (side["side"] == "sample" and naive.max_times_sampled):
            return  # With expiry it also counts how often the items can still be drawn.
        if side["side"] == "insert":
            counts = [(naive.inserts, naive.samples + k) for k in (side["needs_samples"] - 1, side["needs_samples"])]
            passes = [(i + 1) * naive.spi - s <= naive.max_diff for i, s in counts]
        else:
            n = naive.pending_samples[0].min_n
            counts = [(naive.inserts + k, naive.samples) for k in (side["needs_inserts"] - 1, side["needs_inserts"])]
            passes = [
                i - naive.deletes >= naive.min_size and i * naive.spi - s - n >= naive.min_diff for i, s in counts
            ]
        assert passes == [False, True]

    def _pump(self, names: list[str]) -> list[tuple[int, Any]]:
        """What the naive tables answer: (request id, keys drawn or None for an acknowledgement)."""
        expected: list[tuple[int, Any]] = []
        for name in dict.fromkeys(names):
            todo = [self.naive[name]]
            while todo:
                applied, served = todo.pop(0).pump()
                for ticket in applied:
                    self.waiting[ticket] -= 1
                    if self.waiting[ticket] == 0:
                        expected += [(ticket, None)] * (1 + self.again.pop(ticket, 0))
                expected += served
                todo += [table for table in self.naive_server.take_stirred() if table not in todo]
        return expected

    def _ask(self, peer: str, op: str, request: Any, expected: list[tuple[int, Any]], order: list[str]) -> None:
        assert self.service.handle(peer, op, request, self.now) is None
        # Tables are pumped in the order in which the message names them.
        named = sorted(dict.fromkeys(order))
        self._compare(self.service.drain(), expected + self._pump(named))

    def _compare(self, replies: list[tuple[Any, Any]], expected: list[tuple[int, Any]]) -> None:
        answers = self._by_id(replies)
        assert sorted(id for id, _ in answers) == sorted(id for id, _ in expected)
        self._compare_part(dict(answers), expected)

    def _compare_part(self, replies: dict[int, Any], expected: list[tuple[int, Any]]) -> None:
        for id, drawn in expected:
            reply = replies.pop(id, None)
            if drawn is None:
                continue
            assert isinstance(reply, Sampled), reply
            self._compare_draw(reply, drawn)

    def _compare_draw(self, reply: Sampled, drawn: list[NaiveItem]) -> None:
        assert reply.shown.keys.tolist() == [item.key for item in drawn]
        assert reply.shown.times_sampled.tolist() == [item.times_sampled for item in drawn]
        assert reply.shown.priorities.tolist() == [item.priority for item in drawn]
        assert (reply.probabilities == 1.0).all()
        payloads = payloads_of(reply.shown)
        assert len(set(payloads)) == len(payloads), "a chunk was sent twice"
        for i, item in enumerate(drawn):
            first, count = int(reply.shown.chunk[i]), 1 if reply.shown.chunks is None else int(reply.shown.chunks[i])
            window = (tuple(payloads[first : first + count]), int(reply.shown.offset[i]), int(reply.shown.length[i]))
            assert window == item.window

    def _expire_one(self, table: NaiveTable, request: NaiveSample, replies: dict[int, Any]) -> None:
        first = table.pending_samples[0] is request
        table.pending_samples.remove(request)
        drawn = request.kept
        if first and "sample" not in table.paused:
            drawn += table.draw(request.n - len(drawn))
        reply = replies.pop(request.id)
        if drawn:
            self._compare_draw(reply, drawn)
        else:
            assert isinstance(reply, Failed)
            assert reply.code == "timeout"

    def _by_id(self, replies: list[tuple[Any, Any]]) -> list[tuple[int, Any]]:
        return [(reply.id, reply) for _, reply in replies]

    # --- making requests --------------------------------------------------------------------------------------------

    def _id(self) -> int:
        self.request_id += 1
        return self.request_id

    def _forget(self, which: int) -> None:
        """The stream is over; its writer begins a new one."""
        self.serial += 1
        self.streams[which] = Streams(self.serial.to_bytes(16, "big"))

    def _item(self, data: st.DataObject, stream: Streams) -> tuple[tuple[list[int], int, int], float]:
        numbers = sorted(stream.payloads)
        first = data.draw(st.sampled_from(numbers))
        window = [first]
        while window[-1] + 1 in stream.payloads and len(window) < 3 and data.draw(st.booleans()):
            window.append(window[-1] + 1)
        rows = [len(stream.payloads[number]) // 3 for number in window]
        offset = data.draw(st.integers(0, rows[0] - 1))
        end = data.draw(st.integers(max(sum(rows[:-1]), offset) + 1, sum(rows)))
        return (window, offset, end - offset), data.draw(priorities)

    def _chunks(self, stream: Streams, first: int, rows: list[int]) -> ChunkBatch:
        payloads = [stream.payloads[first + i] for i in range(len(rows))]
        records = np.zeros(len(rows), BLOB_RECORD)
        records["stored_bytes"] = [len(p) for p in payloads]
        return ChunkBatch(
            first=first,
            rows=np.array(rows, np.int64),
            episodes=np.zeros(len(rows), np.uint64),
            schemas=[SCHEMA],
            schema_of=np.zeros(len(rows), np.int64),
            records=records.view("<u8").reshape(-1),
            nbytes=np.array([len(p) for p in payloads], np.int64),
            body=[b"".join(payloads)],
            stops=[len(payloads)],
        )

    def _items(self, items: list[tuple[tuple[list[int], int, int], float]], names: list[str]) -> ItemBatch:
        tables = sorted(dict.fromkeys(names))
        windows = [window for window, _ in items]
        return ItemBatch(
            tables=tables,
            table_of=np.array([tables.index(name) for name in names], np.int64),
            chunk=np.array([window[0][0] for window in windows], np.int64),
            chunks=np.array([len(window[0]) for window in windows], np.int64),
            longest=max(len(window[0]) for window in windows),
            offset=np.array([window[1] for window in windows], np.int64),
            length=np.array([window[2] for window in windows], np.int64),
            templates=[IDENTITY],
            template_of=np.zeros(len(items), np.int64),
            priority=np.array([priority for _, priority in items], np.float64),
        )


TestService = ServiceMachine.TestCase
TestService.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
