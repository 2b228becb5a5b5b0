"""The writer of a store: a thread of its own, which the loop feeds with jobs and which tells it of events.

Owns the store while it runs. Jobs are done in order; of a checkpoint that failed the remaining ones are passed over.
What takes long here (hashes, compression, LMDB, copies of large buffers) lets the loop run meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from queue import SimpleQueue
from typing import Any

import lmdb
import numpy as np
from numpy.typing import NDArray

from replayd.chunks import NO_UID
from replayd.errors import StoreError
from replayd.handover import SavedChunks
from replayd.journal_format import Entries, pack
from replayd.messages import Int64s
from replayd.state import settled
from replayd.store import Store
from replayd.store_blocks import BlockMap
from replayd.store_format import pack_block

log = logging.getLogger("replayd")

TRANSACTION_BYTES = 1 << 24
"""Of blocks in one transaction: its dirty pages are in memory, and it ends with a sync."""
TOUCH_BYTES = 1 << 22
DROPPED_AT_ONCE = 256
"""Blocks removed in one transaction."""
CUT_SHORT_S = 5.0
"""What a transaction that is under way gets to come to its end when the store is closed amid a checkpoint. Whether it
does matters to nobody: it is there whole or not at all."""

# --- jobs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make so much memory ready to be copied into. It begins a checkpoint."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class Frozen:
    """The state of the moment that is to be saved, and by slot which chunks the store does not have."""

    state: Any
    wanted: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks of that moment; `slots` where they are stored, None if they have been freed."""

    chunks: SavedChunks
    slots: Int64s | None


@dataclass(frozen=True, slots=True)
class Finish:
    """All chunks were handed over. `clean`: nothing is going to happen after that moment."""

    clean: bool


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """The answer to Prepare."""

    memory: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The answer to Frozen: slots to hand over, in the order in which the chunks came."""

    slots: Int64s


@dataclass(frozen=True, slots=True)
class Taken:
    """The answer to Chunks: they need no memory of the loop's any more."""

    chunks: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Durable:
    """The answer to Finish: from now on this is what a start would find."""

    generation: int
    chunks: int
    nbytes: int
    """What was added to the store."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Swept:
    """What follows it: dead blocks are gone. Chunks to be written anew with the next one, and their slots."""

    slots: Int64s
    uids: Int64s


@dataclass(frozen=True, slots=True)
class Failed:
    """The checkpoint is given up."""

    reason: str
    handed: Sequence[tuple[Int64s, Int64s]]
    """Slots and names of chunks that were handed over, and are not on the disk."""


@dataclass(frozen=True, slots=True)
class Committed:
    """Entries of the journal before `stop` are on the disk."""

    epoch: int
    stop: int


@dataclass(frozen=True, slots=True)
class NotCommitted:
    """Some of this epoch are not, and those behind them are passed over."""

    epoch: int
    reason: str


JournalEvent = Committed | NotCommitted
Job = Prepare | Frozen | Chunks | Finish
Event = Ready | Wanted | Taken | Durable | Swept | Failed


class _Entries(Enum):
    WAIT = "wait"


class _CutShort(Exception):
    """The store is being closed."""


_FAILURES = (StoreError, lmdb.Error, OSError, MemoryError)
"""What the machine may refuse. Anything else is a fault of replayd's own, which ends the thread, and so the daemon."""


