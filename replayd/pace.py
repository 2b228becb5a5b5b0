"""Pace: how often one peer may ask for what costs the loop time and is bounded by nothing else.

Inserts and samples have windows; who looks and who operates has a number of requests in each second. Owns the counts of
the present second. Knows no clock.
"""

from __future__ import annotations

from replayd.limits import LOOKS_PER_S
from replayd.messages import Checkpoint, Hello, Info, Peek, Peer, Request, Reset, Set, Why, Withdraw

_LOOKS: frozenset[type[Request]] = frozenset((Checkpoint, Hello, Info, Peek, Reset, Set, Why, Withdraw))


class Pace:
    """Of all peers. A second begins with the first request after the one before it."""

    def __init__(self) -> None:
        self._ends_at = 0.0
        self._counts: dict[Peer, int] = {}

    def check(self, peer: Peer, request: Request, now: float) -> None:
        """Count a request. Raises LimitExceeded if the peer has asked for as many as it may."""
        if type(request) not in _LOOKS:
            return
        if now >= self._ends_at:
            self._ends_at = now + 1.0
            self._counts.clear()
        count = self._counts.get(peer, 0) + 1
        LOOKS_PER_S.check(count)
        self._counts[peer] = count
