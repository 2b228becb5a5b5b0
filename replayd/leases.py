"""Leases in bytes: the payload that streams may still refer to, altogether and of each peer that writes them.

Nothing else bounds it: `max_bytes` counts what items show, and a writer may have many streams. What a peer holds is
that of the streams it was the last to write. Nobody keeps others out: beyond the bound of all whoever holds less than
an equal share may still grow. Owns these counts, and the limits for them; knows no streams and no chunks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from replayd.errors import LimitExceeded
from replayd.limits import (
    ALL_LEASED_BYTES,
    ALL_LEASED_EXCESS,
    ALL_LEASED_LEAST,
    ALL_LEASED_SHARE,
    PEER_LEASED_BYTES,
    Limit,
)
from replayd.messages import Peer

ADVICE = "raise max_bytes, keep shorter trajectories, or run fewer writers"
"""Who must act where all writers hold too much: nothing else ends that for sure."""
OF_LATE_S = 10.0
"""So long a refusal is told; whoever is refused comes again each second."""


@dataclass(slots=True)
class Leases:
    """What all hold, and each; who holds nothing is not known here. All who push are one, bounded as all are."""

    of_all: Limit
    of_peer: Limit
    nbytes: int = 0
    _of: dict[Peer, int] = field(default_factory=dict)
    is_bounded: bool = field(default=True, compare=False)
    """False while a journal is replayed: what was accepted once was within the limits of then."""
    refusals: int = field(default=0, compare=False)
    """Inserts that were refused since all hold too much."""
    refused_at: float = field(default=-math.inf, compare=False)
    """When the last one was."""

    @classmethod
    def within(cls, max_bytes: int | None) -> Leases:
        """Nobody holds anything. `max_bytes`: what the server may hold besides; None: no limit."""
        of_all, of_peer = ALL_LEASED_BYTES, PEER_LEASED_BYTES
        if max_bytes is not None:
            of_all = replace(of_all, value=max(ALL_LEASED_LEAST, int(ALL_LEASED_SHARE * max_bytes)))
        return cls(of_all, replace(of_peer, value=min(of_peer.value, of_all.value)))

    def of(self, peer: Peer) -> int:
        """What a peer holds."""
        return self._of.get(peer, 0)

    def check(self, peer: Peer, grows: int, brings: int, now: float) -> None:
        """Raise LimitExceeded if a stream must not hold `grows` bytes more than it does. `brings`: what it holds and
        the peer that writes it now has not written."""
        if grows <= 0 or not self.is_bounded:
            return
        its, after, most = self.of(peer) + brings + grows, self.nbytes + grows, self.of_all.value
        if peer is not None:
            self.of_peer.check(its)
        if after <= most or (its <= self._share_of(peer) and after <= ALL_LEASED_EXCESS * most):
            return
        self.refusals += 1
        self.refused_at = now
        raise LimitExceeded(
            f"writers keep {self.nbytes} bytes for items to come, {self.of(peer)} of them for this one, which wants "
            f"{grows} more; the limit `{self.of_all.name}` is {most}: {ADVICE}",
            limit=self.of_all.name,
            value=most,
            got=after,
        )

    def _share_of(self, peer: Peer) -> int:
        """What a peer may hold in any case: an equal share among those that hold anything."""
        return self.of_all.value // (len(self._of) + (peer not in self._of))

    def fit(self, growth: dict[Peer, int]) -> bool:
        """Whether each of these may hold so much more, and all together, without a look at their shares."""
        if not self.is_bounded:
            return True
        if self.nbytes + sum(growth.values()) > self.of_all.value:
            return False
        return all(peer is None or self.of(peer) + more <= self.of_peer.value for peer, more in growth.items())

    def tell(self, now: float) -> str | None:
        """Why inserts are refused these days, for who asks why they wait; None if none was of late."""
        if now - self.refused_at > OF_LATE_S:
            return None
        return (
            f"writers keep {self.nbytes} bytes for items to come, of {self.of_all.value} at most, so inserts that keep "
            f"more are refused: {ADVICE}"
        )

    def clear(self) -> None:
        """Nobody holds anything."""
        self.nbytes = 0
        self._of.clear()

    def change(self, peer: Peer, nbytes: int) -> None:
        """A peer holds so much more."""
        self.nbytes += nbytes
        left = self.of(peer) + nbytes
        if left:
            self._of[peer] = left
        else:
            self._of.pop(peer, None)
