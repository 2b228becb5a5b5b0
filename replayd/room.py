"""Room: how many draws each item of a table can still take.

By the sampler, until it has been drawn max_times_sampled times and expires; by the remover one, who wants no item
twice. Owns the two arrays, which the selectors read, and the sum. Knows no priorities and no limiter.
"""

from __future__ import annotations

import numpy as np

from replayd.items import Items
from replayd.messages import Int64s
from replayd.slots import grown, total


class Room:
    """Arrays by slot, int64: `of_sampler` and `of_remover`. Where nothing expires nothing is kept of the former."""

    def __init__(self, items: Items, max_times_sampled: int) -> None:
        self._items = items
        self._most = max_times_sampled
        self.left = 0
        """Sum over all items, where they expire."""
        self.of_sampler = np.zeros(items.capacity, np.int64)
        self.of_remover = np.ones(items.capacity, np.int64)

    @property
    def expires(self) -> bool:
        """Whether items leave after some draws."""
        return self._most > 0

    def enter(self, slots: Int64s) -> None:
        """New items, which have not been drawn."""
        if self._items.capacity > len(self.of_remover):
            self.of_sampler = grown(self.of_sampler, self._items.capacity)
            self.of_remover = np.ones(self._items.capacity, np.int64)
        if self.expires:
            self.of_sampler[slots] = self._most
            self.left += self._most * len(slots)

    def draw(self, slots: Int64s, times_sampled: Int64s) -> None:
        """Draws, one entry each, with how often the item had been drawn with this one."""
        if self.expires:
            # Of repeated slots the last, largest count stays.
            self.of_sampler[slots] = self._most - times_sampled
            self.left -= len(slots)

    def leave(self, slots: Int64s) -> None:
        """Items that are removed."""
        if self.expires:
            self.left -= total(self.of_sampler[slots])

    def change(self, max_times_sampled: int) -> None:
        """Let items expire after so many draws (0: never). Those that had as many already must be gone."""
        self._most = max_times_sampled
        live = self._items.in_order()
        self.of_sampler[live] = max_times_sampled - self._items.times_sampled[live]
        self.left = int(self.of_sampler[live].sum()) if self.expires else 0

    def validate(self) -> None:
        """Assert that all agrees with the items' counts."""
        assert (self.of_remover == 1).all(), "the remover's room is 1"
        if self.expires:
            live = self._items.in_order()
            times = self._items.times_sampled[live]
            assert (times < self._most).all(), "an item outlived its samples"
            assert np.array_equal(self.of_sampler[live], self._most - times), "room is not what is left"
            assert self.left == int((self._most - times).sum()), "the sum of the room is wrong"
