"""Fixtures: servers of `replayd.compat.reverb`. A test module names this one in `pytest_plugins`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from replayd.compat import reverb


@pytest.fixture
def serve_compat() -> Iterator[Callable[..., reverb.Client]]:
    """`serve_compat(table, …)`: a client of a server with these tables, which is stopped at the end of the test."""
    servers: list[reverb.Server] = []

    def start(*tables: reverb.Table) -> reverb.Client:
        servers.append(reverb.Server(tables))
        return servers[-1].localhost_client()

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def compat_server(request: pytest.FixtureRequest) -> Iterator[reverb.Server]:
    """One server for the whole module, with the tables that it lists as TABLES."""
    made = reverb.Server(request.module.TABLES)
    yield made
    made.stop()


@pytest.fixture
def client(compat_server: reverb.Server) -> Iterator[reverb.Client]:
    """A client of `compat_server`, whose tables are emptied when the test ends."""
    made = compat_server.localhost_client()
    yield made
    for table in made.server_info():
        made.reset(table)
