"""Checkpoints, as the loop sees them: when one begins, what it copies at one moment, what it hands over afterwards.

Fed by `turn`, once a turn of the loop; a checkpoint holds the loop only while the index is copied into memory that was
made ready, and for some milliseconds at most in any other turn. What takes long is the writer's business. The clock is
handed in.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd.durability import Checkpoint, Progress
from replayd.errors import CheckpointFailed, ShuttingDown
from replayd.handover import SavedChunks
from replayd.journal import Journal
from replayd.messages import Failed as FailedReply
from replayd.messages import Int64s, Peer, Result
from replayd.parked_samples import dump_samples
from replayd.service import Service
from replayd.snapshots import dump_service
from replayd.state import arrays_of, frozen
from replayd.store_writer import (
    Chunks,
    Durable,
    Event,
    Failed,
    Finish,
    Frozen,
    Prepare,
    Ready,
    StoreWriter,
    Swept,
    Taken,
    Wanted,
)

log = logging.getLogger("replayd")

CHUNKS_A_TURN = 2048
BYTES_A_TURN = 1 << 22
"""What is handed over in one turn of the loop: about a millisecond's work."""
WAITING_JOBS = 4
"""Handed over and not taken by the writer yet: bounds the memory, and that a slow disk does not become a long queue."""
RETRY_S = 60.0
"""After a checkpoint that failed the next one on the interval comes no sooner, however short that is."""
TELL_S = 5.0
"""Between two lines of the log about a checkpoint that takes long."""
SPARE = 1.1
"""Memory made ready, for what is added until the copy is made."""


@dataclass(slots=True)
class _Running:
    began_at: float
    told_at: float
    askers: list[tuple[Peer, int]]
    is_last: bool
    """Nothing is going to happen after what it saves."""
    memory: NDArray[np.uint8] | None = None
    """Ready for the copy of the index, which is made in the next turn."""
    frozen_at: float = 0.0
    held_s: float = 0.0
    items: int = 0
    todo: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    """Slots to hand over, once it is known which."""
    is_known: bool = False
    finishing: bool = False
    in_flight: deque[Chunks] = field(default_factory=deque)
    rescued_bytes: int = 0
    """In flight, of chunks that nobody else has any more."""


