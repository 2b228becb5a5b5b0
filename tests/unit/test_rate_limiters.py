"""The rate limiter: its equations, its presets, and what it says of itself."""

from __future__ import annotations

import math
import sys

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replayd.limits import DIFF_MAX, MIN_SIZE_MAX, SAMPLES_PER_INSERT_RANGE
from replayd.rate_limiters import (
    BLOCKED_BY_MAX_DIFF,
    BLOCKED_BY_MIN_DIFF,
    BLOCKED_BY_MIN_SIZE,
    MinSize,
    Queue,
    RateLimiter,
    SampleToInsertRatio,
    Stack,
)


def with_counts(limiter, inserts=0, samples=0, deletes=0):
    limiter.did_insert(inserts)
    limiter.did_sample(samples)
    limiter.did_delete(deletes)
    return limiter


# --- the equations ---


def test_the_example_of_the_protocol():
    limiter = SampleToInsertRatio(2.0, 3, 4.0)
    assert (limiter.min_diff, limiter.max_diff) == (2.0, 10.0)
    table = [(0, 0, 0, True, False), (3, 0, 6, True, True), (5, 0, 10, False, True), (5, 8, 2, True, False)]
    for inserts, samples, cursor, inserts_pass, samples_pass in table:
        limiter.reset()
        with_counts(limiter, inserts, samples)
        assert limiter.cursor == cursor
        assert limiter.can_insert(1) is inserts_pass
        assert limiter.can_sample(1) is samples_pass
    limiter.reset()
    assert limiter.insertable(100) == 5
    limiter.did_insert(5)
    assert limiter.sampleable(100) == 8


def test_deleting_unsampled_items_takes_capacity_from_a_queue():
    limiter = with_counts(Queue(2), inserts=2, deletes=2)
    assert limiter.insertable(10) == 1
    limiter.did_insert(1)
    assert limiter.insertable(10) == 0
    limiter.did_sample(1)
    limiter.did_delete(1)
    assert limiter.insertable(10) == 1


def test_size_below_the_minimum_lets_inserts_pass_whatever_the_cursor():
    limiter = with_counts(RateLimiter(1.0, 5, 0.0, 5.0), inserts=20, samples=3, deletes=18)
    assert limiter.cursor > limiter.max_diff
    assert limiter.insertable(100) == 3
    assert limiter.can_insert(3)
    assert not limiter.can_insert(4)
    assert limiter.sampleable(100) == 0


def test_inserts_ignore_min_diff_and_samples_ignore_max_diff():
    assert RateLimiter(1.0, 1, 1000.0, None).can_insert(10**6)
    assert with_counts(RateLimiter(1.0, 1, None, 0.0), inserts=1).can_sample(10**6)


@pytest.mark.parametrize("n", [0, -1])
def test_less_than_one_is_refused(n):
    for ask in (MinSize(1).can_insert, MinSize(1).can_sample):
        with pytest.raises(ValueError, match="at least 1"):
            ask(n)


def test_reset_sets_the_counters_to_zero_and_keeps_the_configuration():
    limiter = with_counts(Queue(3), 3, 1, 1)
    limiter.reset()
    assert (limiter.inserts, limiter.samples, limiter.deletes, limiter.cursor, limiter.size) == (0, 0, 0, 0.0, 0)
    assert limiter.insertable(10) == 3


def test_more_deletes_than_inserts_is_an_assertion():
    with pytest.raises(AssertionError, match="deleted"):
        MinSize(1).did_delete(1)


RATES = st.one_of(
    st.sampled_from([1.0, 0.1, 0.3, 1 / 3, 2.0, 4.5, 1e-3, *SAMPLES_PER_INSERT_RANGE]), st.floats(1e-4, 1e4)
)
BOUNDS = st.one_of(
    st.none(), st.integers(-50, 200).map(float), st.floats(-1e3, 1e3), st.sampled_from([0.3, 1.1, DIFF_MAX, -DIFF_MAX])
)
COUNTS = st.one_of(st.integers(0, 60), st.sampled_from([10**6, 2**53 - 1, 2**53 + 3]))


