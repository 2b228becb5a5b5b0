"""Selectors over a million slots: the same probabilities and orders as over five."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from replayd.selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Selector, Uniform

SIZE = 1_000_000
DRAWS = 200_000
BUCKETS = 100


@pytest.fixture(scope="module")
def priorities() -> np.ndarray:
    return np.random.default_rng(1).permutation(SIZE).astype(np.float64) + 1.0


@pytest.mark.parametrize("make", [Uniform, lambda: Prioritized(1.0), lambda: Prioritized(0.5)])
def test_frequencies_fit_the_probabilities(make: Callable[[], Selector], priorities: np.ndarray) -> None:
    selector = make()
    selector.add(np.arange(SIZE), priorities)
    slots, probabilities = selector.draw(DRAWS, np.random.default_rng(2))
    exponent = selector.describe().get("priority_exponent", 0.0)
    weights = priorities**exponent
    np.testing.assert_allclose(probabilities, weights[slots] / weights.sum(), rtol=1e-9)
    # Chi-square over buckets of slots of like priority; its mean is BUCKETS - 1, its deviation sqrt(2 (BUCKETS - 1)).
    bucket = ((priorities - 1.0) * BUCKETS / SIZE).astype(np.int64)
    expected = np.bincount(bucket, weights, BUCKETS) / weights.sum() * DRAWS
    seen = np.bincount(bucket[slots], minlength=BUCKETS)
    statistic = float(((seen - expected) ** 2 / expected).sum())
    assert abs(statistic - (BUCKETS - 1)) < 5 * np.sqrt(2 * (BUCKETS - 1))


@pytest.mark.parametrize(
    ("make", "order"),
    [
        (Fifo, lambda priorities: np.arange(SIZE)),
        (Lifo, lambda priorities: np.arange(SIZE)[::-1]),
        (MinHeap, lambda priorities: np.argsort(priorities)),
        (MaxHeap, lambda priorities: np.argsort(-priorities)),
    ],
)
def test_the_deterministic_ones_draw_in_order(
    make: Callable[[], Selector], order: Callable[[np.ndarray], np.ndarray], priorities: np.ndarray
) -> None:
    selector = make()
    for start in range(0, SIZE, 100_000):
        slots = np.arange(start, start + 100_000)
        selector.add(slots, priorities[slots])
    wanted = order(priorities)
    rng = np.random.default_rng(3)
    slots, probabilities = selector.draw(1000, rng, np.ones(SIZE, np.int64))
    assert slots.tolist() == wanted[:1000].tolist()
    assert (probabilities == 1.0).all()
    selector.remove(wanted[:500_000])
    assert selector.draw(1, rng)[0].tolist() == [wanted[500_000]]
