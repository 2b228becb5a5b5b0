"""What tests with a server in their own process need: tables, and ways to wait."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

import replayd
from replayd import rate_limiters, selectors
from replayd.keeper import Keeper
from replayd_client import Client

DEADLINE_S = 60.0
"""Bound on waiting for what must come; no expectation."""


def uniform(name: str, max_size: int = 1000, **settings: Any) -> replayd.Table:
    limiter = settings.pop("rate_limiter", None) or rate_limiters.MinSize(1)
    return replayd.Table(name, selectors.Uniform(), selectors.Fifo(), max_size, limiter, **settings)


def fifo(name: str, max_size: int = 1000, **settings: Any) -> replayd.Table:
    return replayd.Table(name, selectors.Fifo(), selectors.Fifo(), max_size, rate_limiters.MinSize(1), **settings)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come"
        pause.wait(0.005)


def hold_loading(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """No store is read before this is set."""
    go_on = threading.Event()
    load = Keeper.load

    def held(keeper: Keeper) -> None:
        assert go_on.wait(DEADLINE_S)
        load(keeper)

    monkeypatch.setattr(Keeper, "load", held)
    return go_on


def size(client: Client, table: str) -> int:
    return client.server_info()[table].current_size


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
