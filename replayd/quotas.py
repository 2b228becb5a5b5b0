"""Quotas: what each peer may leave unread of replies with payload, and the samples that wait until it has read.

The replies of a reader that does not read pile up in the server's memory. So a sample of a peer that has much unread is
taken out of its table's queue, where it holds up nobody, and goes back behind the others when the peer has read. Owns
the counts. Knows no sockets: the shell says what was read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from replayd.limits import UNREAD_BYTES, UNREAD_REPLIES
from replayd.messages import Peer

Held = TypeVar("Held")


@dataclass(slots=True, eq=False)
class Quota:
    """What one peer has unread."""

    nbytes: int = 0
    replies: int = 0

    @property
    def is_full(self) -> bool:
        """Whether the peer must read before a further reply with payload is made for it."""
        return self.nbytes >= UNREAD_BYTES.value or self.replies >= UNREAD_REPLIES.value

    def add(self, nbytes: int) -> None:
        """A reply with so much payload is on its way."""
        self.nbytes += nbytes
        self.replies += 1


class Quotas(Generic[Held]):
    """The quotas of all peers that have something unread or open, and what waits for them: whatever stands for it."""

    def __init__(self) -> None:
        self._quotas: dict[Peer, Quota] = {}
        self._held: dict[Peer, list[Held]] = {}
        self._ready: list[Held] = []

    @property
    def unread_bytes(self) -> int:
        """Payload of all replies that were made and not read."""
        return sum(quota.nbytes for quota in self._quotas.values())

    @property
    def held(self) -> list[Held]:
        """All that waits, in no order that means anything."""
        return [*self._ready, *(each for held in self._held.values() for each in held)]

    @property
    def holds(self) -> bool:
        """Whether anything waits."""
        return bool(self._ready or self._held)

    def of(self, peer: Peer) -> Quota:
        """The peer's quota; the same one as long as it has something unread or open."""
        return self._quotas.setdefault(peer, Quota())

    def check(self, peer: Peer) -> None:
        """Raise LimitExceeded if the peer must read before it is sent more."""
        quota = self._quotas.get(peer)
        if quota is not None and quota.is_full:
            UNREAD_BYTES.check(quota.nbytes + 1)
            UNREAD_REPLIES.check(quota.replies + 1)

    def hold(self, peer: Peer, waiting: Held) -> None:
        """This waits until the peer has read."""
        self._held.setdefault(peer, []).append(waiting)

    def let_go(self, peer: Peer, waiting: Held) -> None:
        """This does not wait any more."""
        if waiting in self._ready:
            self._ready.remove(waiting)
        else:
            self._held[peer].remove(waiting)
            if not self._held[peer]:
                del self._held[peer]

    def read(self, peer: Peer, nbytes: int, replies: int) -> None:
        """The peer has read so many replies with so much payload, or there is nobody any more who could."""
        quota = self._quotas[peer]
        quota.nbytes -= nbytes
        quota.replies -= replies
        if not quota.is_full:
            self._ready += self._held.pop(peer, ())

    def clear(self) -> None:
        """Nobody has anything unread, and nothing waits."""
        self._quotas.clear()
        self._held.clear()
        self._ready.clear()

    def take_ready(self) -> list[Held]:
        """What waits no longer, peer after peer."""
        ready, self._ready = self._ready, []
        return ready

    def forget(self, peer: Peer) -> None:
        """The peer has nothing open; if it has nothing unread either, there is nothing to remember."""
        quota = self._quotas.get(peer)
        if quota is not None and quota.replies == 0 and peer not in self._held:
            del self._quotas[peer]

    def validate(self) -> None:
        """Assert that who waits has reason to, and that nobody has read what was not made."""
        assert all(quota.nbytes >= 0 and quota.replies >= 0 for quota in self._quotas.values()), (
            "more was read than made"
        )
        idle = [peer for peer in self._held if not self._quotas[peer].is_full]
        assert not idle, f"{idle} have read, and samples of theirs wait"
