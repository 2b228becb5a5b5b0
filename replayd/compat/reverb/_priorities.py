"""Priorities of any sign, stored where the protocol takes finite numbers from 0 to 1e90.

The incumbent refuses negative priorities only with a Prioritized selector; returns of episodes in a heap often are
negative. On its tables of other selectors a priority is therefore stored as another double of the same order:
the doubles of magnitude 2^-330 to 2^330 and 0, counted from the lowest, are the first doubles from 0 on. The way back
is exact; what is closer to 0 is 0.
"""

from __future__ import annotations

import math
from struct import Struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MAGNITUDE: Final = 2.0**330
_LEAST: Final = int(np.float64(1 / MAGNITUDE).view(np.int64))
_ZERO: Final = int(np.float64(MAGNITUDE).view(np.int64)) - _LEAST + 1
"""Number of the double that stands for 0: as many negative ones are below it."""

_BITS: Final = Struct("=q")
_DOUBLE: Final = Struct("=d")


def number(priority: Any) -> float:
    """The priority as a float: any number, and an array of one. Raises TypeError for everything else."""
    if isinstance(priority, (str, bytes)):
        raise TypeError(f"a priority is a number, not {priority!r}")
    if getattr(priority, "ndim", 0):
        array = np.asarray(priority)
        if array.size != 1:
            raise TypeError(f"a priority is a number, not an array of shape {array.shape}")
        priority = array.item()
    return float(priority)


def check_one(priority: float, prioritized: bool) -> None:
    """As `check`, for a single one."""
    if math.isnan(priority) or abs(priority) >= MAGNITUDE or (prioritized and priority < 0):
        check(np.array([priority]), prioritized)


def check(priorities: NDArray[np.float64], prioritized: bool) -> None:
    """Raises ValueError for priorities that such a table does not take."""
    if np.isnan(priorities).any():
        raise ValueError("Priority must not be NaN.")
    if prioritized and (priorities < 0).any():
        raise ValueError("Priority must not be negative for a table with a Prioritized selector.")
    if (np.abs(priorities) >= MAGNITUDE).any():
        raise ValueError(f"Priority must be smaller than {MAGNITUDE:.0e} in magnitude, got {priorities.tolist()}")


def encode(priorities: Any) -> NDArray[np.float64]:
    """Any finite priorities below MAGNITUDE as ones that can be stored, in the same order."""
    values = np.asarray(priorities, np.float64)
    rank = np.maximum(np.abs(values).view(np.int64) - (_LEAST - 1), 0)
    return (_ZERO + np.where(values < 0, -rank, rank)).view(np.float64)


def encode_one(priority: float) -> float:
    """As `encode`, for a single one."""
    (bits,) = _BITS.unpack(_DOUBLE.pack(abs(priority)))
    rank = max(bits - (_LEAST - 1), 0)
    (stored,) = _DOUBLE.unpack(_BITS.pack(_ZERO + (-rank if priority < 0 else rank)))
    return float(stored)


def decode(stored: Any) -> NDArray[np.float64]:
    """The priorities that `encode` was given."""
    rank = np.ascontiguousarray(stored, np.float64).view(np.int64) - _ZERO
    sizes = np.where(rank == 0, 0, np.abs(rank) + (_LEAST - 1)).view(np.float64)
    return np.where(rank < 0, -sizes, sizes)
