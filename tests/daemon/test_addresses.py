"""Where a daemon listens, and the first call of a client to it."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import zmq

import replayd
from replayd import sockets
from replayd.errors import BindError
from replayd.server import Daemon
from replayd_client import Client
from replayd_client.errors import ConnectionLostError, DeadlineExceededError
from tests.daemon.conftest import ConnectPeer, StartDaemon
from tests.daemon.harness import DaemonProcess, environment, run_replayd


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


def ipc_settings(directory: Path) -> tuple[Path, Path]:
    """A path to listen at, and a file of settings that says so."""
    path, config = directory / "replayd.sock", directory / "replayd.toml"
    config.write_text(f'[server]\nlisten = "ipc://{path}"\ningest = ""\n[http]\nlisten = "off"\n')
    return path, config


def test_a_second_daemon_at_a_path_is_refused_and_the_first_goes_on(start_daemon: StartDaemon, tmp_path: Path) -> None:
    path, config = ipc_settings(tmp_path)
    first = start_daemon("--config", str(config), file_decides=True)
    ended = run_replayd("serve", "--config", str(config))
    assert ended.returncode == os.EX_CANTCREAT
    assert f"ipc://{path}" in ended.stderr
    assert "in use" in ended.stderr
    with Client(first.address) as client:
        client.insert([1.0], {"replay": 1.0})
        assert client.server_info()["replay"].current_size == 1


def test_a_path_left_by_a_daemon_that_died_is_taken(start_daemon: StartDaemon, tmp_path: Path) -> None:
    path, config = ipc_settings(tmp_path)
    first = start_daemon("--config", str(config), file_decides=True)
    first.kill()
    assert path.is_socket()
    with Client(start_daemon("--config", str(config), file_decides=True).address) as client:
        assert client.server_info()["replay"].current_size == 0


def test_at_a_path_nothing_is_taken_by_tcp_unless_it_is_said(
    start_daemon: StartDaemon, connect: ConnectPeer, tmp_path: Path
) -> None:
    """What the README and protocol.md's §14 say keeps other users of the machine out, and what does not."""
    path, config = ipc_settings(tmp_path)
    daemon = start_daemon("--config", str(config), file_decides=True)
    assert (daemon.address, daemon.ingest_address, daemon.http_address) == (f"ipc://{path}", None, None)
    assert listening(daemon) == 0
    daemon.stop()
    config.write_text(config.read_text().replace('ingest = ""\n', ""))
    pushed_to = start_daemon("--config", str(config), file_decides=True)
    assert pushed_to.ingest_address == f"ipc://{path}-ingest"
    assert listening(pushed_to) == 0
    assert stat.S_IMODE(Path(f"{path}-ingest").stat().st_mode) == 0o660
    peer = connect(pushed_to)
    peer.send_insert("replay", push=True)
    assert "error" not in peer.ask("sample", table="replay", n=1, timeout_ms=30_000)


def listening(daemon: DaemonProcess) -> int:
    """TCP sockets on which it listens; proc(5): state 0A, and the inode in the tenth column."""
    files = Path(f"/proc/{daemon.pid}/fd")
    own = {os.readlink(file) for file in files.iterdir()}
    lines = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()]
    return sum(fields[3] == "0A" and f"socket:[{fields[9]}]" in own for fields in lines)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_the_socket_at_a_path_is_for_owner_and_group_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "replayd.sock"
    before = os.umask(umask)
    try:
        with in_process(f"ipc://{path}"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
    finally:
        os.umask(before)


def test_a_file_that_is_no_socket_is_not_deleted(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(BindError, match="no socket"), in_process(f"ipc://{path}"):
        pass
    assert path.read_text() == "mine"


def test_one_who_listens_and_does_not_accept_keeps_its_path(tmp_path: Path) -> None:
    path = tmp_path / "busy.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(path))
        listener.listen(0)
        waiting.connect(str(path))
        with pytest.raises(BindError, match="in use"), in_process(f"ipc://{path}"):
            pass
        listener.accept()[0].close()


RACER = """
import sys, zmq
from replayd.connections import Connections
from replayd.errors import BindError
from replayd.sockets import bound
endpoint = sys.argv[1]
print("ready", flush=True)
for _ in sys.stdin:
    context = zmq.Context()
    try:
        socket = bound(context, zmq.ROUTER, endpoint, Connections(), None, None)
        print("won", flush=True)
    except BindError as error:
        print(error, flush=True)
    sys.stdin.readline()
    context.destroy(linger=0)
    print("done", flush=True)
"""


def test_of_daemons_that_race_for_a_path_left_behind_one_wins_and_the_others_say_why(tmp_path: Path) -> None:
    path = tmp_path / "replayd.sock"
    with ExitStack() as running:
        racers = [running.enter_context(racing(f"ipc://{path}")) for _ in range(4)]
        heard(racers)
        for _ in range(12):
            path.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX) as left_behind:
                left_behind.bind(str(path))
            tell(racers)
            said = sorted(heard(racers))
            in_use = f"cannot bind ipc://{path}: Address already in use: somebody answers there"
            assert said == [in_use] * 3 + ["won"]
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(str(path))
            tell(racers)
            assert heard(racers) == ["done"] * 4


@contextmanager
def racing(endpoint: str) -> Iterator[subprocess.Popen[str]]:
    """A process that binds this endpoint when it is told so, and lets go of it when it is told again."""
    with subprocess.Popen(
        [sys.executable, "-c", RACER, endpoint],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def tell(racers: Sequence[subprocess.Popen[str]]) -> None:
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()


def heard(racers: Sequence[subprocess.Popen[str]]) -> list[str]:
    """What each says next."""
    return [racer.stdout.readline().strip() for racer in racers if racer.stdout is not None]


def test_a_directory_that_somebody_keeps_locked_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "ALONE_S", 0.05)
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        with pytest.raises(BindError, match="holds its directory locked"), in_process(f"ipc://{tmp_path}/a.sock"):
            pass
    finally:
        os.close(directory)


def test_a_daemon_that_ends_takes_nobody_elses_path_with_it(tmp_path: Path) -> None:
    # A libzmq that deleted the path at the end, when its socket is closed already, could delete that of a daemon which
    # has begun meanwhile; `_alone_beside` would have to be held then.
    path = tmp_path / "a.sock"
    with in_process(f"ipc://{path}"):
        path.rename(tmp_path / "mine")
        with socket.socket(socket.AF_UNIX) as successor:
            successor.bind(str(path))
    assert path.is_socket()


@contextmanager
def in_process(listen: str) -> Iterator[Daemon]:
    """A daemon of this process, bound and then ended."""
    limiter = replayd.rate_limiters.MinSize(1)
    table = replayd.Table("t", replayd.selectors.Fifo(), replayd.selectors.Fifo(), 1, limiter)
    daemon = Daemon([table], listen, None)
    daemon.bind()
    yield daemon
    daemon.stop()
    daemon.run(stop_on_signals=False)


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
