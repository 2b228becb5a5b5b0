"""A disk in memory that outlives crashes, and the writer to it in the world's time.

What a transaction has written is there for good, what waits for its turn when the server crashes never was: LMDB leaves
nothing in between. Transactions fail, are slow, and the power goes before or after any of them. The work is that of the
real writer, which here has no thread: the world calls it when its time has come.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from replayd.errors import StoreError
from replayd.journal_format import Entries, count_of
from replayd.state import State, frozen
from replayd.store import IndexWritten
from replayd.store_blocks import BlockMap
from replayd.store_format import Head
from replayd.store_writer import Job, StoreWriter
from tests.sim.world import World

MOST_PIECES = 3
"""Transactions of an index before the one that puts it in the place of the last one."""


class PowerCut(BaseException):
    """The server ends here, amid what its writer does. No handler of errors sees it."""


class Disk:
    """In place of `replayd.store.Store`: the same transactions, all of them atomic and durable, unless they fail."""

    def __init__(self, chance: random.Random) -> None:
        self.directory = Path("simulated")
        self.between: Callable[[], None] = lambda: None
        self.head: Head | None = None
        self.size_bytes = 0
        self.job_s = 0.02
        """What a job takes at most."""
        self.slowest_job_s = self.job_s
        """What it took at most at any time."""
        self.is_full = False
        self.errors = 0.0
        """The chance that a transaction fails for no reason that one could see."""
        self.cut_in: int | None = None
        """So many transactions, and the power goes."""
        self.failures = 0
        self._chance = chance
        self._state: State = {}
        self._blocks: dict[int, bytes] = {}
        self._entries: dict[int, bytes] = {}
        self._posted: dict[int, tuple[int, float]] = {}
        """Entries that were written together, or not at all: by their first number, the one behind them and a time."""
        self._next_block = 1
        self._is_broken = self._must_open_again = False

    def slow_down(self, job_s: float) -> None:
        """Let jobs take up to so long."""
        self.job_s, self.slowest_job_s = job_s, max(job_s, self.slowest_job_s)

    def mend(self) -> None:
        """All is well from now on."""
        self.is_full, self.errors, self.cut_in, self.job_s = False, 0.0, None, 0.02
        self._is_broken = self._must_open_again = False

    @property
    def clock(self) -> float | None:
        """The server's time up to which the disk knows what happened; None: nothing."""
        if self.head is None:
            return None
        clock, first = self._state["clock"], self._state["journal"]["next"]
        while first in self._entries:
            first, clock = self._posted[first]
        return float(clock)

    def will_have(self, entries: Entries) -> None:
        """These are on their way, and will be there all of them or none."""
        self._posted[entries.first] = entries.first + len(entries), entries.times[-1]

    # --- as the real one does it --------------------------------------------------------------------------------------

    def read_index(self) -> State:
        state: State = frozen(self._state, np.copy)
        return state

    def blocks(self) -> Iterator[tuple[int, memoryview]]:
        for number, value in sorted(self._blocks.items()):
            yield number, memoryview(value)

    def content_bytes(self) -> tuple[int, int]:
        return sum(map(len, self._blocks.values())), sum(map(len, self._entries.values()))

    def entries(self, first: int) -> Iterator[tuple[int, memoryview]]:
        for number, value in sorted(self._entries.items()):
            if number >= first:
                yield number, memoryview(value)

    def next_entry(self) -> int:
        seen = 1 if self.head is None else int(self._state["journal"]["next"])
        last = max(self._entries, default=None)
        return seen if last is None else max(seen, last + count_of(self._entries[last]))

    def add_blocks(self, blocks: Sequence[bytes]) -> list[int]:
        numbers = list(range(self._next_block, self._next_block + len(blocks)))
        self._next_block += len(blocks)
        self._transact(lambda: self._blocks.update(zip(numbers, blocks, strict=True)))
        return numbers

    def drop_blocks(self, numbers: Sequence[int]) -> None:
        self._transact(lambda: _drop(self._blocks, numbers))

    def add_entries(self, values: Sequence[tuple[int, bytes]]) -> None:
        self._transact(lambda: self._entries.update(values))

    def drop_entries(self, before: int, at_most: int) -> bool:
        numbers = list(islice(sorted(self._entries), at_most))
        outdated = [number for number in numbers if number < before]
        if outdated:
            self._transact(lambda: _drop(self._entries, outdated))
        return len(outdated) == at_most

    def write_index(self, state: State, *, saved_at: float, clean: bool) -> IndexWritten:
        for _ in range(self._chance.randint(0, MOST_PIECES)):
            self._transact(lambda: None)
            self.between()
        generation = 1 if self.head is None else self.head.generation + 1
        kept = frozen(state, np.copy)

        def replace() -> None:
            self._state, self.head = kept, Head(generation, saved_at, clean, kept, [])

        self._transact(replace)
        return IndexWritten(0, 0)

    def sweep(self) -> None:
        """Pieces of an index that was cut short are in nobody's way here."""

    def close(self) -> None:
        """It is there the next time."""

    def _transact(self, change: Callable[[], object]) -> None:
        if self.cut_in is not None:
            self.cut_in -= 1
            if self.cut_in < 0:
                self.cut_in = None
                if self._chance.random() < 0.5:
                    change()
                raise PowerCut
        if self.is_full:
            self._fail("no space left on the disk")
        if self._is_broken:
            self._is_broken, self._must_open_again = False, True
            self._fail("the store takes no more")
        if self._must_open_again:
            if self.errors and self._chance.random() < 0.5:
                self._fail("the store cannot be opened again")
            self._must_open_again = False
        if self.errors and self._chance.random() < self.errors:
            if self._chance.random() < 0.3:
                # It is there, and nobody knows: as with LMDB when the last page of a commit cannot be synced.
                change()
                self._is_broken = True
            self._fail("input/output error")
        change()

    def _fail(self, reason: str) -> NoReturn:
        self.failures += 1
        raise StoreError(f"simulated: {reason}")


def _drop(values: dict[int, bytes], numbers: Sequence[int]) -> None:
    for number in numbers:
        values.pop(number, None)


class Writer(StoreWriter):
    """The store's writer, without its thread. While `at_once` nobody else is there, and what is posted is done.

    `cut` is called when the power goes; while `at_once` it goes where the work was posted.
    """

    def __init__(
        self, world: World, cut: Callable[[], None], disk: Any, blocks: BlockMap, wake: Callable[[], None]
    ) -> None:
        self.store: Any = disk
        self.at_once = True
        self._world = world
        self._cut = cut
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
        self._is_closing, self._fault = False, None
        disk.between = self._pause

    def post(self, job: Job) -> None:
        self._add(job)

    def post_entries(self, entries: Entries) -> None:
        self.store.will_have(entries)
        self._entries.append(entries)
        self._add(None)

    def crash(self) -> None:
        """What is not done is never done."""
        self._dead = True

    def close(self) -> None:
        self.crash()

    def _add(self, job: Job | None) -> None:
        self._todo.append(job)
        if self.at_once:
            self._work()
        elif not self._is_busy:
            self._plan()

    def _plan(self) -> None:
        self._is_busy = True
        self._world.after(self._world.random.uniform(0, self.store.job_s), self._work_in_time)

    def _work_in_time(self) -> None:
        try:
            self._work()
        except PowerCut:
            self._cut()

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
