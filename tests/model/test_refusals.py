"""What is refused has changed nothing: a journal has none of it, and its peer will send it again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replayd import selectors
from replayd.limits import WINDOW_MESSAGES
from replayd.messages import Failed, Request
from replayd.rate_limiters import MinSize, RateLimiter
from replayd.service import Service
from replayd.table import Table
from tests.model.essence import differences, essence
from tests.model.traffic import LEASE_S, Traffic
from tests.unit.writer import service as service_of


class Watched(Traffic):
    """Looks at the service before each request, and behind each that is refused."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.refused: list[str] = []

    def _ask(self, service: Service, peer: str, request: Request) -> None:
        before = essence(service)
        super()._ask(service, peer, request)
        for reply in (reply for _, reply in self.said[-1][3]):
            if isinstance(reply, Failed) and reply.id == request.id:
                assert differences(essence(service), before) == [], f"{request} was refused: {reply.message}"
                self.refused.append(reply.code)


def test_what_is_refused_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # So few that resends of parked messages are refused too.
    monkeypatch.setattr("replayd.accounts.WINDOW_MESSAGES", replace(WINDOW_MESSAGES, value=3))
    assert {"limit_exceeded", "table_full", "unknown_stream"} <= {code for seed in range(6) for code in refused(seed)}


def refused(seed: int) -> list[str]:
    """Codes of what a service refused in some hundred steps, each of which left no trace."""
    tables = [
        Table("a", selectors.Uniform(), selectors.Fifo(), 20, MinSize(1), max_bytes=1500, when_full="reject"),
        Table("b", selectors.Uniform(), selectors.Fifo(), 20, RateLimiter(1.0, 2, -3.0, 8.0), when_full="block"),
    ]
    service, traffic = service_of(*tables, lease_s=LEASE_S), Watched(seed)
    for _ in range(200):
        traffic.step(service)
        traffic._resend(service)
        if traffic.random.random() < 0.1:
            traffic.pass_time(service, traffic.random.choice([0.0, 1.0]))
    return traffic.refused
