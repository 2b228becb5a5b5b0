"""Limiters and selectors under the incumbent's names: what they take, what they refuse, what they let pass."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest

from replayd.compat.reverb import item_selectors, pybind, rate_limiters


@pytest.mark.parametrize("min_size", [-1, 0])
def test_a_min_size_below_one_is_refused(min_size: int) -> None:
    with pytest.raises(ValueError, match=rf"min_size_to_sample \({min_size}\) must be a positive integer"):
        rate_limiters.MinSize(min_size)


@pytest.mark.parametrize("min_size", [1.5, "2"])
def test_a_min_size_is_an_integer(min_size: Any) -> None:
    with pytest.raises(TypeError):
        rate_limiters.MinSize(min_size)


def test_min_size_never_holds_inserts_back() -> None:
    limiter = rate_limiters.MinSize(2)
    assert limiter.can_insert(1_000_000)
    assert not limiter.can_sample(1)
    limiter.did_insert(2)
    assert limiter.can_sample(1_000_000)


@pytest.mark.parametrize(
    ("samples_per_insert", "min_size", "error_buffer"),
    [(2.0, 3, 4.0), (1.0, 1, 1.0), (0.5, 10, 5.0), (2, 3, (2, 10)), (2, 3, [2, 10]), (1.0, 10, np.float64(3))],
)
def test_a_proper_ratio_is_taken_without_a_word(
    caplog: pytest.LogCaptureFixture, samples_per_insert: float, min_size: int, error_buffer: Any
) -> None:
    limiter = rate_limiters.SampleToInsertRatio(samples_per_insert, min_size, error_buffer)
    assert isinstance(limiter, rate_limiters.RateLimiter)
    assert not caplog.records


NARROW = r"The size of error_buffer must be >= max\(1\.0, samples_per_insert\)"
ABOVE = r"error_buffer is above samples_per_insert \* min_size_to_sample"


@pytest.mark.parametrize(
    ("samples_per_insert", "min_size", "error_buffer", "message"),
    [
        (0.0, 3, 4.0, r"samples_per_insert \(0\.0\) must be > 0"),
        (-1.0, 3, 4.0, r"samples_per_insert \(-1\.0\) must be > 0"),
        (2.0, 3, 1.9, NARROW),
        (0.1, 3, 0.9, NARROW),
        (2.0, 3, (7, 10), NARROW),
        (1.0, 10, (-10.0, -8.5), NARROW),
        (1.0, 10, -5.0, NARROW),
        (2.0, 3, (7, 100), ABOVE),
        (2.0, 0, 4.0, r"min_size_to_sample \(0\) must be a positive integer"),
        (1, 0, (-100, 100), r"min_size_to_sample \(0\) must be a positive integer"),
    ],
)
def test_a_ratio_that_makes_no_sense_is_refused(
    samples_per_insert: float, min_size: int, error_buffer: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        rate_limiters.SampleToInsertRatio(samples_per_insert, min_size, error_buffer)


def test_a_number_as_error_buffer_is_a_band_around_the_start() -> None:
    limiter = rate_limiters.SampleToInsertRatio(2.0, 3, 4.0)
    assert (limiter.min_diff, limiter.max_diff) == (2.0, 10.0)


def test_a_pair_as_error_buffer_is_the_band() -> None:
    limiter = rate_limiters.SampleToInsertRatio(2.0, 3, (-5, 50))
    assert (limiter.min_diff, limiter.max_diff) == (-5.0, 50.0)


def test_a_band_that_ends_before_sampling_starts_is_warned_of_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rate_limiters.SampleToInsertRatio(1.0, 10, (0.0, 5.0))
    assert "waiting for each other" in caplog.text


def test_the_worked_example_holds() -> None:
    limiter = rate_limiters.SampleToInsertRatio(2.0, 3, 4.0)
    for _ in range(5):
        assert limiter.can_insert(1)
        limiter.did_insert(1)
    assert not limiter.can_insert(1)
    assert limiter.can_sample(8)
    assert not limiter.can_sample(9)


@pytest.mark.parametrize("make", [rate_limiters.Queue, rate_limiters.Stack])
def test_a_queue_and_a_stack_keep_as_many_as_they_are_large(make: Any) -> None:
    limiter = make(2)
    assert limiter.can_insert(2)
    assert not limiter.can_insert(3)
    assert (limiter.samples_per_insert, limiter.min_size_to_sample) == (1.0, 1)
    assert (limiter.min_diff, limiter.max_diff) == (0.0, 2.0)


@pytest.mark.parametrize("keywords", [{"samples_per_insert": 0}, {"samples_per_insert": -1}, {"min_size_to_sample": 0}])
def test_the_general_limiter_refuses_what_would_end_the_process_elsewhere(keywords: dict[str, Any]) -> None:
    settings = {"samples_per_insert": 1.0, "min_size_to_sample": 1, "min_diff": 0.0, "max_diff": 1.0}
    with pytest.raises(ValueError):
        rate_limiters.RateLimiter(**{**settings, **keywords})


@pytest.mark.parametrize("wide", [sys.float_info.max, float("inf"), 1e300, 2e15])
def test_a_bound_out_of_reach_is_none(wide: float) -> None:
    for limiter in (
        rate_limiters.RateLimiter(1.0, 1, -wide, wide),
        rate_limiters.SampleToInsertRatio(1.0, 1, wide),
        rate_limiters.SampleToInsertRatio(1.0, 1, (-wide, wide)),
    ):
        assert limiter.can_insert(10**9)
        limiter.did_insert(1)
        assert limiter.can_sample(10**9)


@pytest.mark.parametrize(
    ("limiter", "text"),
    [
        (rate_limiters.Queue(3), "samples_per_insert=1, min_diff_=0, max_diff=3, min_size_to_sample=1"),
        (
            rate_limiters.MinSize(2),
            "samples_per_insert=1, min_diff_=-1.79769e+308, max_diff=1.79769e+308, min_size_to_sample=2",
        ),
        (
            rate_limiters.SampleToInsertRatio(2.5, 3, (2.5, 10)),
            "samples_per_insert=2.5, min_diff_=2.5, max_diff=10, min_size_to_sample=3",
        ),
    ],
)
def test_a_limiter_describes_itself(limiter: Any, text: str) -> None:
    assert repr(limiter) == f"RateLimiter({text})"


@pytest.mark.parametrize("number", [0, -1])
def test_asking_for_less_than_one_is_a_value_error(number: int) -> None:
    limiter = rate_limiters.MinSize(1)
    with pytest.raises(ValueError):
        limiter.can_insert(number)
    with pytest.raises(ValueError):
        limiter.can_sample(number)


@pytest.mark.parametrize(
    ("selector", "kind"),
    [
        (item_selectors.Fifo(), pybind.FifoSelector),
        (item_selectors.Lifo(), pybind.LifoSelector),
        (item_selectors.Uniform(), pybind.UniformSelector),
        (item_selectors.MinHeap(), pybind.HeapSelector),
        (item_selectors.MaxHeap(), pybind.HeapSelector),
        (item_selectors.Prioritized(0.8), pybind.PrioritizedSelector),
    ],
)
def test_a_selector_is_of_its_class_in_the_binding(selector: Any, kind: type) -> None:
    assert isinstance(selector, kind)


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (item_selectors.Fifo(), "FifoSelector"),
        (item_selectors.Lifo(), "LifoSelector"),
        (item_selectors.Uniform(), "UniformSelector"),
        (item_selectors.MinHeap(), "HeapSelector(sign=1)"),
        (item_selectors.MaxHeap(), "HeapSelector(sign=-1)"),
        (item_selectors.Prioritized(1), "PrioritizedSelector(priority_exponent=1)"),
    ],
)
def test_a_selector_describes_itself(selector: Any, text: str) -> None:
    assert repr(selector) == text


def test_heaps_differ_in_their_direction() -> None:
    assert item_selectors.MinHeap() == pybind.HeapSelector(True)
    assert item_selectors.MaxHeap() == pybind.HeapSelector(False)


def test_prioritized_needs_an_exponent() -> None:
    with pytest.raises(TypeError):
        item_selectors.Prioritized()  # type: ignore[call-arg]


def test_prioritized_takes_its_exponent_by_name() -> None:
    assert item_selectors.Prioritized(priority_exponent=0.5).priority_exponent == 0.5
