"""An embedded server that cannot go on says so, to its log and to whoever waits."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(("what", "journal"), [("pack_block", "off"), ("pack", "sync")])
def test_a_fault_of_the_writer_of_its_store_ends_a_server_too_and_the_last_commit_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str, journal: Any
) -> None:
    def fail(*arguments: Any) -> Any:
        raise ZeroDivisionError("made up")

    server = replayd.Server([table()], data_dir=tmp_path, journal=journal)
    with replayd.Client(server.address) as client, caplog.at_level(logging.ERROR, logger="replayd"):
        client.insert([1.0], {"t": 1.0})
        client.checkpoint()
        with monkeypatch.context() as broken:
            broken.setattr(f"replayd.store_writer.{what}", fail)
            with pytest.raises(ReplaydError):
                client.insert([2.0], {"t": 1.0}, timeout_ms=2000)
                client.checkpoint(timeout_ms=2000)
    with pytest.raises(AssertionError, match="writes the store") as fault:
        server.stop()
    assert isinstance(fault.value.__cause__, ZeroDivisionError)
    assert "the daemon fails" in caplog.text
    assert "ZeroDivisionError: made up" in caplog.text
    with replayd.Server([table()], data_dir=tmp_path) as again, replayd.Client(again.address) as client:
        assert len(client.peek("t", oldest=10).items) == 1
