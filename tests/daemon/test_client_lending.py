"""Arrays that are inserted from where they lie: what is stored is what they held at the call, whatever happens to them
when that is over."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest

import replayd
from replayd_client import errors
from tests.daemon.embedded import size, until
from tests.daemon.harness import DaemonProcess

pytest_plugins = ["tests.daemon.embedded_fixtures"]


@pytest.mark.parametrize("nbytes", [100, 40_000, 400_000])
def test_what_a_limiter_holds_back_does_not_change_with_its_array(serve: Any, client_of: Any, nbytes: int) -> None:
    client = client_of(serve(replayd.Table.queue("q", 2)))
    batch = np.full((6, 1, nbytes), 7, np.uint8)
    with pytest.raises(errors.DeadlineExceededError):
        client.insert_batch(batch, {"q": 1.0}, timeout_ms=300, codec="raw")
    batch[:] = 0
    drawn = 0
    while drawn < 6:
        sample = client.sample_batch("q", 2, min_n=1)
        assert (sample.data == 7).all()
        drawn += len(sample.data)


def test_what_a_silent_server_did_not_take_yet_does_not_change_with_its_array(
    start_daemon: Any, client_of: Any
) -> None:
    daemon: DaemonProcess = start_daemon("--table", "t,max_size=1000")
    client = client_of(daemon.address)
    client.insert_batch(np.full((1, 1, 400_000), 7, np.uint8), {"t": 1.0}, codec="raw")
    # More than the buffers between the processes hold: of most of it libzmq reads only when the server goes on.
    batch = np.full((100, 1, 400_000), 7, np.uint8)
    daemon.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises((errors.DeadlineExceededError, errors.ConnectionLostError)) as caught:
            client.insert_batch(batch, {"t": 1.0}, timeout_ms=300, codec="raw")
        batch[:] = 0
    finally:
        daemon.send_signal(signal.SIGCONT)
    delivered = 1 + caught.value.detail["trajectories_open"]
    assert delivered > 1
    until(lambda: size(client, "t") == delivered)
    peeked = client.peek("t", oldest=delivered)
    assert len(peeked) == delivered
    assert all((column == 7).all() for item in peeked for column in item.data)


def test_priorities_do_not_change_with_their_array_either(start_daemon: Any, client_of: Any) -> None:
    daemon: DaemonProcess = start_daemon("--table", "t,max_size=1000")
    client = client_of(daemon.address)
    client.insert(0, {"t": 0.5})
    priorities = np.full(100, 0.5)
    daemon.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises((errors.DeadlineExceededError, errors.ConnectionLostError)) as caught:
            client.insert_batch(np.zeros((100, 1, 400_000), np.uint8), {"t": priorities}, timeout_ms=300, codec="raw")
        priorities[:] = 1.0
    finally:
        daemon.send_signal(signal.SIGCONT)
    delivered = 1 + caught.value.detail["trajectories_open"]
    until(lambda: size(client, "t") == delivered)
    assert {item.info.priority for item in client.peek("t", oldest=delivered)} == {0.5}
