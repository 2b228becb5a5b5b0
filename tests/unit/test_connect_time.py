"""What is said of a deadline that a missing server is not held to."""

from __future__ import annotations

import pytest

from replayd_client import Client
from replayd_client.connection import CONNECT_S, Connection
from replayd_client.errors import ConnectionLostError
from replayd_client.pool import zmq_context

SAID = "A call has 1 s to connect, whatever its deadline."


@pytest.mark.parametrize(("waited_s", "is_said"), [(0.1, False), (CONNECT_S, True), (1.3, True), (60.0, False)])
def test_whoever_waited_longer_than_asked_for_is_told_why(waited_s: float, is_said: bool) -> None:
    connection = Connection("tcp://127.0.0.1:1", zmq_context())
    assert (SAID in str(connection.unreachable(waited_s))) == is_said
    connection.close()


def test_a_call_without_a_server_has_the_time_to_connect() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(ConnectionLostError) as caught:
        client.info(timeout_ms=0)
    assert caught.value.detail["waited_s"] >= CONNECT_S
    assert "1 s" in (Client.__doc__ or "")


def test_a_call_without_a_server_looks_rarely_whether_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(Connection, "_receive", lambda self: looks.append(self) or [])
    with Client("127.0.0.1:1") as client, pytest.raises(ConnectionLostError):
        client.info(timeout_ms=0)
    # Some for each attempt and for each event of its socket, where a wait that does not wait makes thousands.
    assert len(looks) < 200
