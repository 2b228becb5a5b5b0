"""A batch that waits is distributed as single draws are, also where items expire while it is drawn.

Seeded, so that a test sees the same draws each time: a bias is found or it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from replayd import draws, rate_limiters, selectors
from replayd.columns import Template
from replayd.limits import REFERENCES, REPLY_BYTES
from replayd.messages import CloseStream, Reset, Sample, Sampled, Set, Update, Why
from replayd.selectors import Selector
from replayd.service import Service
from replayd.snapshots import dump_service, load_service
from replayd.state import frozen, settled
from replayd.table import Table
from replayd.wire import encode
from tests.unit.writer import SCHEMA, StreamWriter, service

SEEDS = 250
DRAWS = 12
FOUR_SIGMA = 4 * (0.25 / SEEDS) ** 0.5
"""How far a share of SEEDS may be from its expectation: one in 16 000 is farther."""

NO_KEYS = np.zeros(0, np.uint64)

SAMPLERS = [selectors.Uniform, lambda: selectors.Prioritized(1.0)]


def expiring(sampler: Selector, min_size: int) -> Table:
    """Items leave at their second draw; samples need `min_size` items."""
    limiter = rate_limiters.MinSize(min_size)
    return Table("t", sampler, selectors.Fifo(), 1000, limiter, max_times_sampled=2)


def run(seed: int, sampler: Selector, items: int, requests: list[int]) -> list[int]:
    """The keys drawn by requests of so many items each, while items come in one by one."""
    s = service(expiring(sampler, min_size=items), seed=seed)
    writer = StreamWriter()

    def handle(request: object, op: str) -> None:
        assert s.handle("peer", op, request, 0.0) is None  # type: ignore[arg-type]

    handle(writer.insert([b"x"] * items, [(i, 1) for i in range(items)]), "insert")
    for n in requests:
        handle(Sample(n, "t", n, n, 60.0), "sample")
    drawn: list[int] = []
    for i in range(items, items + sum(requests)):
        # What changes nothing is no new chance for a request that waits.
        for _ in range(3):
            handle(Update(1, "t", NO_KEYS, np.zeros(0), NO_KEYS), "update")
        drawn += taken(s)
        if len(drawn) == sum(requests):
            break
        handle(writer.insert([b"x"], [(i, 1)]), "insert")
    if seed % 10 == 0:  # It takes a quarter of a run.
        s.validate()
    assert len(drawn) == sum(requests)
    return drawn


def taken(s: Service) -> list[int]:
    return [key for _, reply in s.drain() if isinstance(reply, Sampled) for key in reply.shown.keys.tolist()]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=["uniform", "prioritized"])
def test_a_batch_that_expires_items_is_not_drawn_anew_until_it_fits(sampler: Callable[[], Selector]) -> None:
    # Of two items that leave at their second draw: half of all batches begin with both draws of one of them, and then
    # the third draw must wait for another item.
    batches = [run(seed, sampler(), 2, [3]) for seed in range(SEEDS)]
    assert np.mean([a == b for a, b, _ in batches]) == pytest.approx(0.5, abs=FOUR_SIGMA)
    assert np.mean([a == 1 for a, _, _ in batches]) == pytest.approx(0.5, abs=FOUR_SIGMA)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=["uniform", "prioritized"])
def test_a_batch_has_the_distribution_of_single_draws(sampler: Callable[[], Selector]) -> None:
    together = [run(seed, sampler(), 3, [4]) for seed in range(SEEDS)]
    singly = [run(seed, sampler(), 3, [1] * 4) for seed in range(SEEDS, 2 * SEEDS)]

    def differ(seen: Callable[[list[int]], bool]) -> float:
        return abs(float(np.mean(list(map(seen, together)))) - float(np.mean(list(map(seen, singly)))))

    near = FOUR_SIGMA * 2**0.5
    for draw in range(4):
        for key in range(1, 7):
            assert differ(lambda keys, draw=draw, key=key: keys[draw] == key) < near, (draw, key)  # type: ignore[misc]
    for distinct in (2, 3, 4):
        assert differ(lambda keys, distinct=distinct: len(set(keys)) == distinct) < near, distinct  # type: ignore[misc]


def test_items_have_their_chance_whatever_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "REPLY_BYTES", replace(REPLY_BYTES, value=100))
    big = bytes(60)
    followed = 0
    for seed in range(SEEDS):
        s = service(Table("t", selectors.Uniform(), selectors.Fifo(), 9, rate_limiters.MinSize(1)), seed=seed)
        s.handle("peer", "insert", StreamWriter().insert([big, big, b"c", b"d"], [(i, 1) for i in range(4)]), 0.0)
        keys: list[int] = []
        while len(keys) < DRAWS:
            s.handle("peer", "sample", Sample(1, "t", 8, 1, 0.0), 0.0)
            keys += taken(s)
        followed += sum({a, b} == {1, 2} for a, b in pairwise(keys[:DRAWS]))
    # Both large ones are too much for one reply; a draw of one must not be taken back because the other came before.
    assert followed / (SEEDS * (DRAWS - 1)) == pytest.approx(2 / 16, abs=0.03)


@pytest.mark.parametrize("expires", [False, True])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=["uniform", "prioritized"])
def test_items_have_their_chance_however_many_chunks_they_show(
    monkeypatch: pytest.MonkeyPatch, sampler: Callable[[], Selector], expires: bool
) -> None:
    """Long items are drawn as often as short ones, where a reply takes but a few chunks."""
    monkeypatch.setattr(draws, "REFERENCES", replace(REFERENCES, value=4))
    windows = [(0, 3), (3, 3), (6, 2), (8, 1), (9, 1), (10, 1)]
    counts, pairs = np.zeros(len(windows)), np.zeros((len(windows),) * 2)
    for seed in range(5):
        table = Table("t", sampler(), selectors.Fifo(), 9, rate_limiters.MinSize(1), 1000 if expires else 0)
        s = service(table, seed=seed)
        s.handle("peer", "insert", StreamWriter().insert([b"x"] * 11, windows), 0.0)
        keys: list[int] = []
        while len(keys) < 600:
            s.handle("peer", "sample", Sample(1, "t", 8, 8, 0.0), 0.0)
            drawn = taken(s)
            shown = np.cumsum([windows[key - 1][1] for key in drawn])
            assert (shown[:-1] < 4).all(), "the item that reaches the limit is the last"
            assert len(drawn) == 8 or shown[-1] >= 4
            keys += drawn
        s.validate()
        times = table.items.times_sampled[table.items.in_order()]
        assert times.tolist() == np.bincount(keys, minlength=len(windows) + 1)[1:].tolist()
        assert table.limiter.samples == len(keys), "what is not sent is not counted"
        for key in keys[:600]:
            counts[key - 1] += 1
        for first, second in pairwise(keys[:600]):
            pairs[first - 1, second - 1] += 1
    # Priorities are equal. 99.9 % quantiles of chi-square with 5 and with 35 degrees of freedom.
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 20.5
    assert ((pairs - pairs.mean()) ** 2 / pairs.mean()).sum() < 66.6


# --- what is kept for a request ---------------------------------------------------------------------------------------


def waiting_with_kept_draws() -> tuple[Service, StreamWriter]:
    """A request of three whose first two draws were of one item, which has left; the third waits for another item."""
    for seed in range(100):
        s, writer = service(expiring(selectors.Uniform(), 2), seed=seed), StreamWriter()
        s.handle("actor", "insert", writer.insert([b"a", b"b"], [(0, 1), (1, 1)], keep_from=2), 0.0)
        s.handle("learner", "sample", Sample(7, "t", 3, 3, 5.0), 0.0)
        if not taken(s):
            assert (s.tables["t"].size, s.tables["t"].pending_samples[0].drawn) == (1, 2)
            return s, writer
    raise AssertionError("no seed of a hundred draws one item twice")


def replies(s: Service) -> list[Any]:
    s.validate()
    return [reply for peer, reply in s.drain() if peer == "learner"]


def test_what_was_drawn_is_delivered_though_its_item_and_its_writer_have_gone() -> None:
    s, writer = waiting_with_kept_draws()
    assert len(s.chunks) == 2
    s.handle("actor", "close_stream", CloseStream(1, writer.stream), 0.0)
    [survivor] = s.tables["t"].items.key[s.tables["t"].items.in_order()].tolist()
    s.handle("operator", "update", Update(1, "t", NO_KEYS, np.zeros(0), np.array([survivor], np.uint64)), 0.0)
    other = StreamWriter(b"o" * 16)
    s.handle("actor", "insert", other.insert([b"c", b"d"], [(0, 1), (1, 1)]), 0.0)
    [reply] = replies(s)
    gone = 3 - survivor
    assert reply.shown.keys.tolist()[:2] == [gone, gone]
    assert reply.shown.times_sampled.tolist() == [1, 2, 1]
    assert (reply.table_sizes.tolist(), reply.probabilities.tolist()) == ([2, 2, 2], [0.5, 0.5, 0.5])
    body = b"".join(encode(reply)[1:])
    assert body[reply.shown.chunk[0]] == b"_ab"[gone], "each chunk is one byte"
    assert len(s.chunks) == 2, "what was kept is let go"


def test_at_its_deadline_a_request_gets_what_was_kept_for_it_also_while_samples_are_paused() -> None:
    for paused in (False, True):
        s, _ = waiting_with_kept_draws()
        s.handle("operator", "set", Set(1, "t", {"paused_samples": paused}), 0.0)
        s.tick(5.0)
        [reply] = replies(s)
        assert isinstance(reply, Sampled)
        assert reply.shown.times_sampled.tolist() == [1, 2]
        assert len(s.chunks) == 1


def test_a_reset_gives_up_what_was_kept() -> None:
    s, writer = waiting_with_kept_draws()
    s.handle("operator", "reset", Reset(1, "t"), 0.0)
    assert (replies(s), len(s.chunks)) == ([], 0)
    s.handle("actor", "insert", writer.insert([b"c", b"d"], [(2, 1), (3, 1)]), 0.0)
    s.tick(5.0)
    assert all(key > 2 for reply in replies(s) for key in reply.shown.keys.tolist())


def test_a_server_that_stops_gives_up_what_was_kept() -> None:
    s, _ = waiting_with_kept_draws()
    s.stop()
    [reply] = replies(s)
    assert (reply.code, len(s.chunks)) == ("shutting_down", 1)


def test_those_who_wait_are_told_of_the_draws_that_are_missing() -> None:
    s, _ = waiting_with_kept_draws()
    s.handle("operator", "why", Why(1, "t"), 0.0)
    [(_, reply)] = s.drain()
    [side] = reply.fields["waiting"]
    assert (side["items"], side["blocked_by"], side["needs_inserts"]) == (1, "min_size_to_sample", 1)


def test_a_snapshot_does_without_what_is_kept_since_who_waits_asks_again() -> None:
    s, _ = waiting_with_kept_draws()
    handover = s.chunks.handover
    snapshot = frozen(dump_service(s, 0.0), np.copy)
    saved = handover.take(np.flatnonzero(handover.begin()))
    assert saved is not None
    again = service(expiring(selectors.Uniform(), 2))
    losses = load_service(again, settled(snapshot), [saved], 0.0, lambda blob: SCHEMA, Template)
    again.validate()
    assert (losses.chunks, losses.items) == (0, {})
    assert (len(again.chunks), again.tables["t"].size, again.tables["t"].limiter.samples) == (1, 1, 2)
