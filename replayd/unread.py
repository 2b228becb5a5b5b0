"""What is sent and still in memory: libzmq hides its queues, but tells when it has let go of a frame.

Owns, for each peer, the replies with payload that libzmq has not passed to the connection. A frame that it tells of
costs some 70 µs, most of it in another thread, so of small replies only every so many has one: replies keep their
order, so it speaks for those before it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import zmq

from replayd.messages import Peer

TOLD_BYTES = 1 << 20
TOLD_REPLIES = 16
"""A reply is followed when so much has been sent to its peer since the last one that was, itself included."""

REST_S = 1.0
"""Replies that are not followed are taken to be read after so long: they are few and small, and without an end to it
peers that have gone would be remembered. How much of a peer was taken so is: it counts for what is followed next.
"""

PEERS_TAKEN = 4096
"""Peers of which that is remembered, the last ones: one that asks once a second and never reads is among them."""

LOOK_S = 0.01
"""Between two looks while samples wait until their peers have read."""


@dataclass(slots=True)
class _Sent:
    """Replies to one peer."""

    followed: deque[tuple[Any, int, int]] = field(default_factory=deque)
    """(tracker of the last of them, bytes and number of these), oldest first."""
    nbytes: int = 0
    replies: int = 0
    """What was sent since and is not followed."""
    since: float = 0.0
    """When the first of those was."""


class Unread:
    """`read` is told what a peer has read: bytes and number of replies."""

    def __init__(self, read: Callable[[Peer, int, int], None]) -> None:
        self._read = read
        self._sent: dict[Peer, _Sent] = {}
        self._taken: OrderedDict[Peer, tuple[int, int]] = OrderedDict()
        """Bytes and number of the replies that were taken to be read since the last one that was followed was."""

    def followed(self, peer: Peer, frames: list[Any], nbytes: int, now: float) -> list[Any]:
        """The frames of a reply with so much payload, in a form that tells when it is read, if that is called for."""
        sent = self._sent.setdefault(peer, _Sent())
        if sent.replies == 0:
            sent.since = now
        sent.nbytes += nbytes
        sent.replies += 1
        taken_bytes, taken_replies = self._taken.get(peer, (0, 0))
        is_little = sent.nbytes + taken_bytes < TOLD_BYTES and sent.replies + taken_replies < TOLD_REPLIES
        if is_little and now - sent.since < REST_S / 2:
            return frames
        last = frames[-1].buffer if isinstance(frames[-1], zmq.Frame) else frames[-1]
        frame = zmq.Frame(last, track=True, copy=False, copy_threshold=0)
        sent.followed.append((frame.tracker, sent.nbytes, sent.replies))
        sent.nbytes = sent.replies = 0
        return [*frames[:-1], frame]

    def due(self, now: float, is_waited_for: bool) -> float | None:
        """When to look next; None: nothing is on its way."""
        if not self._sent:
            return None
        return now + (LOOK_S if is_waited_for else REST_S)

    def look(self, now: float) -> None:
        """Tell what has been read since the last look."""
        for peer, sent in list(self._sent.items()):
            nbytes = replies = 0
            while sent.followed and sent.followed[0][0].done:
                _, more, count = sent.followed.popleft()
                nbytes, replies = nbytes + more, replies + count
                # What was sent before it is read too.
                self._taken.pop(peer, None)
            if not sent.followed and (sent.replies == 0 or now - sent.since >= REST_S):
                nbytes, replies = nbytes + sent.nbytes, replies + sent.replies
                if sent.replies:
                    self._take(peer, sent)
                del self._sent[peer]
            if replies:
                self._read(peer, nbytes, replies)

    def _take(self, peer: Peer, sent: _Sent) -> None:
        """What was sent and not followed is taken to be read."""
        nbytes, replies = self._taken.pop(peer, (0, 0))
        self._taken[peer] = nbytes + sent.nbytes, replies + sent.replies
        if len(self._taken) > PEERS_TAKEN:
            self._taken.popitem(last=False)
