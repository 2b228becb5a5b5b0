"""A disk in memory that outlives crashes, and the writer to it in the world's time.

What a transaction has written is there for good; what waits for its turn when the server crashes never was. The work is
that of the real writer, which here has no thread: the world calls it when its time has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from replayd.journal_format import Entries, count_of
from replayd.state import State, frozen
from replayd.store import IndexWritten
from replayd.store_blocks import BlockMap
from replayd.store_format import Head
from replayd.store_writer import Job, StoreWriter
from tests.sim.world import World

JOB_S = 0.02
"""What a job takes at most."""


class Disk:
    """In place of `replayd.store.Store`: the same transactions, all of them atomic and durable."""

    def __init__(self) -> None:
        self.directory = Path("simulated")
        self.between: Callable[[], None] = lambda: None
        self.head: Head | None = None
        self.size_bytes = 0
        self._state: State = {}
        self._blocks: dict[int, bytes] = {}
        self._entries: dict[int, bytes] = {}

    def read_index(self) -> State:
        state: State = frozen(self._state, np.copy)
        return state

    def blocks(self) -> Iterator[tuple[int, memoryview]]:
        for number, value in sorted(self._blocks.items()):
            yield number, memoryview(value)

    def content_bytes(self) -> int:
        return sum(map(len, self._blocks.values())) + sum(map(len, self._entries.values()))

    def entries(self, first: int) -> Iterator[tuple[int, memoryview]]:
        for number, value in sorted(self._entries.items()):
            if number >= first:
                yield number, memoryview(value)

    def next_entry(self) -> int:
        seen = 1 if self.head is None else int(self._state["journal"]["next"])
        return max([seen, *(number + count_of(value) for number, value in self._entries.items())])

    def add_blocks(self, blocks: Sequence[bytes]) -> list[int]:
        first = max(self._blocks, default=-1) + 1
        numbers = list(range(first, first + len(blocks)))
        self._blocks.update(zip(numbers, blocks, strict=True))
        return numbers

    def drop_blocks(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            del self._blocks[number]

    def add_entries(self, values: Sequence[tuple[int, bytes]]) -> None:
        self._entries.update(values)

    def drop_entries(self, before: int, at_most: int) -> bool:
        found = sorted(number for number, value in self._entries.items() if number + count_of(value) <= before)
        for number in found[:at_most]:
            del self._entries[number]
        return len(found) > at_most

    def write_index(self, state: State, *, saved_at: float, clean: bool) -> IndexWritten:
        generation = 1 if self.head is None else self.head.generation + 1
        self._state = frozen(state, np.copy)
        self.head = Head(generation, saved_at, clean, self._state, [])
        return IndexWritten(0, 0)

    def sweep(self) -> None:
        """No transaction leaves anything half done."""

    def close(self) -> None:
        """It is there the next time."""


class Writer(StoreWriter):
    """The store's writer, without its thread. While `at_once` nobody else is there, and what is posted is done."""

    def __init__(self, world: World, disk: Any, blocks: BlockMap, wake: Callable[[], None]) -> None:
        self.store = disk
        self.at_once = True
        self._world = world
        self._blocks = blocks
        self._wake = wake
        self._todo: deque[Job | None] = deque()
        self._events = deque()
        self._entries = deque()
        self._journal_events = deque()
        self._broken_epoch = -1
        self._checkpoint = None
        self._dead = False
        self._is_busy = False
        disk.between = self._write_entries

    def post(self, job: Job) -> None:
        self._add(job)

    def post_entries(self, entries: Entries) -> None:
        self._entries.append(entries)
        self._add(None)

    def crash(self) -> None:
        """What is not done is never done."""
        self._dead = True

    def _add(self, job: Job | None) -> None:
        self._todo.append(job)
        if self.at_once:
            self._work()
        elif not self._is_busy:
            self._plan()

    def _plan(self) -> None:
        self._is_busy = True
        self._world.after(self._world.random.uniform(0, JOB_S), self._work)

    def _work(self) -> None:
        if self._dead or not self._todo:
            return
        self._is_busy = False
        job = self._todo.popleft()
        self._write_entries()
        if job is not None:
            self._take(job)
        if self._todo:
            self._plan()
