"""An embedded server that cannot go on says so, to its log and to whoever waits."""

from __future__ import annotations

import logging

import pytest

import replayd
from replayd.errors import BindError
from replayd_client.errors import ReplaydError


def table(name: str = "t") -> replayd.Table:
    return replayd.Table(name, replayd.selectors.Fifo(), replayd.selectors.Fifo(), 10, replayd.rate_limiters.MinSize(1))


@pytest.mark.parametrize("port", [-1, 65536, 99999])
def test_a_port_that_is_none_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match="port"):
        replayd.Server([table()], port=port)


def test_one_table_is_not_a_list_of_tables() -> None:
    with pytest.raises(TypeError, match="list of tables"):
        replayd.Server(table())  # type: ignore[arg-type]


def test_tables_of_a_server_that_found_its_port_taken_can_be_served_elsewhere() -> None:
    tables = [table()]
    with replayd.Server([table("u")]) as other:
        with pytest.raises(BindError):
            replayd.Server(tables, port=other.port)
        with replayd.Server(tables) as server, replayd.Client(server.address) as client:
            client.insert([1.0], {"t": 1.0})


def test_a_fault_of_the_server_is_logged_told_to_those_who_wait_and_raised_by_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = table()
    server = replayd.Server([broken])
    with replayd.Client(server.address) as client, caplog.at_level(logging.ERROR, logger="replayd"):
        client.server_info()
        # Our own fault, as a bug would be: the loop meets it with the next insert.
        broken.sampler = None  # type: ignore[assignment]
        with pytest.raises(ReplaydError):
            client.insert([1.0], {"t": 1.0}, timeout_ms=2000)
    with pytest.raises(AttributeError):
        server.stop()
    server.stop()
    assert "the daemon fails" in caplog.text
