"""How often one peer may ask for what has no window: so often, and nobody else pays for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import msgpack
import pytest

from replayd import selectors
from replayd.errors import Fault, LimitExceeded
from replayd.limits import LEASE_S, LOOKS_PER_S, STREAM_CALLS_PER_S, STREAMS, UNREADABLE_PER_S, UPDATES_PER_S, Limit
from replayd.messages import OPS, Failed, Peer, Reply
from replayd.pace import LIMIT_OF, Pace
from replayd.rate_limiters import MinSize
from replayd.reception import Reception
from replayd.service import Service
from replayd.table import Table

FLOOD, OTHER = (b"flood",), (b"other",)


class Door:
    """What comes in by messages, and what is answered."""

    def __init__(self) -> None:
        table = Table("replay", selectors.Uniform(), selectors.Fifo(), 10, MinSize(1))
        self.service = Service([table], server_id=bytes(16), version="1", seed=0, started_at=0.0)
        self.faults: list[Fault] = []
        self.reception = Reception(
            self.service, bytes, lambda fault, now: self.faults.append(fault), origin=lambda frames: "10.0.0.7"
        )
        self._ids = iter(range(1, 1 << 62))

    def ask(self, peer: Peer, op: str, now: float, **fields: object) -> None:
        header = {"v": 1, "op": op, "id": next(self._ids), **fields}
        self.reception.take(peer, [msgpack.packb(header)], now)

    def replies(self) -> Iterator[tuple[Peer, Reply]]:
        self.reception.settle(0.0)
        yield from self.service.drain()


def refused(replies: Iterator[tuple[Peer, Reply]]) -> list[tuple[Peer, object]]:
    """Of the replies those that tell of a limit: to whom, and of which."""
    return [
        (peer, reply.detail["limit"])
        for peer, reply in replies
        if isinstance(reply, Failed) and reply.code == LimitExceeded.code
    ]


@pytest.mark.parametrize(
    ("op", "limit", "fields"),
    [
        ("why", LOOKS_PER_S, {"table": "replay"}),
        ("update", UPDATES_PER_S, {"table": "replay", "keys": b"", "priorities": b"", "deletes": b""}),
        ("keepalive", STREAM_CALLS_PER_S, {"stream": bytes(16)}),
        ("close_stream", STREAM_CALLS_PER_S, {"stream": bytes(16)}),
    ],
    ids=["looks", "updates", "keepalives", "ends of streams"],
)
def test_who_asks_too_often_is_refused_until_the_second_is_over_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch, op: str, limit: Limit, fields: dict[str, object]
) -> None:
    limit = replace(limit, value=50)
    monkeypatch.setitem(cast(dict[str, Limit], LIMIT_OF), op, limit)
    door = Door()
    for n in range(limit.value + 5):
        door.ask(FLOOD, op, 1.0 + n * 1e-6, **fields)
    door.ask(OTHER, op, 1.5, **fields)
    replies = list(door.replies())
    assert len(replies) == limit.value + 6, "each is answered once"
    assert refused(iter(replies)) == [(FLOOD, limit.name)] * 5
    door.ask(FLOOD, op, 2.01, **fields)
    assert refused(door.replies()) == []


def test_every_op_has_a_window_or_a_rate() -> None:
    assert LIMIT_OF.keys() == OPS.keys() - {"insert", "sample"}


def test_what_a_learner_or_a_writer_does_at_its_fastest_is_far_below_its_rate() -> None:
    # Updates of one key, sent without waiting, come to some 10 000 a second; streams ask a few times in a lease.
    assert LIMIT_OF["update"].value >= 20_000
    assert LIMIT_OF["keepalive"].value * LEASE_S / 3 > STREAMS.value
    pace = Pace()
    for _ in range(LIMIT_OF["update"].value):
        pace.check(FLOOD, "update", 1.0)


def test_kinds_of_requests_do_not_count_against_each_other() -> None:
    pace = Pace()
    for _ in range(LOOKS_PER_S.value):
        pace.check(FLOOD, "info", 1.0)
    with pytest.raises(LimitExceeded):
        pace.check(FLOOD, "why", 1.1)
    pace.check(FLOOD, "update", 1.1)
    pace.check(FLOOD, "insert", 1.1)


GARBAGE = [b"\xff\x00nonsense"]


def test_a_peer_that_floods_with_garbage_is_not_read_until_the_second_is_over() -> None:
    door = Door()
    for _ in range(UNREADABLE_PER_S.value + 5):
        door.reception.take(FLOOD, GARBAGE, 1.0)
    # Not even what could be read.
    door.ask(FLOOD, "info", 1.1)
    door.ask(OTHER, "info", 1.1)
    replies = list(door.replies())
    assert len(replies) == UNREADABLE_PER_S.value + 7, "each is answered once"
    assert refused(iter(replies)) == [(FLOOD, UNREADABLE_PER_S.name)] * 6
    assert [reply.id for _, reply in replies if isinstance(reply, Failed)] == [0] * (UNREADABLE_PER_S.value + 6)
    assert door.service.counters.unreadable == UNREADABLE_PER_S.value + 6
    (fault,) = door.faults
    assert "10.0.0.7" in fault.advice
    door.ask(FLOOD, "info", 2.01)
    assert [type(reply).__name__ for _, reply in door.replies()] == ["Result"]


def test_who_floods_is_told_of_once_a_second() -> None:
    pace = Pace()
    for second in (1.0, 2.5):
        told = [pace.take_unreadable(FLOOD, second) for _ in range(2 * UNREADABLE_PER_S.value)]
        assert [n for n, is_news in enumerate(told, 1) if is_news] == [UNREADABLE_PER_S.value]


def test_garbage_that_is_pushed_is_counted_and_keeps_nobody_else_from_pushing() -> None:
    door = Door()
    for _ in range(UNREADABLE_PER_S.value + 5):
        door.reception.take(None, GARBAGE, 1.0)
    counters = door.service.counters
    assert (counters.unreadable, counters.pushes_refused) == (UNREADABLE_PER_S.value + 5,) * 2
    assert {fault.what for fault in door.faults} == {"refused a pushed message: bad_message"}, "one kind, so few lines"
    assert not door.reception._pace.unheard
    assert list(door.replies()) == []
