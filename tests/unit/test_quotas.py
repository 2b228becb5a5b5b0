"""What a peer leaves unread: its own samples wait for that, nobody else's do, and none is lost."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from replayd import limits, quotas
from replayd.messages import Failed, Peek, Peeked, Sample, Sampled
from replayd.service import Service
from tests.unit.writer import StreamWriter, fifo, service


@pytest.fixture(autouse=True)
def _small_quotas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "UNREAD_BYTES", limits.Limit("unread_bytes", 100, "small enough to be reached"))
    monkeypatch.setattr(quotas, "UNREAD_REPLIES", limits.Limit("unread_replies", 4, "likewise"))


def filled(*, sizes: tuple[int, ...] = (40,), name: str = "t") -> Service:
    s = service(fifo(name))
    writer = StreamWriter()
    s.handle("w", "insert", writer.insert([b"x" * n for n in sizes], [(i, 1) for i in range(len(sizes))]), 0.0)
    s.drain()
    return s


def sample(s: Service, peer: str, id: int, wait_s: float = 60.0, now: float = 0.0) -> None:
    assert s.handle(peer, "sample", Sample(id, "t", 1, 1, wait_s), now) is None
    s.validate()


def answered(s: Service) -> list[tuple[Any, int]]:
    return [(peer, reply.id) for peer, reply in s.drain(are_read=False)]


def test_who_has_read_nothing_waits_and_nobody_with_it() -> None:
    s = filled()
    for id in range(5):
        sample(s, "slow", id)
    # The third reaches the limit, so the fourth waits.
    assert answered(s) == [("slow", 0), ("slow", 1), ("slow", 2)]
    assert s.holds_back
    for id in range(3):
        sample(s, "quick", id)
        assert answered(s) == [("quick", id)]
        s.read("quick", 40)
    peers = s.report(0.0)["peers"]
    assert (peers["held_samples"], peers["unread_bytes"], peers["parked_samples"]) == (2, 120, 2)
    assert s.report(0.0)["tables"][0]["waiting"] == []


def test_what_was_held_back_is_served_when_the_peer_reads() -> None:
    s = filled()
    for id in range(6):
        sample(s, "slow", id)
    got = answered(s)
    while s.holds_back:
        s.read("slow", 40)
        s.tick(1.0)
        s.validate()
        got += answered(s)
    assert got == [("slow", id) for id in range(6)]


def test_replies_are_counted_too_however_small() -> None:
    s = filled(sizes=(1,))
    for id in range(6):
        sample(s, "slow", id)
    assert len(answered(s)) == 4


def test_a_deadline_holds_for_who_must_read_first() -> None:
    s = filled()
    for id in range(4):
        sample(s, "slow", id, wait_s=5.0)
    s.drain(are_read=False)
    s.tick(6.0)
    s.validate()
    [(_, reply)] = s.drain()
    assert isinstance(reply, Failed)
    assert (reply.code, reply.detail["blocked_by"], reply.detail["who_must_act"]) == (
        "timeout", "unread_replies", "learners",
    )  # fmt: skip
    assert not s.holds_back


def test_a_peek_is_refused_to_who_must_read_first() -> None:
    s = filled()
    look = Peek(1, "t", "oldest", 1, np.zeros(0, np.uint64))
    for _ in range(3):
        assert s.handle("slow", "peek", look, 0.0) is None
    error = s.handle("slow", "peek", look, 0.0)
    assert error is not None
    assert (error.code, error.detail["limit"]) == ("limit_exceeded", "unread_bytes")
    assert s.handle("quick", "peek", look, 0.0) is None


def test_a_server_that_stops_answers_those_held_back() -> None:
    s = filled()
    for id in range(5):
        sample(s, "slow", id)
    s.drain(are_read=False)
    s.stop()
    s.validate()
    assert [(reply.id, reply.code) for _, reply in s.drain()] == [(3, "shutting_down"), (4, "shutting_down")]


def test_nobody_is_remembered_who_has_read_all() -> None:
    s = filled()
    for n in range(50):
        sample(s, f"peer {n}", 1)
        s.drain()
        s.handle(f"peer {n}", "sample", Sample(2, "t", 5, 9, 1.0), 0.0)
        s.handle(f"peer {n}", "peek", Peek(1, "nowhere", "oldest", 1, np.zeros(0, np.uint64)), 0.0)
        s.drain()
    assert s._quotas._quotas == {}


@pytest.mark.parametrize("seed", range(10))
def test_every_request_is_answered_once_however_slowly_its_peer_reads(seed: int) -> None:
    rng, s, now = random.Random(seed), filled(sizes=(1, 30, 60, 99)), 0.0
    asked: set[tuple[str, int]] = set()
    answers: list[tuple[str, int]] = []
    unread: dict[str, list[int]] = {peer: [] for peer in "abc"}
    for id in range(200):
        peer = rng.choice("abc")
        if s._accounts.copy_of(peer).samples < 20:
            asked.add((peer, id))
            s.handle(peer, "sample", Sample(id, "t", rng.randint(1, 3), 1, rng.choice([0.0, 5.0, 60.0])), now)
        # One of them hardly reads.
        for reader in "abc":
            while unread[reader] and rng.random() < (0.05 if reader == "c" else 0.7):
                s.read(reader, unread[reader].pop(0))
        now += rng.choice([0.0, 0.1, 2.0])
        s.tick(now)
        if id % 20 == 0:
            s.validate()
        for to, reply in s.drain(are_read=False):
            answers.append((to, reply.id))
            if isinstance(reply, Sampled | Peeked):
                unread[to].append(reply.shown.nbytes)
        assert all(sum(sizes) < 100 + 190 and len(sizes) <= 4 for sizes in unread.values())
    s.tick(now + 100.0)
    answers += answered(s)
    assert sorted(answers) == sorted(asked)