class Checkpoints:
    """Of one service to one store. `interval_s` 0: only when somebody asks."""

    def __init__(
        self,
        service: Service,
        writer: StoreWriter,
        journal: Journal,
        interval_s: float,
        clock: Callable[[], float],
        now: float,
    ) -> None:
        self._service = service
        self._writer = writer
        self._journal = journal
        self._interval_s = interval_s
        self._clock = clock
        self._due = now + interval_s if interval_s else math.inf
        self._running: _Running | None = None
        self._is_sweeping = False
        """The last one is on the disk, and what it does not need is being removed."""
        self._stopping = False
        self._last_due = False

    def turn(self, now: float) -> float | None:
        """Do what there is to do; when the next turn is due if nothing else happens (`now`: at once), None if never."""
        if self._running is not None and self._running.memory is not None:
            self._freeze(self._running, self._running.memory, now)
        self.hear(now)
        self._tell_progress(now)
        if self._running is None:
            if self._stopping:
                wanted, self._last_due = self._last_due, False
            else:
                wanted = (
                    bool(self._service.durability.askers) or now >= self._due or self._journal.wants_checkpoint(now)
                )
            if wanted:
                self._begin(now)
                return None
            due = min(self._due, self._journal.checkpoint_due or math.inf)
            return None if self._stopping or due == math.inf else due
        if self.wants_a_turn or (self._running.is_known and self._hand_over(self._running)):
            return now
        return None

    def hear(self, now: float) -> None:
        """Take what the writer tells, which `turn` does too."""
        for event in self._writer.events():
            self._handle(event, now)

    @property
    def wants_a_turn(self) -> bool:
        """The next turn copies the index, which takes as long as a turn's requests do: it is to have none."""
        return self._running is not None and self._running.memory is not None

    @property
    def rescued_bytes(self) -> int:
        """What is in memory for the sake of a checkpoint alone: it was let go of, and the writer has not taken it."""
        running = 0 if self._running is None else self._running.rescued_bytes
        return running + self._service.chunks.handover.rescued_bytes

    @property
    def is_under_way(self) -> bool:
        """One is being written, or about to be."""
        return self._running is not None or self._last_due

    @property
    def is_idle(self) -> bool:
        """Nor is what the last one does not need being removed."""
        return not self.is_under_way and not self._is_sweeping

    def stop_with_one_more(self, now: float) -> None:
        """The service has stopped: after a checkpoint that runs one more, the last. `turn` until it `is_idle`."""
        self._stopping = True
        self._last_due = True
        self.turn(now)

    def refuse_askers(self) -> None:
        """There will be no further checkpoint."""
        error = ShuttingDown("the server is stopping")
        for peer, id in self._service.durability.take_askers():
            self._service.reply(peer, FailedReply("checkpoint", id, error.code, error.message, error.detail))

    # --- steps, in their order ----------------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        self._running = _Running(now, now, self._service.durability.take_askers(), is_last=self._stopping)
        self._service.durability.running = Progress(now)
        needed = sum(array.nbytes for array in arrays_of(dump_service(self._service, now)))
        self._writer.post(Prepare(int(needed * SPARE) + (1 << 20)))

    def _freeze(self, running: _Running, memory: NDArray[np.uint8], now: float) -> None:
        running.memory = None
        # Who asked before this moment is served by what it saves.
        running.askers += self._service.durability.take_askers()
        began = self._clock()
        state = frozen(dump_service(self._service, now), _Copies(memory))
        state["journal"] = self._journal.freeze()
        if self._journal.is_on:
            state["samples"] = frozen(dump_samples(self._service), np.copy)
        wanted = self._service.chunks.handover.begin()
        running.held_s = self._clock() - began
        running.frozen_at = now
        running.items = sum(table.size for table in self._service.tables.values())
        self._progress().phase = "chunks"
        self._writer.post(Frozen(state, wanted))

    def _hand_over(self, running: _Running) -> bool:
        """Some chunks, those first that were freed meanwhile. Whether there are more, and room for them."""
        handover = self._service.chunks.handover
        for rescued in handover.take_rescued():
            self._post(running, rescued, None)
        if len(running.in_flight) < WAITING_JOBS and len(running.todo):
            slots = handover.still_wanted(self._next_slots(running))
            if len(slots):
                self._post(running, handover.take(slots), slots)
        if len(running.todo) == 0 and not running.finishing:
            running.finishing = True
            handover.end()
            self._progress().phase = "index"
            self._writer.post(Finish(clean=running.is_last))
        return len(running.todo) > 0 and len(running.in_flight) < WAITING_JOBS

    def _next_slots(self, running: _Running) -> Int64s:
        part = running.todo[:CHUNKS_A_TURN]
        total = np.cumsum(self._service.chunks.nbytes[part], dtype=np.int64)
        fit = max(1, int(np.searchsorted(total, BYTES_A_TURN, side="right")))
        running.todo = running.todo[fit:]
        return part[:fit]

    def _post(self, running: _Running, chunks: SavedChunks, slots: Int64s | None) -> None:
        job = Chunks(chunks, slots)
        running.in_flight.append(job)
        running.rescued_bytes += chunks.held_bytes if slots is None else 0
        self._progress().rescued_bytes = running.rescued_bytes
        self._writer.post(job)

    # --- what the writer tells ----------------------------------------------------------------------------------------

    def _handle(self, event: Event, now: float) -> None:
        running = self._running
        if isinstance(event, Swept):
            self._is_sweeping = False
            # Written anew with the next checkpoint, as if they were not there.
            self._service.chunks.forget_saved(event.slots, event.uids)
            return
        assert running is not None, f"{type(event).__name__} of no checkpoint"
        if isinstance(event, Ready):
            running.memory = event.memory
        elif isinstance(event, Wanted):
            running.todo, running.is_known = event.slots, True
            self._progress().chunks_total = len(event.slots)
        elif isinstance(event, Taken):
            job = running.in_flight.popleft()
            running.rescued_bytes -= job.chunks.held_bytes if job.slots is None else 0
            progress = self._progress()
            progress.rescued_bytes = running.rescued_bytes
            progress.chunks, progress.nbytes = progress.chunks + event.chunks, progress.nbytes + event.nbytes
        elif isinstance(event, Durable):
            self._durable(running, event, now)
        else:
            self._failed(running, event, now)

    def _durable(self, running: _Running, event: Durable, now: float) -> None:
        durability = self._service.durability
        duration_s, held_ms = now - running.began_at, running.held_s * 1000
        done = Checkpoint(
            event.generation, running.frozen_at, duration_s, held_ms, event.chunks, event.nbytes, running.items
        )
        durability.last, durability.last_error = done, None
        self._journal.checkpoint_is_durable()
        self._is_sweeping = True
        durability.checkpoints += 1
        durability.size_bytes = event.size_bytes
        log.info(
            "checkpoint %d: %d items; %d chunks and the index, %.1f MB, written in %.2f s, of which requests waited "
            "%.0f ms; the store takes %.1f MB",
            *(event.generation, running.items, event.chunks, event.nbytes / 1e6, duration_s, held_ms),
            event.size_bytes / 1e6,
        )
        for peer, id in running.askers:
            self._service.reply(peer, Result("checkpoint", id, durability.answer(done)))
        self._end(now, self._interval_s)

    def _failed(self, running: _Running, event: Failed, now: float) -> None:
        durability = self._service.durability
        durability.failures += 1
        durability.last_error = event.reason
        self._journal.checkpoint_failed(event.reason)
        log.error(
            "a checkpoint failed, and the one before it stands: %s; see to the disk: `replayd checkpoint` tries again",
            event.reason,
        )
        self._service.chunks.handover.end()
        for slots, uids in event.handed:
            self._service.chunks.forget_saved(slots, uids)
        for job in running.in_flight:
            if job.slots is not None:
                self._service.chunks.forget_saved(job.slots, job.chunks.uids)
        error = CheckpointFailed(f"the checkpoint failed: {event.reason}", path=durability.path, reason=event.reason)
        for peer, id in running.askers:
            self._service.reply(peer, FailedReply("checkpoint", id, error.code, error.message, error.detail))
        self._end(now, max(self._interval_s, RETRY_S))

    def _end(self, now: float, pause_s: float) -> None:
        self._running = None
        self._service.durability.running = None
        self._due = now + pause_s if self._interval_s else math.inf

    def _tell_progress(self, now: float) -> None:
        running = self._running
        if running is not None and now - running.told_at >= TELL_S:
            running.told_at = now
            progress = self._progress()
            log.info(
                "a checkpoint is being written: %s, %d of %d chunks, %.1f MB, for %.0f s",
                *(progress.phase, progress.chunks, progress.chunks_total, progress.nbytes / 1e6),
                now - running.began_at,
                extra={"event": "checkpoint", "passing": True},
            )

    def _progress(self) -> Progress:
        progress = self._service.durability.running
        assert progress is not None, "a checkpoint that runs is told of"
        return progress


class _Copies:
    """Copies arrays side by side into memory that is there."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory = memory
        self._used = 0

    def __call__(self, array: NDArray[Any]) -> NDArray[Any]:
        start = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        end = start + array.nbytes
        if end > len(self._memory) or not array.flags.c_contiguous:
            return array.copy()
        self._used = end
        target = self._memory[start:end]
        # As bytes: numpy copies rows of several fields one field after the other.
        target[:] = array.reshape(-1).view(np.uint8)
        return target.view(array.dtype).reshape(array.shape)


_ALIGNMENT = 64
