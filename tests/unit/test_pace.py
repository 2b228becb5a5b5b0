"""How often one peer may look: so often, and nobody else pays for it."""

from __future__ import annotations

import pytest

from replayd import selectors
from replayd.errors import LimitExceeded
from replayd.limits import LOOKS_PER_S
from replayd.messages import Failed, Info, KeepAlive, Reply, Why
from replayd.rate_limiters import MinSize
from replayd.service import Service
from replayd.table import Table

MOST = LOOKS_PER_S.value


def service() -> Service:
    table = Table("replay", selectors.Uniform(), selectors.Fifo(), 10, MinSize(1))
    return Service([table], server_id=bytes(16), version="1", seed=0, started_at=0.0)


def refused(replies: list[tuple[object, Reply]]) -> list[object]:
    return [peer for peer, reply in replies if isinstance(reply, Failed) and reply.code == LimitExceeded.code]


def test_who_looks_too_often_is_refused_until_the_second_is_over_and_others_are_served() -> None:
    asked = service()
    for n in range(MOST + 5):
        asked.handle(("flood",), "why", Why(n, "replay"), now=1.0 + n * 1e-4)
    asked.handle(("other",), "info", Info(1), now=1.5)
    replies = asked.drain()
    assert len(replies) == MOST + 6, "each is answered once"
    assert refused(replies) == [("flood",)] * 5
    asked.handle(("flood",), "why", Why(MOST + 5, "replay"), now=2.01)
    assert refused(asked.drain()) == []


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_what_has_bounds_of_its_own_is_not_counted(seconds: float) -> None:
    asked = service()
    for n in range(MOST + 5):
        asked.handle(("writer",), "keepalive", KeepAlive(n, bytes(16)), now=1.0 + seconds)
    assert refused(asked.drain()) == []
