"""Selectors over a million slots: the same probabilities and orders as over five."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from replayd.selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Selector, Uniform

SIZE = 1_000_000
DRAWS = 200_000
BUCKETS = 100


@pytest.fixture(scope="module")
def priorities() -> np.ndarray:
    return np.random.default_rng(1).permutation(SIZE).astype(np.float64) + 1.0


def buckets(priorities: np.ndarray) -> dict[str, np.ndarray]:
    """Ways to put slots into BUCKETS: whatever a bias follows, priority, place or a bit of it, one of them shows it."""
    slots = np.arange(SIZE)
    return {
        "by priority": ((priorities - 1.0) * BUCKETS / SIZE).astype(np.int64),
        "by place": slots * BUCKETS // SIZE,
        "by the last digits": slots % BUCKETS,
        "by the last bits": slots % 64,
        "by the bits before": slots // 64 % 64,
    }


def misfits(selector: Selector, priorities: np.ndarray) -> list[str]:
    """The ways of putting slots into buckets by which the draws do not fit: chi-square is five deviations off.

    Its mean is the number of buckets less 1, its deviation the root of twice that.
    """
    slots, probabilities = selector.draw(DRAWS, np.random.default_rng(2))
    weights = priorities ** selector.describe().get("priority_exponent", 0.0)
    np.testing.assert_allclose(probabilities, weights[slots] / weights.sum(), rtol=1e-9)
    found = []
    for name, bucket in buckets(priorities).items():
        expected = np.bincount(bucket, weights) / weights.sum() * DRAWS
        seen = np.bincount(bucket[slots], minlength=len(expected))
        freedom = len(expected) - 1
        if abs(((seen - expected) ** 2 / expected).sum() - freedom) >= 5 * np.sqrt(2 * freedom):
            found.append(name)
    return found


@pytest.mark.parametrize("make", [Uniform, lambda: Prioritized(1.0), lambda: Prioritized(0.5)])
def test_frequencies_fit_the_probabilities(make: Callable[[], Selector], priorities: np.ndarray) -> None:
    selector = make()
    selector.add(np.arange(SIZE), priorities)
    assert misfits(selector, priorities) == []


class Biased(Uniform):
    """Says that it is uniform, and draws what `bend` makes of it."""

    def __init__(self, bend: Callable[[np.ndarray], np.ndarray]) -> None:
        super().__init__()
        self.bend = bend

    def draw(self, *arguments: Any) -> tuple[np.ndarray, np.ndarray]:
        slots, probabilities = super().draw(*arguments)
        return self.bend(slots), probabilities


@pytest.mark.parametrize(
    "bend",
    [
        lambda slots: slots | 1,
        lambda slots: slots & ~64,
        lambda slots: np.minimum(slots, SIZE * 98 // 100),
        lambda slots: np.where(slots % 100 == 7, 8, slots),
        np.sort,
    ],
    ids=["odd", "bit 6", "not the last", "never 7", "fair"],
)
def test_a_bias_by_slot_is_seen(bend: Callable[[np.ndarray], np.ndarray], priorities: np.ndarray) -> None:
    selector = Biased(bend)
    selector.add(np.arange(SIZE), priorities)
    assert bool(misfits(selector, priorities)) == (bend is not np.sort)


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
