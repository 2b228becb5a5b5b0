"""A storm: actors and learners at a daemon that is killed at any moment, and a ledger of what was promised to them.

An actor inserts numbered items and writes down which it tries and which were acknowledged, before and after. Afterwards
the table is emptied and compared. `python -m tests.daemon.storm act …` is an actor as a process, which may be killed.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from replayd_client import Client, errors
from tests.daemon.embedded import DEADLINE_S
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
TIMEOUT_MS = DEADLINE_S * 1000
WIDTH = 1 << 32
"""Numbers of one actor."""
Note = Callable[[str, range], None]


@dataclass
class Ledger:
    """What actors wrote down."""

    tried: set[int] = field(default_factory=set)
    acknowledged: set[int] = field(default_factory=set)

    def note(self, what: str, numbers: range) -> None:
        """`try` or `ack`."""
        (self.tried if what == "try" else self.acknowledged).update(numbers)

    def read(self, file: Path) -> None:
        """What a process wrote; a last line may be cut short."""
        for line in file.read_text().splitlines(keepends=True):
            words = line.split()
            if line.endswith("\n"):
                self.note(words[0], range(int(words[1]), int(words[2])))

    def compare(self, found: list[int], *, may_lose: bool = False) -> None:
        """Assert that all that was acknowledged is there (unless it `may_lose` some), once, and nothing else."""
        twice = [number for number, count in Counter(found).items() if count > 1]
        assert not twice, f"{len(twice)} items are there twice, such as {named(twice[0])}"
        strangers = set(found) - self.tried
        assert not strangers, f"{len(strangers)} items were never inserted, such as {named(min(strangers))}"
        lost = self.acknowledged - set(found)
        assert may_lose or not lost, (
            f"{len(lost)} of {len(self.acknowledged)} acknowledged items are lost: "
            f"{', '.join(map(named, sorted(lost)[:9]))}"
        )


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
        arguments = [kind, address, str(log), str(actor), str(seed)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.daemon.storm", *arguments],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
        )

    def send(self, number: signal.Signals) -> None:
        """SIGKILL, SIGSTOP or SIGCONT."""
        self.was_killed |= number == signal.SIGKILL
        self._process.send_signal(number)

    def stop(self) -> None:
        """Let it finish what it is at."""
        self._process.send_signal(signal.SIGCONT)
        if not self.was_killed:
            self._process.terminate()
        code = self._process.wait(3 * DEADLINE_S)
        assert self.was_killed or code == 0, f"an actor or learner ended with {code}"

    def end(self) -> None:
        """Whatever it is at."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def main(kind: str, address: str, log: str, actor: str, seed: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    if kind == "learn":
        learn(address, stop)
        return
    with Path(log).open("a") as file:

        def note(what: str, numbers: range) -> None:
            file.write(f"{what} {numbers.start} {numbers.stop}\n")
            file.flush()

        act(address, int(actor), int(seed), stop, note)


if __name__ == "__main__":
    main(*sys.argv[1:])
