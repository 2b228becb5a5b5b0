"""A world with a clock of its own: events in the order of their times, and processes that take turns.

A process is a thread, of which one runs at a time and only while the world waits for it, so that a seed decides all.
Blocking code runs in it as it is, as long as all its waiting is `World.wait`. Knows nothing of replayd.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import sys
import threading
import traceback
from collections.abc import Callable

BATON_S = 60.0
"""Real time within which a process must give the baton back: beyond it, it waits for something outside the world."""


class Killed(BaseException):
    """Raised in a process that has been killed, at whatever it waits for."""


class World:
    """Time is in seconds from 1000.0 on. `random` is all the chance there is."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.processes: list[Process] = []
        self.running: Process | None = None

    def at(self, time: float, event: Callable[[], None]) -> None:
        """Let something happen at a time, after what was to happen then before."""
        heapq.heappush(self._events, (max(time, self.now), next(self._numbers), event))

    def after(self, delay_s: float, event: Callable[[], None]) -> None:
        """Let something happen later."""
        self.at(self.now + delay_s, event)

    def spawn(self, name: str, body: Callable[[], None]) -> Process:
        """A process that begins at once."""
        process = Process(self, name, body)
        self.processes.append(process)
        process.wake()
        return process

    def wait(self, until: float) -> None:
        """Called in a process: let time pass, until then or until somebody wakes it."""
        process = self.running
        assert process is not None, "only a process waits"
        process.sleep(until)

    def sleep(self, seconds: float) -> None:
        """Called in a process: let time pass, whoever wakes it."""
        until = self.now + seconds
        while self.now < until:
            self.wait(until)

    def run(self, until: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Let happen what is to happen, up to a time or until it is over. Raises what a process died of."""
        while self._events and self._events[0][0] <= until and not is_over():
            self.now, _, event = heapq.heappop(self._events)
            event()

    def end(self) -> None:
        """Kill all processes, so that no thread is left."""
        for process in self.processes:
            process.kill()


def _closed() -> threading.Lock:
    """A gate for one: much quicker than a semaphore, and a seed is made of thousands of turns."""
    gate = threading.Lock()
    gate.acquire()
    return gate


class Process:
    """One thread of the world. `paused` it gets no turn, and what would have woken it does so afterwards."""

    def __init__(self, world: World, name: str, body: Callable[[], None]) -> None:
        self.name = name
        self.is_over = False
        self.paused = False
        self._world = world
        self._body = body
        self._turn = _closed()
        self._done = _closed()
        self._waits = 0
        """Number of the present wait; what would end an earlier one does nothing."""
        self._killed = False
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"simulated {name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Give it a turn at this time, if it waits then for what it waits for now."""
        wait = self._waits
        self._world.after(0.0, lambda: self._resume(wait))

    def kill(self) -> None:
        """It ends now, wherever it is; what it does on its way out reaches nobody."""
        self._killed = True
        self.paused = False
        self._resume(self._waits)

    def sleep(self, until: float) -> None:
        """Called by itself, through the world."""
        if self._killed:
            raise Killed
        self._waits += 1
        wait = self._waits
        if until < math.inf:
            self._world.at(until, lambda: self._resume(wait))
        self._world.running = None
        self._done.release()
        self._turn.acquire()
        self._world.running = self
        if self._killed:
            raise Killed

    def where(self) -> str:
        """Its stack, for who asks why it does not end."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)[-12:]) if frame is not None else "ended"

    def _resume(self, wait: int) -> None:
        if self.is_over or wait != self._waits:
            return
        if self.paused:
            self._world.after(0.05, lambda: self._resume(wait))
            return
        assert self._world.running is None, "one process at a time"
        self._turn.release()
        if not self._done.acquire(timeout=BATON_S):
            raise AssertionError(f"{self.name} waits for something outside the world:\n{self.where()}")
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise AssertionError(f"{self.name} died of {fault!r}") from fault

    def _run(self) -> None:
        self._turn.acquire()
        self._world.running = self
        try:
            if not self._killed:
                self._body()
        except Killed:
            pass
        except BaseException as fault:
            if not self._killed:
                self._fault = fault
        finally:
            self.is_over = True
            self._world.running = None
            self._done.release()
