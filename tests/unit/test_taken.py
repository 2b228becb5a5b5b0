"""Addresses that somebody else has: who that is, of every kind of address, and what one may do about it."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from replayd import taken
from replayd.board import Board
from replayd.config import read_config
from replayd.errors import BindError
from replayd.http import StatusServer
from replayd.server import Daemon
from replayd.table import Table
from replayd.taken import another, holder, told

ME = f"process {os.getpid()} ("
KINDS = ["127.0.0.1", "0.0.0.0", "::1", "::", "path"]


@pytest.fixture
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A socket of this process that listens, of each kind; and its endpoint."""
    host = request.param
    with suppress(OSError):
        if host == "path":
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(tmp_path / "with blank.sock"))
                listening.listen()
                yield listening, f"ipc://{tmp_path}/with blank.sock"
        elif ":" in host:
            with socket.create_server((host, 0), family=socket.AF_INET6) as listening:
                yield listening, f"tcp://[{host}]:{listening.getsockname()[1]}"
        else:
            with socket.create_server((host, 0)) as listening:
                yield listening, f"tcp://{host}:{listening.getsockname()[1]}"
        return
    pytest.skip(f"this machine has no {host}")


@pytest.mark.parametrize("listener", KINDS, indirect=True)
def test_who_listens_at_an_address_is_told_while_somebody_does(listener: tuple[socket.socket, str]) -> None:
    listening, endpoint = listener
    assert holder(endpoint).startswith(ME)
    assert holder(endpoint.replace("tcp://", "http://")).startswith(ME)
    taken = BindError(endpoint, "Address already in use", is_taken=True)
    assert told(taken) == f"cannot bind {endpoint}: Address already in use, {holder(endpoint)} has it"
    # Who listens there is not why it cannot be bound, if something else is.
    other = BindError(endpoint, "Permission denied", is_taken=False)
    assert told(other) == f"cannot bind {endpoint}: Permission denied"
    listening.close()
    assert holder(endpoint) == ""
    assert told(taken) == f"cannot bind {endpoint}: Address already in use"


@pytest.mark.parametrize("listener", ["0.0.0.0"], indirect=True)
def test_who_has_a_port_of_all_addresses_has_that_of_each(listener: tuple[socket.socket, str]) -> None:
    port = listener[1].rpartition(":")[2]
    for host in ("127.0.0.1", "localhost", "*"):
        assert holder(f"tcp://{host}:{port}").startswith(ME)


def bind(endpoint: str) -> None:
    """As the daemon does, or its status page."""
    if endpoint.startswith("http://"):
        StatusServer(Board(), endpoint.removeprefix("http://"))
    else:
        Daemon([Table.queue("t", 1)], listen=endpoint, ingest=None).bind()


@pytest.mark.parametrize("listener", ["0.0.0.0"], indirect=True)
@pytest.mark.parametrize("scheme", ["tcp", "http"])
def test_an_address_that_this_machine_has_not_is_not_said_to_be_somebodys(
    listener: tuple[socket.socket, str], scheme: str
) -> None:
    port = listener[1].rpartition(":")[2]
    # An address of documentation is no machine's, and who listens at all of this one's has not that.
    for host, has_it in (("127.0.0.1", True), ("192.0.2.1", False)):
        with pytest.raises(BindError) as refused:
            bind(f"{scheme}://{host}:{port}")
        assert (refused.value.is_taken, " has it" in told(refused.value)) == (has_it, has_it)


@pytest.mark.parametrize("listener", ["127.0.0.1", "path"], indirect=True)
def test_of_a_process_that_one_may_not_look_into_its_user_is_told(
    listener: tuple[socket.socket, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taken, "_process_of", lambda inode: "")
    whose = pwd.getpwuid(os.getuid()).pw_name if "tcp" in listener[1] else "another user"
    assert holder(listener[1]) == f"a process of {whose}"


@pytest.mark.parametrize("listener", ["127.0.0.1", "path"], indirect=True)
def test_where_the_kernel_tells_nothing_nothing_is_told(
    listener: tuple[socket.socket, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(taken, "PROC", tmp_path / "none")
    assert holder(listener[1]) == ""


def test_what_one_may_do_is_told_by_setting_and_option() -> None:
    config = read_config(port=8000)
    assert "`[server] listen` (--listen, --port)" in another(config, "tcp://127.0.0.1:8000")
    assert "`[server] ingest` (--ingest-port)" in another(config, "tcp://127.0.0.1:8002")
    for page in ("tcp://127.0.0.1:8001", "http://127.0.0.1:8001"):
        assert "`[http] listen` (--http)" in another(config, page)
