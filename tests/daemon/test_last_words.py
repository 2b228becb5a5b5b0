"""What a server said last is heard, although the connection has ended before anybody read it."""

from __future__ import annotations

from typing import Any

import zmq

from replayd_client import Client
from replayd_client.array_wire import encode_sample
from replayd_client.connection import Connection
from replayd_client.messages import ErrorReply
from replayd_client.pool import endpoint_of, zmq_context
from tests.daemon.embedded import DEADLINE_S, uniform, until

pytest_plugins = ["tests.daemon.embedded_fixtures"]


def test_an_answer_outlives_the_connection_that_it_came_by(serve: Any) -> None:
    server = serve(uniform("t"))
    connection = Connection(endpoint_of(server.address), zmq_context())
    connection.open_session(None)
    request_id = connection.next_id()
    assert connection.send(encode_sample(request_id, "t", 1, 1, 60_000))
    with Client(server.address) as watcher:
        until(lambda: bool(watcher.server_info()["t"].waiting))
    server.stop()
    assert connection._monitor is not None
    assert connection._monitor.poll(DEADLINE_S * 1000, zmq.POLLIN), "the end of the connection is noticed"
    replies = connection.pump(DEADLINE_S)
    connection.close()
    assert [(reply.id, type(reply)) for reply in replies] == [(request_id, ErrorReply)]
    assert isinstance(replies[0], ErrorReply)
    assert replies[0].error.code == "shutting_down"