class StoreWriter:
    """The thread. `wake` is called after each event, on the thread: it must be quick and safe."""

    def __init__(self, store: Store, blocks: BlockMap, wake: Callable[[], None]) -> None:
        self.store = store
        self._blocks = blocks
        self._wake = wake
        self._jobs: SimpleQueue[Job | _Entries | None] = SimpleQueue()
        self._events: deque[Event] = deque()
        self._entries: deque[Entries] = deque()
        self._journal_events: deque[JournalEvent] = deque()
        self._broken_epoch = -1
        store.between = self._pause
        self._checkpoint: _Checkpoint | None = None
        self._is_closing = False
        self._fault: BaseException | None = None
        self._is_told = False
        self._thread = threading.Thread(target=self._run, name="replayd-store", daemon=True)
        self._thread.start()

    def post(self, job: Job) -> None:
        """Have this done, after what was posted before."""
        self._jobs.put(job)

    def events(self) -> list[Event]:
        """What has happened since the last call. Raises AssertionError if the thread has come to an untimely end."""
        if self._fault is not None:
            self._is_told = True
            raise AssertionError("the thread that writes the store has failed") from self._fault
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def post_entries(self, entries: Entries) -> None:
        """Have these written to the journal, as soon as that can be: before other jobs, and amid one that is long."""
        self._entries.append(entries)
        self._jobs.put(_Entries.WAIT)

    def journal_events(self) -> list[JournalEvent]:
        """What became of entries since the last call."""
        events = []
        while self._journal_events:
            events.append(self._journal_events.popleft())
        return events

    def close(self) -> None:
        """Write what waits for the journal, then close the store. A checkpoint that is under way is cut short.

        If the disk does not answer, the thread is left to itself, and closes the store if that ever comes to an end.
        """
        self._is_closing = True
        self._jobs.put(None)
        self._thread.join(CUT_SHORT_S)
        if self.is_alive:
            log.warning(
                "the disk does not answer, so the store in %s is left as it is, with its last commit: see to the disk",
                self.store.directory,
            )

    @property
    def is_alive(self) -> bool:
        """Whether it may still write. After `close`: the disk does not answer."""
        return self._thread.is_alive()

    @property
    def has_told(self) -> bool:
        """Whether `events` has raised what ended it."""
        return self._is_told

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            try:
                while (job := self._jobs.get()) is not None:
                    self._pause()
                    if not isinstance(job, _Entries):
                        self._take(job)
                    del job  # What it holds is large.
            except _CutShort:
                pass
            self._write_entries()
        except BaseException as fault:
            self._fault = fault
            self._wake()
        finally:
            self.store.close()

    def _pause(self) -> None:
        """Between two transactions others have their turn."""
        self._write_entries()
        if self._is_closing:
            raise _CutShort

    def _write_entries(self) -> None:
        """Whatever waits for it goes to the journal in one transaction, unless that would be too large."""
        while self._entries:
            group: list[Entries] = []
            nbytes = 0
            while self._entries and nbytes < TRANSACTION_BYTES:
                entries = self._entries.popleft()
                if entries.epoch > self._broken_epoch:
                    group.append(entries)
                    nbytes += entries.nbytes
            if group:
                self._commit(group)

    def _commit(self, group: Sequence[Entries]) -> None:
        last = group[-1]
        event: JournalEvent = Committed(last.epoch, last.first + len(last))
        try:
            self.store.add_entries([value for entries in group for value in pack(entries)])
        except _FAILURES as error:
            self._broken_epoch = last.epoch
            event = NotCommitted(last.epoch, str(error) or type(error).__name__)
        self._journal_events.append(event)
        self._wake()

    def _take(self, job: Job) -> None:
        if isinstance(job, Prepare):
            self._checkpoint = _Checkpoint(self.store, self._blocks)
        checkpoint = self._checkpoint
        if checkpoint is None:
            return  # It failed, and the loop did not know yet.
        try:
            self._do(job, checkpoint)
        except _FAILURES as error:
            self._checkpoint = None
            try:
                checkpoint.give_up()
            finally:
                # Also if the clean-up is cut short.
                self._tell(Failed(str(error) or type(error).__name__, checkpoint.handed))
            return
        if isinstance(job, Finish):
            self._checkpoint = None
            self._tell(checkpoint.sweep())

    def _do(self, job: Job, checkpoint: _Checkpoint) -> None:
        if isinstance(job, Prepare):
            self._tell(Ready(_touched(job.nbytes)))
        elif isinstance(job, Frozen):
            self._tell(Wanted(checkpoint.begin(job)))
        elif isinstance(job, Chunks):
            nbytes = checkpoint.take(job)
            self._tell(Taken(len(job.chunks), nbytes))
        else:
            self._tell(checkpoint.finish(job.clean))

    def _tell(self, event: Event) -> None:
        self._events.append(event)
        self._wake()


@dataclass(frozen=True, slots=True)
class _Packed:
    """A block that is not in the store yet."""

    block: bytes
    uids: Int64s
    nbytes: Int64s


