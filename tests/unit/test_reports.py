"""What a report says which term blocked for how long, how old draws are, how often they were made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from replayd import rate_limiters
from replayd.blocked import TERMS
from replayd.board import HISTORY, INTERVAL_S, Board
from replayd.histograms import (
    AGE_BOUNDS_S,
    AGES_PER_BATCH,
    BATCHES_PUT_OFF,
    TIMES_SAMPLED_BOUNDS,
    Histogram,
    SampleAges,
    times_sampled,
)
from replayd.messages import Sample, Set
from replayd.reports import ITEMS_LOOKED_AT
from replayd.service import Service
from replayd.vitals import WINDOW_S, Vitals
from tests.unit.writer import StreamWriter, fifo, service


def table_of(target: Service, now: float, **how: bool) -> dict[str, Any]:
    table: dict[str, Any] = target.report(now, **how)["tables"][0]
    return table


def tell(target: Service, request: Any, now: float = 0.0) -> None:
    assert target.handle("peer", type(request).__name__.lower(), request, now) is None
    target.drain()


def sample(n: int = 1, min_n: int = 1, timeout_s: float = 60.0) -> Sample:
    return Sample(1, "t", n, min_n, timeout_s)


def insert(writer: StreamWriter, items: int = 1, **how: Any) -> Any:
    first = writer.next_chunk
    return writer.insert([b"x"] * items, [(first + i, 1) for i in range(items)], **how)


# --- blocked ----------------------------------------------------------------------------------------------------------


def test_each_second_of_waiting_is_put_down_to_the_term_that_held_the_first_request() -> None:
    s = service(fifo(rate_limiter=rate_limiters.RateLimiter(1.0, 2, 0.0, 3.0)))
    writer = StreamWriter()
    tell(s, sample(), 10.0)
    tell(s, insert(writer), 11.0)
    tell(s, Set(1, "t", {"paused_samples": True}), 14.0)
    tell(s, insert(writer), 15.0)
    tell(s, Set(1, "t", {"paused_samples": False}), 17.0)
    # The first sample is through at 17; of two more the second would take the cursor below min_diff.
    tell(s, sample(), 18.0)
    tell(s, sample(), 20.0)
    tell(s, insert(writer), 25.0)
    tell(s, sample(2, min_n=2), 30.0)
    tell(s, insert(writer), 31.0)
    tell(s, insert(writer), 33.0)
    # Three more fill the band; the fourth waits.
    tell(s, insert(writer, 4), 40.0)
    found = table_of(s, 42.0)["blocked_by_s"]
    assert found["sample"] == {"min_size_to_sample": 4.0, "paused": 3.0, "min_diff": 6.0, "min_n": 2.0}
    assert found["insert"] == {"max_diff": 2.0, "max_bytes": 0.0, "server_max_bytes": 0.0, "paused": 0.0}
    assert table_of(s, 42.0)["blocked_s"] == {"insert": 2.0, "sample": 15.0}
    s.validate()


def test_a_side_that_is_paused_and_has_nobody_waiting_does_not_count_as_blocked() -> None:
    s = service(fifo())
    tell(s, Set(1, "t", {"paused_inserts": True, "paused_samples": True}), 1.0)
    assert table_of(s, 9.0)["blocked_by_s"] == {side: dict.fromkeys(terms, 0.0) for side, terms in TERMS.items()}


# --- ages of draws ----------------------------------------------------------------------------------------------------


def test_every_draw_is_counted_at_its_age() -> None:
    s = service(fifo())
    tell(s, insert(StreamWriter()), 100.0)
    for now in (100.005, 100.5, 101.0, 105.0, 5000.0):
        tell(s, sample(), now)
    found = table_of(s, 6000.0)["sample_age_s"]
    by_bound = dict(zip([*AGE_BOUNDS_S, "more"], found["counts"], strict=True))
    assert {bound: n for bound, n in by_bound.items() if n} == {0.01: 1, 1.0: 2, 10.0: 1, 14400.0: 1}
    assert found["sum"] == pytest.approx(0.005 + 0.5 + 1.0 + 5.0 + 4900.0)


def test_draws_at_a_deadline_are_counted_too() -> None:
    s = service(fifo(rate_limiter=rate_limiters.RateLimiter(1.0, 1, 0.0, None)))
    tell(s, insert(StreamWriter()), 1.0)
    tell(s, sample(2, min_n=2, timeout_s=2.0), 1.5)
    s.tick(3.6)
    assert sum(table_of(s, 4.0)["sample_age_s"]["counts"]) == 1


@pytest.mark.parametrize("n", [1, AGES_PER_BATCH, AGES_PER_BATCH + 1, 100, 257, 16384])
@pytest.mark.parametrize("batches", [1, BATCHES_PUT_OFF, 2 * BATCHES_PUT_OFF + 1])
def test_counts_of_ages_add_up_to_the_draws_though_a_part_of_each_batch_is_looked_at(n: int, batches: int) -> None:
    ages = SampleAges()
    inserted_at = np.linspace(0.0, 999.0, n)
    for _ in range(batches):
        ages.add(inserted_at, 1000.0)
    found = ages.report()
    assert sum(found["counts"]) == n * batches
    assert found["sum"] == pytest.approx(batches * (1000.0 - inserted_at).sum(), rel=0.05)


def test_shares_of_ages_are_those_of_the_batch() -> None:
    ages = SampleAges()
    # A quarter younger than a second, the rest some minutes old, in the order of a queue.
    ages.add(np.concatenate((np.full(768, 0.0), np.full(256, 299.5))), 300.0)
    counts = dict(zip(AGE_BOUNDS_S, ages.report()["counts"], strict=False))
    assert (counts[1.0], counts[300.0]) == (256, 768)


def test_no_draw_is_no_age() -> None:
    ages = SampleAges()
    ages.add(np.zeros(0), 1.0)
    assert sum(ages.report()["counts"]) == 0


# --- draws of items ---------------------------------------------------------------------------------------------------


def test_items_are_counted_by_how_often_they_were_drawn() -> None:
    s = service(fifo())
    tell(s, insert(StreamWriter(), 5))
    # Fifo draws the oldest each time.
    for _ in range(3):
        tell(s, sample())
    found = table_of(s, 1.0)["times_sampled"]
    by_bound = dict(zip(TIMES_SAMPLED_BOUNDS, found["counts"], strict=False))
    assert {bound: n for bound, n in by_bound.items() if n} == {0.0: 4, 4.0: 1}
    assert found["sum"] == 3.0


def test_of_a_large_table_a_bounded_number_of_items_is_looked_at_evenly() -> None:
    s = service(fifo(max_size=100_000))
    writer = StreamWriter()
    for _ in range(20):
        tell(s, insert(writer, 10_000, keep_from=writer.next_chunk + 10_000))
    items = s.tables["t"].items
    slots = items.spread(ITEMS_LOOKED_AT)
    assert ITEMS_LOOKED_AT / 4 <= len(slots) <= ITEMS_LOOKED_AT
    keys = items.key[slots].astype(np.int64)
    assert (np.diff(keys) > 0).all()
    assert keys[0] < 100_001 + 2 * 100_000 / len(slots)
    assert keys[-1] > 200_000 - 2 * 100_000 / len(slots)


def test_values_beyond_the_last_bound_have_a_bucket() -> None:
    assert times_sampled(np.array([10_000]))["counts"][-1] == 1
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 7.0):
        histogram.add(value)
    assert histogram.report() == {"bounds": [1.0, 2.0], "counts": [2, 2, 1], "sum": 11.5}


# --- cost and forecast ------------------------------------------------------------------------------------------------


def test_a_brief_report_searches_for_nothing() -> None:
    s = service(fifo(max_size=2))
    writer = StreamWriter()
    for priority in (9.0, 1.0, 2.0):
        tell(s, insert(writer, priority=priority))
    assert "max_priority" not in table_of(s, 1.0, brief=True)
    assert table_of(s, 1.0)["max_priority"] == 2.0
    assert table_of(s, 1.0, brief=True)["max_priority"] == 2.0


def test_the_forecast_takes_items_to_come_for_like_those_there_are() -> None:
    s = service(fifo(max_size=1000))
    assert "bytes_when_full" not in table_of(s, 0.0)
    tell(s, insert(StreamWriter(), 10))
    table = table_of(s, 0.0)
    assert table["bytes_when_full"] == 100 * table["held_bytes"]


def test_orphans_are_what_leases_alone_hold() -> None:
    s = service(fifo())
    one, other = StreamWriter(b"1" * 16), StreamWriter(b"2" * 16)
    tell(s, one.insert([b"aaa"], [(0, 1)]))
    tell(s, one.insert([b"bb"]))
    tell(s, other.insert([b"c", b"dddd"], [(1, 1)]))
    assert s.report(0.0)["chunks"]["orphan_bytes"] == 3


# --- vitals and the board ---------------------------------------------------------------------------------------------


def test_the_slowest_turn_is_remembered_for_a_while_and_then_forgotten() -> None:
    vitals = Vitals()
    assert vitals.slowest_turn_s(0.0) == 0.0
    vitals.turn(100.0, 100.5)
    vitals.turn(101.0, 101.1)
    assert vitals.slowest_turn_s(102.0) == 0.5
    vitals.turn(100.0 + WINDOW_S, 100.0 + WINDOW_S + 0.25)
    assert vitals.slowest_turn_s(100.0 + WINDOW_S + 1) == 0.5
    vitals.turn(100.0 + 2 * WINDOW_S, 100.0 + 2 * WINDOW_S)
    assert vitals.slowest_turn_s(100.0 + 2 * WINDOW_S + 1) == 0.25
    assert vitals.slowest_turn_s(100.0 + 5 * WINDOW_S) == 0.0
    vitals.turn(100.0 + 5 * WINDOW_S, 100.0 + 5 * WINDOW_S + 0.125)
    assert vitals.slowest_turn_s(100.0 + 5 * WINDOW_S + 1) == 0.125
    assert sum(vitals.report_loop(0.0)["turn_s"]["counts"]) == 5


def test_a_bulletin_is_not_changed_by_what_happens_later() -> None:
    s = service(fifo(rate_limiter=rate_limiters.MinSize(2)))
    board = Board()
    assert board.newest is None
    tell(s, sample(), 1.0)
    board.publish(s.report(1.0, brief=True), 1.0)
    assert board.due == 1.0 + INTERVAL_S
    first = board.newest
    assert first is not None
    before = repr(first)
    writer = StreamWriter()
    tell(s, insert(writer, 5), 2.0)
    tell(s, sample(3), 2.0)
    tell(s, Set(1, "t", {"paused_samples": True}), 2.0)
    board.publish(s.report(2.0, brief=True), 2.0)
    assert repr(first) == before
    assert board.newest is not None
    assert [point.tables[0].size for point in board.newest.history] == [0, 5]
    assert [point.tables[0].samples for point in board.newest.history] == [0, 4]


def test_the_history_ends_with_now_and_has_an_end() -> None:
    s = service(fifo())
    board = Board()
    for second in range(HISTORY + 10):
        board.publish(s.report(float(second), brief=True), float(second))
    assert board.newest is not None
    at_s = [point.at_s for point in board.newest.history]
    assert at_s == [float(second) for second in range(10, HISTORY + 10)]
