"""The parent's end of a measurement: processes that prepare on their own and then work at the same time.

Owns their lives: leaving the block ends them. See `worker` for the other end, and `nursery` for where they come from.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click

from benchmarks.nursery import Nursery

ANSWER_S = 600.0
"""The longest that a worker prepares or works: to fill a peer's table takes minutes."""


@dataclass(frozen=True, slots=True)
class Job:
    """A role of a driver with its settings; `python` is the peer's interpreter, None for this one."""

    driver: str
    role: str
    settings: dict[str, Any]
    python: Path | None = None

    def at(self, address: str) -> Job:
        """The same job for a server whose address is known now."""
        return replace(self, settings={"address": address, **self.settings})


class Worker:
    """One measured process."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._nursery = Nursery.of(job.driver, job.python)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        read, orders = os.pipe()
        answers, write = os.pipe()
        self._orders, self._answers = os.fdopen(orders, "w", buffering=1), os.fdopen(answers)
        try:
            self.pid = self._nursery.fork(job.role, job.settings, read, write, self._said.fileno())
        except BaseException:
            self._close()
            raise
        finally:
            os.close(read)
            os.close(write)

    def order(self, **order: Any) -> None:
        try:
            self._orders.write(json.dumps(order) + "\n")
        except BrokenPipeError:
            raise self._failed() from None

    def answer(self) -> dict[str, Any]:
        if not select.select([self._answers], [], [], ANSWER_S)[0]:
            raise click.ClickException(f"{self.job.driver} {self.job.role} has not answered for {ANSWER_S:.0f} s")
        line = self._answers.readline()
        if not line:
            raise self._failed()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        self._nursery.end(self.pid)
        self._close()

    def _close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._orders.close()
        self._answers.close()
        self._said.close()

    def _failed(self) -> click.ClickException:
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")[-2000:]
        return click.ClickException(f"{self.job.driver} {self.job.role} ended too early:\n{said}")


@dataclass(frozen=True, slots=True)
class Done:
    """What the workers of one role did together."""

    rate: float
    """Items a second; each worker's own time counts."""
    items: int
    """Items in the whole run, settling included: what the CPU time of the run was spent on."""
    cpu_s: float
    """CPU time of these workers, all threads."""
    functions_s: dict[str, float]
    """The same by function, callees not included, if they were asked for a profile."""

    @classmethod
    def of(cls, answers: Sequence[dict[str, Any]]) -> Done:
        rate = sum(answer["items"] / answer["seconds"] for answer in answers)
        items, cpu_s = (sum(answer[name] for answer in answers) for name in ("items_with_settling", "cpu_s"))
        functions_s: Counter[str] = Counter()
        for answer in answers:
            functions_s.update(answer.get("functions", {}))
        return cls(rate, items, cpu_s, dict(functions_s))


class Crew:
    """Workers that are ready when the block begins. `ready` is what each said of itself, in the order of the jobs."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs

    def __enter__(self) -> Self:
        self.workers: list[Worker] = []
        try:
            for job in self._jobs:
                self.workers.append(Worker(job))
            self.ready = [worker.answer() for worker in self.workers]
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def run(self, seconds: float, settle_s: float) -> dict[str, Done]:
        """Let all work at the same time; what each role did."""
        for worker in self.workers:
            worker.order(seconds=seconds, settle_s=settle_s)
        answers: dict[str, list[dict[str, Any]]] = {}
        for worker in self.workers:
            answers.setdefault(worker.job.role, []).append(worker.answer())
        return {role: Done.of(own) for role, own in answers.items()}

    def turn(self) -> list[dict[str, Any]]:
        """One turn of each worker, all at the same time: their results."""
        for worker in self.workers:
            worker.order(turn=True)
        return [worker.answer() for worker in self.workers]

    def let_run(self) -> None:
        """Let all work until the block ends."""
        for worker in self.workers:
            worker.order(free=True)

    def hold(self) -> None:
        """Let those that run stand still."""
        for worker in self.workers:
            os.kill(worker.pid, signal.SIGSTOP)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Let those that are held go on for as long as the block lasts."""
        for worker in self.workers:
            os.kill(worker.pid, signal.SIGCONT)
        yield
        self.hold()

    def _end(self) -> None:
        for worker in self.workers:
            worker.end()
