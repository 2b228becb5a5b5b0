"""Real clients in the simulated world: their sockets, clocks, identities and background threads are the world's."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import replayd_client.client_parts
import replayd_client.connection
import replayd_client.dataset
import replayd_client.interruptible
import replayd_client.pool
import replayd_client.prefetcher
import replayd_client.sender
from replayd_client.client import Client
from replayd_client.pacer import Paced
from replayd_client.writer_core import _CORES
from tests.sim.network import Host, Network, Sockets, Zmq
from tests.sim.threads import Threading
from tests.sim.world import Process, World


class Machine:
    """What an operating system calls a process: its threads and its sockets, killed and stopped as one."""

    def __init__(self, world: World, network: Network) -> None:
        self.host = Host(network)
        self.threads: list[Process] = []
        self.is_done = False
        """Whether its work has come to its end."""
        self._world = world

    def spawn(self, name: str, body: Callable[[], None]) -> Process:
        thread = self._world.spawn(name, body)
        self.threads.append(thread)
        return thread

    def kill(self) -> None:
        self.host.fail()
        for thread in self.threads:
            thread.kill()

    def pause(self) -> None:
        for thread in self.threads:
            thread.paused = True

    def go_on(self) -> None:
        for thread in self.threads:
            thread.paused = False


class Crew:
    """The machines of clients. While `installed`, every client that is used belongs to the machine that runs."""

    def __init__(self, world: World, network: Network) -> None:
        self.machines: list[Machine] = []
        self._world = world
        self._network = network

    def start(self, name: str, work: Callable[[Client], None]) -> Machine:
        """A machine with one client, which works."""
        machine = Machine(self._world, self._network)

        def run() -> None:
            with Client("127.0.0.1:7077") as client:
                work(client)
            machine.is_done = True

        self.machines.append(machine)
        machine.spawn(name, run)
        return machine

    @property
    def running(self) -> Machine:
        return next(machine for machine in self.machines if self._world.running in machine.threads)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let `replayd_client` live in this world."""
        with pytest.MonkeyPatch.context() as patch:
            clock = _Clock(self._world)
            for name, module in list(sys.modules.items()):
                if name.split(".")[0] == "replayd_client" and getattr(module, "time", None) is time:
                    patch.setattr(module, "time", clock)
            patch.setattr(replayd_client.connection, "zmq", Zmq(self._world))
            for module in (replayd_client.pool, replayd_client.dataset):
                patch.setattr(module, "zmq_context", lambda: self.running.host)
            patch.setattr(replayd_client.interruptible, "socket", Sockets())
            threads = Threading(self._world, lambda name, body: self.running.spawn(name, body))
            patch.setattr(replayd_client.prefetcher, "threading", threads)
            patch.setattr(replayd_client.sender, "os", _System(self._world))
            patch.setattr(replayd_client.client_parts, "Pacer", lambda: _Pacer(self._world, self.running))
            cores = set(_CORES)
            try:
                yield
            finally:
                for machine in self.machines:
                    machine.kill()
                # Else they would want to be closed when the test's process ends.
                for core in set(_CORES) - cores:
                    core._closed = True


class _Clock:
    """The module `time`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.now

    def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)


class _System:
    """The module `os`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def urandom(self, size: int) -> bytes:
        return self._world.random.randbytes(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class _Pacer:
    """The client's background thread, as one of the world's."""

    def __init__(self, world: World, machine: Machine) -> None:
        self._world = world
        self._tasks: dict[Paced, float] = {}
        self._thread = machine.spawn("pacer", self._run)

    def add(self, task: Paced) -> None:
        self.wake(task, 0.0)

    def discard(self, task: Paced) -> None:
        self._tasks.pop(task, None)

    def wake(self, task: Paced, due: float) -> None:
        self._tasks[task] = min(due, self._tasks.get(task, math.inf))
        self._thread.wake()

    def _run(self) -> None:
        while True:
            now = self._world.now
            for task in [task for task, at in self._tasks.items() if at <= now]:
                self._tasks[task] = math.inf
                at = task.tick(now)
                if task in self._tasks:
                    self._tasks[task] = min(self._tasks[task], at)
            self._world.wait(max(min(self._tasks.values(), default=math.inf), now))