class _Checkpoint:
    """One checkpoint on its way to the disk."""

    def __init__(self, store: Store, blocks: BlockMap) -> None:
        self._store = store
        self._blocks = blocks
        self._frozen: Frozen | None = None
        self._saved_at = 0.0
        self._waiting: list[_Packed] = []
        self._added: list[int] = []
        """Numbers of the blocks it has added."""
        self.handed: list[tuple[Int64s, Int64s]] = []
        """Slots and names of the chunks it was handed."""
        self._chunks = 0
        self._bytes = 0

    def begin(self, frozen: Frozen) -> Int64s:
        self._frozen = frozen
        self._saved_at = time.time()
        slots = np.flatnonzero(frozen.wanted)
        order: Int64s = slots[np.argsort(frozen.state["chunks"]["uids"][slots])]
        return order

    def take(self, handed: Chunks) -> int:
        chunks = handed.chunks
        packed = _Packed(pack_block(chunks), chunks.uids, chunks.nbytes)
        if handed.slots is not None:
            self.handed.append((handed.slots, chunks.uids))
        self._waiting.append(packed)
        self._chunks += len(chunks)
        self._bytes += len(packed.block)
        if sum(len(each.block) for each in self._waiting) >= TRANSACTION_BYTES:
            self._flush()
        return len(packed.block)

    def finish(self, clean: bool) -> Durable:
        assert self._frozen is not None, "a checkpoint begins with a moment"
        self._flush()
        index = self._store.write_index(settled(self._frozen.state), saved_at=self._saved_at, clean=clean)
        assert self._store.head is not None, "an index that was written has a head"
        nbytes = self._bytes + index.nbytes
        return Durable(self._store.head.generation, self._chunks, nbytes, self._store.size_bytes)

    def sweep(self) -> Swept:
        """Let go of what the last checkpoint kept and this one does not. That one is durable, whatever happens here."""
        assert self._frozen is not None, "a checkpoint begins with a moment"
        swept = Swept(_NOTHING, _NOTHING)
        with _left("what it does not need"):
            uids = self._frozen.state["chunks"]["uids"]
            slots = np.flatnonzero(uids != NO_UID)
            slots = slots[np.argsort(uids[slots])]
            live = uids[slots]
            survey = self._blocks.survey(live)
            swept = Swept(slots[np.searchsorted(live, survey.renew)], survey.renew)
            drop_blocks(self._store, self._blocks, survey.dead)
            before = self._frozen.state["journal"]["next"]
            while self._store.drop_entries(before, DROPPED_AT_ONCE):
                self._store.between()
        return swept

    def give_up(self) -> None:
        """Remove what it has added, which takes room on a disk that may be full."""
        # Otherwise nothing refers to them, and the next checkpoint removes them.
        with _left(f"{len(self._added)} blocks that it does not need"):
            drop_blocks(self._store, self._blocks, self._added)

    def _flush(self) -> None:
        if not self._waiting:
            return
        self._store.between()
        numbers = self._store.add_blocks([packed.block for packed in self._waiting])
        for number, packed in zip(numbers, self._waiting, strict=True):
            self._blocks.add(number, packed.uids, packed.nbytes)
            self._added.append(number)
        self._waiting = []


_NOTHING = np.zeros(0, np.int64)


@contextlib.contextmanager
def _left(what: str) -> Iterator[None]:
    """What the disk does not let be removed now is left to the next checkpoint."""
    try:
        yield
    except _FAILURES as error:
        story = str(error) or type(error).__name__
        log.warning("the store keeps %s, until the next checkpoint: %s; see to its disk", what, story)


def drop_blocks(store: Store, blocks: BlockMap, numbers: Sequence[int]) -> None:
    """Some at a time, so that no transaction is large."""
    for n in range(0, len(numbers), DROPPED_AT_ONCE):
        part = numbers[n : n + DROPPED_AT_ONCE]
        store.drop_blocks(part)
        blocks.remove(part)
        store.between()


def _touched(nbytes: int) -> NDArray[np.uint8]:
    """Memory whose pages are there: the first touch of each costs more than what is then copied into it."""
    memory = np.empty(nbytes, np.uint8)
    for start in range(0, nbytes, TOUCH_BYTES):
        memory[start : start + TOUCH_BYTES] = 0
    return memory
