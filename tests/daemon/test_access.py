"""Who may come in: a real daemon with keys, and clients with the right one, a wrong one, a revoked one and none."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgpack
import numpy as np
import pytest
import zmq
from click.testing import CliRunner
from zmq.utils.monitor import recv_monitor_message

from replayd.cli import main
from replayd.cli_keys import keys
from replayd_client import Client
from replayd_client.errors import AccessDeniedError, DataError
from replayd_client.keys import Keys, read_keys
from tests.daemon.embedded import until
from tests.daemon.harness import REPLAYD, DaemonProcess, Peer, environment, run_replayd
from tests.daemon.test_http import get

DEADLINE_MS = 20_000
STEP = {"x": np.zeros(2, np.float32)}


class Doorkeeper:
    """A daemon with keys; makes and revokes them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.generate("boss", "admin")
        config = directory / "replayd.toml"
        config.write_text(f'[access]\nkeys = "{directory}"\n[[table]]\nname = "replay"\n')
        self.daemon = DaemonProcess(directory, "--config", str(config))

    def generate(self, name: str, *roles: str, directory: Path | None = None) -> str:
        """A key, and the daemon reads of it."""
        file = (directory or self.directory) / f"{name}.key"
        said = [argument for role in roles for argument in ("--role", role)]
        self._keys("generate", name, *said, "--out", str(file), directory=directory)
        return str(file)

    def revoke(self, name: str) -> None:
        self._keys("revoke", name)
        self.reload()

    def reload(self) -> None:
        """Have the list read again, and wait for it: the daemon says so."""
        told = self.daemon.output().count("may come in")
        self.daemon.send_signal(signal.SIGHUP)
        while self.daemon.output().count("may come in") == told:
            # Each request makes the loop turn once.
            with self.client(str(self.directory / "boss.key")) as client:
                client.server_info(timeout=DEADLINE_MS / 1000)

    def client(self, key_file: str | None) -> Client:
        return Client(self.daemon.address, key_file)

    def _keys(self, *arguments: str, directory: Path | None = None) -> None:
        result = CliRunner().invoke(keys, [*arguments, "--dir", str(directory or self.directory)])
        assert result.exit_code == 0, result.output


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> object:
    keeper = Doorkeeper(tmp_path_factory.mktemp("keys"))
    with keeper.daemon:
        yield keeper


ASKED: dict[str, Callable[[Client], object]] = {
    "insert": lambda client: client.insert(STEP, {"replay": 1.0}, DEADLINE_MS),
    "sample": lambda client: client.sample_batch("replay", 1, timeout_ms=DEADLINE_MS),
    "update": lambda client: client.mutate_priorities("replay", updates={1: 1.0}, timeout_ms=DEADLINE_MS),
    "reset": lambda client: client.reset("replay", DEADLINE_MS),
    "info": lambda client: client.server_info(timeout=DEADLINE_MS / 1000),
}
MAY = {
    "actor": {"insert", "info"},
    "learner": {"sample", "update", "info"},
    "admin": set(ASKED),
}


@pytest.mark.parametrize("role", MAY)
def test_a_key_is_good_for_what_its_roles_say(door: Doorkeeper, role: str) -> None:
    file = door.generate(f"one-{role}", role)
    door.reload()
    with door.client(str(door.directory / "boss.key")) as boss, door.client(file) as client:
        boss.insert(STEP, {"replay": 1.0}, DEADLINE_MS)
        for name, ask in ASKED.items():
            if name in MAY[role]:
                ask(client)
            else:
                with pytest.raises(AccessDeniedError) as refused:
                    ask(client)
                assert refused.value.detail["name"] == f"one-{role}"
                assert refused.value.detail["needed"]


def test_a_writer_without_the_role_is_told_and_goes_on_to_an_end(door: Doorkeeper) -> None:
    file = door.generate("reader", "learner")
    door.reload()
    with door.client(file) as client, client.trajectory_writer(1) as writer:
        writer.append(STEP)
        handle = writer.create_item("replay", 1.0, {"x": writer.history["x"][-1:]})
        with pytest.raises(AccessDeniedError):
            handle.wait(DEADLINE_MS)


def test_without_a_key_one_is_told_at_once(door: Doorkeeper) -> None:
    with door.client(None) as client:
        for ask in ASKED.values():
            with pytest.raises(AccessDeniedError, match="key"):
                ask(client)


def stranger_at(door: Doorkeeper, directory: Path) -> str:
    """A key of somebody who knows the server, and whom it does not know."""
    stranger = Path(door.generate("stranger", "admin", directory=directory))
    mine = Path(door.directory / "boss.key").read_text()
    server = next(line for line in mine.splitlines() if line.startswith("server"))
    text = stranger.read_text().splitlines()
    stranger.write_text("\n".join(line for line in text if not line.startswith("server")) + f"\n{server}\n")
    return str(stranger)


