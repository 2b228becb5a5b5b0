"""Pace: how often one peer may ask for what costs the loop time and is bounded by nothing else.

Inserts and samples have windows; all other requests have a number in each second, and so have messages that cannot be
read. Owns the counts of the present second. Knows no clock.
"""

from __future__ import annotations

from collections.abc import Mapping

from replayd.limits import LOOKS_PER_S, STREAM_CALLS_PER_S, UNREADABLE_PER_S, UPDATES_PER_S, Limit
from replayd.messages import OPS, Peer

_WINDOWED = ("insert", "sample")
_OTHERS = {"update": UPDATES_PER_S, "keepalive": STREAM_CALLS_PER_S, "close_stream": STREAM_CALLS_PER_S}
LIMIT_OF: Mapping[str, Limit] = {op: _OTHERS.get(op, LOOKS_PER_S) for op in OPS if op not in _WINDOWED}
"""The limit of each op that has one; an op that is added has that of looks unless it is said to have another."""


class Pace:
    """Of all peers. A second begins with the first request after the one before it."""

    def __init__(self) -> None:
        self._ends_at = 0.0
        self._counts: dict[tuple[Peer, str], int] = {}
        self.unheard: set[Peer] = set()
        """Who has sent so much that cannot be read that it is not read any more; as of the last call."""

    def check(self, peer: Peer, op: str, now: float) -> None:
        """Count a request. Raises LimitExceeded if the peer has asked for as many as it may."""
        limit = LIMIT_OF.get(op)
        if limit is not None:
            limit.check(self._count(peer, limit, now))

    def take_unreadable(self, peer: Peer, now: float) -> bool:
        """Count a message that cannot be read; True: from now on this peer is not heard, until the second is over."""
        if self._count(peer, UNREADABLE_PER_S, now) != UNREADABLE_PER_S.value:
            # Those of the same turn that were looked at already are not worth another word.
            return False
        self.unheard.add(peer)
        return True

    def check_unheard(self, peer: Peer, now: float) -> None:
        """Raise LimitExceeded if this peer is not heard."""
        self._begin(now)
        if peer in self.unheard:
            UNREADABLE_PER_S.check(UNREADABLE_PER_S.value + 1)

    def _count(self, peer: Peer, limit: Limit, now: float) -> int:
        self._begin(now)
        count = self._counts.get((peer, limit.name), 0) + 1
        self._counts[peer, limit.name] = count
        return count

    def _begin(self, now: float) -> None:
        if now >= self._ends_at:
            self._ends_at = now + 1.0
            self._counts.clear()
            self.unheard.clear()
