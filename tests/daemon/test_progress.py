"""How far long work is, seen in a terminal: of a command that measures, copies or loads, beside what a log has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.conftest import ConnectPeer, StartDaemon
from tests.daemon.harness import environment
from tests.daemon.terminal import SECONDS, Terminal, plain

REPLAYD = [sys.executable, "-m", "replayd"]


def test_a_measurement_shows_in_a_terminal_how_far_it_is(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--table", "t")
    measured = ["bench", "--address", daemon.address, "--table", "t", "--seconds", "1.0", "--batch", "16"]
    with Terminal([*REPLAYD, *measured]) as screen:
        said = screen.read_until("sample_batch\r\n")
        assert screen.process.wait(SECONDS) == 0
    for what in ("insert_batch", "sample_batch"):
        shares = [int(share) for share in re.findall(rf"{what} \S+ +(\d+)%", said)]
        assert shares == sorted(shares)
        assert len({share for share in shares if 0 < share < 100}) >= 2, said


def test_a_copy_and_its_checkpoint_are_followed_in_a_terminal_and_leave_it_clean(
    start_daemon: StartDaemon, connect: ConnectPeer, tmp_path: Path
) -> None:
    daemon = start_daemon("--data-dir", str(tmp_path / "store"))
    connect(daemon).insert("replay")
    wanted = ["checkpoint", "--to", str(tmp_path / "copy"), "--address", daemon.address]
    with Terminal([*REPLAYD, *wanted]) as screen:
        said = screen.read_until("copied to ")
        assert screen.process.wait(SECONDS) == 0
    for text in ("checkpoint ━", "copying ━"):
        assert text in said
    # The bars are erased: what stays is what was done.
    screen_lines = [line.rpartition("\r")[2] for line in said.split("\n")]
    assert not any("━" in line for line in screen_lines if line.startswith(("checkpoint 1", "copied to")))


HELD = """
import sys
from replayd.cli import main
from replayd.keeper import Keeper

load = Keeper.load

def held(self):
    open(PIPE).close()
    load(self)

Keeper.load = held
main(sys.argv[1:])
"""


@pytest.fixture
def held(tmp_path: Path) -> tuple[list[str], Path]:
    """A daemon that loads until somebody opens a pipe, and the pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    serving = ["serve", "--port", "0", "--http", "off", "--data-dir", str(tmp_path / "store"), "--table", "t"]
    return [sys.executable, "-c", HELD.replace("PIPE", repr(str(pipe))), *serving], pipe


def test_a_daemon_that_loads_says_so_on_one_line_of_its_terminal(held: tuple[list[str], Path]) -> None:
    command, pipe = held
    with Terminal(command, width=40) as screen:
        said = screen.read_raw_until("loading: ")
        said += screen.read_raw_until("loading: ")
        with pipe.open("w"):
            screen.process.terminate()
            said += screen.read_raw_until("stopped\r\n")
    (line,) = [line for line in said.split("\r\n") if "loading: " in line]
    # Each time in the place of the time before, and no wider than the terminal.
    times = [plain(part) for part in line.split("\r\x1b[2K")]
    assert len(times) >= 2
    assert all(0 < len(time) < 40 for time in times[:2])


def test_a_daemon_that_loads_says_so_in_lines_where_there_is_no_terminal(held: tuple[list[str], Path]) -> None:
    command, pipe = held
    with subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        told: list[bytes] = []
        while sum(b"loading: " in line for line in told) < 2:
            told.append(process.stderr.readline())
            assert told[-1].endswith(b"\n"), told
        with pipe.open("w"):
            process.terminate()
            told += process.stderr.readlines()
    assert not any(b"\r" in line or b"\x1b" in line for line in told)
