"""Samples that their peer takes back: they are answered, take nothing, and no longer stand before others."""

from __future__ import annotations

from typing import Any

import pytest

from replayd import limits, quotas
from replayd.messages import Failed, Result, Sample, Sampled, Withdraw
from replayd.service import Service
from replayd.table import Table
from tests.unit.writer import StreamWriter, fifo, service


def ask(s: Service, request: Any, peer: str, are_read: bool = True) -> list[tuple[str, int, str]]:
    """To whom, about what and with which outcome."""
    s.handle(peer, type(request).__name__.lower(), request, 0.0)
    return [(str(to), reply.id, outcome(reply)) for to, reply in s.drain(are_read)]


def outcome(reply: Any) -> str:
    match reply:
        case Failed():
            return reply.code
        case Sampled():
            return f"{len(reply.shown.keys)} items"
        case Result():
            return reply.op
    raise AssertionError(reply)


def sample(id: int, table: str = "t", n: int = 1, min_n: int = 1) -> Sample:
    return Sample(id, table, n, min_n, 10.0)


def test_all_samples_of_the_peer_are_taken_back_and_those_of_others_are_served(made: list[Service]) -> None:
    made.append(s := service(Table.queue("t", 4), fifo("u")))
    for peer, request in (("a", sample(1)), ("b", sample(2)), ("a", sample(3, "u")), ("a", sample(4))):
        assert ask(s, request, peer) == []
    assert ask(s, Withdraw(5), "a") == [
        ("a", 1, "withdrawn"), ("a", 4, "withdrawn"), ("a", 3, "withdrawn"), ("a", 5, "withdraw"),
    ]  # fmt: skip
    assert ask(s, StreamWriter().insert([b"x"], [(0, 1)], id=6), "w") == [("w", 6, "insert"), ("b", 2, "1 items")]
    assert s.tick(0.0) is None or not s._accounts.samples


def test_who_stood_behind_is_served_at_once(made: list[Service]) -> None:
    made.append(s := service(Table.queue("t", 4)))
    ask(s, StreamWriter().insert([b"x"], [(0, 1)]), "w")
    assert ask(s, sample(1, n=3, min_n=3), "a") == []
    assert ask(s, sample(2), "b") == []
    assert ask(s, Withdraw(3), "a") == [("a", 1, "withdrawn"), ("a", 3, "withdraw"), ("b", 2, "1 items")]


def test_what_waits_until_the_peer_has_read_is_taken_back_too(
    made: list[Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "UNREAD_REPLIES", limits.Limit("unread_replies", 1, "small enough to be reached"))
    made.append(s := service(fifo()))
    ask(s, StreamWriter().insert([b"x"], [(0, 1)]), "w")
    assert ask(s, sample(1), "a", are_read=False) == [("a", 1, "1 items")]
    assert ask(s, sample(2), "a") == []
    assert ask(s, Withdraw(3), "a") == [("a", 2, "withdrawn"), ("a", 3, "withdraw")]
    s.read("a", 1)
    s.tick(0.0)
    assert s.drain() == []
    assert s.tables["t"].limiter.samples == 1


def test_there_may_be_nothing_to_take_back(made: list[Service]) -> None:
    made.append(s := service(fifo()))
    assert ask(s, Withdraw(1), "a") == [("a", 1, "withdraw")]


def test_a_pushing_peer_takes_nothing_back(made: list[Service]) -> None:
    made.append(s := service(fifo()))
    assert ask(s, sample(1), "a") == []
    s.handle(None, "withdraw", Withdraw(2), 0.0)
    assert s._accounts.samples == 1
