"""What a command imports to start: that takes longer than nearly all that commands do.

Every command is light or heavy here, so that a new one is made the one or the other deliberately.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from replayd.cli import main
from tests.daemon.harness import START_S, DaemonProcess, environment

TABLES = {"scratch": "max_size = 10_000", "held": "max_size = 4"}

WATCHED = (
    "numpy", "zmq", "msgpack", "blosc2", "pydantic", "rich", "prometheus_client", "lmdb", "wsgiref", "subprocess",
)  # fmt: skip

SPOKEN_WITH = {"zmq", "msgpack"}
"""What a message to a daemon takes that carries no arrays."""

LIGHT = {
    "checkpoint": (["checkpoint"], {*SPOKEN_WITH, "rich"}),
    "completion": (["completion", "fish"], set()),
    "info": (["info"], SPOKEN_WITH),
    "keys generate": (["keys", "generate", "new", "--role", "actor", "--dir", "DIR", "--out", "DIR/new.key"], {"zmq"}),
    "keys list": (["keys", "list", "--dir", "DIR"], set()),
    "keys revoke": (["keys", "revoke", "old", "--dir", "DIR"], set()),
    "pause": (["pause", "held"], SPOKEN_WITH),
    "ping": (["ping"], SPOKEN_WITH),
    "reset": (["reset", "scratch"], SPOKEN_WITH),
    "resume": (["resume", "held"], SPOKEN_WITH),
    "set": (["set", "scratch", "max_bytes=1GiB"], SPOKEN_WITH),
    "tables": (["tables", "--json"], SPOKEN_WITH),
    "top": (["top", "--frames", "1"], {*SPOKEN_WITH, "rich"}),
    "why": (["why", "held"], SPOKEN_WITH),
}
"""How each of these is called, and what it may import of what is watched."""

HEAVY = {
    "bench": "writes and reads experience",
    "check-config": "checks by pydantic, and what tables would take",
    "default-config": "tells the model of the settings, which is pydantic's",
    "doctor": "tries whether each library can be imported, and checks the settings",
    "peek": "shows arrays",
    "restore": "looks into a store",
    "serve": "serves",
}
"""Why each of these is not."""

NO_STORE = 78
"""In which `checkpoint` ends at a daemon without one."""


def all_commands(group: click.Group = main, prefix: str = "") -> Iterator[str]:
    for key, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from all_commands(command, f"{prefix}{key} ")
        else:
            yield f"{prefix}{key}"


def imported_by(*calls: list[str], code: int = 0, **variables: str) -> set[str]:
    """What is there, of what is watched, after these calls in a process of their own, each of which ends so."""
    script = (
        "import sys\n"
        "from replayd.cli import main\n"
        f"for call in {calls!r}:\n"
        "    try: main(call, prog_name='replayd')\n"
        f"    except SystemExit as ended: assert (ended.code or 0) == {code}, (call, ended.code)\n"
        f"print('\\nWATCHED', *[name for name in {WATCHED!r} if name in sys.modules])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.splitlines()[-1].split()[1:])


def test_every_command_is_light_or_heavy() -> None:
    assert sorted(all_commands()) == sorted([*LIGHT, *HEAVY])


@pytest.mark.parametrize("command", LIGHT)
def test_a_light_command_imports_what_it_needs_and_no_more(server: DaemonProcess, tmp_path: Path, command: str) -> None:
    words, expected = LIGHT[command]
    key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
    (tmp_path / "allowed.toml").write_text(f'[old]\nkey = "{key}"\nroles = ["actor"]\n')
    call = [word.replace("DIR", str(tmp_path)) for word in words]
    found = imported_by(call, code=NO_STORE if command == "checkpoint" else 0, REPLAYD_ADDRESS=server.address)
    assert found == expected


def test_help_and_version_of_every_command_import_nothing_heavy() -> None:
    assert imported_by(["--version"], ["--help"], *([*name.split(), "--help"] for name in all_commands())) == set()


def test_a_shell_that_completes_commands_imports_nothing_heavy() -> None:
    typed = {"COMP_WORDS": "replayd pi", "COMP_CWORD": "1"}
    assert imported_by([], _REPLAYD_COMPLETE="bash_complete", **typed) == set()


def test_a_shell_that_completes_tables_imports_what_a_message_takes(server: DaemonProcess) -> None:
    typed = {"COMP_WORDS": f"replayd why --address {server.address} he", "COMP_CWORD": "4"}
    assert imported_by([], _REPLAYD_COMPLETE="bash_complete", **typed) == SPOKEN_WITH


def test_settings_are_checked_without_sockets_and_codecs(tmp_path: Path) -> None:
    path = tmp_path / "replayd.toml"
    path.write_text('[[table]]\nname = "t"\n')
    found = imported_by(["default-config"], ["check-config", str(path)])
    assert "pydantic" in found
    assert not found & {"zmq", "blosc2", "rich", "prometheus_client", "lmdb"}


def test_a_command_runs_with_the_collector_of_cycles_on() -> None:
    script = (
        "import gc, replayd.cli\n"
        "replayd.cli.main = lambda prog_name: print(gc.isenabled())\n"
        "from replayd.__main__ import run\n"
        "run()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True
    )
    assert ended.stdout == "True\n"
