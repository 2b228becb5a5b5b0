"""How far "auto" draws ahead: far only for a learner that waits for what the server would grant."""

from __future__ import annotations

import random

import pytest

from replayd_client.lookahead import FORGET_AFTER, LEAST_BATCHES, MOST_BATCHES, MOST_BYTES, Lookahead


def fast(batch_bytes: int = 1, turns: int = 20) -> Lookahead:
    """That of a learner which has waited for every batch."""
    ahead = Lookahead("auto")
    for _ in range(turns):
        ahead.drawn(1, batch_bytes, is_awaited=True, is_whole=True)
    return ahead


def test_a_number_stays_what_it_is() -> None:
    assert [Lookahead(number).batches for number in (0, 1, 7, 1000)] == [0, 1, 7, 1000]


def test_the_first_batch_for_which_everybody_waits_says_nothing() -> None:
    assert fast(turns=1).batches == LEAST_BATCHES


def test_a_learner_that_waits_has_more_and_more_drawn_ahead() -> None:
    assert [fast(turns=turns).batches for turns in (2, 3, 4, 5, 6, 7)] == [4, 8, 16, 32, 32, 32]


@pytest.mark.parametrize(
    ("batch_bytes", "batches"),
    [
        (0, MOST_BATCHES),
        (MOST_BYTES // MOST_BATCHES, MOST_BATCHES),
        (MOST_BYTES // 16, 16),
        (MOST_BYTES // 5, 5),
        (MOST_BYTES, LEAST_BATCHES),
        (9 * MOST_BYTES, LEAST_BATCHES),
    ],
)
def test_what_is_ahead_is_bounded_in_bytes_and_batches(batch_bytes: int, batches: int) -> None:
    assert fast(batch_bytes).batches == batches


def test_batches_that_become_larger_are_fewer_at_once() -> None:
    ahead = fast()
    ahead.drawn(1, MOST_BYTES // 4, is_awaited=True, is_whole=True)
    assert ahead.batches == 4


def test_a_learner_that_never_waits_stays_at_the_least() -> None:
    ahead = Lookahead("auto")
    for number in range(100):
        ahead.drawn(1, 1, is_awaited=number == 0, is_whole=True)
        assert ahead.batches == LEAST_BATCHES


def test_a_learner_that_the_limiter_holds_back_stays_near_the_least() -> None:
    ahead = Lookahead("auto")
    seen = set()
    for _ in range(100):
        # One batch is granted at a time, however many are asked for: half of what may be ahead.
        ahead.drawn(1, 1, is_awaited=True, is_whole=ahead.batches // 2 <= 1)
        seen.add(ahead.batches)
    assert seen == {LEAST_BATCHES, 2 * LEAST_BATCHES}


def test_what_was_needed_once_is_forgotten() -> None:
    ahead = fast()
    drawn = 0
    while ahead.batches > LEAST_BATCHES:
        ahead.drawn(ahead.batches // 2, 1, is_awaited=False, is_whole=True)
        drawn += 1
        assert drawn < 100
    assert drawn >= FORGET_AFTER


@pytest.mark.parametrize("seed", range(10))
def test_it_never_leaves_its_bounds(seed: int) -> None:
    rng = random.Random(seed)
    ahead = Lookahead("auto")
    for _ in range(500):
        batch_bytes = rng.choice([0, 1, 10_000, 1_000_000, MOST_BYTES, 1 << 40])
        ahead.drawn(rng.randrange(20), batch_bytes, is_awaited=rng.random() < 0.7, is_whole=rng.random() < 0.8)
        assert LEAST_BATCHES <= ahead.batches <= MOST_BATCHES
        assert ahead.batches == LEAST_BATCHES or ahead.batches * batch_bytes <= MOST_BYTES