@st.composite
def limiters(draw):
    low, high = draw(BOUNDS), draw(BOUNDS)
    if low is not None and high is not None:
        low, high = min(low, high), max(low, high)
    limiter = RateLimiter(draw(RATES), draw(st.integers(1, 20)), low, high)
    inserts = draw(COUNTS)
    deletes = max(0, inserts - draw(st.integers(0, 40)))
    near = max(0, int(min(inserts * limiter.samples_per_insert, 2.0**53)) + draw(st.integers(-40, 40)))
    return with_counts(limiter, inserts, draw(st.one_of(COUNTS, st.just(near))), deletes)


@settings(max_examples=500, deadline=None)
@given(limiter=limiters(), n=st.integers(0, 50))
def test_how_many_pass_is_what_a_loop_of_single_steps_finds(limiter, n):
    inserts, samples, deletes = limiter.inserts, limiter.samples, limiter.deletes
    insertable, sampleable = limiter.insertable(n), limiter.sampleable(n)
    passed = 0
    while passed < n and limiter.can_insert(1):
        limiter.did_insert(1)
        passed += 1
    assert insertable == passed
    limiter.inserts = inserts
    passed = 0
    while passed < n and limiter.can_sample(1):
        limiter.did_sample(1)
        passed += 1
    assert sampleable == passed
    assert (limiter.inserts, limiter.deletes) == (inserts, deletes)
    limiter.samples = samples


def test_samples_one_by_one_and_together_round_to_the_same_cursor():
    """(x − S) − n and x − (S + n) may differ in the last bit below zero; the bound is put between the two."""
    rng = np.random.default_rng(0)
    found = 0
    for rate in rng.random(2000):
        inserts, samples, n = 1, int(rng.integers(1, 8)), int(rng.integers(2, 30))
        apart, together = (inserts * rate - samples) - n, inserts * rate - (samples + n)
        if apart == together:
            continue
        found += 1
        limiter = with_counts(RateLimiter(rate, 1, max(apart, together), None), inserts, samples)
        passing = limiter.sampleable(n)
        assert limiter.can_sample(n) == (passing == n)
        limiter.did_sample(n - 1)
        assert limiter.can_sample(1) == (passing == n)
    assert found


@settings(max_examples=500, deadline=None)
@given(limiter=limiters(), n=st.one_of(st.integers(1, 100), st.sampled_from([10**6, 2**40])))
def test_how_many_pass_agrees_with_whether_so_many_pass(limiter, n):
    for largest, passes in ((limiter.insertable(n), limiter.can_insert), (limiter.sampleable(n), limiter.can_sample)):
        assert 0 <= largest <= n
        if largest:
            assert passes(largest)
        if largest < n:
            assert not passes(largest + 1)


@settings(max_examples=300, deadline=None)
@given(limiter=limiters(), n=st.integers(1, 100))
def test_the_gates_are_the_equations(limiter, n):
    rate, size = limiter.samples_per_insert, limiter.inserts - limiter.deletes
    low = -math.inf if limiter.min_diff is None else limiter.min_diff
    high = math.inf if limiter.max_diff is None else limiter.max_diff
    inserts_pass = size + n <= limiter.min_size_to_sample or (limiter.inserts + n) * rate - limiter.samples <= high
    samples_pass = size >= limiter.min_size_to_sample and limiter.inserts * rate - (limiter.samples + n) >= low
    assert limiter.can_insert(n) == inserts_pass
    assert limiter.can_sample(n) == samples_pass


# --- what it says of itself ---


def test_the_blocking_term_is_named():
    limiter = RateLimiter(1.0, 2, 1.0, 3.0)
    assert (limiter.blocking_insert(), limiter.blocking_sample()) == (None, BLOCKED_BY_MIN_SIZE)
    limiter.did_insert(3)
    assert (limiter.blocking_insert(), limiter.blocking_sample()) == (BLOCKED_BY_MAX_DIFF, None)
    limiter.did_sample(2)
    assert (limiter.blocking_insert(), limiter.blocking_sample()) == (None, BLOCKED_BY_MIN_DIFF)