def test_a_key_that_the_server_does_not_know_is_told_at_once(door: Doorkeeper, tmp_path: Path) -> None:
    with door.client(stranger_at(door, tmp_path)) as client:
        for ask in ASKED.values():
            with pytest.raises(AccessDeniedError, match="stranger"):
                ask(client)
    assert "refused a connection" in door.daemon.output()


def test_a_file_with_another_servers_key_is_told_at_once(door: Doorkeeper, tmp_path: Path) -> None:
    elsewhere = door.generate("wanderer", "admin", directory=tmp_path)
    with door.client(str(door.directory / "boss.key")) as boss:
        before = boss.info()["counters"]["connections_refused"]
    with door.client(elsewhere) as client:
        for ask in ASKED.values():
            with pytest.raises(AccessDeniedError, match="hangs up"):
                ask(client)
    with door.client(str(door.directory / "boss.key")) as boss:
        assert boss.info()["counters"]["connections_refused"] > before


def test_a_revoked_key_is_good_for_nothing_on_any_connection(door: Doorkeeper) -> None:
    file = door.generate("leaver", "admin")
    door.reload()
    with door.client(file) as client:
        client.insert(STEP, {"replay": 1.0}, DEADLINE_MS)
        door.revoke("leaver")
        for ask in ASKED.values():
            with pytest.raises(AccessDeniedError, match="'leaver'"):
                ask(client)
    with door.client(file) as client, pytest.raises(AccessDeniedError):
        client.server_info(timeout=DEADLINE_MS / 1000)


def test_what_a_revoked_key_waits_for_is_not_given_to_it(door: Doorkeeper) -> None:
    file = door.generate("waiter", "learner")
    door.reload()
    with door.client(file) as client, door.client(str(door.directory / "boss.key")) as boss:
        boss.reset("replay", DEADLINE_MS)
        raised: list[Exception] = []

        def wait() -> None:
            try:
                client.sample_batch("replay", 1, timeout_ms=DEADLINE_MS)
            except AccessDeniedError as error:
                raised.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        while not boss.why("replay").waiting:
            pass
        door.revoke("waiter")
        boss.insert(STEP, {"replay": 1.0}, DEADLINE_MS)
        waiter.join(DEADLINE_MS / 1000)
        assert [type(error) for error in raised] == [AccessDeniedError]


@pytest.mark.parametrize("frames", [[b""], [b"", b""], [b"", b"", b""]], ids=len)
def test_a_message_of_empty_frames_is_refused_to_who_has_a_key(door: Doorkeeper, frames: list[bytes]) -> None:
    shown = read_keys(door.directory / "boss.key")
    assert shown is not None
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.curve_publickey, dealer.curve_secretkey = shown.public.encode(), shown.secret.encode()
        dealer.curve_serverkey = shown.server.encode()
        dealer.connect(door.daemon.address)
        dealer.send_multipart(frames)
        assert dealer.poll(DEADLINE_MS), "the daemon says nothing"
        assert msgpack.unpackb(dealer.recv_multipart()[-1])["error"]["code"] == "bad_message"


def test_refused_connections_are_counted_and_told_in_few_lines(door: Doorkeeper, tmp_path: Path) -> None:
    with door.client(str(door.directory / "boss.key")) as boss:
        before = boss.info()["counters"]["connections_refused"]
        stranger = stranger_at(door, tmp_path)
        for _ in range(30):
            with door.client(stranger) as client, pytest.raises(AccessDeniedError):
                client.server_info(timeout=DEADLINE_MS / 1000)
        assert boss.info()["counters"]["connections_refused"] >= before + 30
    name = r"^replayd_connections_refused_total (\S+)$"
    until(lambda: float(re.findall(name, get(door.daemon.http_address, "/metrics")[1], re.M)[0]) >= before + 30)
    assert door.daemon.output().count("refused a connection") < 20


def test_a_key_for_a_server_without_keys_is_told_at_once(door: Doorkeeper, tmp_path: Path) -> None:
    with (
        DaemonProcess(tmp_path) as plain,
        Client(plain.address, str(door.directory / "boss.key")) as client,
        pytest.raises(AccessDeniedError, match="takes no keys"),
    ):
        client.server_info(timeout=DEADLINE_MS / 1000)


