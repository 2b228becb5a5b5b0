"""The journal, as the loop sees it: what happens between two checkpoints, and which of it is on the disk.

Owns the numbers of entries, acknowledgements that are held back until what they promise is durable, and what happens
when the disk takes no more: then the chain is broken, and begins anew with the next checkpoint. What is replayed is in
`replaying`, the bytes in `journal_format`; the writer's thread does the writing.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from replayd.errors import NotDurable, PeerError
from replayd.header import Frames
from replayd.journal_format import READ, READING, REQUEST, TIME_PASSED, TOGETHER, Entries, state_sum
from replayd.messages import Peer, Reply, Result, Sampled
from replayd.service import Service

log = logging.getLogger("replayd")

Mode = Literal["off", "interval", "sync"]

GROUPS = 2
"""Handed to the writer in an interval, so that the disk has half of it to commit one: only then is no more than the
interval lost to a crash."""
POST_BYTES = 1 << 22
"""Handed to the writer before the interval is over: what is written early is not written late."""
BROKEN_AT = 4
"""Times `max_bytes` at which the journal is given up if no checkpoint comes: draws and updates go on being recorded."""
RETRY_S = 5.0
"""After a checkpoint that was to mend the journal and failed, the next attempt."""

RECORDED = frozenset(("insert", "sample", "withdraw", "update", "reset", "set", "keepalive", "close_stream", "peek"))
"""Operations that change the state: draws count, and the generator moves on; a stream that was heard lives longer; a
peek is one more reply that its peer has not read."""
PROMISES = frozenset(("insert", "update", "reset", "set"))
"""Those whose answer says that something will stay: held back in the mode `sync`."""


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """How much of what happened since the last checkpoint a crash may take."""

    mode: Mode = "off"
    """`off`: all of it. `interval`: what came in the last `interval_s`, or what the disk has not committed in half of
    that. `sync`: nothing that was acknowledged."""
    interval_s: float = 1.0
    max_bytes: int = 1 << 30
    """With so many since the last checkpoint the next one begins; with twice as many inserts must wait for it."""


class _Chain(Enum):
    BROKEN = "broken"
    """What happens is not recorded, or the journal has not begun."""
    BEGINNING = "beginning"
    """Recorded, and worth nothing before the checkpoint is durable that it goes on from."""
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class _Posted:
    began_at: float
    stop: int
    nbytes: int


class Journal:
    """Of one service. `post` hands entries to the writer; `next_entry` is the number of the first one.

    A `Recorder` of what the reception accepts.
    """

    def __init__(
        self, options: JournalOptions, service: Service, post: Callable[[Entries], None], next_entry: int
    ) -> None:
        self._options = options
        self._service = service
        self._post = post
        self._next = self._durable = next_entry
        """The number of the next entry, and of the first one that is not durable."""
        self._chain = _Chain.BROKEN
        self._broken_at = service.started_at
        self._retry_at = -math.inf
        self._committed = next_entry
        """All before it are on the disk, which means little while the chain is beginning."""
        self._open = Entries(0, next_entry)
        self._posted: deque[_Posted] = deque()
        self._posted_bytes = 0
        self._has_recorded = False
        self._then = service.started_at
        """The last end of a turn."""
        self._frozen = next_entry
        self._frozen_bytes = 0
        self._bytes = 0
        """Since the last durable checkpoint."""
        self._held: deque[tuple[int, Peer, Reply]] = deque()
        self._held_of: dict[Peer, int] = {}
        self._held_bytes = 0
        self._ready: list[tuple[Peer, Reply]] = []
        self.commits = self.failures = 0
        self.last_error: str | None = None
        if self.is_on:
            service.durability.journal = self.report

    @property
    def is_on(self) -> bool:
        """Whether anything is ever recorded."""
        return self._options.mode != "off"

    @property
    def records(self) -> bool:
        """Whether what happens is recorded now."""
        return self._chain is not _Chain.BROKEN

    # --- recording ----------------------------------------------------------------------------------------------------

    def refusal(self, op: str) -> PeerError | None:
        """Why a request must not be taken: it could not be kept, and its answer would say that it is."""
        if op not in PROMISES:
            return None
        if self._is_stuck:
            reason = self.last_error or "it has not begun"
            return NotDurable(f"the journal cannot be written: {reason}; what was acknowledged is safe", reason=reason)
        if op == "insert" and self._is_overfull:
            reason = f"it has {self._bytes / 1e6:.0f} MB, and the checkpoint that trims it is under way"
            return NotDurable(f"the journal is full: {reason}", reason=reason)
        return None

    @property
    def wants_inserts(self) -> bool:
        """False: what is pushed is better left unread than refused."""
        return not (self._is_stuck or self._is_overfull)

    @property
    def _is_stuck(self) -> bool:
        return self._options.mode == "sync" and self._chain is not _Chain.WHOLE

    @property
    def _is_overfull(self) -> bool:
        return self._chain is not _Chain.BROKEN and self._bytes >= 2 * self._options.max_bytes

    def record(self, peer: Peer, op: str, frames: Frames, now: float, *, goes_on: bool) -> None:
        """A message was accepted."""
        if op in RECORDED:
            self._add(now, TOGETHER if goes_on else REQUEST, peer, frames)
            self._has_recorded = True

    def record_read(self, peer: Peer, nbytes: int, replies: int) -> None:
        """A peer has read so much: that may let samples of it go on."""
        self._add(self._then, READ, peer, (READING.pack(nbytes, replies),))
        self._has_recorded = True

    def end_turn(self, now: float, *, is_due: bool) -> None:
        """Time has passed, which is an entry if anything came of it."""
        self._then = now
        if self._has_recorded or is_due:
            self._has_recorded = False
            self._add(now, TIME_PASSED, None, ())
        if self._options.mode == "sync" or self._open.nbytes >= POST_BYTES:
            self._post_open()

    def turn(self, now: float) -> float | None:
        """Hand over what is due; when the next time is, None if there is nothing."""
        if not len(self._open):
            return None
        due = self._open.times[0] + self._options.interval_s / GROUPS
        if now < due:
            return due
        self._post_open()
        return None

    def flush(self) -> None:
        """Hand over all there is."""
        self._post_open()

    def _add(self, now: float, kind: int, peer: Peer, frames: Frames) -> None:
        self._next += 1
        if self._chain is not _Chain.BROKEN:
            self._open.add(now, kind, peer, frames)

    def _post_open(self) -> None:
        entries = self._open
        if not len(entries):
            return
        entries.sum, entries.wall_s = state_sum(self._service), time.time()
        self._open = Entries(entries.epoch, self._next)
        self._posted.append(_Posted(entries.times[0], self._next, entries.nbytes))
        self._posted_bytes += entries.nbytes
        self._bytes += entries.nbytes
        self._post(entries)
        if self._bytes > BROKEN_AT * self._options.max_bytes:
            self._break(f"it has {self._bytes / 1e6:.0f} MB, and the checkpoint that would trim it is not done")

    # --- what the writer tells ----------------------------------------------------------------------------------------

    def committed(self, epoch: int, stop: int) -> None:
        """Entries before `stop` are on the disk."""
        if epoch != self._open.epoch or self._chain is _Chain.BROKEN:
            return
        while self._posted and self._posted[0].stop <= stop:
            self._posted_bytes -= self._posted.popleft().nbytes
        self.commits += 1
        self._committed = stop
        if self._chain is _Chain.WHOLE:
            self._became_durable(stop)

    def failed(self, epoch: int, reason: str) -> None:
        """Entries of this epoch are not on the disk, and none will be."""
        if epoch == self._open.epoch and self._chain is not _Chain.BROKEN:
            self._break(reason)

    def _break(self, reason: str) -> None:
        was, self._chain = self._chain, _Chain.BROKEN
        oldest = [posted.began_at for posted in self._posted] + self._open.times[:1]
        if was is _Chain.WHOLE:
            self._broken_at = oldest[0] if oldest else time.monotonic()
            self.failures += 1
            self._tell("the journal is broken", reason)
        elif was is _Chain.BEGINNING:
            self._retry_at = time.monotonic() + RETRY_S
            if self.last_error is None:
                self._tell("the journal cannot begin", reason)
        self.last_error = reason
        self._posted.clear()
        self._posted_bytes = 0
        self._open = Entries(self._open.epoch, self._next)
        # Nothing promises what is not durable; the rest need not wait for the disk to be mended.
        held, self._held = self._held, deque()
        self._held_of.clear()
        self._held_bytes = 0
        for number, peer, reply in held:
            if _promises(reply):
                self._hold(number, peer, reply)
            else:
                self._ready.append((peer, reply))

    def _tell(self, what: str, reason: str) -> None:
        log.error(
            "%s: %s; %s until a checkpoint is written, which is tried again and again: see to the disk",
            *(what, reason),
            "inserts are refused" if self._options.mode == "sync" else "a crash would lose all",
        )

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def wants_checkpoint(self, now: float) -> bool:
        """Whether there is to be one for the journal's sake."""
        if not self.is_on:
            return False
        return now >= self._retry_at and (self._chain is _Chain.BROKEN or self._is_full)

    @property
    def checkpoint_due(self) -> float | None:
        """When one will be wanted if nothing else happens."""
        return self._retry_at if self.is_on and (self._chain is _Chain.BROKEN or self._is_full) else None

    @property
    def _is_full(self) -> bool:
        return self._bytes - self._frozen_bytes >= self._options.max_bytes

    def freeze(self) -> dict[str, Any]:
        """A checkpoint takes its moment: what its index says of the journal. All before is in it, nothing after."""
        if self.is_on and self._chain is _Chain.BROKEN:
            self._chain = _Chain.BEGINNING
            self._open = Entries(self._open.epoch + 1, self._next)
        self._post_open()
        self._frozen, self._frozen_bytes = self._next, self._bytes
        service = self._service
        settings = {"lease_s": service.streams.lease_s, "max_bytes": service.capacity.max_bytes}
        return {"next": self._next, "version": service.version, **settings}

    def checkpoint_is_durable(self) -> None:
        """The checkpoint that was told `freeze` last is what a start would find, and what the journal goes on from."""
        self._bytes, self._frozen_bytes = self._bytes - self._frozen_bytes, 0
        if self._chain is _Chain.BEGINNING:
            self._chain = _Chain.WHOLE
            if self.last_error is not None:
                log.info("the journal goes on: a checkpoint is written")
            self.last_error = None
        reached = self._committed if self._chain is _Chain.WHOLE else self._frozen
        self._became_durable(max(reached, self._frozen))

    def checkpoint_failed(self, reason: str) -> None:
        """There is none."""
        self._frozen_bytes = 0
        self._retry_at = time.monotonic() + RETRY_S
        if self._chain is not _Chain.WHOLE:
            self._break(reason)

    # --- replies ------------------------------------------------------------------------------------------------------

    def released(self, replies: Sequence[tuple[Peer, Reply]]) -> Sequence[tuple[Peer, Reply]]:
        """What may be sent now, of these and of those held back; a peer gets its replies in their order."""
        if self._options.mode != "sync":
            return replies
        out, self._ready = self._ready, []
        for peer, reply in replies:
            is_early = self._durable < self._next and _promises(reply)
            if is_early or (peer in self._held_of and self._chain is not _Chain.BROKEN):
                self._hold(self._next, peer, reply)
            else:
                out.append((peer, reply))
        return out

    def _hold(self, number: int, peer: Peer, reply: Reply) -> None:
        self._held.append((number, peer, reply))
        self._held_of[peer] = self._held_of.get(peer, 0) + 1
        self._held_bytes += reply.shown.nbytes if isinstance(reply, Sampled) else 0

    def _became_durable(self, stop: int) -> None:
        self._durable = max(self._durable, stop)
        while self._held and self._held[0][0] <= self._durable:
            _, peer, reply = self._held.popleft()
            self._ready.append((peer, reply))
            self._held_bytes -= reply.shown.nbytes if isinstance(reply, Sampled) else 0
            self._held_of[peer] -= 1
            if not self._held_of[peer]:
                del self._held_of[peer]

    # --- how it is ----------------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether nothing is on its way to the disk."""
        return not len(self._open) and not self._posted

    @property
    def is_durable(self) -> bool:
        """Whether a crash would lose nothing."""
        return self._chain is _Chain.WHOLE and self.is_settled

    @property
    def pending_bytes(self) -> int:
        """Of what is on its way to the disk."""
        return self._open.nbytes + self._posted_bytes

    @property
    def waiting_bytes(self) -> int:
        """Of that, and of replies that are held back for it."""
        return 0 if self._chain is _Chain.BROKEN else self.pending_bytes + self._held_bytes

    def validate(self) -> None:
        """Assert that every count is what follows from what waits."""
        assert self._posted_bytes == sum(posted.nbytes for posted in self._posted), "bytes on their way are miscounted"
        held = [reply.shown.nbytes for _, _, reply in self._held if isinstance(reply, Sampled)]
        assert self._held_bytes == sum(held), "bytes of replies that are held back are miscounted"
        assert self._held_of == Counter(peer for _, peer, _ in self._held), "replies held back of peers are miscounted"

    def age_s(self, now: float) -> float:
        """How much of the last time a crash would lose."""
        if self._chain is not _Chain.WHOLE:
            return now - self._broken_at
        oldest = self._posted[0].began_at if self._posted else self._open.times[0] if len(self._open) else now
        return now - oldest

    def report(self, now: float) -> dict[str, Any]:
        """For `info`, plain values."""
        fields = {
            "mode": self._options.mode,
            "state": self._chain.value,
            "age_s": self.age_s(now),
            "commits": self.commits,
            "failures": self.failures,
            "size_bytes": self._bytes + self._open.nbytes,
            "pending_bytes": self.pending_bytes,
            "held_replies": len(self._held),
        }
        return fields if self.last_error is None else {**fields, "last_error": self.last_error}


def _promises(reply: Reply) -> bool:
    return isinstance(reply, Result) and reply.op in PROMISES
