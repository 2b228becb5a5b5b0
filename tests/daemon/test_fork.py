"""Forks while other threads of the parent are inside calls: the child uses what it may, or is told, and never hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from replayd_client import Client, errors
from tests.daemon.embedded import DEADLINE_S, until
from tests.daemon.forking import forked
from tests.daemon.harness import DaemonProcess, environment

TABLES = {"t": "max_size = 20", "steps": "max_size = 100", "few": "", "empty": ""}
FORKS = 6
LARGE = np.zeros((1, 1, 100_000), np.float64)
"""Sent without a copy, for which pyzmq has a thread of its own."""

# Python 3.12 warns of a fork beside threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Crowd:
    """Threads that are inside calls of one client, one for each kind of call, until the end of the block."""

    def __init__(self, client: Client) -> None:
        self.turns: dict[str, int] = {}
        self.faults: list[BaseException] = []
        self._stop = threading.Event()
        writer = client.trajectory_writer(2, chunk_length=1)
        dataset = client.dataset("t", 4)

        def write() -> None:
            writer.append(1.0)
            writer.create_item("steps", 1.0, writer.history[-1:])

        def wait_in_vain() -> None:
            with pytest.raises(errors.DeadlineExceededError):
                client.sample_batch("empty", 1, timeout_ms=300)

        self.writer, self.dataset = writer, dataset
        calls: dict[str, Callable[[], Any]] = {
            "insert": lambda: client.insert_batch(LARGE, {"t": 1.0}),
            "sample": lambda: client.sample_batch("t", 1),
            "wait": wait_in_vain,
            "update": lambda: client.mutate_priorities("t", {1: 1.0}),
            "look": client.server_info,
            "dataset": lambda: next(dataset),
            "write": write,
        }
        self._threads = [threading.Thread(target=self._repeat, args=call) for call in calls.items()]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        until(lambda: len(self.turns) == len(self._threads) or bool(self.faults))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        assert not any(thread.is_alive() for thread in self._threads), "a thread of the parent is stuck"
        assert not self.faults, self.faults

    def go_on(self) -> None:
        """Wait until each of them has done more."""
        before = dict(self.turns)
        until(lambda: all(self.turns[name] > count for name, count in before.items()) or bool(self.faults))

    def _repeat(self, name: str, call: Callable[[], Any]) -> None:
        try:
            while not self._stop.is_set():
                call()
                self.turns[name] = self.turns.get(name, 0) + 1
        except BaseException as error:  # A thread's error is the test's.
            self.faults.append(error)


def test_a_child_forked_in_the_middle_of_other_threads_calls_works_or_says_why_not(server: DaemonProcess) -> None:
    with Client(server.address) as client:
        client.insert_batch(LARGE, {"t": 1.0})

        def use_it(crowd: Crowd) -> None:
            client.insert_batch(LARGE, {"t": 1.0})
            assert len(client.sample_batch("t", 2)) == 2
            client.mutate_priorities("t", {1: 2.0})
            assert client.server_info()["t"].current_size > 0
            for what in (lambda: crowd.writer.append(1.0), lambda: next(crowd.dataset)):
                try:
                    what()
                except errors.ForkedClientError:
                    continue
                raise AssertionError("what is the parent's was used in the child")
            with client.trajectory_writer(2) as mine:
                mine.append(2.0)
                mine.create_item("steps", 1.0, mine.history[:])
            with client.dataset("t", 2, max_batches=2) as drawn:
                assert len(list(drawn)) == 2
            client.close()

        with Crowd(client) as crowd:
            for _ in range(FORKS):
                assert forked(lambda: use_it(crowd)) == 0
                crowd.go_on()


def test_a_forked_child_uses_the_client_and_not_the_writer(server: DaemonProcess) -> None:
    with Client(server.address) as client:
        before = client.server_info()["few"].current_size
        writer = client.trajectory_writer(2, chunk_length=1)
        writer.append(1)
        writer.create_item("few", 1.0, writer.history[:])
        client.insert(0, {"few": 1.0})

        def use_both() -> None:
            client.insert(2, {"few": 1.0})
            with pytest.raises(errors.ForkedClientError):
                writer.append(3)
            mine = client.trajectory_writer(1)
            mine.append(4)
            mine.create_item("few", 1.0, mine.history[:])
            mine.close()
            writer.close()
            client.close()

        for _ in range(4):
            assert forked(use_both) == 0
        writer.append(2)
        writer.create_item("few", 1.0, writer.history[:])
        writer.close()
        assert client.server_info()["few"].current_size == before + 1 + 2 + 4 * 2


def test_a_child_may_fork_again_and_the_parent_goes_on_when_it_is_killed(server: DaemonProcess) -> None:
    with Client(server.address) as client:
        client.insert_batch(LARGE, {"t": 1.0})

        def die() -> None:
            client.sample_batch("t", 1)
            os.kill(os.getpid(), signal.SIGKILL)

        def fork_again() -> None:
            client.sample_batch("t", 1)
            assert forked(lambda: client.insert_batch(LARGE, {"t": 1.0}) and None) == 0  # type: ignore[func-returns-value]
            client.sample_batch("t", 1)

        with Crowd(client) as crowd:
            assert forked(fork_again) == 0
            assert forked(die) == -signal.SIGKILL
            crowd.go_on()


PROGRAM = """
import os, sys, threading
from replayd_client import Client

client = Client(sys.argv[1])
client.insert(1.0, {"steps": 1.0})
writer = client.trajectory_writer(1)
dataset = client.dataset("steps", 1)
stop = threading.Event()

def write():
    while not stop.is_set():
        writer.append(1.0)
        writer.create_item("steps", 1.0, writer.history[-1:])

def draw():
    while not stop.is_set():
        next(dataset)

threads = [threading.Thread(target=work) for work in (write, draw)]
for thread in threads:
    thread.start()
for _ in range(3):
    next(dataset)
child = os.fork()
if child == 0:
    sys.exit(7)
while not (ended := os.waitpid(child, os.WNOHANG))[0]:
    next(dataset)
assert os.waitstatus_to_exitcode(ended[1]) == 7, ended
for _ in range(3):
    next(dataset)
stop.set()
for thread in threads:
    thread.join()
writer.flush()
client.close()
print("done")
"""


def test_a_child_that_ends_as_programs_do_leaves_alone_what_is_the_parents(server: DaemonProcess) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.address],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
