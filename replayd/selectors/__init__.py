"""Selectors choose items: which one to sample next, which one to remove. Each of the six can take either role.

They know slots and priorities only, a batch at a time; the generator for random draws is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from replayd.selectors.base import Selector
from replayd.selectors.heap import MaxHeap, MinHeap
from replayd.selectors.ordered import Fifo, Lifo
from replayd.selectors.prioritized import MAX_PRIORITY_EXPONENT, Prioritized
from replayd.selectors.uniform import Uniform

__all__ = [
    "MAX_PRIORITY_EXPONENT",
    "Fifo",
    "Lifo",
    "MaxHeap",
    "MinHeap",
    "Prioritized",
    "Selector",
    "Uniform",
    "from_description",
]

_PLAIN: dict[str, Callable[[], Selector]] = {
    "uniform": Uniform,
    "fifo": Fifo,
    "lifo": Lifo,
    "min_heap": MinHeap,
    "max_heap": MaxHeap,
}


def from_description(description: Mapping[str, Any]) -> Selector:
    """A new, empty selector from what `describe` returned. Raises ValueError for anything else."""
    settings = dict(description)
    kind = settings.pop("kind", None)
    if kind == "prioritized" and settings.keys() == {"priority_exponent"}:
        return Prioritized(settings["priority_exponent"])
    if kind in _PLAIN and not settings:
        return _PLAIN[kind]()
    raise ValueError(f"no such selector: {description!r}")
