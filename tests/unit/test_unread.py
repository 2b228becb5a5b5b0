"""What is sent and not read, as libzmq tells it: real sockets, of which one never reads."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from replayd.messages import Peer
from replayd.quotas import Quota
from replayd.unread import PEERS_TAKEN, REST_S, TOLD_BYTES, TOLD_REPLIES, Unread

DEADLINE_MS = 20_000


class Line:
    """A server's socket and a peer that reads when it is told to, with what the server takes it to have unread."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self.quota = Quota()
        self.unread = Unread(self._read)
        self.now = 100.0
        self.sent = 0
        self._router, self._dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        for socket in (self._router, self._dealer):
            socket.linger = 0
            # So that little is on the way, and the rest in the server.
            socket.sndhwm = socket.rcvhwm = 0 if socket is self._router else 1
            socket.sndbuf = socket.rcvbuf = 4096
        port = self._router.bind_to_random_port("tcp://127.0.0.1")
        self._dealer.connect(f"tcp://127.0.0.1:{port}")
        self._dealer.send(b"")
        assert self._router.poll(DEADLINE_MS)
        self.peer: Peer = (self._router.recv_multipart()[0],)

    def _read(self, peer: Peer, nbytes: int, replies: int) -> None:
        assert peer == self.peer
        self.quota.nbytes -= nbytes
        self.quota.replies -= replies

    def reply(self, nbytes: int) -> None:
        self.sent += 1
        self.quota.add(nbytes)
        frames = self.unread.followed(self.peer, [bytes(nbytes)], nbytes, self.now)
        self._router.send_multipart([self.peer[0], *frames], copy=False)

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.unread.look(self.now)

    def read_all(self) -> None:
        for _ in range(self.sent):
            assert self._dealer.poll(DEADLINE_MS)
            self._dealer.recv(copy=False)
        self.sent = 0

    def settle(self) -> None:
        """Until all is known to be read, which libzmq tells from another thread."""
        deadline = time.monotonic() + DEADLINE_MS / 1000
        while self.quota.replies and time.monotonic() < deadline:
            self.later(REST_S)

    def close(self) -> None:
        self._router.close()
        self._dealer.close()


@pytest.fixture
def line() -> Iterator[Line]:
    with zmq.Context() as context:
        line = Line(context)
        yield line
        line.close()


@pytest.mark.parametrize(
    ("nbytes", "pause_s"),
    [(TOLD_BYTES - 1, 1.1), (TOLD_BYTES // 2 + 1, 1.0), (TOLD_BYTES // 10, 0.3), (TOLD_BYTES // 2, 10.0)],
)
def test_who_never_reads_meets_its_quota_however_slowly_it_asks(line: Line, nbytes: int, pause_s: float) -> None:
    sent = 0
    while not line.quota.is_full:
        line.reply(nbytes)
        line.later(pause_s)
        sent += nbytes
        # What the connection itself takes, and what is taken to be read before one is followed.
        assert sent - line.quota.nbytes < 4 * TOLD_BYTES
    line.read_all()
    line.settle()
    assert (line.quota.nbytes, line.quota.replies) == (0, 0), "what is read is known to be"


def test_who_never_reads_small_replies_meets_its_quota_too(line: Line) -> None:
    # The connection takes some thousands of them; beyond, each counts.
    replies = 0
    while not line.quota.is_full and replies < 20_000:
        line.reply(1000)
        line.later(2 * REST_S)
        replies += 1
    assert line.quota.is_full
    assert replies * 1000 < 8 * TOLD_BYTES


def test_whoever_reads_is_hardly_followed_and_soon_forgotten(line: Line) -> None:
    rng = random.Random(3)
    for _ in range(200):
        line.reply(rng.randrange(1, TOLD_BYTES // TOLD_REPLIES))
        line.read_all()
        line.later(rng.choice([0.01, 0.4, 1.5]))
        assert line.quota.nbytes < 2 * TOLD_BYTES
    line.settle()
    assert (line.quota.nbytes, line.quota.replies) == (0, 0)
    assert line.unread.due(line.now, is_waited_for=False) is None


def test_peers_that_have_gone_are_not_remembered_for_ever() -> None:
    told: list[Peer] = []
    unread = Unread(lambda peer, nbytes, replies: told.append(peer))
    for n in range(PEERS_TAKEN + 100):
        unread.followed((n.to_bytes(4, "big"),), [b"x"], 1, 0.0)
    unread.look(REST_S)
    assert len(told) == PEERS_TAKEN + 100
    assert len(unread._taken) == PEERS_TAKEN
    assert unread.due(REST_S, is_waited_for=True) is None
