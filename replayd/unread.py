"""What is sent and still in memory: libzmq hides its queues, but tells when it has let go of a frame.

Owns, for each peer, the replies with payload that libzmq has not passed to the connection. A frame that it tells of
costs some 70 µs, most of it in another thread, so of small replies only every so many has one: replies keep their
order, so it speaks for those before it.
"""

from __future__ import annotations

from collections import deque
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
peers that have gone would be remembered.
"""

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

    def followed(self, peer: Peer, frames: list[Any], nbytes: int, now: float) -> list[Any]:
        """The frames of a reply with so much payload, in a form that tells when it is read, if that is called for."""
        sent = self._sent.setdefault(peer, _Sent())
        if sent.replies == 0:
            sent.since = now
        sent.nbytes += nbytes
        sent.replies += 1
        if sent.nbytes < TOLD_BYTES and sent.replies < TOLD_REPLIES and now - sent.since < REST_S / 2:
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
            if not sent.followed and (sent.replies == 0 or now - sent.since >= REST_S):
                nbytes, replies = nbytes + sent.nbytes, replies + sent.replies
                del self._sent[peer]
            if replies:
                self._read(peer, nbytes, replies)
