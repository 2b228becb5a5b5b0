"""A sum tree over slots: draws a slot with probability proportional to its weight.

Owns the weights and their sums, in a few wide levels so that a batch costs a handful of numpy calls a level.
Must not know priorities, exponents or items. The classic structure is binary (Schaul et al. 2016, "Prioritized
Experience Replay", appendix B.2.1); here a node has FAN_OUT children and the root has up to ROOT_WIDTH. A parent is
recomputed from its children, never adjusted by a difference, so nothing drifts and equal weights give bit-equal trees
whatever the history.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd.slots import all_true

# Measured at 2^20 slots, batches of 256: fan-out 16 / 32 / 64 under a root of 4096 draws in 0.55 / 0.59 / 0.70 us an
# item and updates in 0.75 / 0.88 / 1.15 us; a root of 1024 costs one more level (0.67 and 0.88 us), a larger one only a
# longer prefix sum.
FAN_OUT_SHIFT = 4
FAN_OUT = 1 << FAN_OUT_SHIFT
ROOT_WIDTH = 4096
MIN_CAPACITY = 1024
MOST_STALE = 4096
"""Weights set whose sums wait for the next draw: bounds what that waits, to 0.35 ms at 2^17 slots and 0.9 at 2^20."""
LEAST_IN_COLUMNS = 256
"""Rows from which on prefix sums are made column by column: 85 us for 2048 rows, and 175 row by row."""


class SumTree:
    """Weights of slots 0 … capacity − 1 (float64, ≥ 0, zero at first), and draws in proportion to them.

    The sum of all weights has to stay finite; who sets weights bounds them.
    """

    __slots__ = ("_levels", "_root", "_root_prefix", "_stale", "_stale_count", "_total", "weights")

    weights: NDArray[np.float64]
    """Weight by slot, float64[capacity]. To be read only; `set` writes."""

    def __init__(self) -> None:
        self._build(np.zeros(MIN_CAPACITY))

    @property
    def total(self) -> float:
        """Sum of all weights: of each row from left to right, of the rows' sums likewise, up to the root."""
        self._refresh()
        return self._total

    def grow(self, needed: int) -> None:
        """Makes slots below `needed` usable, doubling the capacity; the new ones weigh nothing."""
        capacity = self.weights.size
        if needed <= capacity:
            return
        while capacity < needed:
            capacity *= 2
        weights = np.zeros(capacity)
        weights[: self.weights.size] = self.weights
        self._build(weights)

    def clear(self) -> None:
        """Back to zero weights at the smallest capacity."""
        self._build(np.zeros(MIN_CAPACITY))

    def set(self, slots: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Sets the weights (float64[n]) of distinct slots (int64[n] below the capacity).

        Sums follow when they are next asked for, those of many calls at once: between two draws a table is written to
        by its inserts, its removals and its learner's updates. Calls of 256 at 2^17 slots take 36 µs each so, and 130
        if each brings the sums up to date.
        """
        if slots.size == 0:
            return
        self.weights[slots] = weights
        # Half as wide, these are sorted in half the time.
        self._stale.append((slots >> FAN_OUT_SHIFT).astype(np.int32))
        self._stale_count += slots.size
        if self._stale_count >= MOST_STALE:
            self._refresh()

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draws n slots (int64[n]) with replacement, each with probability weight / total. `total` must not be zero.

        A slot of weight zero is never drawn: every target is held below the sum of the row it searches, and the first
        prefix sum above a target belongs to a slot that raised it.
        """
        self._refresh()
        if n == 1:
            return np.array([self._draw_one(float(rng.random()))])
        target = rng.random(n) * self._total
        np.minimum(target, np.nextafter(self._total, 0.0), out=target)
        node = self._root_prefix[1:].searchsorted(target, side="right")
        before = self._root_prefix.take(node)
        starts = np.arange(0, n * FAN_OUT, FAN_OUT)
        for level in reversed(self._levels):
            target -= before
            prefix_sums = level.prefix_sums(node)
            if not all_true(target < prefix_sums[:, -1]):
                np.minimum(target, np.nextafter(prefix_sums[:, -1], 0.0), out=target)
            child = (prefix_sums > target[:, None]).argmax(axis=1)
            before = prefix_sums.reshape(-1)[starts + child - 1]
            before[child == 0] = 0.0
            node = (node << FAN_OUT_SHIFT) + child
        return node

    def validate(self) -> None:
        """Asserts that every level equals the one derived afresh from the weights, to the bit."""
        self._refresh()
        assert self.weights.min() >= 0.0, "a weight is negative"
        fresh = SumTree()
        fresh._build(self.weights.copy())
        assert len(fresh._levels) == len(self._levels), "wrong number of levels"
        for number, (level, own) in enumerate(zip(fresh._levels, self._levels, strict=True)):
            assert np.array_equal(level.rows, own.rows), f"sums of level {number} are not those of their children"
            assert level.has_same_prefix_sums(own), f"prefix sums of level {number} are stale"
        assert np.array_equal(fresh._root, self._root), "the root's sums are not those of its children"
        assert np.array_equal(fresh._root_prefix, self._root_prefix), "the root's prefix sums are stale"
        assert fresh.total == self.total, "the total is stale"

    def _build(self, weights: NDArray[np.float64]) -> None:
        """Level 0 holds the weights in rows of FAN_OUT; a row's sum is an entry of the level above, up to the root."""
        self._levels: list[_Level] = []
        above = weights
        while above.size > ROOT_WIDTH:
            level = _Level(above, keeps_prefix_sums=above is not weights)
            self._levels.append(level)
            above = level.sums(np.arange(len(level.rows)))
        self._root = above
        self._root_prefix = np.zeros(above.size + 1)
        self.weights = weights  # Shares memory with the lowest level.
        self._stale: list[NDArray[np.int32]] = []
        """Rows of the lowest level in which weights were set since the sums were right."""
        self._stale_count = 0
        self._sum_root()

    def _sum_root(self) -> None:
        np.cumsum(self._root, out=self._root_prefix[1:])
        self._total = float(self._root_prefix[-1])

    def _refresh(self) -> None:
        """Bring the sums up to date, each row that is stale once."""
        if not self._stale_count:
            return
        rows = np.concatenate(self._stale) if len(self._stale) > 1 else self._stale[0]
        self._stale, self._stale_count = [], 0
        if rows.size == 1:
            self._refresh_one(int(rows[0]))
            return
        rows = np.sort(rows)
        for number, level in enumerate(self._levels):
            is_first = np.empty(rows.size, np.bool_)
            is_first[0] = True
            np.not_equal(rows[1:], rows[:-1], out=is_first[1:])
            rows = rows[is_first]
            self._above(number)[rows] = level.sums(rows)
            rows = rows >> FAN_OUT_SHIFT
        self._sum_root()

    def _refresh_one(self, row: int) -> None:
        """`_refresh` for one row without the search for distinct ones: 40 us instead of 94 at 2^20 slots."""
        for number, level in enumerate(self._levels):
            self._above(number)[row] = level.sum_of_one(row)
            row >>= FAN_OUT_SHIFT
        self._sum_root()

    def _above(self, number: int) -> NDArray[np.float64]:
        """Where the sums of a level's rows are, one behind the other."""
        return self._levels[number + 1].rows.reshape(-1) if number + 1 < len(self._levels) else self._root

    def _draw_one(self, fraction: float) -> int:
        """`draw` for one slot, from the same random number to the same slot: 12 us instead of 65."""
        node, target = _find(self._root_prefix[1:], fraction * self._total)
        for level in reversed(self._levels):
            child, target = _find(level.prefix_sums_of_one(node), target)
            node = node * FAN_OUT + child
        return node


class _Level:
    """Rows of FAN_OUT numbers, [n, FAN_OUT], with their prefix sums unless those are made when they are asked for.

    The lowest level does not keep them: it has so many rows that nearly each weight set would write another one, and
    most of them never to be drawn from.
    """

    __slots__ = ("_kept", "rows")

    def __init__(self, numbers: NDArray[np.float64], *, keeps_prefix_sums: bool) -> None:
        self.rows = numbers.reshape(-1, FAN_OUT)
        """Shares memory with `numbers`."""
        self._kept = np.zeros_like(self.rows) if keeps_prefix_sums else None

    def sums(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
        """Sums of distinct rows, to be asked for whenever their numbers have changed."""
        numbers = self.rows.take(rows, axis=0)  # 3 us for 256 rows; plain indexing takes 50.
        if self._kept is None:
            return _sums_of(numbers)
        prefix_sums = _running_sums(numbers)
        self._kept[rows] = prefix_sums
        return prefix_sums[:, -1]

    def sum_of_one(self, row: int) -> float:
        """The same of one row."""
        prefix_sums = self.rows[row].cumsum()
        if self._kept is not None:
            self._kept[row] = prefix_sums
        return float(prefix_sums[-1])

    def prefix_sums(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Prefix sums of these rows, [n, FAN_OUT]."""
        if self._kept is not None:
            return self._kept.take(rows, axis=0)
        return np.ascontiguousarray(_running_sums(self.rows.take(rows, axis=0)))

    def prefix_sums_of_one(self, row: int) -> NDArray[np.float64]:
        """The same of one row, [FAN_OUT]."""
        prefix_sums: NDArray[np.float64] = self.rows[row].cumsum() if self._kept is None else self._kept[row]
        return prefix_sums

    def has_same_prefix_sums(self, other: _Level) -> bool:
        """Whether those that both keep are equal, to the bit."""
        return self._kept is None or (other._kept is not None and np.array_equal(self._kept, other._kept))


def _running_sums(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Prefix sums of each row, by additions in the same order either way."""
    if len(rows) < LEAST_IN_COLUMNS:
        return rows.cumsum(axis=1)
    columns = np.ascontiguousarray(rows.T)
    for before, column in pairwise(columns):
        column += before
    return columns.T


def _sums_of(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of each row [n, FAN_OUT], added from left to right, as prefix sums have it.

    numpy adds a row that lies in one piece in another order, but rows of columns one after the other, and in 9 us for
    256 where `cumsum` takes 25.
    """
    if len(rows) == 1:
        return rows.cumsum(axis=1)[:, -1]
    sums: NDArray[np.float64] = np.add.reduce(np.ascontiguousarray(rows.T), axis=0)
    return sums


def _find(cumulative: NDArray[np.float64], target: float) -> tuple[int, float]:
    """The first child whose prefix sum is above the target (held below the last one), and the rest of the target."""
    child = int(cumulative.searchsorted(target, side="right"))
    if child == cumulative.size:
        target = float(np.nextafter(cumulative[-1], 0.0))
        child = int(cumulative.searchsorted(target, side="right"))
    return child, target - float(cumulative[child - 1]) if child else target
