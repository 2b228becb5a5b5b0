"""Selectors on their own, without a daemon around them: what a draw costs by the number of slots."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from benchmarks.worker import Turns, main
from replayd import selectors

ADD = 100_000
MEAN_OF_S, RUNS = 0.05, 3
KINDS: dict[str, Callable[[], Any]] = {
    "uniform": selectors.Uniform,
    "prioritized": lambda: selectors.Prioritized(0.6),
    "fifo": selectors.Fifo,
    "lifo": selectors.Lifo,
    "min_heap": selectors.MinHeap,
    "max_heap": selectors.MaxHeap,
}


def draw(kinds: list[str], sizes: list[int], counts: list[int]) -> Turns:
    """One turn, which tells for each kind, size and count the µs of CPU of a draw of so many, a few times.

    Twice of those that weigh: also where what was drawn has new priorities before the next draw, which has to sum them
    then.
    """
    yield {}
    yield {
        "draws": [
            (kind, *measured)
            for kind in kinds
            for measured in _measured(
                KINDS[kind](), sizes, counts, (False, True) if kind == "prioritized" else (False,)
            )
        ]
    }


def _measured(
    selector: Any, sizes: list[int], counts: list[int], changed: tuple[bool, ...]
) -> Iterator[tuple[int, int, bool, list[float]]]:
    rng = np.random.default_rng(0)
    for size in sizes:
        for start in range(len(selector), size, ADD):
            slots = np.arange(start, min(start + ADD, size))
            selector.add(slots, rng.random(len(slots)) + 0.1)
        for count, is_changed in product(counts, changed):
            yield size, count, is_changed, [_mean_us(selector, count, is_changed, rng) for _ in range(RUNS)]


def _mean_us(selector: Any, count: int, is_changed: bool, rng: np.random.Generator) -> float:
    calls, spent_s = 0, 0.0
    while spent_s < MEAN_OF_S:
        started = time.thread_time()
        slots, _ = selector.draw(count, rng)
        spent_s += time.thread_time() - started
        calls += 1
        if is_changed:
            slots = np.unique(slots)
            selector.update(slots, rng.random(len(slots)) + 0.1)
    return spent_s * 1e6 / calls


ROLES: dict[str, Any] = {"draw": draw}

if __name__ == "__main__":
    main(ROLES)
