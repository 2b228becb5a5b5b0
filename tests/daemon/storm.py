"""A storm: actors and learners at a daemon that is killed at any moment, and a ledger of what was promised to them.

An actor inserts numbered items and writes down which it tries and which were acknowledged, before and after, and when.
Afterwards the table is emptied and compared. `python -m tests.daemon.storm act …` is an actor as a process, which may
be killed; it ends with whoever started it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from replayd_client import Client, errors
from tests.daemon.harness import ROOT, environment

TABLES = ("t", "drawn")
"""The one that is compared, of which nothing leaves by itself, and one that is there to be drawn from."""
CONFIG = """
[[table]]
name = "t"
sampler = "fifo"
max_size = 10000000
[[table]]
name = "drawn"
max_size = 500
max_times_sampled = 3
"""
STUCK_S = 600.0
"""Whoever waits so long for a daemon that is alive, or comes back, is stuck: no expectation of how long it takes."""
TIMEOUT_MS = int(STUCK_S * 1000)
WIDTH = 1 << 32
"""Numbers of one actor."""
Note = Callable[[str, range], None]


@dataclass(frozen=True, slots=True)
class Life:
    """How a daemon's life ended: what came in between may be lost where the journal is not written at once. Seconds of
    the machine's monotonic clock, which all processes share.
    """

    durable_to: float
    """All that was acknowledged before was on the disk, as the daemon said last."""
    killed_at: float


@dataclass
class Ledger:
    """What actors wrote down, by the item's number."""

    tried: dict[int, float] = field(default_factory=dict)
    acknowledged: dict[int, float] = field(default_factory=dict)

    def note(self, what: str, numbers: range, at: float | None = None) -> None:
        """`try` or `ack`."""
        noted = self.tried if what == "try" else self.acknowledged
        noted.update(dict.fromkeys(numbers, time.monotonic() if at is None else at))

    def read(self, file: Path) -> None:
        """What a process wrote; a last line may be cut short."""
        for line in file.read_text().splitlines(keepends=True):
            words = line.split()
            if line.endswith("\n"):
                self.note(words[0], range(int(words[1]), int(words[2])), float(words[3]))

    def compare(self, found: list[int], may_lose: Sequence[Life] = ()) -> None:
        """Assert that all that was acknowledged is there, but for the ends of these lives, once, and nothing else."""
        twice = [number for number, count in Counter(found).items() if count > 1]
        assert not twice, f"{len(twice)} items are there twice, such as {named(twice[0])}"
        strangers = set(found) - self.tried.keys()
        assert not strangers, f"{len(strangers)} items were never inserted, such as {named(min(strangers))}"
        lost = [number for number in self.lost(found) if not self._came_within(number, may_lose)]
        assert not lost, (
            f"{len(lost)} of {len(self.acknowledged)} acknowledged items are lost: {', '.join(map(named, lost[:9]))}"
        )

    def lost(self, found: list[int]) -> list[int]:
        """What was acknowledged and is not there."""
        return sorted(self.acknowledged.keys() - set(found))

    def oldest_lost_s(self, found: list[int], lives: Sequence[Life]) -> float:
        """For how long what is lost had been acknowledged, at most, when the daemon was killed; 0.0 if nothing is."""
        ages = [0.0]
        for number in self.lost(found):
            at = self.acknowledged[number]
            ages += [min((life.killed_at - at for life in lives if life.killed_at >= at), default=0.0)]
        return max(ages)

    def _came_within(self, number: int, lives: Sequence[Life]) -> bool:
        # An actor may have been stopped between the answer and its note, so any time from the attempt on is meant.
        first, last = self.tried[number], self.acknowledged[number]
        return any(first <= life.killed_at and last >= life.durable_to for life in lives)


def named(number: int) -> str:
    """An item's number, for people."""
    return f"{number % WIDTH} of actor {number // WIDTH}"


