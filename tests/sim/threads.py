"""The module `threading` in the simulated world, as far as a dataset uses it: threads of the machine that runs.

Only one process of the world runs at a time, and gives the baton back where it waits; so locks are never contended.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tests.sim.world import Process, World


class Threading:
    """`spawn` makes a process of the machine that runs."""

    def __init__(self, world: World, spawn: Callable[[str, Callable[[], None]], Process]) -> None:
        self._world = world
        self._spawn = spawn

    def RLock(self) -> None:  # noqa: N802
        """Nobody else runs meanwhile."""

    def Condition(self, lock: None) -> Condition:  # noqa: N802
        return Condition(self._world)

    def Thread(self, *, target: Callable[[], None], name: str, daemon: bool) -> Thread:  # noqa: N802
        return Thread(self._world, lambda body: self._spawn(name, body), target)

    def current_thread(self) -> Process | None:
        return self._world.running


class Condition:
    """Waits in the world's time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiters: list[Process] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> None:
        pass

    def wait(self) -> None:
        process = self._world.running
        assert process is not None, "only a process waits"
        self._waiters.append(process)
        try:
            self._world.wait(math.inf)
        finally:
            self._waiters.remove(process)

    def notify_all(self) -> None:
        for process in self._waiters:
            process.wake()


class Thread:
    """One process."""

    def __init__(
        self, world: World, spawn: Callable[[Callable[[], None]], Process], target: Callable[[], None]
    ) -> None:
        self._world = world
        self._spawn = spawn
        self._target = target
        self._ended = Condition(world)
        self._is_over = False

    def start(self) -> None:
        self._spawn(self._run)

    def join(self, timeout_s: float | None) -> None:
        # At the end of the test's process nobody of the world runs any more.
        while not self._is_over and self._world.running is not None:
            self._ended.wait()

    def _run(self) -> None:
        try:
            self._target()
        finally:
            self._is_over = True
            self._ended.notify_all()
