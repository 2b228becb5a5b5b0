"""Priority diffusion: an update spreads to the neighbouring items of the same stream.

A transition that surprises makes those that led to it worth another look, before their own errors show it. The
neighbour at distance d moves towards the updated priority by `decay` ** d; the idea is that of Gruslys et al. 2018,
"The Reactor", where it is done for contiguous sequences.
"""

from __future__ import annotations

from operator import index

import numpy as np

from replayd.hooks import ItemsView, TableAccess

DISTANCE_MAX = 16


class PriorityDiffusion:
    """`decay` in (0, 1] a step, over `distance` items on either side. An item reached more than once takes the largest
    value.

    Items named in the update itself keep what the update gave them. Raises ValueError for values out of range,
    TypeError for a `distance` that is no integer.
    """

    def __init__(self, decay: float = 0.5, distance: int = 1) -> None:
        if not 0.0 < decay <= 1.0:
            raise ValueError(f"decay must be in (0, 1], got {decay!r}")
        distance = index(distance)
        if not 1 <= distance <= DISTANCE_MAX:
            raise ValueError(f"distance must be between 1 and {DISTANCE_MAX}, got {distance!r}")
        self._distance = distance
        steps = np.concatenate((np.arange(distance, 0, -1), np.arange(1, distance + 1)))
        self._weights = decay**steps

    def on_update(self, access: TableAccess, items: ItemsView) -> None:
        """Wish for new priorities of the neighbours of these items, as the class says."""
        neighbours = access.neighbours(items.keys, self._distance)
        there = (neighbours != 0) & ~np.isin(neighbours, items.keys)
        keys = neighbours[there]
        if len(keys) == 0:
            return
        weights = np.broadcast_to(self._weights, neighbours.shape)[there]
        updated = np.broadcast_to(items.priorities[:, None], neighbours.shape)[there]
        spread = (1 - weights) * access.priorities(keys) + weights * updated
        distinct, where = np.unique(keys, return_inverse=True)
        largest = np.full(len(distinct), -np.inf)
        np.maximum.at(largest, where, spread)
        access.set_priorities(distinct, largest)