def test_the_description_holds_every_number_and_leaves_out_the_unlimited():
    limiter = with_counts(SampleToInsertRatio(2.0, 3, 4.0), 5, 4, 1)
    numbers = msgpack.unpackb(msgpack.packb(limiter.describe()))
    assert numbers == {
        "samples_per_insert": 2.0,
        "min_size_to_sample": 3,
        "min_diff": 2.0,
        "max_diff": 10.0,
        "inserts": 5,
        "samples": 4,
        "deletes": 1,
        "cursor": 6.0,
        "size": 4,
    }
    assert not {"min_diff", "max_diff"} & MinSize(1).describe().keys()


def test_repr_shows_the_configuration():
    expected = "RateLimiter(samples_per_insert=1.0, min_size_to_sample=1, min_diff=0.0, max_diff=7.0)"
    assert repr(Queue(7)) == expected


def test_a_limiter_belongs_to_one_table():
    limiter = MinSize(1)
    limiter.attach("replay")
    with pytest.raises(ValueError, match=r"replay.*other"):
        limiter.attach("other")


# --- the largest grant ---


@pytest.mark.parametrize(
    ("limiter", "max_size", "max_times_sampled", "largest"),
    [
        (MinSize(1), 10, None, None),
        (MinSize(10), 9, None, 0),
        (MinSize(1), 10, 3, 30),
        (Queue(5), 5, 1, 5),
        (Queue(5), 100, 1, 5),
        (Queue(5), 3, 1, 3),
        (SampleToInsertRatio(2.0, 3, 4.0), 100, None, 8),
        (RateLimiter(1.0, 10, 0.0, 5.0), 100, None, 10),  # The first ten inserts pass by size, above max_diff.
        (RateLimiter(1.0, 1, 0.5, 2.5), 100, None, 1),  # The cursor is whole: 2 − 1 ≥ 0.5, but not 2 − 2.
        (RateLimiter(0.5, 1, 0.3, 1.4), 100, None, 0),
        (RateLimiter(0.1, 1, 0.0, 1.0), 100, None, 1),
        (RateLimiter(1.0, 1, None, 5.0), 100, None, None),
        (RateLimiter(1.0, 1, 0.0, None), 100, None, None),
        (RateLimiter(1.0, 1, 5.0, 5.0), 100, None, 0),
        (RateLimiter(2.0, 5, 0.0, 10.0), 10, 1, 6),  # Each item that expires lifts the cursor: only the table bounds.
        (MinSize(4), 10, 3, 27),  # Three items must stay, so they keep a draw each.
    ],
)
def test_the_largest_grant_of_known_cases(limiter, max_size, max_times_sampled, largest):
    assert limiter.largest_grant(max_size, max_times_sampled) == largest


def test_expiry_of_items_half_used_can_lift_the_cursor_above_the_band():
    """Last draws are cheap: an item that expires by one more draw lets in an insert worth two."""
    limiter, max_size, max_times_sampled = RateLimiter(2.0, 10, 15.0, 25.0), 10, 2

    def insert_evicting_the_undrawn(n):
        evicted = max(0, limiter.size + n - max_size)
        assert limiter.insertable(100) >= n
        limiter.did_insert(n)
        limiter.did_delete(evicted)

    def sample(n, expiring):
        assert limiter.sampleable(100) >= n
        limiter.did_sample(n)
        limiter.did_delete(expiring)

    insert_evicting_the_undrawn(10)
    sample(5, expiring=0)
    insert_evicting_the_undrawn(5)
    sample(5, expiring=0)  # Now all ten have one draw left.
    insert_evicting_the_undrawn(2)
    sample(9, expiring=9)
    insert_evicting_the_undrawn(9)
    assert limiter.cursor == 33.0
    assert limiter.sampleable(100) == 18
    # By the limiter alone; of the twenty draws of a full table, the nine items that must stay keep one each.
    assert limiter.largest_grant(max_size, max_times_sampled) == 11
    assert limiter.largest_grant(max_size) == 10


