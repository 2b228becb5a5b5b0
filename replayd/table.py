"""A table: items with their sampler, remover and rate limiter, and the two queues of requests the limiter has not let
through.

Owns who is in the table and who waits. Parking has one path: every insert and every sample is parked first, and `pump`
moves what may move; "at once" is parked for no time. Knows chunks only as things to hold, and no peers: the service
reads outcomes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from replayd.chunks import ChunkStore
from replayd.columns import CONTROL_CHARACTERS, SignatureColumn, Template
from replayd.draws import assemble, sendable
from replayd.errors import NeverGrantable, Timeout
from replayd.interned import Interned
from replayd.items import NOT_FOUND, Items
from replayd.limits import NAME_BYTES, PENDING_INSERTS
from replayd.messages import Float64s, Int64s, Sampled, Uint64s
from replayd.pending import Applied, Drawn, Outcome, PendingInsert, PendingSample
from replayd.rate_limiters import Queue, RateLimiter, Stack
from replayd.selectors import Fifo, Lifo, Selector
from replayd_client.specs import signature_of


class Table:
    """A named collection of items and its policies.

    `sampler` and `remover` are selectors (`replayd.selectors`), `rate_limiter` one of `replayd.rate_limiters`; each
    object serves one table. `max_size` items at most; the remover takes the excess after an insert. An item leaves when
    it has been sampled `max_times_sampled` times (0: never). `signature`: what items must look like, a nest of specs
    with `shape` (rows first, None for any size) and `dtype`; None for anything.
    """

    def __init__(
        self,
        name: str,
        sampler: Selector,
        remover: Selector,
        max_size: int,
        rate_limiter: RateLimiter,
        max_times_sampled: int = 0,
        signature: Any = None,
    ) -> None:
        if not name or len(name.encode()) > NAME_BYTES.value or CONTROL_CHARACTERS.search(name):
            raise ValueError(f"a table's name has 1 to {NAME_BYTES.value} bytes, no control characters; got {name!r}")
        if max_size < 1:
            raise ValueError(f"table {name!r}: max_size must be at least 1, got {max_size}")
        if sampler is remover:
            raise ValueError(f"table {name!r}: sampler and remover must be two objects")
        self.name = name
        self.sampler = sampler
        self.remover = remover
        self.max_size = max_size
        self.max_times_sampled = max(0, max_times_sampled)
        self.limiter = rate_limiter
        self.signature: Sequence[SignatureColumn] | None = (
            None if signature is None else [SignatureColumn(*column) for column in signature_of(signature)]
        )
        self.pending_inserts: deque[PendingInsert] = deque()
        self.pending_samples: deque[PendingSample] = deque()
        self.pending_items = 0
        self.unique_samples = 0
        self.evictions = 0
        rate_limiter.attach(name)

    @classmethod
    def queue(cls, name: str, max_size: int, signature: Any = None) -> Table:
        """First in, first out, each item once; inserts wait while it is full."""
        return cls(name, Fifo(), Fifo(), max_size, Queue(max_size), max_times_sampled=1, signature=signature)

    @classmethod
    def stack(cls, name: str, max_size: int, signature: Any = None) -> Table:
        """Last in, first out, each item once; inserts wait while it is full."""
        return cls(name, Lifo(), Lifo(), max_size, Stack(max_size), max_times_sampled=1, signature=signature)

    def bind(self, chunks: ChunkStore, templates: Interned[Template], rng: np.random.Generator) -> None:
        """Take the place in a service; a table serves one service in its life."""
        if hasattr(self, "items"):
            raise ValueError(f"table {self.name!r} already belongs to a server")
        self.items = Items()
        self._chunks = chunks
        self._templates = templates
        self._rng = rng
        # How many draws each slot has left before its item expires, and 1 everywhere for the remover, who wants no item
        # twice.
        self._room = np.zeros(self.items.capacity, np.int64)
        self._once = np.ones(self.items.capacity, np.int64)

    @property
    def size(self) -> int:
        return len(self.items)

    @property
    def is_congested(self) -> bool:
        """True when so much is parked here that PULL must be left unread."""
        return self.pending_items >= PENDING_INSERTS.value

    def park_insert(self, pending: PendingInsert) -> None:
        self.pending_inserts.append(pending)
        self.pending_items += len(pending)

    def park_sample(self, request: PendingSample) -> None:
        """Raises NeverGrantable when this table can never let so many pass at once."""
        largest = self.limiter.largest_grant(self.max_size, self.max_times_sampled or None)
        # Explicit deletes may have lifted the cursor beyond what the configuration alone can reach.
        if largest is not None and request.min_n > largest and self.limiter.sampleable(request.min_n) < request.min_n:
            raise NeverGrantable(
                f"table {self.name!r} can never grant {request.min_n} samples at once; its limit is {largest}",
                table=self.name,
                largest=largest,
                limiter=self.limiter.describe(),
            )
        self.pending_samples.append(request)

    def pump(self, now: float) -> list[Outcome]:
        """Serve both queues, oldest first, until neither can move."""
        outcomes: list[Outcome] = []
        while self._pump_inserts(now, outcomes) or self._pump_samples(outcomes):
            pass
        return outcomes

    def expire(self, request: PendingSample) -> Sampled:
        """The deadline of a parked request: what there is if it is first in line, Timeout otherwise."""
        first = self.pending_samples[0]
        self.pending_samples.remove(request)
        if request is first:
            granted = self.limiter.sampleable(request.n)
            reply = self._draw(request, granted, 1) if granted else None
            if reply is not None:
                return reply
        raise self._timeout(first, request)

    def update(self, keys: Uint64s, priorities: Float64s, deletes: Uint64s) -> tuple[int, int, Uint64s]:
        """Delete, then set priorities; (updated, deleted, missing keys)."""
        doomed = self.items.find(np.unique(deletes))
        gone = np.unique(deletes)[doomed == NOT_FOUND]
        doomed = doomed[doomed != NOT_FOUND]
        deleted_keys = self.items.key[doomed]
        self._remove(doomed)
        # The last priority of a key that is named twice stands.
        last = len(keys) - 1 - np.unique(keys[::-1], return_index=True)[1]
        keys, priorities = keys[last], priorities[last]
        slots = self.items.find(keys)
        here = slots != NOT_FOUND
        missing = keys[~here]
        missing = missing[~np.isin(missing, deleted_keys)]
        slots, priorities = slots[here], priorities[here]
        if len(slots):
            self.items.priority[slots] = priorities
            self.sampler.update(slots, priorities)
            self.remover.update(slots, priorities)
        return len(slots), len(doomed), np.union1d(missing, gone)

    def reset(self) -> int:
        """Remove every item and begin counting anew; parked requests stay."""
        removed = self.size
        self._remove(self.items.in_order())
        self.sampler.clear()
        self.remover.clear()
        self.limiter.reset()
        self.unique_samples = 0
        self.evictions = 0
        return removed

    def held_chunks(self) -> Int64s:
        """One entry for each holding of a chunk by an item or a parked insert."""
        live = self.items.in_order()
        held = [self._chunks.windows(self.items.chunk[live], self.items.chunks[live].astype(np.int64))]
        held += [self._chunks.windows(p.chunk[p.applied :], p.chunks[p.applied :]) for p in self.pending_inserts]
        return np.concatenate(held)

    def held_templates(self) -> Int64s:
        held = [self.items.template[self.items.in_order()].astype(np.int64)]
        held += [p.template[p.applied :] for p in self.pending_inserts]
        return np.concatenate(held)

    def validate(self) -> None:
        self.items.validate()
        live = self.items.in_order()
        priorities = self.items.priority[live]
        self.sampler.validate(live, priorities)
        self.remover.validate(live, priorities)
        assert self.size <= self.max_size, f"{self.size} items in a table of {self.max_size}"
        assert self.limiter.size == self.size, f"limiter counts {self.limiter.size} items, there are {self.size}"
        assert self.pending_items == sum(len(p) for p in self.pending_inserts), "pending items"
        assert all(len(p) for p in self.pending_inserts), "an insert is parked that has nothing left to do"
        if self.max_times_sampled:
            times = self.items.times_sampled[live]
            assert (times < self.max_times_sampled).all(), "an item outlived its samples"
            assert np.array_equal(self._room[live], self.max_times_sampled - times), "room is not what is left"
        if self.pending_inserts:
            assert not self.limiter.can_insert(1), "an insert waits that may pass"
        if self.pending_samples:
            head = self.pending_samples[0]
            may_shrink = self.max_times_sampled > 0 and head.min_n > 1
            assert may_shrink or self.limiter.sampleable(head.n) < head.min_n, "a sample waits that may pass"

    # --- pumping ------------------------------------------------------------------------------------------------------

    def _pump_inserts(self, now: float, outcomes: list[Outcome]) -> bool:
        moved = False
        while self.pending_inserts:
            pending = self.pending_inserts[0]
            n = self.limiter.insertable(len(pending))
            if n == 0:
                break
            self._apply(pending, n, now)
            outcomes.append(Applied(pending.ticket, n))
            if len(pending) == 0:
                self.pending_inserts.popleft()
            moved = True
        return moved

    def _pump_samples(self, outcomes: list[Outcome]) -> bool:
        moved = False
        while self.pending_samples:
            request = self.pending_samples[0]
            n = self.limiter.sampleable(request.n)
            reply = self._draw(request, n, request.min_n) if n >= request.min_n else None
            if reply is None:
                break
            self.pending_samples.popleft()
            outcomes.append(Drawn(request, reply))
            moved = True
        return moved

    def _apply(self, pending: PendingInsert, n: int, now: float) -> None:
        """The next n items of a parked message enter; the remover takes the excess."""
        part = slice(pending.applied, pending.applied + n)
        priority = pending.priority[part]
        slots = self.items.add(
            pending.keys[part],
            priority,
            pending.chunk[part],
            pending.chunks[part],
            pending.offset[part],
            pending.length[part],
            pending.template[part],
            now,
        )
        if self.items.capacity > len(self._room):
            self._room = np.zeros(self.items.capacity, np.int64)
            live = self.items.in_order()
            self._room[live] = self.max_times_sampled - self.items.times_sampled[live]
            self._once = np.ones(self.items.capacity, np.int64)
        self._room[slots] = self.max_times_sampled
        self.sampler.add(slots, priority)
        self.remover.add(slots, priority)
        pending.applied += n
        self.pending_items -= n
        self.limiter.did_insert(n)
        excess = self.size - self.max_size
        if excess > 0:
            victims, _ = self.remover.draw(excess, self._rng, self._once)
            self.evictions += excess
            self._remove(victims)

    def _draw(self, request: PendingSample, n: int, min_n: int) -> Sampled | None:
        """Draw up to n items, count them, and let those go whose last sample this was.

        None, and nothing changed, when the removals among these draws would bring the table below min_size_to_sample
        before `min_n` of them.
        """
        limited = self.max_times_sampled > 0
        slots, probabilities = self.sampler.draw(n, self._rng, self._room if limited else None)
        # Position of each draw among the draws of the same item, so that each knows how often the item had been drawn.
        times = self.items.times_sampled[slots] + _occurrence(slots) + 1
        removed_before = np.zeros(len(slots), np.int64)
        if limited:
            last = times == self.max_times_sampled
            removed_before[1:] = np.cumsum(last)[:-1]
            # A removal may leave too few items; the draws behind it have to wait.
            allowed = self.size - removed_before >= self.limiter.min_size_to_sample
            fit = int(np.argmin(allowed)) if not allowed.all() else len(slots)
        else:
            fit = len(slots)
        if fit < min_n:
            return None
        fit = min(fit, sendable(self.items, self._chunks, slots[:fit]))
        slots, probabilities, times = slots[:fit], probabilities[:fit], times[:fit]
        sizes = self.size - removed_before[:fit]
        reply = assemble(self.items, self._chunks, self._templates, slots, probabilities, times, sizes, request.id)
        self.unique_samples += int(np.count_nonzero(times == 1))
        # Of repeated slots the last, largest count stays.
        self.items.times_sampled[slots] = times
        self.limiter.did_sample(fit)
        if limited:
            self._room[slots] = self.max_times_sampled - times
            self._remove(slots[times == self.max_times_sampled])
        return reply

    def _remove(self, slots: Int64s) -> None:
        if len(slots) == 0:
            return
        self.sampler.remove(slots)
        self.remover.remove(slots)
        windows = self._chunks.windows(self.items.chunk[slots], self.items.chunks[slots].astype(np.int64))
        self._chunks.release(windows)
        self._templates.release(self.items.template[slots])
        self.items.remove(slots)
        self.limiter.did_delete(len(slots))

    # --- why one waits ------------------------------------------------------------------------------------------------

    def _timeout(self, first: PendingSample, request: PendingSample) -> Timeout:
        blocked_by = self.limiter.blocking_sample() or ("min_n" if request is first else "earlier_request")
        return Timeout(
            f"table {self.name!r} granted no sample in time: {self.explain(blocked_by)}",
            table=self.name,
            blocked_by=blocked_by,
            who_must_act="learners" if blocked_by == "earlier_request" else "writers",
            size=self.size,
            limiter=self.limiter.describe(),
        )

    def explain(self, term: str) -> str:
        """A blocked side's reason in words and numbers."""
        limiter = self.limiter
        if term == "min_size_to_sample":
            return f"it holds {self.size} of min_size_to_sample {limiter.min_size_to_sample} items; writers must insert"
        if term == "min_diff":
            return f"the cursor {limiter.cursor:g} may not go below min_diff {limiter.min_diff:g}; writers must insert"
        if term == "max_diff":
            return f"the cursor {limiter.cursor:g} may not pass max_diff {limiter.max_diff:g}; learners must sample"
        if term == "earlier_request":
            return "an earlier request waits in front of it"
        return "fewer can pass now than the first request asks for at least; writers must insert"

    def describe(self, now: float) -> dict[str, Any]:
        """State and counters for `info`; plain values."""
        limiter = self.limiter
        waiting: list[dict[str, Any]] = []
        if self.pending_inserts:
            term = limiter.blocking_insert() or "max_diff"
            waiting.append(
                {
                    "side": "insert",
                    "requests": len(self.pending_inserts),
                    "items": self.pending_items,
                    "waited_s": now - self.pending_inserts[0].since,
                    "blocked_by": term,
                    "why": self.explain(term),
                }
            )
        if self.pending_samples:
            term = limiter.blocking_sample() or "min_n"
            waiting.append(
                {
                    "side": "sample",
                    "requests": len(self.pending_samples),
                    "items": sum(request.n for request in self.pending_samples),
                    "waited_s": now - self.pending_samples[0].since,
                    "blocked_by": term,
                    "why": self.explain(term),
                }
            )
        return {
            "name": self.name,
            "sampler": self.sampler.describe(),
            "remover": self.remover.describe(),
            "size": self.size,
            "max_size": self.max_size,
            "max_times_sampled": self.max_times_sampled,
            "unique_samples": self.unique_samples,
            "evictions": self.evictions,
            "limiter": limiter.describe(),
            "waiting": waiting,
        }


def _occurrence(slots: Int64s) -> Int64s:
    """For each entry how many equal ones stand before it."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    begins = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    lengths = np.diff(np.concatenate((begins, [len(slots)])))
    occurrence = np.empty(len(slots), np.int64)
    occurrence[order] = np.arange(len(slots)) - np.repeat(begins, lengths)
    return occurrence
