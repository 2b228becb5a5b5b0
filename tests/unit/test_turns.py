"""How much one turn of the loop takes from each socket before it answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from replayd import server
from replayd.rate_limiters import MinSize
from replayd.selectors import Fifo, Uniform
from replayd.server import BYTES_PER_TURN, MESSAGES_PER_TURN, Daemon
from replayd.table import Table

SIZES = {
    "one is the whole turn": (BYTES_PER_TURN, 1),
    "one is more than a turn": (3 * BYTES_PER_TURN, 1),
    "the last one passes the bound": (BYTES_PER_TURN // 4 - 1, 5),
    "small ones are bounded by their number": (10, MESSAGES_PER_TURN),
}


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    daemon = Daemon([Table("t", Uniform(), Fifo(), 10, MinSize(1))], "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    daemon.bind()
    yield daemon
    daemon.stop()
    daemon.run(stop_on_signals=False)


@pytest.mark.parametrize(("nbytes", "taken"), SIZES.values(), ids=SIZES.keys())
def test_a_turn_ends_at_its_bytes_or_messages(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, nbytes: int, taken: int
) -> None:
    # The frames are nobody's message; what a turn takes does not depend on what becomes of them.
    waiting = [
        [zmq.Frame(bytes(nbytes // 2)), zmq.Frame(bytes(nbytes - nbytes // 2))] for _ in range(2 * MESSAGES_PER_TURN)
    ]
    requests, pushes = iter(waiting), iter(waiting)

    def arrived(_: Any, most: int) -> Iterator[Any]:
        for _ in range(most):
            yield (b"peer",), next(requests)

    monkeypatch.setattr(server, "arrived", arrived)
    monkeypatch.setattr(server, "received", lambda _: next(pushes))
    daemon._take_requests(0.0)
    daemon._take_pushes(0.0)
    assert len(waiting) - len(list(requests)) == taken
    assert len(waiting) - len(list(pushes)) == taken
    assert daemon.service.counters.unreadable == 2 * taken


def test_a_turn_ends_when_nothing_more_has_come(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    pushes = iter([[zmq.Frame(b"a")], [zmq.Frame(b"b")]])

    def received(_: Any) -> Any:
        for frames in pushes:
            return frames
        raise zmq.Again

    monkeypatch.setattr(server, "received", received)
    daemon._take_pushes(0.0)
    assert list(pushes) == []