SMALL_RATES = st.sampled_from([0.1, 0.25, 0.3, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0])
HALVES = st.integers(-6, 30).map(lambda n: n / 2)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), rate=SMALL_RATES, min_size=st.integers(1, 6), bounds=st.tuples(HALVES, HALVES))
def test_no_history_without_explicit_deletes_grants_more_than_the_largest_grant(data, rate, min_size, bounds):
    """A random life of a table: batches of inserts with eviction, batches of samples with expiry."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    limiter = RateLimiter(rate, min_size, min(bounds), max(bounds))
    max_size = data.draw(st.integers(1, 12))
    max_times_sampled = data.draw(st.sampled_from([None, 1, 2, 3]))
    largest = limiter.largest_grant(max_size, max_times_sampled)
    left: list[float] = []  # Draws that each item can still take.
    spread = data.draw(st.booleans())  # Samples go to the freshest items, the worst case for expiry, or to any.
    for _ in range(150):
        inserted = limiter.insertable(int(rng.integers(1, 6)))
        left += [max_times_sampled or math.inf] * inserted
        limiter.did_insert(inserted)
        while len(left) > max_size:
            left.remove(max(left))
            limiter.did_delete(1)
        granted = min(limiter.sampleable(1000), sum(left) - (min_size - 1))
        assert largest is None or granted <= largest
        for _ in range(int(rng.integers(0, 6))):
            if not limiter.can_sample(1):
                break
            item = left.index(max(left)) if spread else int(rng.integers(len(left)))
            left[item] -= 1
            limiter.did_sample(1)
            if left[item] == 0:
                del left[item]
                limiter.did_delete(1)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), rate=st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.0]), min_size=st.integers(1, 6))
def test_the_largest_grant_is_reached_in_a_band_wide_enough(data, rate, min_size):
    # The band begins at or below the point where samples start.
    low = data.draw(st.integers(-6, math.floor(2 * (rate * min_size - 1)))) / 2
    width = data.draw(st.integers(math.ceil(2 * (rate + 1)), 30)) / 2
    limiter = RateLimiter(rate, min_size, low, low + width)
    largest = limiter.largest_grant(10**6)
    reached = 0
    seen, frontier = {0.0}, [(0, 0)]
    while frontier:
        limiter.inserts, limiter.samples = frontier.pop()
        reached = max(reached, limiter.sampleable(1000))
        steps = [(limiter.inserts + 1, limiter.samples)] if limiter.can_insert(1) else []
        steps += [(limiter.inserts, limiter.samples + 1)] if limiter.can_sample(1) else []
        for inserts, samples in steps:
            state = (inserts * rate - samples, min(inserts, min_size))
            if state not in seen:
                seen.add(state)
                frontier.append((inserts, samples))
    assert reached == largest


# --- configuration ---


@pytest.mark.parametrize(
    "arguments",
    [
        (0.0, 1, 0.0, 1.0),
        (-1.0, 1, 0.0, 1.0),
        (math.nan, 1, 0.0, 1.0),
        (math.inf, 1, 0.0, 1.0),
        (1.0, 0, 0.0, 1.0),
        (1.0, -3, 0.0, 1.0),
        (1.0, 1, math.nan, 1.0),
        (1.0, 1, 0.0, math.nan),
        (1.0, 1, 2.0, 1.0),
        (1.0, 1, math.inf, None),
        (1.0, 1, None, -math.inf),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(arguments):
    with pytest.raises(ValueError):
        RateLimiter(*arguments)


@pytest.mark.parametrize("unlimited", [None, math.inf, sys.float_info.max])
def test_every_way_to_say_unlimited_is_none(unlimited):
    limiter = RateLimiter(1.0, 1, None if unlimited is None else -unlimited, unlimited)
    assert limiter.min_diff is None
    assert limiter.max_diff is None


def settings_of(limiter):
    return limiter.samples_per_insert, limiter.min_size_to_sample, limiter.min_diff, limiter.max_diff


def test_the_presets():
    assert settings_of(MinSize(5)) == (1.0, 5, None, None)
    assert settings_of(Queue(5)) == settings_of(Stack(5)) == (1.0, 1, 0.0, 5.0)
    assert settings_of(SampleToInsertRatio(2.0, 3, 4.0)) == (2.0, 3, 2.0, 10.0)
    assert settings_of(SampleToInsertRatio(2.0, 3, np.float64(4.0))) == (2.0, 3, 2.0, 10.0)
    assert settings_of(SampleToInsertRatio(2.0, 3, (1.0, 9.0))) == (2.0, 3, 1.0, 9.0)
    assert settings_of(SampleToInsertRatio(2.0, 3, (-math.inf, math.inf))) == (2.0, 3, None, None)


def test_minimum_size_must_be_one():
    with pytest.raises(ValueError, match="min_size_to_sample"):
        MinSize(0)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((0.0, 10, 100.0), "samples_per_insert"),
        ((-1.0, 10, 100.0), "samples_per_insert"),
        ((1.0, 10, 0.9), "too small"),
        ((4.0, 10, 3.9), "too small"),
        ((4.0, 10, (40.0, 47.9)), "too small"),
        ((1.0, 10, (11.0, 20.0)), "never start"),
        ((1.0, 0, 100.0), "min_size_to_sample"),
    ],
)
def test_a_ratio_that_cannot_work_is_refused(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        SampleToInsertRatio(*arguments)


def test_the_narrowest_band_is_accepted():
    SampleToInsertRatio(1.0, 10, 1.0)
    SampleToInsertRatio(4.0, 10, 4.0)


def test_a_band_that_ends_before_samples_start_is_warned_of():
    with pytest.warns(UserWarning, match="waiting for each other"):
        SampleToInsertRatio(1.0, 10, (0.0, 9.0))


@settings(max_examples=500, deadline=None)
@given(
    rate=st.one_of(RATES, st.floats(*SAMPLES_PER_INSERT_RANGE)),
    size=st.one_of(st.integers(1, 20), st.integers(1, MIN_SIZE_MAX)),
    bounds=st.tuples(*[st.one_of(BOUNDS, st.floats(-DIFF_MAX, DIFF_MAX))] * 2),
    counts=st.tuples(COUNTS, COUNTS, COUNTS),
    n=st.integers(1, 2**31),
)
def test_whatever_is_accepted_can_be_asked_anything(rate, size, bounds, counts, n):
    low, high = bounds
    if low is not None and high is not None:
        low, high = min(low, high), max(low, high)
    inserts, samples, deletes = counts
    limiter = with_counts(RateLimiter(rate, size, low, high), inserts, samples, min(deletes, inserts))
    assert limiter.inserts_needed(n) >= 0
    assert limiter.samples_needed(n) >= 0
    assert 0 <= limiter.insertable(n) <= n
    assert 0 <= limiter.sampleable(n) <= n
    for most in (None, 1, 7):
        largest = limiter.largest_grant(max(size, 10), most)
        assert largest is None or largest >= 0
    assert all(math.isfinite(number) for number in limiter.describe().values())


@pytest.mark.parametrize(
    "arguments",
    [
        (5e-324, 1, 0.0, 1.0),
        (1e308, 1, 0.0, 1.0),
        (math.nan, 1, 0.0, 1.0),
        (1.0, 1, -1e16, 1.0),
        (1.0, 1, 0.0, 1e16),
        (1.0, 1 << 60, 0.0, 1.0),
    ],
)
def test_numbers_with_which_the_cursor_could_not_count_are_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        RateLimiter(*arguments)
