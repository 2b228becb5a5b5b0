"""What options of the command line take, whichever command has them: addresses, times and sizes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner, Result

from replayd.cli import main
from replayd.cli_options import Size, Time
from replayd.config_units import as_bytes, as_seconds

OPTIONS = [
    (f"{prefix}{name}", option)
    for prefix, group in (("", main), ("keys ", main.commands["keys"]))
    if isinstance(group, click.Group)
    for name, command in group.commands.items()
    for option in command.params
    if isinstance(option, click.Option)
]
ASKING = [name for name, option in OPTIONS if option.name == "address"]
TEXTS = (click.types.StringParamType, click.Path)
TIMES = {"timeout_s", "wait_s", "interval_s", "seconds"}


def run(command: str, *arguments: str, **variables: str) -> Result:
    needed = {"peek", "pause", "reset", "resume", "set", "why"}
    words = [command, *(["replay"] if command in needed else []), *arguments]
    return CliRunner().invoke(main, words, env={"REPLAYD_ADDRESS": None, **variables})


# --- where the daemon is ----------------------------------------------------------------------------------------------


def test_every_command_that_asks_a_daemon_is_looked_at() -> None:
    assert {"bench", "checkpoint", "doctor", "info", "ping", "top", "why"} <= set(ASKING)


@pytest.mark.parametrize("command", ASKING)
def test_one_variable_names_the_daemon_for_all_commands(command: str) -> None:
    # An address that is none is told of with where it stands, and nobody is asked.
    table = ["--table", "replay"] if command == "bench" else []
    shared, own = "REPLAYD_ADDRESS", f"REPLAYD_{command.upper()}_ADDRESS"
    for arguments, variables, (where, address) in (
        ([], {shared: "shared"}, (f" ({shared})", "shared")),
        (
            [],
            {shared: "shared", own: "own"},
            (f" ({own})", "own"),
        ),
        (
            ["--address", "typed"],
            {shared: "shared", own: "own"},
            ("", "typed"),
        ),
    ):
        ended = run(command, *table, *arguments, **variables)
        assert ended.exit_code == os.EX_USAGE
        assert f"Invalid value for '--address'{where}: expected HOST:PORT, " in ended.stderr
        assert ended.stderr.endswith(f"got '{address}'\n")
        assert "REPLAYD_ADDRESS" in run(command, "--help").stdout


def test_the_usual_daemon_is_not_measured_by_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str | None] = []

    def daemon(address: str | None, *_: int) -> None:
        measured.append(address)
        raise SystemExit(0)

    monkeypatch.setattr("replayd.cli_bench._daemon", daemon)
    run("bench", REPLAYD_ADDRESS="somewhere:7077")
    run("bench", "--table", "scratch", REPLAYD_ADDRESS="somewhere:7077")
    assert measured == [None, "tcp://somewhere:7077"]
    # Who names one for this command alone means it.
    assert run("bench", REPLAYD_BENCH_ADDRESS="somewhere:7077").exit_code == os.EX_USAGE


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (name, option.opts[0])
        for name, option in OPTIONS
        # What these are given beside options is looked at first.
        if name != "restore" and not name.startswith("keys ") and not isinstance(option.type, TEXTS)
    ],
)
def test_an_option_from_a_variable_that_is_none_is_told_with_the_variable(command: str, option: str) -> None:
    variable = f"REPLAYD_{command}_{option.removeprefix('--')}".upper().replace("-", "_")
    ended = run(command, **{variable: "perhaps"})
    assert ended.exit_code == os.EX_USAGE
    assert f"Invalid value for '{option}' ({variable}): " in ended.stderr
    typed = run(command, f"{option}=perhaps")
    assert variable not in typed.stderr


# --- units ------------------------------------------------------------------------------------------------------------


def test_no_option_takes_a_time_or_a_size_in_another_way() -> None:
    times = {(name, option.name) for name, option in OPTIONS if option.name in TIMES}
    assert len(times) > 10
    for name, option in OPTIONS:
        assert not isinstance(option.type, click.types.FloatParamType), f"{name} {option.opts}: of what?"
        assert isinstance(option.type, Time) == ((name, option.name) in times), f"{name} {option.opts}"
        if "bytes" in str(option.name) and name != "serve":
            assert isinstance(option.type, Size), f"{name} {option.opts}"


def taken(kind: click.ParamType[float] | click.ParamType[int], text: str) -> float | int:
    return kind.convert(text, None, None)


@pytest.mark.parametrize("text", ["500ms", "60s", "1.5min", "1h", "5 s"])
def test_a_time_means_on_the_command_line_what_it_means_in_the_file(text: str) -> None:
    assert taken(Time(), text) == as_seconds(text)


@pytest.mark.parametrize(("text", "seconds"), [("5", 5.0), ("0.25", 0.25), ("0", 0.0), ("1e3", 1000.0)])
def test_a_bare_number_is_one_of_seconds(text: str, seconds: float) -> None:
    assert taken(Time(), text) == seconds


@pytest.mark.parametrize("text", ["4096", "4KiB", "1.5MB", "28 kB"])
def test_a_size_means_on_the_command_line_what_it_means_in_the_file(text: str) -> None:
    assert taken(Size(4, 16 << 20), text) == as_bytes(text)


def unusable() -> Iterator[tuple[str, str]]:
    for name, option in OPTIONS:
        if isinstance(option.type, Time):
            yield from ((f"{name} {option.opts[0]}", text) for text in ("5m", "soon", "-1", "nan", "1000000h", ""))
        if isinstance(option.type, Size):
            yield from ((f"{name} {option.opts[0]}", text) for text in ("4k", "many", "-1", "1TiB", ""))


@pytest.mark.parametrize(("option", "text"), list(unusable()))
def test_what_is_no_time_or_size_is_a_misuse_that_says_what_is_one(option: str, text: str) -> None:
    command, flag = option.split()
    ended = run(command, flag, text)
    assert ended.exit_code == os.EX_USAGE
    assert f"Invalid value for '{flag}': " in ended.stderr
    assert ("expected a " in ended.stderr) != (" is not between " in ended.stderr)
