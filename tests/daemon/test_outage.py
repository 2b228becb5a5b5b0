"""A server that is away for long: all connections of a client come back, also those that nobody used meanwhile."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest

import replayd
from replayd_client import Client, TrajectoryWriter
from replayd_client.errors import ConnectionLostError
from tests.daemon.embedded import fifo, free_port, size


@contextmanager
def hanging_up(port: int) -> Iterator[list[int]]:
    """Something that takes connections and hangs up at once, as a proxy does whose server is away; how often it did."""
    count = [0]
    with socket.create_server(("127.0.0.1", port)) as listener:

        def work() -> None:
            with suppress(OSError):
                while True:
                    listener.accept()[0].close()
                    count[0] += 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield count
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_an_idle_connection_holds_up_no_other_however_long_the_server_is_away() -> None:
    port = free_port()
    with Client(f"127.0.0.1:{port}") as client:
        with replayd.Server([fifo("t")], port=port):
            # It has a connection of its own, which nobody reads while the server is away.
            writer = client.trajectory_writer(1)
            write(writer)
            assert size(client, "t") == 1
        with hanging_up(port) as count:
            with pytest.raises(ConnectionLostError) as lost:
                client.info(timeout_ms=3000)
            # Some ask what hangs up there besides. What the writer's did on its own would fill the queue of its events.
            assert count[0] <= 2 * lost.value.detail["attempts"] + 2
        with replayd.Server([fifo("t")], port=port):
            assert size(client, "t") == 0
            write(writer)
            writer.close()
            assert size(client, "t") == 1


def write(writer: TrajectoryWriter) -> None:
    writer.append(np.zeros(2))
    writer.create_item("t", 1.0, writer.history[-1:])
    writer.flush()
