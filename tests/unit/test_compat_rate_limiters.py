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
    with pytest.raises(ValueError):
        rate_limiters.MinSize(min_size)


def test_min_size_never_holds_inserts_back() -> None:
    limiter = rate_limiters.MinSize(2)
    assert limiter.can_insert(1_000_000)
    assert not limiter.can_sample(1)
    limiter.did_insert(2)
    assert limiter.can_sample(1_000_000)


@pytest.mark.parametrize(
    ("samples_per_insert", "min_size", "error_buffer", "is_valid"),
    [
        (2.0, 3, 4.0, True),
        (1.0, 1, 1.0, True),
        (0.5, 10, 5.0, True),
        (2, 3, (2, 10), True),
        (1.0, 10, np.float64(3), True),
        (0.0, 3, 4.0, False),
        (-1.0, 3, 4.0, False),
        (2.0, 3, 1.9, False),
        (0.1, 3, 0.9, False),
        (2.0, 3, (7, 100), False),
        (2.0, 0, 4.0, False),
        (1.0, 10, (-10.0, -8.5), False),
        (1.0, 10, -5.0, False),
    ],
)
def test_a_ratio_is_checked(samples_per_insert: float, min_size: int, error_buffer: Any, is_valid: bool) -> None:
    def make() -> None:
        rate_limiters.SampleToInsertRatio(samples_per_insert, min_size, error_buffer)

    if is_valid:
        make()
    else:
        with pytest.raises(ValueError):
            make()


def test_a_number_as_error_buffer_is_a_band_around_the_start() -> None:
    limiter = rate_limiters.SampleToInsertRatio(2.0, 3, 4.0)
    assert (limiter.min_diff, limiter.max_diff) == (2.0, 10.0)


def test_a_pair_as_error_buffer_is_the_band() -> None:
    limiter = rate_limiters.SampleToInsertRatio(2.0, 3, (-5, 50))
    assert (limiter.min_diff, limiter.max_diff) == (-5.0, 50.0)


def test_a_band_that_ends_before_sampling_starts_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="waiting for each other"):
        rate_limiters.SampleToInsertRatio(1.0, 10, (0.0, 5.0))


def test_a_proper_band_is_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rate_limiters.SampleToInsertRatio(1.0, 10, 5.0)


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


def test_the_largest_doubles_are_no_bounds() -> None:
    limiter = rate_limiters.RateLimiter(1.0, 1, -sys.float_info.max, sys.float_info.max)
    assert limiter.can_insert(10**9)


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


def test_heaps_differ_in_their_direction() -> None:
    assert item_selectors.MinHeap() == pybind.HeapSelector(True)
    assert item_selectors.MaxHeap() == pybind.HeapSelector(False)


def test_prioritized_needs_an_exponent() -> None:
    with pytest.raises(TypeError):
        item_selectors.Prioritized()  # type: ignore[call-arg]


def test_prioritized_takes_its_exponent_by_name() -> None:
    assert item_selectors.Prioritized(priority_exponent=0.5).priority_exponent == 0.5
