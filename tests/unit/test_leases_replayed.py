"""Leases after a crash: what was accepted is accepted again, whatever is allowed today, and ends when it ended."""

from __future__ import annotations

import time
from pathlib import Path

import msgpack
import pytest

from replayd.blobs import parse_schema
from replayd.limits import PENDING_INSERTS, Limit
from replayd.messages import Request
from replayd.service import Service
from replayd.table import Table
from tests.model.essence import essence
from tests.model.wire_traffic import encoded, give
from tests.unit.test_journal import Journaled
from tests.unit.test_service import sample
from tests.unit.writer import StreamWriter, fifo

SIZE = 100
SCHEMA = parse_schema(msgpack.packb([[["x"], "uint8", [SIZE]]]))
LEASE_S = 50.0
"""As Journaled has it."""


def insert(writer: StreamWriter, reach_back: int = 0, table: str = "u") -> Request:
    """A chunk that the writer keeps, as all before it, and an item that shows it and so many before."""
    window = (writer.next_chunk - reach_back, 1 + reach_back)
    return writer.insert([bytes(SIZE)], [window], table=table, schema=SCHEMA)


def turn(live: Journaled, now: float, *requests: Request, peer: bytes | None = b"peer") -> list[str]:
    """What a loop does at this time; the codes of what is refused."""
    messages = [(None if peer is None else (peer,), frames) for each in requests if (frames := encoded(each))]
    give(live.reception, messages, now)
    before = len(live.drained)
    live.turn(now)
    return [reply.code for _, reply in live.drained[before:] if hasattr(reply, "code")]


def test_what_writers_kept_is_replayed_whatever_the_bounds_are_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journaled(tmp_path, [fifo("u")]) as live:
        live.settle(time.monotonic())
        writers = [StreamWriter(bytes([n]) * 16) for n in range(3)]
        for _ in range(8):
            for n, writer in enumerate(writers):
                assert turn(live, time.monotonic(), insert(writer, min(writer.next_chunk, 2)), peer=b"%d" % n) == []
        live.settle(time.monotonic())
        assert live.service.streams.leases.nbytes == 24 * SIZE
    # A server with a smaller max_bytes.
    monkeypatch.setattr("replayd.leases.ALL_LEASED_BYTES", Limit("all_leased_bytes", 6 * SIZE, ""))
    with Journaled(tmp_path, [fifo("u")]) as again:
        lost = again.service.durability.lost
        assert (again.service.durability.replayed, lost.requests, again.service.tables["u"].size) == (24, 0, 24)
        again.service.validate()
        # Today's bounds hold for what comes.
        assert turn(again, time.monotonic(), insert(writers[0]), peer=b"new") == ["limit_exceeded"]
        assert again.service.tables["u"].size == 24


def test_a_journal_of_when_parked_messages_kept_their_streams_open_is_replayed_without_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = lambda: [Table.queue("t", 1), fifo("u")]  # noqa: E731
    writer = StreamWriter()
    with Journaled(tmp_path, tables()) as live:
        live.service.streams.keeps_parked = True
        now = time.monotonic()
        live.settle(now)
        assert turn(live, now, insert(StreamWriter(b"o" * 16), table="t")) == []
        assert turn(live, now, insert(writer, table="t")) == []
        turn(live, now + LEASE_S + 1)
        # Its stream is open, with what it kept.
        assert turn(live, now + LEASE_S + 2, insert(writer, 1)) == []
        live.settle(now + LEASE_S + 2)
        before = essence(live.service)
    monkeypatch.setattr("replayd.restoring.as_of_today", before_format_3)
    with Journaled(tmp_path, tables()) as again:
        assert (again.service.durability.lost.requests, again.service.tables["u"].size) == (0, 1)
        assert essence(again.service)["streams"] == before["streams"]
        # From now on they end.
        turn(again, again.restored_at + LEASE_S + 1)
        assert len(again.service.streams) == 0


def before_format_3(state: dict, format: int, max_bytes: int | None) -> dict:  # type: ignore[type-arg]
    state["journal"]["keeps_parked"] = True
    return state


@pytest.mark.parametrize("checkpoint", ["before", "amid", "after"])
def test_who_pushes_keeps_what_it_kept_while_nobody_reads_and_so_does_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: str
) -> None:
    monkeypatch.setattr("replayd.table.PENDING_INSERTS", Limit(PENDING_INSERTS.name, 2, ""))
    tables = lambda: [Table.queue("t", 1), fifo("u")]  # noqa: E731
    pusher, other = StreamWriter(b"p" * 16), StreamWriter(b"d" * 16)
    with Journaled(tmp_path, tables()) as live:
        now = time.monotonic()
        live.settle(now)
        assert turn(live, now, insert(pusher), insert(pusher, 1), peer=None) == []
        assert turn(live, now, insert(other)) == []
        for n in range(3):
            # Whose messages are parked: they may end.
            turn(live, now + 1, insert(StreamWriter(bytes([n]) * 16), table="t"), peer=b"full")
        assert not live.service.wants_inserts
        # For more than two leases nobody reads what is pushed.
        for later in (1.0, 2.2):
            turn(live, now + later * LEASE_S + 2)
            assert [stream.id for stream in live.service.streams] == [pusher.stream]
        at = now + 2.3 * LEASE_S
        if checkpoint == "amid":
            live.checkpoint(at)
            live.settle(at)
        turn(live, at, sample(table="t"), peer=b"learner")
        assert live.service.wants_inserts
        if checkpoint == "after":
            live.checkpoint(at)
            live.settle(at)
        # It is read again: its lease begins anew, whenever it began.
        turn(live, now + 3.25 * LEASE_S)
        assert turn(live, now + 3.26 * LEASE_S, insert(pusher, 2), peer=None) == []
        assert live.service.tables["u"].size == 4
        assert live.service.counters.pushes_refused == 0
        live.settle(now + 3.26 * LEASE_S)
        live.service.validate()
        before = essence(live.service)
    with Journaled(tmp_path, tables()) as again:
        service: Service = again.service
        assert (service.durability.lost.requests, service.tables["u"].size) == (0, 4)
        after = essence(service)
        assert after["streams"] == before["streams"]
        assert pusher.stream in {stream.id for stream in service.streams}
        # One who is read and silent ends.
        turn(again, again.restored_at + LEASE_S + 1)
        assert len(service.streams) == 0
