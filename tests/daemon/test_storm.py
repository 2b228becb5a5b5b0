"""The storm itself: its ledger sees what is missing, a short one runs, and it leaves nothing running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.embedded import DEADLINE_S, until
from tests.daemon.harness import ROOT, environment
from tests.daemon.storm import Ledger, Life

SCRIPT = ROOT / "scripts" / "storm"


def ledger_of(acknowledged: dict[int, float]) -> Ledger:
    ledger = Ledger()
    for number, at in acknowledged.items():
        ledger.note("try", range(number, number + 1), at - 0.5)
        ledger.note("ack", range(number, number + 1), at)
    return ledger


def test_a_ledger_misses_what_was_acknowledged_and_finds_what_is_twice_or_strange() -> None:
    ledger = ledger_of({1: 10.0, 2: 20.0})
    ledger.note("try", range(3, 4), 21.0)
    ledger.compare([1, 2])
    ledger.compare([1, 2, 3])
    for found, story in {(1,): "1 of 2 acknowledged", (1, 2, 2): "twice", (1, 2, 9): "never inserted"}.items():
        with pytest.raises(AssertionError, match=story):
            ledger.compare(list(found))


def test_only_what_came_behind_the_last_durable_point_may_be_lost() -> None:
    ledger, lives = ledger_of({1: 10.0, 2: 20.0, 3: 30.0}), [Life(durable_to=15.0, killed_at=22.0)]
    ledger.compare([1, 3], lives)
    assert ledger.oldest_lost_s([1, 3], lives) == 2.0
    for found in ([2, 3], [1, 2]):
        with pytest.raises(AssertionError, match="1 of 3 acknowledged"):
            ledger.compare(found, lives)


@pytest.mark.parametrize("journal", ["sync", "interval"])
def test_in_a_short_storm_all_is_kept_as_the_journal_promises(journal: str) -> None:
    """The script's own code, as short as it goes; in sync mode nothing is lost, and else nothing but the end."""
    arguments = ("--rounds", "1", "--actors", "1", "--kills", "1", "--seconds", "0.5", "--seed", "11")
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments, "--journal", journal],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = re.search(
        r"(\d+) acknowledged, (\d+) lost.*, (\d+) found; the daemon was killed 1 times, "
        r"(\d+) actors and \d+ learners too, actors stopped (\d+) times",
        ended.stdout,
    )
    assert told is not None, ended.stdout
    acknowledged, lost, found, killed, stops = map(int, told.groups())
    assert min(killed, stops) >= 1, ended.stdout
    assert acknowledged > 0, "nothing was tested"
    assert found >= acknowledged - lost
    assert journal == "interval" or lost == 0
    assert ended.stdout.endswith("all was kept\n")


def session_of(leader: int) -> set[int]:
    """Processes of a session that have not ended."""
    found = set()
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                state, _, _, session = (directory / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:  # It has ended meanwhile.
                continue
            if int(session) == leader and state != "Z":
                found.add(int(directory.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_storm_that_is_told_to_stop_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    with (tmp_path / "output").open("wb") as output:
        storm = subprocess.Popen(
            [sys.executable, str(SCRIPT), "--rounds", "50", "--actors", "1", "--journal", "interval"],
            env={**environment(), "TMPDIR": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        # An actor, a learner, a daemon, and itself.
        until(lambda: len(session_of(storm.pid)) >= 4 or storm.poll() is not None)
        storm.send_signal(number)
        code = storm.wait(DEADLINE_S)
        said = (tmp_path / "output").read_text()
        assert code == (-number if number == signal.SIGKILL else 128 + number), said
        # What is killed cannot tidy up: its daemon stays, which a terminal's end would end.
        until(lambda: len(session_of(storm.pid)) <= (number == signal.SIGKILL))
        assert number == signal.SIGKILL or [path.name for path in tmp_path.iterdir()] == ["output"]
    finally:
        for pid in session_of(storm.pid):
            os.kill(pid, signal.SIGKILL)
        storm.kill()
        storm.wait()
