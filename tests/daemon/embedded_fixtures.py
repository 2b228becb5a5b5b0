"""Fixtures: servers inside the test's process and clients of them. A test module names this one in `pytest_plugins`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import replayd
from replayd_client import Client


@pytest.fixture
def serve() -> Iterator[Callable[..., replayd.Server]]:
    """`serve(table, …, port=None)`: a server in this process, stopped at the end."""
    servers: list[replayd.Server] = []

    def start(*tables: replayd.Table, port: int | None = None) -> replayd.Server:
        servers.append(replayd.Server(tables=tables, port=port))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def client_of() -> Iterator[Callable[[Any], Client]]:
    """`client_of(server or address)`: a client, closed when the test ends, before the servers."""
    clients: list[Client] = []

    def make(server: Any) -> Client:
        address = server if isinstance(server, str) else server.address
        clients.append(Client(address))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
