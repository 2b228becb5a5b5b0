"""Deadlines of the samples that wait: which is due, and when the next one will be.

Owns nothing but their order. Knows neither why they wait nor what an answer is.
"""

from __future__ import annotations

import heapq

from replayd.pending import PendingSample
from replayd.table import Table

ANSWERED_KEPT = 1024
"""Answered requests that may stay in the heap: it is swept when they outnumber the others so far."""

PendingHere = tuple[PendingSample, Table]
"""A request and the table at which it waits."""


class Deadlines:
    """Requests by deadline, those of one moment as they came. Who is answered leaves by itself, some time later."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, PendingSample, Table]] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: PendingSample, table: Table) -> None:
        """Add one that has begun to wait, behind all of the same deadline."""
        self.add_as(self._added + 1, request, table)

    def add_as(self, order: int, request: PendingSample, table: Table) -> None:
        """Add one that had this place in the order before, as `orders` told it."""
        self._added = max(self._added, order)
        heapq.heappush(self._heap, (request.deadline, order, request, table))

    def orders(self) -> dict[int, int]:
        """The place of each that is not answered, by the id of the request."""
        return {id(request): order for _, order, request, _ in self._heap if not request.answered}

    def take_due(self, now: float) -> PendingHere | None:
        """The first whose deadline has passed, None if there is none."""
        while self._heap and (self._heap[0][2].answered or self._heap[0][0] <= now):
            _, _, request, table = heapq.heappop(self._heap)
            if not request.answered:
                return request, table
        return None

    def next(self, waiting: int) -> float | None:
        """The first deadline, None if there is none; `waiting` says how many there should be."""
        if len(self._heap) > 2 * waiting + ANSWERED_KEPT:
            self._heap = [entry for entry in self._heap if not entry[2].answered]
            heapq.heapify(self._heap)
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        """Forget all of them."""
        self._heap.clear()
