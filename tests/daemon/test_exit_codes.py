"""How commands end: one table of codes, those of sysexits.h, for each of them and for what nobody foresaw."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from replayd.access import AccessError
from replayd.cli import main
from replayd.errors import WIRE_ERRORS, StoreError
from replayd.exit_codes import MEANINGS, OF_FINDINGS, OF_REFUSALS, Commands, of_keys, of_store
from tests.daemon.harness import REPLAYD, START_S, DaemonProcess, environment

ROOT = Path(__file__).resolve().parents[2]
TABLES = {"replay": ""}
NOBODY = "tcp://127.0.0.1:9"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def all_commands(
    group: click.Group = main, name: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for word, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from all_commands(command, (*name, word))
        else:
            yield (*name, word), command


COMMANDS = {" ".join(name): command for name, command in all_commands()}
ASKING = [name for name, command in COMMANDS.items() if any("--address" in each.opts for each in command.params)]
BY_THEMSELVES = ("doctor", "bench")
"""These take no address for granted, and have tests of their own."""


def arguments_of(name: str) -> list[str]:
    """What the command must be given, with words that are right as far as the command line can know."""
    needed = [each for each in COMMANDS[name].params if isinstance(each, click.Argument) and each.required]
    return [*name.split(), *("replay" for _ in needed)]


# --- every command ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_that_is_none_is_a_misuse(name: str) -> None:
    ended = run(*arguments_of(name), "--nonsense")
    assert ended.exit_code == os.EX_USAGE
    assert "--nonsense" in ended.stderr


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["keys"], ["keys", "nonsense"], ["--nonsense"], ["why"]])
def test_a_command_that_is_none_or_lacks_something_is_a_misuse(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == os.EX_USAGE


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_no_failure(name: str) -> None:
    assert run(*name.split(), "--help").exit_code == os.EX_OK


@pytest.mark.parametrize("name", [name for name in ASKING if name not in BY_THEMSELVES])
def test_nobody_at_the_address_is_unavailable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replayd.cli_top.ANSWER_S", 0.1)
    takes_timeout = any("--timeout" in each.opts for each in COMMANDS[name].params)
    ended = run(*arguments_of(name), "--address", NOBODY, *(["--timeout", "0.1"] if takes_timeout else []))
    assert ended.exit_code == os.EX_UNAVAILABLE, ended.stderr
    assert NOBODY in ended.stderr


@pytest.mark.parametrize("name", [name for name in ASKING if "table" in {each.name for each in COMMANDS[name].params}])
def test_a_table_that_is_not_there_is_a_misuse(server: DaemonProcess, name: str) -> None:
    table = ["--table", "nowhere"] if name == "bench" else ["nowhere"]
    ended = run(name, *table, "--address", server.address, *(["max_size=1"] if name == "set" else []))
    assert ended.exit_code == os.EX_USAGE, ended.stderr
    assert "replay" in ended.stderr, "those that there are"


def test_nobody_to_measure_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replayd.cli_bench.CALL_MS", 50.0)
    ended = run("bench", "--address", NOBODY, "--table", "t", "--seconds", "0.1")
    assert ended.exit_code == os.EX_UNAVAILABLE, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["checkpoint"], os.EX_CONFIG),
        (["set", "replay", "max_size=0"], os.EX_USAGE),
        (["set", "replay", "nonsense=1"], os.EX_USAGE),
        (["top", "nowhere"], os.EX_USAGE),
    ],
    ids=["no store", "value", "setting", "table"],
)
def test_what_a_daemon_refuses_has_the_code_of_its_reason(
    server: DaemonProcess, arguments: list[str], code: int
) -> None:
    ended = run(*arguments, "--address", server.address)
    assert ended.exit_code == code, ended.stderr


def test_doctor_ends_in_the_code_of_the_first_failure(tmp_path: Path) -> None:
    file = tmp_path / "replayd.toml"
    file.write_text("[server]\nnonsense = 1\n")
    for more, code in (([], os.EX_UNAVAILABLE), (["--config", str(file)], os.EX_CONFIG)):
        ended = run("doctor", "--address", NOBODY, "--timeout", "0.1", "--json", *more)
        (first, *_) = [each for each in json.loads(ended.stdout)["findings"] if each["state"] == "fail"]
        assert (ended.exit_code, OF_FINDINGS[first["check"]]) == (code, code)


# --- what nobody foresaw ----------------------------------------------------------------------------------------------


def ends(how: Callable[[], None]) -> Result:
    """What becomes of a command that ends so."""
    return CliRunner().invoke(Commands(commands={"it": click.Command("it", callback=how)}), ["it"])


def test_a_fault_of_our_own_is_one_of_software_and_shows_where_it_was() -> None:
    def fault() -> None:
        raise RuntimeError("this cannot be")

    ended = ends(fault)
    assert ended.exit_code == os.EX_SOFTWARE
    assert "RuntimeError: this cannot be" in ended.stderr
    assert "belong in a report" in ended.stderr


@pytest.mark.parametrize("kind", [KeyboardInterrupt, EOFError, click.Abort])
def test_who_interrupts_a_command_finds_the_code_of_the_signal(kind: type[BaseException]) -> None:
    def interrupted() -> None:
        raise kind

    assert ends(interrupted).exit_code == 130


@pytest.mark.parametrize("code", [0, os.EX_CONFIG])
def test_a_code_that_was_chosen_stays(code: int) -> None:
    def chosen() -> None:
        raise SystemExit(code)

    assert ends(chosen).exit_code == code


def test_output_that_nobody_reads_is_told_by_the_code_alone() -> None:
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [*REPLAYD, "default-config"],
        env=environment(),
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=START_S,
        check=False,
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (os.EX_IOERR, b"")


# --- one table --------------------------------------------------------------------------------------------------------


def test_every_refusal_of_the_wire_has_a_code() -> None:
    assert OF_REFUSALS.keys() == {error.code for error in WIRE_ERRORS}


def test_every_code_that_an_error_may_end_in_has_a_meaning() -> None:
    codes = {*OF_REFUSALS.values(), *OF_FINDINGS.values()}
    store_errors: list[type[StoreError]] = [StoreError, *StoreError.__subclasses__()]
    access_errors: list[type[AccessError]] = [AccessError, *AccessError.__subclasses__()]
    codes |= {of_store(kind("")) for kind in store_errors} | {of_keys(kind("")) for kind in access_errors}
    assert codes - MEANINGS.keys() == set()


def test_no_command_has_a_code_of_its_own() -> None:
    for path in sorted((ROOT / "replayd").glob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant):
                name = ast.unparse(call.func).rpartition(".")[2]
                is_code = name in ("SystemExit", "exit", "fail", "Exit") and isinstance(call.args[0].value, int)
                assert not is_code, f"{path.name}:{call.lineno}: {ast.unparse(call)}"
