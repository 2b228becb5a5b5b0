"""Leases in bytes: the payload that streams may still refer to, altogether and of each peer that writes them.

Nothing else bounds it: `max_bytes` counts what items show, and a writer may have many streams. What a peer holds is
that of the streams it was the last to write. Owns these counts, and the limits for them; knows neither streams' numbers
nor the chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from replayd.limits import ALL_LEASED_BYTES, ALL_LEASED_LEAST, ALL_LEASED_SHARE, PEER_LEASED_BYTES, Limit
from replayd.messages import Peer


@dataclass(slots=True)
class Leases:
    """What all hold, and each; who holds nothing is not known here. PUSH has no peers: it counts among all alone."""

    of_all: Limit
    of_peer: Limit
    nbytes: int = 0
    _of: dict[Peer, int] = field(default_factory=dict)

    @classmethod
    def within(cls, max_bytes: int | None) -> Leases:
        """Nobody holds anything. `max_bytes`: what the server may hold besides; None: no limit."""
        of_all, of_peer = ALL_LEASED_BYTES, PEER_LEASED_BYTES
        if max_bytes is not None:
            of_all = replace(of_all, value=max(ALL_LEASED_LEAST, int(ALL_LEASED_SHARE * max_bytes)))
        # No peer alone can keep the others out.
        return cls(of_all, replace(of_peer, value=min(of_peer.value, of_all.value // 2)))

    def of(self, peer: Peer) -> int:
        """What a peer holds."""
        return self._of.get(peer, 0)

    def check(self, peer: Peer, grows: int, brings: int) -> None:
        """Raise LimitExceeded if a stream must not hold `grows` bytes more than it does. `brings`: what it holds and
        the peer that writes it now has not written."""
        if grows <= 0:
            return
        if peer is not None:
            self.of_peer.check(self.of(peer) + brings + grows)
        self.of_all.check(self.nbytes + grows)

    def fit(self, growth: dict[Peer, int]) -> bool:
        """Whether each of these may hold so much more, and all together."""
        if self.nbytes + sum(growth.values()) > self.of_all.value:
            return False
        return all(peer is None or self.of(peer) + more <= self.of_peer.value for peer, more in growth.items())

    def change(self, peer: Peer, nbytes: int) -> None:
        """A peer holds so much more."""
        self.nbytes += nbytes
        left = self.of(peer) + nbytes
        if left:
            self._of[peer] = left
        else:
            self._of.pop(peer, None)