def act(address: str, actor: int, seed: int, stop: threading.Event, note: Note) -> None:
    """Insert in all the ways there are until told to stop."""
    chance, number = random.Random(seed), actor * WIDTH
    with Client(address) as client:
        while not stop.is_set():
            numbers = range(number, number + chance.choice([1, 1, 5, 100]))
            number = numbers.stop
            steps = padded(numbers, chance.choice([2, 50, 3000]))
            note("try", numbers)
            if chance.random() < 0.5:
                client.insert_batch(steps[:, None], dict.fromkeys(TABLES, 1.0), timeout_ms=TIMEOUT_MS)
            else:
                with client.trajectory_writer(1, chunk_length=1, timeout_ms=TIMEOUT_MS) as writer:
                    for step in steps:
                        writer.append(step)
                        for table in TABLES:
                            writer.create_item(table, 1.0, writer.history[-1:])
            note("ack", numbers)


def padded(numbers: range, width: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """A step for each number, as wide as that."""
    steps = np.random.default_rng(numbers.start).integers(0, 1 << 62, (len(numbers), width))
    steps[:, 0] = numbers
    return steps


def learn(address: str, stop: threading.Event) -> None:
    """Draw, and set priorities of what was drawn; whatever goes wrong meanwhile is part of the storm."""
    with Client(address) as client:
        while not stop.is_set():
            with suppress(errors.ReplaydError):
                keys = np.array([step.info.key for item in client.sample("drawn", 8, timeout_ms=500) for step in item])
                client.mutate_priorities("drawn", updates=(keys, np.ones(len(keys))), timeout_ms=500)


def emptied(client: Client) -> list[int]:
    """The numbers of all items of the table that is compared, which has none then."""
    client.set("t", max_times_sampled=1)
    found: list[int] = []
    left = next(table for table in client.info()["tables"] if table["name"] == "t")["size"]
    while len(found) < left:
        for item in client.sample("t", min(1000, left - len(found)), timeout_ms=TIMEOUT_MS):
            found += [int(step.data[0].flat[0]) for step in item]
    client.set("t", max_times_sampled=0)
    return found


class Process:
    """An actor or a learner as a process; an actor writes into `log`."""

    def __init__(self, kind: str, address: str, log: Path, actor: int = 0, seed: int = 0) -> None:
        self.log = log
        self.was_killed = False
        self.stops = 0
        arguments = [kind, address, str(log), str(actor), str(seed)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.daemon.storm", *arguments],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
        )

    def send(self, number: signal.Signals) -> None:
        """SIGKILL, SIGSTOP or SIGCONT."""
        self.was_killed |= number == signal.SIGKILL
        self._process.send_signal(number)
        if number == signal.SIGSTOP:
            # The system tells the parent of a child that has stopped.
            _, status = os.waitpid(self._process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), f"an actor or learner ended with status {status}"
            self.stops += 1

    def stop(self) -> None:
        """Let it finish what it is at."""
        self._process.send_signal(signal.SIGCONT)
        if not self.was_killed:
            self._process.terminate()
        code = self._process.wait(STUCK_S)
        expected = -signal.SIGKILL if self.was_killed else 0
        assert code == expected, f"an actor or learner ended with {code}, not {expected}"

    def end(self) -> None:
        """Whatever it is at."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None, "a pipe is asked for"
        self._process.stdin.close()


def end_with_the_parent() -> None:
    """End as soon as whoever started this process is gone: nobody else would end it."""

    def watch() -> None:
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(kind: str, address: str, log: str, actor: str, seed: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    # Ctrl-C reaches all of the terminal's processes; the storm ends those that it started.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_the_parent()
    if kind == "learn":
        learn(address, stop)
        return
    with Path(log).open("a") as file:

        def note(what: str, numbers: range) -> None:
            file.write(f"{what} {numbers.start} {numbers.stop} {time.monotonic()}\n")
            file.flush()

        act(address, int(actor), int(seed), stop, note)


if __name__ == "__main__":
    main(*sys.argv[1:])
