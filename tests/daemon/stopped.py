"""Learners that are stopped while others go on: what they cost, whom they hold up, and what they find afterwards.

`stopped` is a learner that has asked for much and reads nothing, `others` are a learner and an actor that note how long
each of their answers took. Knows nothing of what is promised: its callers compare.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from replayd.limits import UNREAD_BYTES
from replayd_client import Client
from tests.daemon.harness import REPLY_S, environment

STEPS, STEP_BYTES = 1024, 8192
"""Items of one batch, each a chunk small enough to be copied into every reply: some 5 MiB a reply."""
REQUESTS = 40
MIB = 1 << 20
LATE_SHARE, LATE_S = 1.5, 0.005
"""Of the 99th percentile of others' answers before: by what it may be later, for a machine is never quite the same."""
SLACK_BYTES = 96 * MIB
"""Of memory that the daemon takes for other things meanwhile: what others ask for, and what the heap keeps."""

READER = """
import json, msgpack, sys, zmq
address, requests, items = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dealer = zmq.Context().socket(zmq.DEALER)
# libzmq itself would read on for a program that does not.
dealer.rcvhwm = 1
dealer.connect(address)
for id in range(requests):
    dealer.send(msgpack.packb({"v": 1, "op": "sample", "id": id, "table": "t", "n": items, "min_n": items}))
print("asked", flush=True)
sys.stdin.readline()
replies = []
for _ in range(requests):
    header, *body = dealer.recv_multipart()
    fields = msgpack.unpackb(header)
    replies.append((fields["id"], fields.get("error", {}).get("code"), sum(map(len, body))))
print(json.dumps(replies), flush=True)
"""

OTHER = """
import json, sys, threading, time
import numpy as np
from replayd_client import Client
client = Client(sys.argv[1])
step = np.zeros((1, 1, 100), np.float32)
ask = {
    "learner": lambda: client.sample_batch("t", 16),
    "actor": lambda: client.insert_batch(step, {"inserts": 1.0}),
}[sys.argv[2]]
took, lock, stop = [], threading.Lock(), threading.Event()

def work():
    while not stop.is_set():
        began = time.perf_counter()
        ask()
        with lock:
            took.append(time.perf_counter() - began)
        stop.wait(0.002)  # Somebody who computes between two questions.

ask()
thread = threading.Thread(target=work)
thread.start()
for line in sys.stdin:
    with lock:
        told, took = took, []
    print(json.dumps(told), flush=True)
stop.set()
thread.join()
"""


@dataclass(slots=True)
class Stopped:
    """A learner as a process, with all that it has asked for on its way."""

    process: subprocess.Popen[str]

    def hold(self) -> None:
        """It does not even run."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> list[tuple[int, str | None, int]]:
        """Let it read to the end: of each reply the id, the error's code and the bytes of payload."""
        self.process.send_signal(signal.SIGCONT)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("read\n")
        self.process.stdin.flush()
        return [(id, code, nbytes) for id, code, nbytes in json.loads(self.process.stdout.readline())]


@contextmanager
def stopped(address: str) -> Iterator[Stopped]:
    """A learner that has asked for batches and reads none before it is told to."""
    with _program(READER, address, str(REQUESTS), str(STEPS)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        yield Stopped(process)


class Others:
    """A learner and an actor that go on."""

    def __init__(self, address: str, ends: ExitStack) -> None:
        self._processes = {kind: ends.enter_context(_program(OTHER, address, kind)) for kind in ("learner", "actor")}

    def answers(self) -> dict[str, list[float]]:
        """The seconds that each answer took since the last time that this was asked."""
        told = {}
        for kind, process in self._processes.items():
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("tell\n")
            process.stdin.flush()
            told[kind] = json.loads(process.stdout.readline())
        return told


@contextmanager
def _program(source: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@dataclass(frozen=True, slots=True)
class Findings:
    """What came of it: seconds of answers by who asked, before and while two learners were stopped, and the rest."""

    before: dict[str, list[float]]
    during: dict[str, list[float]]
    unread_bytes: int
    """The most that was told while they were."""
    grown_bytes: int
    """Of the daemon's memory, at most."""
    replies: list[list[tuple[int, str | None, int]]]
    """What each found when it went on."""


def observe(client: Client, address: str, pid: int, is_enough: Callable[[float, dict[str, int]], bool]) -> Findings:
    """Let others work, stop two learners, one of which merely does not read, and let them go on.

    `is_enough` ends each of the two phases: it is given its seconds so far, and the answers each of the others had.
    """
    fill(client)
    with ExitStack() as ends:
        others = Others(address, ends)
        client.sample_batch("t", STEPS)  # What the daemon allocates once is there then.
        others.answers()  # They have begun.
        resident, grown = resident_bytes(pid), 0

        def unread() -> int:
            nonlocal grown
            grown = max(grown, resident_bytes(pid) - resident)
            return int(client.info()["peers"]["unread_bytes"])

        # In both phases, for to look costs the others time, too.
        before, _ = _phase(others, is_enough, unread)
        learners = [ends.enter_context(stopped(address)) for _ in range(2)]
        info_when(client, lambda info: info["peers"]["unread_bytes"] >= 2 * UNREAD_BYTES.value)
        learners[0].hold()
        others.answers()  # Those of between.
        during, most = _phase(others, is_enough, unread)
        replies = [learner.go_on() for learner in learners]
    return Findings(before, during, most, grown, replies)


def delayed(found: Findings) -> list[str]:
    """Whose answers came later while two were stopped than before, in words: by their 99th percentile."""
    words = []
    for who, before in found.before.items():
        was, became = (float(np.percentile(took, 99)) for took in (before, found.during[who]))
        if became > LATE_SHARE * was + LATE_S:
            words.append(f"p99 of the {who}'s answers went from {1e3 * was:.1f} to {1e3 * became:.1f} ms")
    return words


def _phase(
    others: Others, is_enough: Callable[[float, dict[str, int]], bool], look: Callable[[], int]
) -> tuple[dict[str, list[float]], int]:
    began, most = time.monotonic(), 0
    told: dict[str, list[float]] = {"learner": [], "actor": []}
    while not is_enough(time.monotonic() - began, {kind: len(took) for kind, took in told.items()}):
        time.sleep(0.1)
        most = max(most, look())
        for kind, took in others.answers().items():
            told[kind] += took
        assert time.monotonic() - began < 10 * REPLY_S, "others are not answered"
    return told, most


def bound_bytes() -> int:
    """Of memory that the two may cost: their quotas, which a reply may exceed, and slack."""
    return 2 * (UNREAD_BYTES.value + STEPS * STEP_BYTES) + SLACK_BYTES


def info_when(client: Client, condition: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
    deadline = time.monotonic() + REPLY_S
    while not condition(info := client.info()):
        assert time.monotonic() < deadline, info["peers"]
    return info


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fill(client: Client) -> None:
    rng = np.random.default_rng(1)
    with client.trajectory_writer(1, chunk_length=1) as writer:
        for _ in range(STEPS):
            writer.append(rng.integers(0, 256, STEP_BYTES, np.uint8))
            writer.create_item("t", 1.0, writer.history[-1:])
