"""Histograms: how old draws are, how often items were drawn, how long turns take.

Owns bounds and counts. A value belongs to the first bucket whose bound it does not exceed; the last bucket has no
bound. Knows nothing of what it counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np

from replayd.messages import Float64s, Int64s

AGE_BOUNDS_S = (0.01, 0.1, 1.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0, 86400.0)
"""Of the age of an item when it is drawn: from a queue's milliseconds to a day."""

TIMES_SAMPLED_BOUNDS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)

TURN_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Of a turn of the loop: what one request waits while others are served."""

AGES_PER_BATCH = 16
"""Draws of one batch whose ages are looked at, evenly spread over it; each stands for as many as it was taken from."""

BATCHES_PUT_OFF = 256
"""Batches whose ages are sorted into buckets together: that is 1.5 µs a batch, where one at a time is 8."""


class Histogram:
    """Counts of values that come one at a time."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def report(self) -> dict[str, Any]:
        """`bounds`, `counts`, one more of them, and the `sum` of all values."""
        return {"bounds": list(self._bounds), "counts": list(self._counts), "sum": self.sum}


class SampleAges:
    """Counts of the ages of items when they were drawn. The counts add up to the draws there were."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(AGE_BOUNDS_S) + 1)
        self._sum = 0.0
        self._batches: list[tuple[float, int, Float64s]] = []

    def add(self, inserted_at: Float64s, now: float) -> None:
        """Items that entered at these times are drawn, one entry for each draw."""
        n = len(inserted_at)
        if n == 0:
            return
        step = -(-n // AGES_PER_BATCH)
        # A copy, since a view would keep all that is known of the items.
        self._batches.append((now, n, inserted_at[step // 2 :: step].copy()))
        if len(self._batches) == BATCHES_PUT_OFF:
            self._sort()

    def report(self) -> dict[str, Any]:
        """The same of all draws so far, in seconds."""
        self._sort()
        # Rounded as sums, so that the counts add up.
        counts = np.diff(np.rint(np.cumsum(self._counts)), prepend=0.0).astype(int)
        return {"bounds": list(AGE_BOUNDS_S), "counts": counts.tolist(), "sum": self._sum}

    def _sort(self) -> None:
        batches, self._batches = self._batches, []
        if not batches:
            return
        drawn_at, draws, parts = zip(*batches, strict=True)
        looked_at = np.array([len(part) for part in parts])
        ages = np.repeat(drawn_at, looked_at) - np.concatenate(parts)
        weights = np.repeat(np.array(draws) / looked_at, looked_at)
        self._counts += np.bincount(np.searchsorted(AGE_BOUNDS_S, ages), weights, minlength=len(self._counts))
        self._sum += float(ages @ weights)


def times_sampled(times: Int64s) -> dict[str, Any]:
    """The histogram of how often these items were drawn."""
    counts = np.bincount(np.searchsorted(TIMES_SAMPLED_BOUNDS, times), minlength=len(TIMES_SAMPLED_BOUNDS) + 1)
    return {"bounds": list(TIMES_SAMPLED_BOUNDS), "counts": counts.tolist(), "sum": float(times.sum())}
