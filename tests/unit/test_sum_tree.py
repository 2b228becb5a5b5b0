"""The sum tree: sums are exact, draws are in proportion and never land on nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from replayd.sum_tree import FAN_OUT, MIN_CAPACITY, MOST_STALE, ROOT_WIDTH, SumTree

CAPACITIES = [MIN_CAPACITY, ROOT_WIDTH, 2 * ROOT_WIDTH, 2 * ROOT_WIDTH * FAN_OUT]  # One level, its edge, two, three.


class FixedFractions:
    """Stands in for a generator whose numbers are chosen by the test."""

    def __init__(self, *fractions: float) -> None:
        self.fractions = np.array(fractions)

    def random(self, n: int | None = None):
        return self.fractions[0] if n is None else np.resize(self.fractions, n)


def tree_of(weights, capacity=0) -> SumTree:
    weights = np.asarray(weights, float)
    tree = SumTree()
    tree.grow(max(capacity, weights.size))
    tree.set(np.arange(weights.size), weights)
    return tree


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_total_is_the_sum_of_the_weights(capacity):
    rng = np.random.default_rng(1)
    tree = tree_of(rng.random(capacity))
    assert tree.total == pytest.approx(math.fsum(tree.weights), rel=1e-12)
    tree.validate()


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_draw_goes_by_the_prefix_sums(capacity):
    """Small integers add without rounding, so each draw can be foretold."""
    rng = np.random.default_rng(2)
    weights = rng.integers(0, 5, capacity).astype(float)
    tree = tree_of(weights)
    fractions = rng.random(2000)
    expected = np.searchsorted(np.cumsum(weights), fractions * weights.sum(), side="right")
    assert np.array_equal(tree.draw(2000, FixedFractions(*fractions)), expected)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_one_draw_and_a_batch_find_the_same_slots(capacity):
    rng = np.random.default_rng(3)
    tree = tree_of(rng.random(capacity) ** 20)
    fractions = np.concatenate((rng.random(300), [0.0, np.nextafter(1.0, 0.0)]))
    batch = tree.draw(fractions.size, FixedFractions(*fractions))
    assert batch.tolist() == [int(tree.draw(1, FixedFractions(fraction))[0]) for fraction in fractions]


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_setting_one_and_setting_a_batch_give_the_same_tree(capacity):
    rng = np.random.default_rng(4)
    slots = rng.choice(capacity, 50, replace=False)
    weights = rng.random(50)
    together, apart = SumTree(), SumTree()
    together.grow(capacity)
    apart.grow(capacity)
    together.set(slots, weights)
    for slot, weight in zip(slots, weights, strict=True):
        apart.set(np.array([slot]), np.array([weight]))
        assert apart.total > 0.0, "asked each time, so that no two are taken together"
    assert np.array_equal(together.weights, apart.weights)
    assert together.total == apart.total
    together.validate()
    apart.validate()


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("weight", [1.0, 0.1, 1 / 3, 1e270, 2.3e-308])
def test_a_draw_at_either_end_stays_on_slots_with_weight(weight, capacity, n):
    """Zeros surround the weights in each row, in each level; targets at the ends must not slip onto them."""
    for first in (0, 3, FAN_OUT - 1, FAN_OUT, capacity // 2 - 1, capacity - 3):
        weights = np.zeros(capacity)
        weights[first : first + 3] = weight
        tree = tree_of(weights)
        ends = FixedFractions(np.nextafter(1.0, 0.0)).random(n), FixedFractions(0.0).random(n)
        for fractions in ends:
            assert (tree.weights[tree.draw(n, FixedFractions(*fractions))] > 0).all()


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_target_that_rounds_up_to_the_total_is_held_below_it(capacity, n):
    """The smallest normal number times the largest fraction is a tie, and rounds to itself."""
    smallest, fraction = np.finfo(float).tiny, np.nextafter(1.0, 0.0)
    assert smallest * fraction == smallest
    weights = np.zeros(capacity)
    weights[capacity // 2 + 5] = smallest
    assert set(tree_of(weights).draw(n, FixedFractions(fraction)).tolist()) == {capacity // 2 + 5}


@pytest.mark.parametrize("n", [1, 4])
def test_a_target_that_rounds_up_to_the_sum_of_a_row_is_held_below_it(n):
    """What is left of a target after the rows before it can round up to the whole sum of its row."""
    rng = np.random.default_rng(11)
    before, weight, fraction = rng.random(200_000), 1 + rng.random(200_000), np.nextafter(1.0, 0.0)
    bad = np.flatnonzero((before + weight) * fraction - before >= weight)[:20]
    assert bad.size == 20
    for index in bad:
        weights = np.zeros(2 * ROOT_WIDTH)
        weights[[FAN_OUT - 1, FAN_OUT + 3]] = before[index], weight[index]
        assert set(tree_of(weights).draw(n, FixedFractions(fraction)).tolist()) == {FAN_OUT + 3}


def test_no_rounding_leads_to_a_slot_without_weight():
    rng = np.random.default_rng(5)
    for _ in range(30):
        weights = np.where(rng.random(20_000) < 0.9, 0.0, 10.0 ** rng.uniform(-20, 20, 20_000))
        tree = tree_of(weights)
        boundaries = np.cumsum(weights)[rng.integers(0, weights.size, 500)] / tree.total
        near = np.concatenate((boundaries, np.nextafter(boundaries, 0.0), np.nextafter(boundaries, 2.0)))
        fractions = np.clip(near, 0.0, np.nextafter(1.0, 0.0))
        assert (weights[tree.draw(fractions.size, FixedFractions(*fractions))] > 0).all()


def test_ten_million_updates_leave_no_drift():
    rng = np.random.default_rng(6)
    capacity, batch = 1 << 17, 1 << 16
    tree = tree_of(rng.random(capacity))
    slots = rng.permutation(capacity)[:batch]
    updates = 0
    while updates < 10_000_000:
        tree.set(slots, rng.random(batch) * 10.0 ** rng.integers(-6, 7))
        updates += batch
    assert tree.total == pytest.approx(math.fsum(tree.weights), rel=1e-9)
    tree.validate()


def test_the_tree_does_not_depend_on_its_history():
    rng = np.random.default_rng(7)
    weights = rng.random(20_000)
    tree = tree_of(weights)
    total = tree.total
    slots = rng.choice(20_000, 5_000, replace=False)
    tree.set(slots, rng.random(5_000) * 1e12)
    tree.set(slots, weights[slots])
    assert tree.total == total
    tree.validate()


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("calls", [1, 2, 7])
def test_sums_asked_for_late_are_those_asked_for_each_time(capacity, calls):
    rng = np.random.default_rng(9)
    late, always = tree_of(rng.random(capacity)), SumTree()
    always.grow(capacity)
    always.set(np.arange(capacity), late.weights.copy())
    for batch in (1, 2, 100, MOST_STALE - 1, 3):
        for _ in range(calls):
            slots = rng.choice(capacity, min(batch, capacity), replace=False)
            weights = rng.random(slots.size)
            late.set(slots, weights)
            always.set(slots, weights)
            assert always.total > 0.0
        fractions = rng.random(100)
        assert np.array_equal(late.draw(100, FixedFractions(*fractions)), always.draw(100, FixedFractions(*fractions)))
        assert late.total == always.total
        late.validate()


def test_growing_keeps_the_weights():
    rng = np.random.default_rng(8)
    weights = rng.random(100)
    tree = tree_of(weights)
    for capacity in CAPACITIES:
        tree.grow(capacity)
        assert tree.weights.size == capacity
        assert np.array_equal(tree.weights[:100], weights)
        assert not tree.weights[100:].any()
        tree.validate()
    tree.clear()
    assert tree.total == 0.0
    tree.validate()


def test_validation_notices_a_stale_sum():
    tree = tree_of(np.ones(2 * ROOT_WIDTH))
    tree.weights[7] = 2.0
    with pytest.raises(AssertionError, match=r"stale|children"):
        tree.validate()
