"""A table: items with their sampler, remover and rate limiter, and the two queues of requests the limiter has not let
through.

Owns who is in the table and who waits. Parking has one path: every insert and every sample is parked first, and `pump`
moves what may move; "at once" is parked for no time. Knows chunks only as things to hold, and no peers: the service
reads outcomes.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from replayd.chunks import ChunkStore
from replayd.columns import SignatureColumn, Template
from replayd.draws import Pick
from replayd.errors import NeverGrantable
from replayd.hooks import Hooks, ItemsView, TableAccess
from replayd.interned import Interned
from replayd.items import NOT_FOUND, Items, last_of_each
from replayd.limits import PENDING_BYTES, PENDING_INSERTS
from replayd.maximum import Maximum
from replayd.messages import Float64s, Int64s, Sampled, Shown, Uint64s
from replayd.pending import Applied, Drawn, Outcome, PendingInsert, PendingSample, Stopwatch
from replayd.rate_limiters import Queue, RateLimiter, Stack
from replayd.selectors import Fifo, Lifo, Selector, from_description
from replayd.showing import Showing
from replayd.table_arguments import check_arguments
from replayd_client.specs import signature_of


class Table:
    """A named collection of items and its policies.

    `sampler` and `remover` are selectors (`replayd.selectors`), `rate_limiter` one of `replayd.rate_limiters`; each
    object serves one table. `max_size` items at most; the remover takes the excess after an insert. An item leaves when
    it has been sampled `max_times_sampled` times (0: never). `signature`: what items must look like, a nest of specs
    with `shape` (rows first, None for any size) and `dtype`; None for anything. `extensions`: see `replayd.extensions`.
    """

    def __init__(
        self,
        name: str,
        sampler: Selector,
        remover: Selector,
        max_size: int,
        rate_limiter: RateLimiter,
        max_times_sampled: int = 0,
        extensions: Sequence[Any] = (),
        signature: Any = None,
    ) -> None:
        max_size, max_times_sampled = operator.index(max_size), operator.index(max_times_sampled)
        check_arguments(name, sampler, remover, max_size, rate_limiter)
        self.name = name
        self.sampler = sampler
        self.remover = remover
        self.max_size = max_size
        self.max_times_sampled = max(0, max_times_sampled)
        self.limiter = rate_limiter
        self._extensions = tuple(extensions)
        self._signature = signature
        self.signature: Sequence[SignatureColumn] | None = (
            None if signature is None else [SignatureColumn(*column) for column in signature_of(signature)]
        )
        self.pending_inserts: deque[PendingInsert] = deque()
        self.pending_samples: deque[PendingSample] = deque()
        self.pending_items = 0
        self.pending_bytes = 0
        """Of the messages of which items are parked here; their items may share them with other tables."""
        self.paused: frozenset[str] = frozenset()
        """Sides (`insert`, `sample`) that an operator holds back."""
        self.unique_samples = 0
        self.evictions = 0
        self.evicted_unsampled = 0
        self.blocked = {"insert": Stopwatch(), "sample": Stopwatch()}
        rate_limiter.attach(name)

    def __repr__(self) -> str:
        return (
            f"Table(name={self.name!r}, sampler={self.sampler}, remover={self.remover}, max_size={self.max_size}, "
            f"rate_limiter={self.limiter}, max_times_sampled={self.max_times_sampled})"
        )

    @classmethod
    def queue(cls, name: str, max_size: int, extensions: Sequence[Any] = (), signature: Any = None) -> Table:
        """First in, first out, each item once; inserts wait while it is full."""
        return cls(name, Fifo(), Fifo(), max_size, Queue(max_size), 1, extensions, signature)

    @classmethod
    def stack(cls, name: str, max_size: int, extensions: Sequence[Any] = (), signature: Any = None) -> Table:
        """Last in, first out, each item once; inserts wait while it is full."""
        return cls(name, Lifo(), Lifo(), max_size, Stack(max_size), 1, extensions, signature)

    def replace(self, **changes: Any) -> Table:
        """A new, empty table like this one but for `changes`, which are arguments of Table.

        Sampler, remover and rate limiter are made anew from this one's settings, since each serves one table.
        """
        limiter = self.limiter
        arguments: dict[str, Any] = {
            "name": self.name,
            "sampler": from_description(self.sampler.describe()),
            "remover": from_description(self.remover.describe()),
            "max_size": self.max_size,
            "rate_limiter": RateLimiter(
                limiter.samples_per_insert, limiter.min_size_to_sample, limiter.min_diff, limiter.max_diff
            ),
            "max_times_sampled": self.max_times_sampled,
            "extensions": self._extensions,
            "signature": self._signature,
        }
        return Table(**{**arguments, **changes})

    def can_insert(self, n: int) -> bool:
        """Whether the limiter would let n more items in now; of the size limit it knows nothing. n < 1: ValueError."""
        return self.limiter.can_insert(n)

    def can_sample(self, n: int) -> bool:
        """Whether the limiter would grant n samples now; of max_times_sampled it knows nothing. n < 1: ValueError."""
        return self.limiter.can_sample(n)

    def bind(self, chunks: ChunkStore, templates: Interned[Template], rng: np.random.Generator) -> None:
        """Take the place in a service; a table serves one service in its life."""
        assert not self.is_bound, f"table {self.name!r} already belongs to a server"
        self.items = Items()
        self._chunks = chunks
        self._templates = templates
        self.showing = Showing(chunks)
        self._largest = Maximum()
        self.hooks = Hooks(TableAccess(self.name, self.items, chunks, templates), self._extensions)
        self._rng = rng
        # How many draws each slot has left before its item expires, and 1 everywhere for the remover, who wants no item
        # twice.
        self._room = np.zeros(self.items.capacity, np.int64)
        self._once = np.ones(self.items.capacity, np.int64)

    @property
    def is_bound(self) -> bool:
        return hasattr(self, "items")

    @property
    def size(self) -> int:
        return len(self.items)

    @property
    def max_priority(self) -> float | None:
        """The largest priority of the items there are; None without any."""
        return self._largest.get(lambda: self.items.priority[self.items.in_order()])

    @property
    def is_congested(self) -> bool:
        """True when so much is parked here that PULL must be left unread."""
        return self.pending_items >= PENDING_INSERTS.value or self.pending_bytes >= PENDING_BYTES.value

    def park_insert(self, pending: PendingInsert) -> None:
        self.pending_inserts.append(pending)
        self.pending_items += len(pending)
        self.pending_bytes += pending.ticket.nbytes

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
        self.blocked["insert"].runs(bool(self.pending_inserts), now)
        self.blocked["sample"].runs(bool(self.pending_samples), now)
        return outcomes

    def expire(self, request: PendingSample) -> Sampled | None:
        """The deadline of a parked request: what there is if it is first in line, None otherwise."""
        is_first = request is self.pending_samples[0]
        self.pending_samples.remove(request)
        granted = self.limiter.sampleable(request.n) if is_first and "sample" not in self.paused else 0
        return self._draw(request, granted, 1) if granted else None

    def update(self, keys: Uint64s, priorities: Float64s, deletes: Uint64s) -> tuple[int, int, Uint64s]:
        """Delete, then set priorities; (updated, deleted, missing keys)."""
        deletes = np.unique(deletes)
        doomed = self.items.find(deletes)
        gone = deletes[doomed == NOT_FOUND]
        doomed = doomed[doomed != NOT_FOUND]
        deleted_keys = self.items.key[doomed]
        self._remove(doomed)
        keys, priorities = last_of_each(keys, priorities)
        slots = self.items.find(keys)
        here = slots != NOT_FOUND
        missing = keys[~here]
        missing = missing[~np.isin(missing, deleted_keys)]
        slots, priorities = slots[here], priorities[here]
        if len(slots):
            self._set_priorities(slots, priorities)
            if self.hooks.wants("on_update"):
                self.hooks.call("on_update", self._view(slots))
        return len(slots), len(doomed), np.union1d(missing, gone)

    def set_priorities(self, keys: Uint64s, priorities: Float64s) -> None:
        """An extension's wish: like an update, but told to nobody."""
        keys, priorities = last_of_each(keys, priorities)
        slots = self.items.find(keys)
        here = slots != NOT_FOUND
        self._set_priorities(slots[here], priorities[here])

    def peek(self, order: str, n: int, keys: Uint64s, now: float) -> tuple[Shown, Float64s, Uint64s]:
        """Items with their ages and the keys that are not here; changes and counts nothing.

        By key if there are `keys`, else the first n `oldest`, `newest`, or of `highest` or `lowest` priority (which
        looks at every item; ties in any order).
        """
        missing = keys[:0]
        if len(keys):
            slots = self.items.find(keys)
            missing, slots = keys[slots == NOT_FOUND], slots[slots != NOT_FOUND]
        elif order in ("oldest", "newest"):
            slots = self.items.oldest(n) if order == "oldest" else self.items.newest(n)
        else:
            live = self.items.in_order()
            rank = self.items.priority[live] if order == "lowest" else -self.items.priority[live]
            best = np.argpartition(rank, n)[:n] if n < len(live) else np.arange(len(live))
            slots = live[best[np.argsort(rank[best], kind="stable")]]
        pick = Pick(self.items, self._chunks, slots).sendable()
        return pick.shown(self._templates, pick.rows["times_sampled"]), now - pick.rows["inserted_at"], missing

    def reset(self) -> int:
        """Remove every item and begin counting anew; parked requests stay."""
        removed = self.size
        if self.hooks.wants("on_reset"):
            self.hooks.call("on_reset")
        if removed:
            self._discard(self.items.in_order())
        self.sampler.clear()
        self.remover.clear()
        self.limiter.reset()
        self.showing.clear()
        self.unique_samples = 0
        self.evictions = 0
        self.evicted_unsampled = 0
        return removed

    def replace_sampler(self, sampler: Selector) -> None:
        """Draw by another rule from now on."""
        live = self.items.in_order()
        sampler.add(live, self.items.priority[live])
        self.sampler = sampler

    def resize(self, max_size: int, max_times_sampled: int) -> None:
        """Change both limits; items beyond them leave at once."""
        self.max_size = max_size
        self.max_times_sampled = max_times_sampled
        live = self.items.in_order()
        if max_times_sampled:
            self._remove(live[self.items.times_sampled[live] >= max_times_sampled])
            live = self.items.in_order()
            self._room[live] = max_times_sampled - self.items.times_sampled[live]
        self._evict_excess()

    def held_chunks(self) -> Int64s:
        """One entry for each holding of a chunk by an item or a parked insert."""
        live = self.items.in_order()
        held = [self._windows(live)]
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
        assert self.pending_bytes == sum(p.ticket.nbytes for p in self.pending_inserts), "pending bytes"
        assert all(len(p) for p in self.pending_inserts), "an insert is parked that has nothing left to do"
        if self.max_times_sampled:
            times = self.items.times_sampled[live]
            assert (times < self.max_times_sampled).all(), "an item outlived its samples"
            assert np.array_equal(self._room[live], self.max_times_sampled - times), "room is not what is left"
        self.showing.validate(self._windows(live))
        assert self.max_priority == (float(priorities.max()) if len(live) else None), "the largest priority is wrong"
        if self.pending_inserts and "insert" not in self.paused:
            assert not self.limiter.can_insert(1), "an insert waits that may pass"
        if self.pending_samples and "sample" not in self.paused:
            head = self.pending_samples[0]
            may_shrink = self.max_times_sampled > 0 and head.min_n > 1
            assert may_shrink or self.limiter.sampleable(head.n) < head.min_n, "a sample waits that may pass"

    # --- pumping ------------------------------------------------------------------------------------------------------

    def _pump_inserts(self, now: float, outcomes: list[Outcome]) -> bool:
        moved = False
        while self.pending_inserts and "insert" not in self.paused:
            pending = self.pending_inserts[0]
            n = self.limiter.insertable(len(pending))
            if n == 0:
                break
            self._apply(pending, n, now)
            outcomes.append(Applied(pending.ticket, n))
            if len(pending) == 0:
                self.pending_inserts.popleft()
                self.pending_bytes -= pending.ticket.nbytes
            moved = True
        return moved

    def _pump_samples(self, outcomes: list[Outcome]) -> bool:
        moved = False
        while self.pending_samples and "sample" not in self.paused:
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
        if pending.at_max:
            largest = self.max_priority
            priority = np.where(np.isnan(priority), 1.0 if largest is None else largest, priority)
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
        self._largest.add(priority)
        pending.applied += n
        self.pending_items -= n
        self.showing.add(self._windows(slots))
        self.limiter.did_insert(n)
        if self.hooks.wants("on_insert"):
            self.hooks.call("on_insert", self._view(slots))
        self._evict_excess()

    def _evict_excess(self) -> None:
        excess = self.size - self.max_size
        if excess > 0:
            victims, _ = self.remover.draw(excess, self._rng, self._once)
            self.evictions += excess
            self.evicted_unsampled += int(np.count_nonzero(self.items.times_sampled[victims] == 0))
            self._remove(victims)

    def _draw(self, request: PendingSample, n: int, min_n: int) -> Sampled | None:
        """Draw up to n items, count them, and let those go whose last sample this was.

        None, and nothing changed, when the removals among these draws would bring the table below min_size_to_sample
        before `min_n` of them.
        """
        limited, size = self.max_times_sampled > 0, self.size
        slots, probabilities = self.sampler.draw(n, self._rng, self._room if limited else None)
        # Position of each draw among the draws of the same item, so that each knows how often the item had been drawn.
        pick = Pick(self.items, self._chunks, slots)
        times = pick.rows["times_sampled"] + pick.draws_before() + 1
        removed_before = np.zeros(len(slots), np.int64)
        fit = len(slots)
        if limited:
            last = times == self.max_times_sampled
            removed_before[1:] = np.cumsum(last)[:-1]
            # A removal may leave too few items; the draws behind it have to wait.
            allowed = size - removed_before >= self.limiter.min_size_to_sample
            fit = fit if allowed.all() else int(np.argmin(allowed))
        if fit < min_n:
            return None
        pick = pick.first(fit).sendable()
        fit = len(pick)
        slots, times = pick.slots, times[:fit]
        shown = pick.shown(self._templates, times)
        self.unique_samples += int(np.count_nonzero(times == 1))
        # Of repeated slots the last, largest count stays.
        self.items.times_sampled[slots] = times
        self.limiter.did_sample(fit)
        if self.hooks.wants("on_sample"):
            self.hooks.call("on_sample", ItemsView(shown.keys.copy(), shown.priorities.copy(), times.copy()))
        if limited:
            self._room[slots] = self.max_times_sampled - times
            self._remove(slots[times == self.max_times_sampled])
        return Sampled(request.id, shown, probabilities[:fit], size - removed_before[:fit])

    def _view(self, slots: Int64s) -> ItemsView:
        return ItemsView(self.items.key[slots], self.items.priority[slots], self.items.times_sampled[slots])

    def _set_priorities(self, slots: Int64s, priorities: Float64s) -> None:
        self._largest.remove(self.items.priority[slots])
        self._largest.add(priorities)
        self.items.priority[slots] = priorities
        self.sampler.update(slots, priorities)
        self.remover.update(slots, priorities)

    def _remove(self, slots: Int64s) -> None:
        if len(slots) == 0:
            return
        if self.hooks.wants("on_delete"):
            self.hooks.call("on_delete", self._view(slots))
        self._discard(slots)

    def _discard(self, slots: Int64s) -> None:
        self.sampler.remove(slots)
        self.remover.remove(slots)
        windows = self._windows(slots)
        self.showing.remove(windows)
        self._largest.remove(self.items.priority[slots])
        self._chunks.release(windows)
        self._templates.release(self.items.template[slots])
        self.items.remove(slots)
        self.limiter.did_delete(len(slots))

    def _windows(self, slots: Int64s) -> Int64s:
        """Slots of the chunks that these items show, one entry for each item and chunk."""
        first: Int64s = self.items.chunk[slots]
        if self.items.longest == 1:
            return first
        return self._chunks.windows(first, self.items.chunks[slots].astype(np.int64))
