"""Commands that measure, complete and list; progress; help and manual."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import replayd
from replayd import progress
from replayd.cli import EXIT_CODES, main
from replayd_client import Client
from tests.daemon.embedded import until
from tests.daemon.harness import ROOT, START_S, DaemonProcess, environment

TABLES = {
    "scratch": "max_size = 10_000",
    "held": 'preset = "queue"\nmax_size = 4',
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def all_commands(group: click.Group = main, name: str = "replayd") -> Iterator[tuple[str, click.Command]]:
    for key, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from all_commands(command, f"{name} {key}")
        else:
            yield f"{name} {key}", command


# --- bench ------------------------------------------------------------------------------------------------------------


def test_bench_measures_a_daemon_of_its_own() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "replayd", "bench", "--seconds", "0.1", "--batch", "8", "--item-bytes", "64", "--json"],
        env={**environment(), "REPLAYD_SERVER_LISTEN": "nowhere", "REPLAYD_KEY_FILE": "/none, and not for this daemon"},
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["batch"], found["item_bytes"]) == (8, 64)
    assert [figures["what"] for figures in found["figures"]] == ["insert_batch", "sample_batch"]
    for figures in found["figures"]:
        assert figures["items"] == 8 * figures["calls"] > 0
        assert figures["megabytes_per_s"] == pytest.approx(figures["items_per_s"] * 64 / 1e6)
        assert 0 < figures["p50_ms"] <= figures["p99_ms"]
        assert figures["held_up"] == ""


def table(server: DaemonProcess, name: str) -> dict[str, Any]:
    listed = json.loads(run("tables", "--json", "--address", server.address).stdout)
    return next(each for each in listed if each["name"] == name)


def test_bench_leaves_nothing_in_the_table_of_a_daemon_that_runs(server: DaemonProcess) -> None:
    arguments = ("--address", server.address, "--table", "scratch", "--seconds", "0.1", "--batch", "4")
    ended = run("bench", *arguments)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert "insert_batch" in ended.stdout
    assert "sample_batch" in ended.stdout
    after = table(server, "scratch")
    assert after["limiter"]["inserts"] > 0
    assert after["size"] == 0


def test_bench_says_what_holds_it_up(server: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replayd.cli_bench.CALL_MS", 50.0)
    ended = run("bench", "--address", server.address, "--table", "held", "--seconds", "0.1", "--batch", "1")
    assert ended.exit_code == 0
    assert "held up: " in ended.stdout


def test_bench_does_not_guess_which_table_may_be_written_to(server: DaemonProcess) -> None:
    assert run("bench", "--address", server.address).exit_code == os.EX_USAGE
    assert run("bench", "--table", "scratch").exit_code == os.EX_USAGE
    ended = run("bench", "--address", server.address, "--table", "none", "--seconds", "0.1")
    assert (ended.exit_code, "none" in ended.stderr) == (os.EX_USAGE, True)


# --- tables and ping --------------------------------------------------------------------------------------------------


def test_tables_are_listed_one_a_line(server: DaemonProcess) -> None:
    ended = run("tables", "--address", server.address)
    assert (ended.exit_code, ended.stderr) == (0, "")
    head, *rows = [line.split() for line in ended.stdout.splitlines()]
    assert head[-1] == "name"
    assert [row[-1] for row in rows] == ["scratch", "held"]


def test_ping_can_be_read_by_programs(server: DaemonProcess) -> None:
    ended = run("ping", "--json", "--address", server.address)
    answer = json.loads(ended.stdout)
    assert (answer["address"], answer["tables"]) == (server.address, ["scratch", "held"])
    assert answer["took_ms"] > 0


def test_the_doctor_finds_no_fault_in_a_daemon_that_serves(server: DaemonProcess) -> None:
    ended = run("doctor", "--json", "--address", server.address)
    found = json.loads(ended.stdout)
    assert [finding for finding in found["findings"] if finding["state"] == "fail"] == []
    assert (ended.exit_code, found["ok"]) == (0, True)
    assert f"replayd {replayd.__version__} answers at {server.address}" in ended.stdout


def test_looks_of_top_can_be_read_by_programs(server: DaemonProcess) -> None:
    ended = run("top", "held", "--json", "--frames", "2", "--interval", "0.1", "--address", server.address)
    assert (ended.exit_code, ended.stderr) == (0, "")
    decoder = json.JSONDecoder()
    first, end = decoder.raw_decode(ended.stdout)
    second, _ = decoder.raw_decode(ended.stdout[end:].lstrip())
    assert [table["name"] for look in (first, second) for table in look["tables"]] == ["held", "held"]
    assert second["uptime_s"] > first["uptime_s"]


def test_the_doctor_judges_the_daemon_by_its_own_limits(server: DaemonProcess) -> None:
    mine, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (500, hard))
    try:
        with Client(server.address) as client:
            until(lambda: client.info()["process"]["most_open_files"] == 500)
            assert 0 < client.info()["process"]["open_files"] < 500
        ended = run("doctor", "--address", server.address, "--peers", "1000", "--json")
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (mine, hard))
    (files,) = [each for each in json.loads(ended.stdout)["findings"] if each["check"] == "file descriptors"]
    assert (ended.exit_code, files["state"]) == (0, "warn")
    assert f"the daemon (process {server.pid}) may have 500 open" in files["what"]


# --- completion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell: str) -> None:
    ended = run("completion", shell)
    assert ended.exit_code == 0
    assert f"_REPLAYD_COMPLETE={shell}_complete" in ended.stdout


def test_the_shell_is_the_one_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert "fish_complete" in run("completion").stdout
    monkeypatch.setenv("SHELL", "/bin/ksh")
    assert run("completion").exit_code == os.EX_USAGE


def completed(*words: str) -> list[str]:
    """What a shell is offered for the last of these words. Nothing may be said beside it: a prompt would be torn."""
    variables = {"_REPLAYD_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    ended = subprocess.run(
        [sys.executable, "-c", "from replayd.cli import main; main(prog_name='replayd')"],
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        timeout=START_S,
        check=True,
    )
    assert ended.stderr == ""
    return [line.removeprefix("plain,") for line in ended.stdout.splitlines() if line]


def test_commands_are_completed() -> None:
    assert completed("replayd", "che") == ["check-config", "checkpoint"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("why", "--address", "ADDRESS", ""), ["scratch", "held"]),
        (("peek", "--address", "ADDRESS", "he"), ["held"]),
        (("set", "--address", "ADDRESS", "x"), []),
        (("top", "--address", "ADDRESS", "held", ""), ["scratch"]),
        (("bench", "--address", "ADDRESS", "--table", "s"), ["scratch"]),
    ],
)
def test_tables_of_a_daemon_are_completed(server: DaemonProcess, words: tuple[str, ...], offered: list[str]) -> None:
    line = ["replayd", *(server.address if word == "ADDRESS" else word for word in words)]
    # A busy machine may not answer in the time that a prompt has; one types again then.
    until(lambda: completed(*line) == offered)


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("REPLAYD_WHY_ADDRESS", ("why", "")),
        ("REPLAYD_ADDRESS", ("why", "")),
        ("REPLAYD_ADDRESS", ("bench", "--table", "")),
    ],
)
def test_tables_are_completed_of_the_daemon_that_the_environment_names(
    server: DaemonProcess, monkeypatch: pytest.MonkeyPatch, variable: str, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv(variable, server.address.removeprefix("tcp://"))
    until(lambda: completed("replayd", *words) == ["scratch", "held"])


@pytest.mark.parametrize("words", [("why", ""), ("why", "--address", "nonsense", ""), ("bench", "--table", "")])
def test_without_a_daemon_no_tables_are_offered_and_nothing_is_said(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        # Bound and not listening: nobody else can be there either.
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("REPLAYD_WHY_ADDRESS", f"127.0.0.1:{taken.getsockname()[1]}")
        assert completed("replayd", *words) == []


def test_a_file_of_keys_that_is_none_is_no_noise_at_the_prompt(
    server: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLAYD_KEY_FILE", "/nowhere.key")
    assert completed("replayd", "why", "--address", server.address, "") == []


# --- progress ---------------------------------------------------------------------------------------------------------


def test_progress_is_shown_where_somebody_looks(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(progress, "INTERVAL_S", 0.0)
    looks: list[int] = []

    def look() -> tuple[float, float] | None:
        looks.append(1)
        return None if len(looks) == 1 else (1, 4)

    with progress.shown("copying", look):
        while len(looks) < 3:
            pass
    said = capsys.readouterr()
    assert "copying" in said.err
    assert "25%" in said.err
    assert said.out == ""


def test_progress_is_silent_where_nobody_looks(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    with progress.shown("copying", lambda: pytest.fail("nobody looks")):
        pass
    assert capsys.readouterr().err == ""


# --- help and manual --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "command"), list(all_commands()))
def test_every_command_explains_itself(name: str, command: click.Command) -> None:
    assert command.help
    assert all(option.help for option in command.params if isinstance(option, click.Option))


def test_every_option_has_a_variable_of_its_own_name() -> None:
    options = [
        (name, option)
        for name, command in all_commands()
        for option in command.params
        if isinstance(option, click.Option)
    ]
    assert len(options) > 20
    assert any(name.startswith("replayd keys ") for name, _ in options)
    for name, option in options:
        (flag,) = option.opts
        own = f"{name}_{flag[2:]}".upper().replace("-", "_").replace(" ", "_")
        assert option.envvar == (own if flag != "--address" else [own, "REPLAYD_ADDRESS"])


@pytest.mark.parametrize("name", [name for name, _ in all_commands()])
def test_every_command_has_an_example_that_begins_as_one_types_it(name: str) -> None:
    said = run(*name.split()[1:], "--help").stdout
    assert f"  {name}" in said or f"({name}" in said


def test_programs_can_read_what_every_command_says_that_says_anything() -> None:
    # One runs until it is ended, and says where it is in --endpoint-file; what two others print is a program's already.
    without = {"replayd serve", "replayd default-config", "replayd completion"}
    takes = {name for name, command in all_commands() if any("--json" in option.opts for option in command.params)}
    assert takes == {name for name, _ in all_commands()} - without


def test_every_exit_code_is_explained() -> None:
    used = {name for path in (ROOT / "replayd").glob("*.py") for name in _codes(path)}
    assert len(used) > 5
    for name in used:
        assert re.search(rf"^ *{getattr(os, name)}  ", EXIT_CODES, re.MULTILINE), name
    said = run("--help").stdout
    assert [line for line in EXIT_CODES.replace("\b", "").splitlines() if line.strip() not in said] == []


def _codes(path: Path) -> set[str]:
    return set(re.findall(r"\bos\.(EX_[A-Z]+)\b", path.read_text()))


def test_what_keys_does_can_be_read_by_programs(tmp_path: Path) -> None:
    there = ("--dir", str(tmp_path), "--json")
    file = tmp_path / "a.key"
    made = json.loads(run("keys", "generate", "a", "--role", "actor", "--out", str(file), *there).stdout)
    (listed,) = json.loads(run("keys", "list", *there).stdout)
    assert made == {**listed, "file": str(file), "list": str(tmp_path / "allowed.toml")}
    assert f"secret = '{made['key']}'" not in file.read_text()
    assert f"public = '{made['key']}'" in file.read_text()
    gone = json.loads(run("keys", "revoke", "a", *there).stdout)
    assert gone == {"name": "a", "list": made["list"]}
    assert json.loads(run("keys", "list", *there).stdout) == []


def test_the_manual_is_that_of_the_commands() -> None:
    loader = SourceFileLoader("reference", str(ROOT / "scripts" / "reference"))
    spec = spec_from_loader("reference", loader)
    assert spec is not None
    reference = module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        loader.exec_module(reference)
    finally:
        sys.dont_write_bytecode = before
    assert reference.TARGET.read_text() == reference.manual(), "scripts/reference writes it anew"
    for name, _ in all_commands():
        assert f"### {name}\n" in reference.manual()