def test_a_key_file_comes_from_the_environment_too(door: Doorkeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAYD_KEY_FILE", str(door.directory / "boss.key"))
    with door.client(None) as client:
        assert "replay" in client.server_info(timeout=DEADLINE_MS / 1000)


# --- the port of pushes -----------------------------------------------------------------------------------------------


class Pusher(Peer):
    """A peer that pushes, with these keys. What becomes of its handshakes its own socket tells, as any peer's does."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], door: Doorkeeper, keys: Keys | None) -> None:
        self._keys = keys
        self._monitor: zmq.Socket[bytes] | None = None
        super().__init__(context, door.daemon.address, door.daemon.ingest_address)

    def _connected(self, context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> zmq.Socket[bytes]:
        socket = context.socket(kind)
        socket.linger = 0
        if self._keys is not None:
            socket.curve_publickey, socket.curve_secretkey = self._keys.public.encode(), self._keys.secret.encode()
            socket.curve_serverkey = self._keys.server.encode()
        if kind == zmq.PUSH:
            self._monitor = socket.get_monitor_socket(
                zmq.EVENT_HANDSHAKE_SUCCEEDED
                | zmq.EVENT_HANDSHAKE_FAILED_AUTH
                | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
                | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            )
        socket.connect(address)
        return socket

    def handshake(self) -> tuple[int, int]:
        """What became of the first one: the event and its value."""
        assert self._monitor is not None
        assert self._monitor.poll(DEADLINE_MS), "no handshake"
        event = recv_monitor_message(self._monitor)
        return event["event"], event["value"]

    def close(self) -> None:
        assert self.push is not None
        assert self._monitor is not None
        self.push.disable_monitor()
        self._monitor.close()
        super().close()


def counters_and_items(boss: Client) -> tuple[dict[str, int], int]:
    told = boss.info()
    return told["counters"], told["tables"][0]["limiter"]["inserts"]


def test_who_may_insert_may_push(door: Doorkeeper, zmq_context: zmq.Context[zmq.Socket[bytes]]) -> None:
    file = door.generate("pusher", "actor")
    door.reload()
    with (
        door.client(str(door.directory / "boss.key")) as boss,
        closing(Pusher(zmq_context, door, read_keys(file))) as peer,
    ):
        before, items = counters_and_items(boss)
        peer.send_insert("replay", push=True)
        assert peer.handshake()[0] == zmq.EVENT_HANDSHAKE_SUCCEEDED
        until(lambda: counters_and_items(boss)[1] == items + 1)
        assert counters_and_items(boss)[0]["pushes_refused"] == before["pushes_refused"]


def test_what_a_learner_pushes_is_dropped_counted_and_logged(
    door: Doorkeeper, zmq_context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    file = door.generate("onlooker", "learner")
    door.reload()
    with (
        door.client(str(door.directory / "boss.key")) as boss,
        closing(Pusher(zmq_context, door, read_keys(file))) as peer,
    ):
        before, items = counters_and_items(boss)
        for _ in range(3):
            peer.send_insert("replay", push=True)
        until(lambda: counters_and_items(boss)[0]["pushes_refused"] == before["pushes_refused"] + 3)
        assert counters_and_items(boss)[1] == items
    said = door.daemon.output()
    assert "refused a pushed message: forbidden: 'onlooker' has the role learner; insert takes the role actor" in said


def test_what_a_revoked_key_pushes_is_dropped_and_counted_on_any_connection(
    door: Doorkeeper, zmq_context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    shown = read_keys(door.generate("has-been", "actor"))
    door.reload()
    with door.client(str(door.directory / "boss.key")) as boss:
        with closing(Pusher(zmq_context, door, shown)) as open_before:
            _, items = counters_and_items(boss)
            open_before.send_insert("replay", push=True)
            until(lambda: counters_and_items(boss)[1] == items + 1)
            door.revoke("has-been")
            before, _ = counters_and_items(boss)
            open_before.send_insert("replay", push=True)
            until(lambda: counters_and_items(boss)[0]["pushes_refused"] == before["pushes_refused"] + 1)
        with closing(Pusher(zmq_context, door, shown)) as opened_after:
            opened_after.send_insert("replay", push=True)
            assert opened_after.handshake() == (zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400)
            until(lambda: counters_and_items(boss)[0]["connections_refused"] > before["connections_refused"])
        assert counters_and_items(boss)[1] == items + 1


# What the peer's own socket may hear, what is counted, and the line in the log. Where one side has no key both notice,
# and whichever does first hangs up.
STRANGERS = {
    "unknown": ({zmq.EVENT_HANDSHAKE_FAILED_AUTH}, {"connections_refused"}, "refused a connection from 127.0.0.1"),
    "of another server": (
        {zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL},
        {"connections_refused"},
        "no key, or that of another",
    ),
    "none": (
        {zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL},
        {"connections_refused", "handshakes_abandoned"},
        "failed in the handshake",
    ),
}


@pytest.mark.parametrize("key", STRANGERS)
def test_a_stranger_who_pushes_hears_it_and_the_operator_too(
    door: Doorkeeper, zmq_context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path, key: str
) -> None:
    events, counted, line = STRANGERS[key]
    file = None
    if key == "unknown":
        file = stranger_at(door, tmp_path)
    elif key == "of another server":
        file = door.generate("wanderer", "admin", directory=tmp_path)
    with door.client(str(door.directory / "boss.key")) as boss:
        before, items = counters_and_items(boss)
        with closing(Pusher(zmq_context, door, read_keys(file) if file else None)) as peer:
            peer.send_insert("replay", push=True)
            assert peer.handshake()[0] in events
            until(lambda: any(counters_and_items(boss)[0][name] > before[name] for name in counted))
        assert counters_and_items(boss)[1] == items
    assert line in door.daemon.output()
    assert str(door.daemon.ingest_address) in door.daemon.output()


@pytest.mark.parametrize("fault", ["missing", "open to all", "nonsense", "short"])
def test_a_key_file_with_a_fault_is_refused_before_anything_is_sent(tmp_path: Path, fault: str) -> None:
    file = tmp_path / "a.key"
    if fault != "missing":
        file.write_text("nonsense" if fault == "nonsense" else 'name = "a"\npublic = "x"\nsecret = "x"\nserver = "x"\n')
        file.chmod(0o644 if fault == "open to all" else 0o600)
    with pytest.raises(DataError, match=r"a\.key"):
        Client("localhost:1", str(file))


def test_keys_that_cannot_be_read_keep_the_daemon_from_starting(tmp_path: Path) -> None:
    config = tmp_path / "replayd.toml"
    config.write_text(f'[access]\nkeys = "{tmp_path}/nowhere"\n')
    with pytest.raises(AssertionError, match="ended with 78"):
        DaemonProcess(tmp_path, "--config", str(config))


def test_a_key_with_the_wrong_rights_and_a_faulty_one_end_in_codes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: str) -> int:
        return CliRunner().invoke(main, arguments).exit_code

    made = ("keys", "generate", "a", "--role", "actor", "--dir")
    assert run(*made, str(tmp_path), "--out", str(tmp_path / "a.key")) == 0
    config = tmp_path / "replayd.toml"
    config.write_text(f'[server]\nlisten = "tcp://127.0.0.1:0"\n[access]\nkeys = "{tmp_path}"\n')
    monkeypatch.setenv("REPLAYD_KEY_FILE", str(tmp_path / "a.key"))
    for name, command in (("server.key", ("serve", "--config", str(config))), ("a.key", ("info",))):
        (tmp_path / name).chmod(0o644)
        assert run_replayd(*command).returncode == os.EX_NOPERM
        (tmp_path / name).chmod(0o600)
        (tmp_path / name).write_text("".join(f"{key} = '{'|' * 40}'\n" for key in ("public", "secret", "server")))
        assert run_replayd(*command).returncode == os.EX_CONFIG
    # One that is there already, and one that nobody can make.
    assert run("keys", "revoke", "a", "--dir", str(tmp_path)) == 0
    (tmp_path / "server.key").unlink()
    assert run(*made, str(tmp_path), "--out", str(tmp_path / "a.key")) == os.EX_CANTCREAT
    assert run(*made, "/proc/nowhere", "--out", str(tmp_path / "b.key")) == os.EX_CANTCREAT


def test_other_machines_may_reach_a_daemon_that_wants_keys(door: Doorkeeper, tmp_path: Path) -> None:
    config = tmp_path / "replayd.toml"
    config.write_text(f'[server]\nlisten = "tcp://0.0.0.0:7077"\n[access]\nkeys = "{door.directory}"\n')
    with DaemonProcess(tmp_path, "--config", str(config)) as daemon:
        port = daemon.address.rpartition(":")[2]
        with Client(f"localhost:{port}", str(door.directory / "boss.key")) as client:
            assert client.server_info(timeout=DEADLINE_MS / 1000)


@pytest.mark.parametrize(("name", "code"), [("boss", 0), (None, os.EX_NOPERM)])
def test_operators_show_the_key_that_the_environment_names(door: Doorkeeper, name: str | None, code: int) -> None:
    keys = {} if name is None else {"REPLAYD_KEY_FILE": str(door.directory / f"{name}.key")}
    command = [*REPLAYD, "info", "--address", door.daemon.address]
    ended = subprocess.run(command, env={**environment(), **keys}, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stderr
