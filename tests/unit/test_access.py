"""Files of keys, what roles let one do, and the gate that libzmq asks."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from click.testing import CliRunner

from replayd.access import (
    ROLES,
    AccessError,
    Holder,
    NoRights,
    NotMade,
    read_allowed,
    unmakeable,
    unreadable,
    write_allowed,
)
from replayd.cli_keys import keys
from replayd.errors import Forbidden
from replayd.exit_codes import of_keys
from replayd.gate import Gate
from replayd.key_files import make_client_key, make_server_key, public_of, read_server_secret
from replayd.messages import OPS
from replayd_client.errors import DataError
from replayd_client.key_text import KEY_CHARACTERS, is_key
from replayd_client.keys import read_keys

KEYS = [zmq.curve_keypair()[0].decode() for _ in range(3)]
DEADLINE_MS = 20_000


def test_every_operation_belongs_to_a_role_and_an_admin_may_all() -> None:
    assert ROLES["admin"] == set(OPS)
    assert all(ops <= ROLES["admin"] for ops in ROLES.values())


@pytest.mark.parametrize(
    ("role", "op", "allowed"),
    [
        ("actor", "insert", True),
        ("actor", "sample", False),
        ("actor", "reset", False),
        ("learner", "sample", True),
        ("learner", "update", True),
        ("learner", "insert", False),
        ("learner", "set", False),
        ("admin", "reset", True),
    ],
)
def test_a_role_lets_its_holder_do_its_work_and_nothing_else(role: str, op: str, allowed: bool) -> None:
    refusal = Holder("somebody", KEYS[0], (role,)).refusal(op)
    assert (refusal is None) == allowed
    if refusal is not None:
        assert refusal.detail["name"] == "somebody"
        assert all(op in ROLES[needed] for needed in refusal.detail["needed"])


def test_an_allow_list_comes_back_as_it_was_written(tmp_path: Path) -> None:
    holders = {key: Holder(f"peer-{n}", key, ("actor", "learner")[: n + 1]) for n, key in enumerate(KEYS[:2])}
    write_allowed(tmp_path / "allowed.toml", holders)
    assert read_allowed(tmp_path / "allowed.toml") == holders


FAULTY = {
    "no toml": "not toml",
    "no section": "a = 1",
    "no key": "[a]\nkey = 'short'\nroles = ['actor']",
    "no roles": f"[a]\nkey = '{KEYS[0]}'\nroles = []",
    "no such role": f"[a]\nkey = '{KEYS[0]}'\nroles = ['king']",
    "no such field": f"[a]\nkey = '{KEYS[0]}'\nroles = ['actor']\ncolour = 'red'",
    "one key twice": f"[a]\nkey = '{KEYS[0]}'\nroles = ['actor']\n[b]\nkey = '{KEYS[0]}'\nroles = ['actor']",
}


@pytest.mark.parametrize("text", FAULTY.values(), ids=FAULTY)
def test_an_allow_list_with_a_fault_is_refused_whole(tmp_path: Path, text: str) -> None:
    (tmp_path / "allowed.toml").write_text(text)
    with pytest.raises(AccessError, match=r"allowed\.toml"):
        read_allowed(tmp_path / "allowed.toml")


def test_secrets_are_for_their_owner_alone(tmp_path: Path) -> None:
    server = make_server_key(tmp_path / "server.key")
    public = make_client_key(tmp_path / "actor.key", "actor", server)
    for name in ("server.key", "actor.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    fields = tomllib.loads((tmp_path / "actor.key").read_text())
    assert (fields["name"], fields["public"], fields["server"]) == ("actor", public, server)
    assert public_of(fields["secret"]) == public
    assert make_server_key(tmp_path / "server.key") == server, "keys that are there are kept"
    with pytest.raises(AccessError, match="already"):
        make_client_key(tmp_path / "actor.key", "actor", server)
    (tmp_path / "server.key").chmod(0o644)
    with pytest.raises(AccessError, match="chmod 0600"):
        read_server_secret(tmp_path / "server.key")


# Of a file of keys, whichever it is: what is no TOML, and what is no key.
NO_FILES = {
    "no toml": "not toml",
    "no text": "a = '\udc80'",
    "a number beyond all bounds": f"a = {'9' * 5000}",
    "brackets without end": f"a = {'[' * 5000}",
}
NO_KEYS = {
    "short": "'x'",
    "other characters": f"'{'|' * KEY_CHARACTERS}'",
    "digits of other scripts": f"'{'٣' * KEY_CHARACTERS}'",
    "more than 32 bytes hold": f"'{'#' * KEY_CHARACTERS}'",
    "a number": "1",
    "a list": "[1]",
}


@pytest.mark.parametrize("fault", [*NO_FILES, *NO_KEYS])
def test_a_file_of_keys_with_a_fault_is_refused_by_its_name(tmp_path: Path, fault: str) -> None:
    file = tmp_path / "a.key"

    def written(text: str) -> Path:
        file.write_text(NO_FILES.get(fault, text), "utf-8", "surrogateescape")
        file.chmod(0o600)
        return file

    key = NO_KEYS.get(fault)
    with pytest.raises(AccessError, match=r"a\.key"):
        read_allowed(written(f"[a]\nkey = {key}\nroles = ['actor']"))
    with pytest.raises(AccessError, match=r"a\.key"):
        read_server_secret(written(f"secret = {key}"))
    for name in ("public", "secret", "server"):
        rest = "".join(f"{each} = '{KEYS[0]}'\n" for each in {"public", "secret", "server"} - {name})
        with pytest.raises(DataError, match=r"a\.key"):
            read_keys(written(f"{rest}{name} = {key}"))


def test_what_passes_for_a_key_is_what_libzmq_takes() -> None:
    chance = random.Random(1)
    # The largest number that four bytes hold, and the one after.
    texts = ["%nSb#" * 8, "%nSc0" * 8, "%nSc1" * 8, *KEYS]
    for key in KEYS * 100:
        at = chance.randrange(KEY_CHARACTERS)
        texts.append(key[:at] + chr(chance.randrange(1, 128)) + key[at + 1 :])
    for text in texts:
        try:
            public_of(text)
        except zmq.ZMQError:
            assert not is_key(text), text
        else:
            assert is_key(text), text


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (NoRights, unreadable(Path("k"), PermissionError(errno.EACCES, "denied"))),
        (NoRights, unmakeable(Path("k"), PermissionError(errno.EACCES, "denied"))),
        (NotMade, unmakeable(Path("k"), FileNotFoundError(errno.ENOENT, "no such file"))),
        (AccessError, unreadable(Path("k"), FileNotFoundError(errno.ENOENT, "no such file"))),
        (AccessError, unreadable(Path("k"), IsADirectoryError(errno.EISDIR, "a directory"))),
    ],
)
def test_what_the_rights_of_a_file_forbid_is_told_from_what_else_is_wrong(
    kind: type[AccessError], error: AccessError
) -> None:
    assert type(error) is kind
    codes = {NoRights: os.EX_NOPERM, NotMade: os.EX_CANTCREAT, AccessError: os.EX_CONFIG}
    assert of_keys(error) == codes[kind]


# --- the command ------------------------------------------------------------------------------------------------------


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(keys, [str(argument) for argument in arguments])


def test_keys_are_generated_listed_and_revoked(tmp_path: Path) -> None:
    at = ("--dir", tmp_path)
    made = run("generate", "actor-7", "--role", "actor", "--out", tmp_path / "a.key", *at)
    assert made.exit_code == 0, made.output
    assert "systemctl reload" in made.output
    run("generate", "boss", "--role", "admin", "--role", "learner", "--out", tmp_path / "b.key", *at)
    listed = json.loads(run("list", "--json", *at).output)
    assert [(entry["name"], entry["roles"]) for entry in listed] == [
        ("actor-7", ["actor"]),
        ("boss", ["admin", "learner"]),
    ]
    assert "actor-7" in run("list", *at).output
    again = run("generate", "actor-7", "--role", "actor", "--out", tmp_path / "c.key", *at)
    assert (again.exit_code, (tmp_path / "c.key").exists()) == (os.EX_USAGE, False)
    assert run("revoke", "actor-7", *at).exit_code == 0
    assert [holder.name for holder in read_allowed(tmp_path / "allowed.toml").values()] == ["boss"]
    assert run("revoke", "actor-7", *at).exit_code == os.EX_USAGE


def test_no_key_overwrites_a_file_and_no_name_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.key").write_text("mine")
    refused = run("generate", "a", "--role", "actor", "--out", tmp_path / "a.key", "--dir", tmp_path)
    assert (refused.exit_code, (tmp_path / "a.key").read_text()) == (os.EX_CANTCREAT, "mine")
    assert not (tmp_path / "allowed.toml").exists()
    assert run("generate", "../x", "--role", "actor", "--dir", tmp_path).exit_code == os.EX_USAGE
    assert run("list", "--dir", tmp_path).exit_code == os.EX_CONFIG


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_what_root_makes_belongs_to_whom_the_directory_belongs_to(tmp_path: Path, mask: int) -> None:
    directory = tmp_path / "keys"
    directory.mkdir()
    os.chown(directory, 65534, 65534)
    before = os.umask(mask)
    try:
        for name in ("a", "b"):
            run("generate", name, "--role", "actor", "--out", tmp_path / f"{name}.key", "--dir", directory)
        assert run("revoke", "a", "--dir", directory).exit_code == 0
    finally:
        os.umask(before)
    made = {path.name: path.stat() for path in directory.iterdir()}
    assert {name: (each.st_uid, stat.S_IMODE(each.st_mode)) for name, each in made.items()} == {
        "server.key": (65534, 0o600),
        "allowed.toml": (65534, 0o640),
    }
    assert (tmp_path / "b.key").stat().st_uid == 0


# --- the gate ---------------------------------------------------------------------------------------------------------


class Door:
    """A guarded ROUTER, and a loop that answers the gate until something is there."""

    def __init__(self, context: zmq.Context[Any], directory: Path) -> None:
        self.context = context
        self.server = make_server_key(directory / "server.key")
        self.allowed = directory / "allowed.toml"
        write_allowed(self.allowed, {})
        self.told: list[str] = []
        self.gate = Gate(context, directory, self.told.append)
        self.router = context.socket(zmq.ROUTER)
        self.sockets = [self.router]
        self.gate.guard(self.router)
        port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.address = f"tcp://127.0.0.1:{port}"

    def let_in(self, name: str, public: bytes) -> None:
        write_allowed(self.allowed, {public.decode(): Holder(name, public.decode(), ("actor",))})
        self.gate.reload()

    def knock(self, public: bytes | None, secret: bytes | None, server: str) -> zmq.Socket[Any]:
        """Somebody wants to come in; the monitor that tells how that goes."""
        dealer = self.context.socket(zmq.DEALER)
        dealer.linger = 0
        if public is not None:
            dealer.curve_publickey, dealer.curve_secretkey, dealer.curve_serverkey = public, secret, server.encode()
        monitor = dealer.get_monitor_socket()
        dealer.connect(self.address)
        dealer.send(b"hello")
        self.sockets += [dealer, monitor]
        return monitor

    def close(self) -> None:
        self.gate.close()
        for socket in self.sockets:
            socket.close(0)
        self.context.term()

    def first(self, monitor: zmq.Socket[Any], wanted: int) -> bool:
        """Whether a message comes (True), or an event of this kind."""
        poller = zmq.Poller()
        for socket in (self.gate.socket, self.router, monitor):
            poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(DEADLINE_MS))
            assert ready, "nobody was let in, and nobody was refused"
            if self.gate.socket in ready:
                self.gate.answer()
            if self.router in ready:
                return True
            if monitor in ready and int.from_bytes(monitor.recv_multipart()[0][:2], "little") & wanted:
                return False


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    door = Door(zmq.Context(), tmp_path)
    yield door
    door.close()


REFUSED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
)


def test_who_has_a_key_is_let_in_and_known(door: Door) -> None:
    public, secret = zmq.curve_keypair()
    door.let_in("actor-7", public)
    monitor = door.knock(public, secret, door.server)
    assert door.first(monitor, REFUSED)
    frames = door.router.recv_multipart(copy=False)
    peer = (bytes(frames[0]),)
    holder = door.gate.holder(peer, frames[-1])
    assert door.gate.refusal_of_reply(peer, "sample") is None
    assert holder.refusal("insert") is None
    assert holder.name == "actor-7"
    write_allowed(door.allowed, {})
    door.gate.reload()
    refused = [door.gate.holder(peer, frames[-1]).refusal(op) for op in OPS]
    refused.append(door.gate.refusal_of_reply(peer, "sample"))
    assert all(isinstance(refusal, Forbidden) for refusal in refused), "a revoked key is good for nothing"


@pytest.mark.parametrize("key", ["unknown", "none", "wrong server"])
def test_who_has_no_key_is_not_let_in(door: Door, key: str) -> None:
    public, secret = zmq.curve_keypair()
    if key == "wrong server":
        door.let_in("actor-7", public)
    server = zmq.curve_keypair()[0].decode() if key == "wrong server" else door.server
    monitor = door.knock(*((None, None) if key == "none" else (public, secret)), server)
    assert not door.first(monitor, REFUSED)
    if key == "unknown":
        assert public.decode() in door.told[0]


def test_a_faulty_allow_list_leaves_the_one_from_before(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    public, secret = zmq.curve_keypair()
    door.let_in("actor-7", public)
    door.allowed.write_text("nonsense")
    door.gate.reload()
    assert "stay good" in caplog.text
    assert door.first(door.knock(public, secret, door.server), REFUSED)


# --- documents --------------------------------------------------------------------------------------------------------


def test_the_protocol_lists_what_each_role_may_ask() -> None:
    text = (Path(__file__).parent.parent.parent / "protocol.md").read_text()
    section = text.partition("## 14. Security")[2].partition("## 15.")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE)
    listed = {role: set(OPS) if ops == "all" else set(re.findall(r"`(\w+)`", ops)) for role, ops in rows}
    assert listed == ROLES
