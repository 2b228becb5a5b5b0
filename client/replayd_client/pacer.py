"""The background thread of a client: calls each of its tasks when that is due.

It keeps writers going while their thread computes: what is due is sent, acknowledgements are read, leases renewed, lost
connections replaced. It knows only that a task has a `tick`, which must not block.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import Protocol

log = logging.getLogger("replayd_client")

IDLE_EXIT_S = 5.0
"""Time without a task after which the thread ends; the next task starts another."""


class Paced(Protocol):
    def tick(self, now: float) -> float:
        """Do what is due, without blocking; return when to be called again (`time.monotonic`, inf: when woken)."""


class Pacer:
    """Ticks its tasks. The thread starts with the first task and ends when there has been none for a while."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._tasks: dict[Paced, float] = {}
        self._thread: threading.Thread | None = None

    def add(self, task: Paced) -> None:
        with self._condition:
            self._tasks[task] = 0.0
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="replayd-pacer", daemon=True)
                self._thread.start()
            self._condition.notify()

    def discard(self, task: Paced) -> None:
        with self._condition:
            self._tasks.pop(task, None)

    def wake(self, task: Paced, due: float) -> None:
        """Make sure that the task is ticked at `due` or before."""
        with self._condition:
            if due < self._tasks.get(task, -math.inf):
                self._tasks[task] = due
                self._condition.notify()

    def forget(self) -> None:
        """In a forked child: the thread and the tasks are the parent's."""
        self._condition = threading.Condition()
        self._tasks = {}
        self._thread = None

    def _run(self) -> None:
        condition = self._condition
        empty_since = time.monotonic()
        while True:
            with condition:
                now = time.monotonic()
                if self._tasks:
                    empty_since = now
                elif now - empty_since >= IDLE_EXIT_S:
                    self._thread = None
                    return
                due = [task for task, at in self._tasks.items() if at <= now]
                if not due:
                    next_at = min(self._tasks.values(), default=empty_since + IDLE_EXIT_S)
                    condition.wait(None if math.isinf(next_at) else max(next_at - now, 0.0))
                    continue
                for task in due:
                    self._tasks[task] = math.inf
            for task in due:
                at = self._tick(task, now)
                with condition:
                    # A wake-up during the tick may have set an earlier time.
                    if task in self._tasks:
                        self._tasks[task] = min(self._tasks[task], at)

    def _tick(self, task: Paced, now: float) -> float:
        try:
            return task.tick(now)
        except Exception:
            # One writer's fault must not stop the others: it is told, and that writer is not ticked again.
            log.exception("a writer's background work failed")
            self.discard(task)
            return math.inf
