"""Where a daemon listens, and the first call of a client to it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import zmq

import replayd
from replayd.server import Daemon
from replayd_client import Client
from replayd_client.errors import ConnectionLostError, DeadlineExceededError
from tests.daemon.conftest import StartDaemon


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "listen",
    [
        "tcp://127.0.0.1:0",
        "tcp://localhost:0",
        pytest.param("tcp://[::1]:0", marks=pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")),
        "ipc",
    ],
)
def test_a_client_reaches_a_daemon_wherever_it_listens(start_daemon: StartDaemon, tmp_path: Path, listen: str) -> None:
    address = f"ipc://{tmp_path}/replayd.sock" if listen == "ipc" else listen
    config = tmp_path / "replayd.toml"
    config.write_text(f'[server]\nlisten = "{address}"\ningest = ""\n[http]\nlisten = "127.0.0.1:0"\n')
    daemon = start_daemon("--config", str(config), file_decides=True)
    with Client(daemon.address) as client:
        client.insert([1.0], {"replay": 1.0})
        assert client.server_info()["replay"].current_size == 1


def test_the_first_call_may_be_one_that_does_not_wait(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with Client(daemon.address) as client, pytest.raises(DeadlineExceededError):
        client.sample_batch("replay", 1, timeout_ms=0)


def test_where_nobody_listens_a_call_that_does_not_wait_says_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with Client(f"127.0.0.1:{port}") as client, pytest.raises(ConnectionLostError, match=str(port)):
            client.sample_batch("replay", 1, timeout_ms=0)


def test_a_push_socket_left_unread_is_not_cut_off_by_heartbeats() -> None:
    # libzmq stops reading when its queue is full, would hear no answer to its own heartbeats, and disconnect the peer
    # with all it has queued; that takes 20 s to see, so the options are looked at.
    limiter = replayd.rate_limiters.MinSize(1)
    table = replayd.Table("t", replayd.selectors.Fifo(), replayd.selectors.Fifo(), 1, limiter)
    daemon = Daemon([table], "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    daemon.bind()
    assert daemon._router.getsockopt(zmq.HEARTBEAT_IVL) > 0
    assert daemon._pull is not None
    assert daemon._pull.getsockopt(zmq.HEARTBEAT_IVL) == 0
    daemon.stop()
    daemon.run(stop_on_signals=False)
