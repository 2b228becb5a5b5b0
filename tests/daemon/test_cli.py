"""The command line as an operator meets it: what it says, where it says it, and how it ends."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

import replayd
from replayd.announcer import Announcer
from replayd.cli import main
from replayd.config import read_config
from replayd.config_choices import CHOICES, PlainSelector
from tests.daemon.conftest import ConnectPeer, StartDaemon
from tests.daemon.harness import DaemonProcess, run_replayd

TABLES = {"replay": ""}


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port of loopback on which somebody else listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def silent_address(taken_port: int) -> str:
    """An address where connections are accepted and nothing is ever said."""
    return f"tcp://127.0.0.1:{taken_port}"


@pytest.fixture
def dead_address() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return f"tcp://127.0.0.1:{port}"


# --- serve ------------------------------------------------------------------------------------------------------------


def test_serve_says_where_it_listens_what_it_serves_and_what_to_try(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--table", "per,sampler=prioritized,priority_exponent=0.6,max_size=5000")
    said = daemon.stop().stdout
    assert daemon.address in said
    assert str(daemon.ingest_address) in said
    assert "per: at most 5000 items" in said
    assert "prioritized(priority_exponent=0.6)" in said
    assert f"replayd info --address {daemon.address}" in said


def test_the_endpoint_file_names_the_process_and_both_addresses(daemon: DaemonProcess, connect: ConnectPeer) -> None:
    assert daemon.pid == daemon.process.pid
    assert daemon.address.startswith("tcp://127.0.0.1:")
    assert not daemon.address.endswith(":0")
    peer = connect(daemon)
    assert "tables" in peer.ask("hello")
    assert peer.push is not None
    peer.send_insert("replay", push=True)
    peer.send("sample", table="replay", n=1, timeout_ms=30_000)
    header, body = peer.receive()
    assert "error" not in header, header
    assert len(body) == 1


def test_a_configuration_file_is_served(start_daemon: StartDaemon, connect: ConnectPeer, tmp_path: Path) -> None:
    path = tmp_path / "replayd.toml"
    path.write_text(
        """
        [server]
        ingest = ""
        lease = "7s"

        [[table]]
        name = "one"
        max_size = 1

        [[table]]
        name = "two"
        signature = [{ path = ["x"], dtype = "float32", shape = [-1] }]
        """
    )
    daemon = start_daemon("--config", str(path), "--table", "three")
    assert daemon.ingest_address is None
    hello = connect(daemon).ask("hello")
    assert list(hello["tables"]) == ["one", "two", "three"]
    assert hello["tables"]["two"]["signature"] == [[["x"], "float32", [None]]]
    assert hello["lease_ms"] == 7000


def test_two_daemons_of_one_seed_draw_the_same(start_daemon: StartDaemon, connect: ConnectPeer) -> None:
    draws = []
    for _ in range(2):
        peer = connect(start_daemon("--seed", "5"))
        for _ in range(20):
            peer.insert("replay")
        peer.send("sample", table="replay", n=50)
        header, _ = peer.receive()
        draws.append(struct.unpack("<50Q", header["keys"]))
    assert draws[0] == draws[1]
    assert len(set(draws[0])) > 1


def test_a_faulty_configuration_is_told_whole_and_ends_in_its_own_code(tmp_path: Path) -> None:
    path = tmp_path / "replayd.toml"
    path.write_text('[server]\nlisten = 7077\nseeed = 1\n[[table]]\nname = "a"\nsampler = "unifrom"\n')
    ended = run_replayd("serve", "--config", str(path), "--table", "b,max_sise=1")
    assert ended.returncode == os.EX_CONFIG
    assert ended.stdout == ""
    for said in (
        "server.listen",
        "'seeed'; did you mean 'seed'?",
        "did you mean 'uniform'?",
        "did you mean 'max_size'?",
    ):
        assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 4
    assert "Traceback" not in ended.stderr


def test_a_doubtful_band_is_served_with_one_warning(start_daemon: StartDaemon) -> None:
    band = "limiter=sample_to_insert_ratio,samples_per_insert=1,min_size_to_sample=5,error_buffer=0:3"
    said = start_daemon("--table", f"t,{band}").stop().stderr
    assert said.count("WARNING") == 1
    assert "waiting for each other" in said


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("max_size=1000,max_bytes=1000000TiB", "lower max_size or max_bytes, or allow it more"),
        ("max_size=1000000,max_bytes=1MiB", "more than its max_bytes, 1 MiB"),
    ],
)
def test_tables_that_will_not_fit_are_warned_of_at_the_start(
    start_daemon: StartDaemon, settings: str, said: str
) -> None:
    (warned,) = [
        line for line in start_daemon("--table", f"t,{settings}").stop().stderr.splitlines() if "WARNI" in line
    ]
    assert said in warned


def test_tables_that_fit_are_not_warned_of_at_the_start(start_daemon: StartDaemon) -> None:
    assert "WARNING" not in start_daemon("--table", "t,max_size=1000", "--max-bytes", "1MiB").stop().stderr


@pytest.mark.parametrize(
    ("option", "setting"),
    [("--port", "`[server] listen`"), ("--ingest-port", "`[server] ingest`"), ("--http", "`[http] listen`")],
)
def test_a_taken_port_is_told_with_who_has_it_and_what_sets_another(
    taken_port: int, option: str, setting: str, tmp_path: Path
) -> None:
    endpoint_file = tmp_path / "endpoint.json"
    address = f"127.0.0.1:{taken_port}"
    there = address if option == "--http" else str(taken_port)
    ended = run_replayd("serve", "--port", "0", option, there, "--endpoint-file", str(endpoint_file))
    assert ended.returncode == os.EX_CANTCREAT
    assert f"{address}: Address already in use, process {os.getpid()} (" in ended.stderr
    assert f"; set {setting} ({'--listen, ' if option == '--port' else ''}{option}) to another" in ended.stderr
    assert not endpoint_file.exists()


def test_an_endpoint_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    ended = run_replayd("serve", "--port", "0", "--endpoint-file", str(tmp_path / "none" / "endpoint.json"))
    assert ended.returncode == os.EX_CANTCREAT
    assert "endpoint file" in ended.stderr


def test_the_network_is_let_in_only_on_purpose(start_daemon: StartDaemon, tmp_path: Path) -> None:
    path = tmp_path / "replayd.toml"
    path.write_text('[server]\nlisten = "tcp://0.0.0.0:7077"\n')
    ended = run_replayd("serve", "--port", "0", "--config", str(path))
    assert ended.returncode == os.EX_CONFIG
    assert "--insecure-public" in ended.stderr
    assert start_daemon("--config", str(path), "--insecure-public").address.startswith("tcp://0.0.0.0:")


def test_serving_a_network_says_what_to_connect_to(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--listen", "tcp://0.0.0.0:0", "--insecure-public", file_decides=True)
    said = daemon.stop().stdout
    port = daemon.address.rpartition(":")[2]
    assert f"requests  tcp://0.0.0.0:{port}\n" in said
    assert f"try: replayd info --address tcp://127.0.0.1:{port}\n" in said
    assert f"from another machine: replayd info --address tcp://{socket.gethostname()}:{port}\n" in said
    assert f"ingest    {daemon.ingest_address}  (PUSH: inserts only, at most once, from this machine alone)" in said


def test_what_to_try_waits_for_the_store_and_names_the_key(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = {"REPLAYD_STORE_PATH": str(tmp_path), "REPLAYD_ACCESS_KEYS": str(tmp_path)}
    Announcer(True).begin(read_config(environment=settings), "tcp://127.0.0.1:7077", None, None)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "once the store is read, try: REPLAYD_KEY_FILE=FILE replayd info --address tcp://127.0.0.1:7077"


def test_letting_the_network_in_where_it_cannot_come_is_warned_of(start_daemon: StartDaemon) -> None:
    ended = start_daemon("--insecure-public").stop()
    assert "insecure_public changes nothing" in ended.stderr
    assert "from this machine alone" not in ended.stdout


@pytest.mark.parametrize(
    "arguments", [["--port", "x"], ["--port", "70000"], ["--nonsense"], ["--config", "/nowhere.toml"]]
)
def test_a_misused_option_is_a_usage_error(arguments: list[str]) -> None:
    ended = CliRunner().invoke(main, ["serve", *arguments])
    assert ended.exit_code == os.EX_USAGE
    assert "Usage: " in ended.stderr


def test_the_program_has_its_name_also_where_the_module_is_run() -> None:
    ended = run_replayd("serve", "--nonsense")
    assert "Usage: replayd serve " in ended.stderr
    assert "python" not in ended.stderr


def test_an_option_can_come_from_the_environment(taken_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAYD_SERVE_PORT", str(taken_port))
    assert run_replayd("serve").returncode == os.EX_CANTCREAT


def test_tables_and_a_file_can_come_from_the_environment(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "replayd.toml"
    path.write_text('[[table]]\nname = "one"\n')
    monkeypatch.setenv("REPLAYD_SERVE_CONFIG", str(path))
    monkeypatch.setenv("REPLAYD_SERVE_TABLE", "two,max_size=3 three")
    said = start_daemon().stop().stdout
    assert "one: " in said
    assert "two: at most 3 items" in said
    assert "three: " in said


def test_an_option_of_a_command_in_a_group_can_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REPLAYD_KEYS_GENERATE_DIR", str(tmp_path))
    monkeypatch.setenv("REPLAYD_KEYS_GENERATE_OUT", str(tmp_path / "a.key"))
    monkeypatch.setenv("REPLAYD_KEYS_GENERATE_ROLE", "actor learner")
    monkeypatch.setenv("REPLAYD_KEYS_LIST_DIR", str(tmp_path))
    runner = CliRunner()
    assert runner.invoke(main, ["keys", "generate", "a"]).exit_code == 0
    (holder,) = json.loads(runner.invoke(main, ["keys", "list", "--json"]).stdout)
    assert (holder["name"], holder["roles"]) == ("a", ["actor", "learner"])


def test_help_names_every_sampler_and_limiter_with_its_keys() -> None:
    said = run_replayd("serve", "--help").stdout
    for selector in get_args(PlainSelector.model_fields["type"].annotation):
        assert selector in said
    for choice, model in CHOICES.items():
        (line,) = [line for line in said.splitlines() if re.match(rf"\s+(\w+, )*{choice}\b.*  \w", line)]
        assert re.split(r"\s{2,}", line.strip())[1].split(", ") == [key for key in model.model_fields if key != "type"]


# --- info -------------------------------------------------------------------------------------------------------------


def test_info_shows_each_table_and_who_waits_for_what(start_daemon: StartDaemon, connect: ConnectPeer) -> None:
    daemon = start_daemon("--table", "replay,max_size=100,min_size_to_sample=3", "--table", "q,preset=queue,max_size=1")
    peer = connect(daemon)
    peer.insert("replay")
    peer.insert("q")
    peer.send("sample", table="replay", n=2, timeout_ms=60_000)
    peer.send_insert("q")
    peer.ask("hello")
    ended = run_replayd("info", "--address", daemon.address)
    assert (ended.returncode, ended.stderr) == (0, "")
    _, replay, q = ended.stdout.split("\n\n")
    assert replay.startswith("replay\n")
    assert "1 of at most 100" in replay
    assert "1 insert, 0 samples, 0 deletes" in replay
    assert "samples from 3 items on" in replay
    assert "1 sample request (2 items)" in replay
    assert "writers must insert" in replay
    assert q.startswith("q\n")
    assert "cursor 1 from 0 to 1, samples_per_insert 1" in q
    assert "1 insert request (1 item)" in q
    assert "learners must sample" in q


def test_info_as_json_is_what_the_daemon_said(daemon: DaemonProcess, connect: ConnectPeer) -> None:
    connect(daemon).insert("replay")
    ended = run_replayd("info", "--json", "--address", daemon.address)
    assert ended.returncode == 0
    answer = json.loads(ended.stdout)
    assert answer["server"] == f"replayd {replayd.__version__}"
    assert [(table["name"], table["size"]) for table in answer["tables"]] == [("replay", 1)]


@pytest.mark.parametrize("command", [["info", "--timeout", "0.2"], ["ping"]])
def test_nobody_at_the_address_is_told(dead_address: str, command: list[str]) -> None:
    ended = run_replayd(*command, "--address", dead_address)
    assert ended.returncode == os.EX_UNAVAILABLE
    assert dead_address in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


def test_somebody_who_says_nothing_at_the_address_is_told(silent_address: str) -> None:
    ended = run_replayd("info", "--timeout", "0.2", "--address", silent_address)
    assert ended.returncode == os.EX_UNAVAILABLE
    assert silent_address in ended.stderr


@pytest.mark.parametrize("address", ["nonsense", "tcp://127.0.0.1", "tcp://127.0.0.1:x", "http://127.0.0.1:80"])
def test_an_address_that_is_none_is_a_usage_error(address: str) -> None:
    assert CliRunner().invoke(main, ["info", "--address", address]).exit_code == os.EX_USAGE


@pytest.mark.parametrize("address", ["127.0.0.1:0", "tcp://127.0.0.1:65536", "://127.0.0.1:1", "127.0.0.1", ""])
def test_an_address_that_nobody_can_listen_at_is_a_usage_error(address: str) -> None:
    assert CliRunner().invoke(main, ["ping", "--address", address]).exit_code == os.EX_USAGE


@pytest.mark.parametrize("command", [["info"], ["ping"], ["why", "replay"], ["peek", "replay"], ["set", "replay"]])
def test_an_address_needs_no_scheme(server: DaemonProcess, command: list[str]) -> None:
    ended = run_replayd(*command, "--address", server.address.replace("tcp://127.0.0.1", "localhost"))
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("option", [["ping", "--wait"], ["info", "--timeout"]])
@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "1e9", "soon"])
def test_a_wait_that_is_none_is_a_usage_error(option: list[str], seconds: str) -> None:
    ended = CliRunner().invoke(main, [*option, seconds])
    assert ended.exit_code == os.EX_USAGE
    assert "Usage: " in ended.stderr


# --- ping -------------------------------------------------------------------------------------------------------------


def test_ping_finds_a_daemon(server: DaemonProcess) -> None:
    ended = run_replayd("ping", "--address", server.address)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert server.address in ended.stdout


def test_ping_waits_no_longer_than_it_was_told(dead_address: str) -> None:
    ended = run_replayd("ping", "--wait", "0.3", "--address", dead_address)
    assert ended.returncode == os.EX_TEMPFAIL
    assert dead_address in ended.stderr


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_help_and_version_need_nothing_heavy() -> None:
    ended = run_replayd("--version")
    assert (ended.returncode, replayd.__version__ in ended.stdout) == (0, True)
    ended = run_replayd("--help")
    assert ended.returncode == 0
    for command in ("serve", "info", "ping"):
        assert command in ended.stdout
