"""Every command and every example of the README, as it stands there."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.conftest import StartDaemon
from tests.daemon.harness import ROOT, START_S, environment

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = [line.split("  #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line]


# Scripts that make environments of their own have tests of their own; the commands of the daemon are run below.
ELSEWHERE = {
    "scripts/demo": "tests/daemon/test_demo.py",
    "scripts/test": ".ci/run",
    ". .venv/bin/activate": "scripts/test",
}
SERVE = "replayd serve --table replay,sampler=prioritized,priority_exponent=0.6,max_size=100000"
AGAINST_IT = [
    "replayd ping --wait 10",
    "replayd info",
    "replayd why replay",
    "replayd peek replay --newest 5",
    "replayd set replay max_size=200000",
    "replayd set replay paused=sample",
]


def test_every_command_of_the_readme_is_run_by_a_test() -> None:
    assert sorted(commands()) == sorted([*ELSEWHERE, SERVE, *AGAINST_IT])
    for command, place in ELSEWHERE.items():
        assert command.split("/")[-1] in (ROOT / place).read_text()


def test_the_daemon_of_the_readme_serves_and_is_inspected(start_daemon: StartDaemon) -> None:
    # The commands run as they stand; only the port is a free one.
    daemon = start_daemon(*shlex.split(SERVE)[2:])
    variables = {f"REPLAYD_{command}_ADDRESS": daemon.address for command in ("PING", "INFO", "WHY", "PEEK", "SET")}
    said = [
        subprocess.run(
            [sys.executable, "-m", *shlex.split(command)],
            env={**environment(), **variables},
            capture_output=True,
            text=True,
            timeout=START_S,
            check=True,
        ).stdout
        for command in AGAINST_IT
    ]
    assert "replayd 0" in said[0]
    assert "items    0 of at most 100000" in said[1]
    assert "flowing" in said[2]
    assert "0 items" in said[3]
    assert "100000 -> 200000" in said[4]
    assert "none -> sample" in said[5]


@pytest.mark.parametrize("example", blocks("python"))
def test_the_examples_of_the_readme_run_and_print_what_they_say(example: str) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "README.md", "exec"), {"__name__": "__main__"})  # noqa: S102
    promised = re.findall(r"print\(.*\)  # (.*)", example)
    assert printed.getvalue().splitlines() == promised


def test_the_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not Path(os.path.join(ROOT, link)).exists()] == []
