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

from replayd.blocked import Blocked
from replayd.capacity import EVICT, Capacity, ServerCapacity
from replayd.chunks import ChunkStore
from replayd.columns import SignatureColumn, Template
from replayd.draws import Draws, Pick, within_references
from replayd.histograms import SampleAges
from replayd.hooks import Hooks, ItemsView, TableAccess
from replayd.interned import Interned
from replayd.items import NOT_FOUND, Items
from replayd.limits import PENDING_BYTES, PENDING_INSERTS
from replayd.maximum import Maximum
from replayd.messages import Float64s, Int64s, Peer, Sampled, Shown, Uint64s
from replayd.pending import (
    ENTER_TOGETHER,
    Drawn,
    HeldBack,
    Outcome,
    PendingInsert,
    PendingSample,
    entered,
    next_to_enter,
)
from replayd.rate_limiters import Queue, RateLimiter, Stack
from replayd.room import Room
from replayd.selectors import Fifo, Lifo, Selector, from_description
from replayd.showing import Showing
from replayd.slots import all_true
from replayd.table_arguments import anew, check_arguments, check_extensions
from replayd.table_proof import prove
from replayd_client.specs import signature_of


class Table:
    """A named collection of items and its policies.

    `sampler` and `remover` are selectors (`replayd.selectors`), `rate_limiter` one of `replayd.rate_limiters`; each
    object serves one table. `max_size` items at most: once all items of a message are in, the remover takes the excess
    (Reverb's after each item). An item leaves when it was sampled `max_times_sampled` times (0: never). `signature`: a
    nest of specs with `shape` (rows first, None for any size) and `dtype`. `extensions`: see `replayd.extensions`.
    `max_bytes`: the most that its items may hold, compressed payload, 96 a chunk, 8 a column, 200 an item (None: no
    limit). At that limit, and at the server's, `when_full` decides: `evict` (the remover makes room), `block` (inserts
    wait) or `reject`.
    Raises TypeError for an argument of a wrong kind, ValueError for a value that makes no sense or is in use elsewhere.
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
        *,
        max_bytes: int | None = None,
        when_full: str = EVICT,
    ) -> None:
        max_size, max_times_sampled = operator.index(max_size), operator.index(max_times_sampled)
        check_arguments(name, sampler, remover, max_size, rate_limiter, max_bytes, when_full)
        self.name = name
        self.sampler, self.remover = sampler, remover
        self.max_size = max_size
        self.max_times_sampled = max(0, max_times_sampled)
        self.limiter = rate_limiter
        self.extensions = check_extensions(name, extensions)
        self._signature = signature
        self._max_bytes, self._when_full = max_bytes, when_full
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
        self.unique_samples = self.evictions = self.evicted_unsampled = 0
        self.blocked, self.sample_ages = Blocked(), SampleAges()
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

        Sampler, remover and limiter are made anew from this one's settings, extensions copied: each serves one table.
        """
        arguments: dict[str, Any] = {
            "name": self.name,
            "sampler": from_description(self.sampler.describe()),
            "remover": from_description(self.remover.describe()),
            "max_size": self.max_size,
            "rate_limiter": self.limiter.anew(),
            "max_times_sampled": self.max_times_sampled,
            "extensions": changes["extensions"] if "extensions" in changes else anew(self.name, self.extensions),
            "signature": self._signature,
            "max_bytes": self._max_bytes,
            "when_full": self._when_full,
        }
        return Table(**{**arguments, **changes})

    def can_insert(self, n: int) -> bool:
        """Whether the limiter would let n more items in now; of the size limit it knows nothing. n < 1: ValueError."""
        return self.limiter.can_insert(n)

    def can_sample(self, n: int) -> bool:
        """Whether the limiter would grant n samples now; of max_times_sampled it knows nothing. n < 1: ValueError."""
        return self.limiter.can_sample(n)

    def grantable(self, n: int) -> int:
        """How many of n samples could pass now: by the limiter, and by the draws that the items can take at most."""
        passing = self.limiter.sampleable(n)
        left = self.draws_left
        return passing if left is None else max(0, min(passing, left))

    @property
    def draws_left(self) -> int | None:
        """The most samples that the items here can give before they are too few; None: there is no end to them."""
        # The last ones that must stay have to keep one draw each.
        return self._room.left - (self.limiter.min_size_to_sample - 1) if self._room.expires else None

    def bind(self, chunks: ChunkStore, templates: Interned[Template], rng: Any, server: ServerCapacity) -> None:
        """Take the place in a service; a table serves one service in its life. `rng`: its numpy Generator."""
        assert not self.is_bound, f"table {self.name!r} already belongs to a server"
        self.items = Items()
        self._chunks, self._templates = chunks, templates
        self.showing, self.largest = Showing(chunks), Maximum()
        self.capacity = Capacity(self.items, chunks, self.showing, server, self._max_bytes, self._when_full)
        server.tables.append(self)
        self.hooks = Hooks(TableAccess(self.name, self.items, chunks, templates), self.extensions)
        self._rng: np.random.Generator = rng
        self._room = Room(self.items, self.max_times_sampled)

    @property
    def is_bound(self) -> bool:
        """Whether a server serves it, or has."""
        return hasattr(self, "items")

    @property
    def size(self) -> int:
        """Items in it, those that wait aside."""
        return len(self.items)

    @property
    def max_priority(self) -> float | None:
        """The largest priority of the items there are; None without any."""
        return self.largest.get(lambda: self.items.priority[self.items.in_order()])

    @property
    def is_congested(self) -> bool:
        """True when so much is parked here that PULL must be left unread."""
        return self.pending_items >= PENDING_INSERTS.value or self.pending_bytes >= PENDING_BYTES.value

    def park_insert(self, pending: PendingInsert) -> None:
        """Queue items, whose chunks and templates are held; `pump` lets them in."""
        self.pending_inserts.append(pending)
        self.pending_items += len(pending)
        self.pending_bytes += pending.ticket.nbytes

    def park_sample(self, request: PendingSample) -> None:
        """Raises NeverGrantable when this table can never let so many pass at once."""
        self.limiter.check_grant(request.min_n, self.max_size, self.max_times_sampled or None)
        self.pending_samples.append(request)

    def pump(self, now: float) -> list[Outcome]:
        """Serve both queues, oldest first, until neither can move."""
        outcomes: list[Outcome] = []
        while self._pump_inserts(now, outcomes) | self._pump_samples(now, outcomes):
            pass
        full = self.capacity.keeping_out(self.pending_inserts)
        self.blocked.note(bool(self.pending_inserts), bool(self.pending_samples), self.limiter, self.paused, full, now)
        return outcomes

    def expire(self, request: PendingSample, now: float) -> Sampled | None:
        """The deadline of a parked request: what there is if it is first in line, None otherwise."""
        is_first = request is self.pending_samples[0]
        self.pending_samples.remove(request)
        granted = self.limiter.sampleable(request.n - request.drawn) if is_first and "sample" not in self.paused else 0
        return self._draw(request, granted, 1, now) if granted or request.drawn else None

    def give_up_samples(self, peer: Peer) -> list[PendingSample]:
        """Forget the parked requests of this peer, None: all, and the draws kept for them."""
        given_up = [request for request in self.pending_samples if peer is None or request.peer == peer]
        for request in given_up:
            self._let_go(request)
            self.pending_samples.remove(request)
        return given_up

    def update(self, keys: Uint64s, priorities: Float64s, deletes: Uint64s) -> tuple[int, int, Uint64s]:
        """Delete, then set priorities, of a key named twice the last one; (updated, deleted, missing keys)."""
        deleted = missing = deletes
        if len(deletes):
            doomed = self.items.find(deletes := np.unique(deletes))
            deleted, missing = deletes[doomed != NOT_FOUND], deletes[doomed == NOT_FOUND]
            self._remove(doomed[doomed != NOT_FOUND])
        slots = self.items.find(keys)
        here = slots != NOT_FOUND
        if not all_true(here):
            absent = keys[~here]
            missing = np.union1d(absent[~np.isin(absent, deleted)], missing)
            slots, priorities = slots[here], priorities[here]
        slots = self._set_priorities(slots, priorities)
        if len(slots) and self.hooks.wants("on_update"):
            self.hooks.call("on_update", self._view(slots))
        return len(slots), len(deleted), missing

    def set_priorities(self, keys: Uint64s, priorities: Float64s) -> None:
        """An extension's wish: like an update, but told to nobody."""
        slots = self.items.find(keys)
        self._set_priorities(slots[slots != NOT_FOUND], priorities[slots != NOT_FOUND])

    def show(self, slots: Int64s) -> Shown:
        """Items as they are now, as many from the first on as one reply takes; nothing is counted."""
        slots = within_references(self.items, slots)
        return Pick(self.items, self._chunks, slots).sendable().shown(self._templates)

    def reset(self) -> int:
        """Remove every item and begin counting anew; parked requests stay, but not the draws kept for them."""
        removed = self.size
        for request in self.pending_samples:
            self._let_go(request)
        if self.hooks.wants("on_reset"):
            self.hooks.call("on_reset")
        if removed:
            self._discard(self.items.in_order())
        self.sampler.clear()
        self.remover.clear()
        self.limiter.reset()
        self.showing.clear()
        self.unique_samples = self.evictions = self.evicted_unsampled = 0
        return removed

    def replace_sampler(self, sampler: Selector) -> None:
        """Draw by another rule from now on."""
        live = self.items.in_order()
        sampler.add(live, self.items.priority[live])
        self.sampler = sampler

    def resize(self, max_size: int, max_times_sampled: int) -> None:
        """Change both limits; items beyond them, and beyond those of bytes, leave at once."""
        self.max_size = max_size
        self.max_times_sampled = max_times_sampled
        live = self.items.in_order()
        if max_times_sampled:
            self._remove(live[self.items.times_sampled[live] >= max_times_sampled])
        self._room.change(max_times_sampled)
        self._make_room()

    def validate(self) -> None:
        """Assert that every count is what follows from items and parked requests."""
        prove(self)

    # --- pumping ------------------------------------------------------------------------------------------------------

    def _pump_inserts(self, now: float, outcomes: list[Outcome]) -> bool:
        moved = False
        # A sample that waits is served after the first message that suffices, whatever came with that.
        while self.pending_inserts and "insert" not in self.paused and not (moved and self.pending_samples):
            # With a remover that may choose among the newest the first must be in before the second comes.
            room = ENTER_TOGETHER if isinstance(self.remover, Fifo) else self.max_size - self.size
            group = next_to_enter(self.pending_inserts, 0 if self.extensions or self.pending_samples else room)
            group, entering = self.capacity.entering(group, isinstance(self.remover, Fifo))
            n = self.capacity.fitting(entering, self.limiter.insertable(len(entering)))
            if n == 0:
                break
            self.enter(entering, n, now)
            outcomes += entered(group, n)
            self.pending_items -= n
            while self.pending_inserts and len(self.pending_inserts[0]) == 0:
                self.pending_bytes -= self.pending_inserts.popleft().ticket.nbytes
            moved = True
        return moved

    def _pump_samples(self, now: float, outcomes: list[Outcome]) -> bool:
        moved = False
        while self.pending_samples and "sample" not in self.paused:
            request = self.pending_samples[0]
            if request.must_wait:
                outcomes.append(HeldBack(self.pending_samples.popleft(), self.name))
                continue
            n = self.grantable(request.n - request.drawn)
            if n < request.min_n - request.drawn:
                break
            reply = self._draw(request, n, request.min_n, now)
            moved = True
            if reply is not None:
                self.pending_samples.popleft()
                outcomes.append(Drawn(request, reply))
        return moved

    def enter(self, pending: PendingInsert, n: int, now: float) -> None:
        """The next n items of a parked message enter; the remover takes the excess."""
        part = slice(pending.applied, pending.applied + n)
        priority = pending.priority[part]
        if pending.at_max:
            largest = self.max_priority
            priority = np.where(np.isnan(priority), 1.0 if largest is None else largest, priority)
        views = (pending.chunk, pending.chunks, pending.offset, pending.length, pending.template)
        chunk, chunks, offset, length, template = (column[part] for column in views)
        slots = self.items.add(pending.keys[part], priority, chunk, chunks, offset, length, template, now)
        self._room.enter(slots)
        self.sampler.add(slots, priority)
        self.remover.add(slots, priority)
        self.largest.add(priority)
        self.showing.add(self._windows(slots))
        self.limiter.did_insert(n)
        if self.hooks.wants("on_insert"):
            self.hooks.call("on_insert", self._view(slots))
        self._make_room()

    def _make_room(self) -> None:
        excess = self.size - self.max_size
        if excess > 0:
            self.evict(self.next_to_leave(excess))
        self.capacity.make_room(self)

    def next_to_leave(self, n: int) -> Int64s:
        """Slots of n items, of which there are as many, in the order in which the remover takes them."""
        return self.remover.draw(n, self._rng, self._room.of_remover)[0]

    def evict(self, slots: Int64s) -> None:
        """Remove items that the remover has chosen."""
        self.evictions += len(slots)
        self.evicted_unsampled += int(np.count_nonzero(self.items.times_sampled[slots] == 0))
        self._remove(slots)

    def _draw(self, request: PendingSample, n: int, min_n: int, now: float) -> Sampled | None:
        """Draw up to n items for a request; None if there are fewer than `min_n` with those that were kept for it.

        So it is when items that expire by these draws leave too few for the next. What was drawn is kept for the
        request then: to draw anew until a batch fits would favour batches that expire few items.
        """
        new = self._drawn(n)
        all = new if request.kept is None else request.kept.and_then(new)
        draws = all.sendable()
        new = new.first(len(draws) - request.drawn)
        reply = None
        if len(draws) >= min_n or len(draws) < len(all) or draws.pick.is_full:
            reply = Sampled(request.id, draws.pick.shown(self._templates), draws.probabilities, draws.table_sizes)
            request.quota.add(reply.shown.nbytes)
            self._let_go(request)
        else:
            request.kept = draws
            new.pick.hold(self._templates)
        self._count(new.pick, now)
        return reply

    def _drawn(self, n: int) -> Draws:
        """Up to n draws: as many as can be made before the removals they cause leave too few items. None is counted."""
        slots, probabilities = self.sampler.draw(n, self._rng, self._room.of_sampler if self._room.expires else None)
        pick = Pick(self.items, self._chunks, within_references(self.items, slots))
        pick.count_draws()
        sizes, probabilities = np.full(len(pick), self.size), probabilities[: len(pick)]
        if not self._room.expires:
            return Draws(pick, probabilities, sizes)
        sizes[1:] -= np.cumsum(pick.rows["times_sampled"] == self.max_times_sampled)[:-1]
        return Draws(pick, probabilities, sizes).first(int(np.count_nonzero(sizes >= self.limiter.min_size_to_sample)))

    def _count(self, drawn: Pick, now: float) -> None:
        """Count draws, and let those items go whose last one is among them."""
        slots, times = drawn.slots, drawn.rows["times_sampled"]
        self.unique_samples += int(np.count_nonzero(times == 1))
        self.sample_ages.add(drawn.rows["inserted_at"], now)
        self.showing.staleness.draw(drawn.rows["chunk"])
        # Of repeated slots the last, largest count stays.
        self.items.times_sampled[slots] = times
        self._room.draw(slots, times)
        self.limiter.did_sample(len(slots))
        if self.hooks.wants("on_sample"):
            self.hooks.call("on_sample", ItemsView(drawn.rows["key"], drawn.rows["priority"], times))
        if self._room.expires:
            self._remove(slots[times == self.max_times_sampled])

    def _let_go(self, request: PendingSample) -> None:
        """Keep no draws for a request any more."""
        kept, request.kept = request.kept, None
        if kept is not None:
            kept.pick.release(self._templates)

    def _view(self, slots: Int64s) -> ItemsView:
        return ItemsView(self.items.key[slots], self.items.priority[slots], self.items.times_sampled[slots])

    def _set_priorities(self, slots: Int64s, priorities: Float64s) -> Int64s:
        slots, priorities = self.items.each_once(slots, priorities)
        self.largest.remove(self.items.priority[slots])
        self.largest.add(priorities)
        self.items.priority[slots] = priorities
        self.sampler.update(slots, priorities)
        self.remover.update(slots, priorities)
        return slots

    def _remove(self, slots: Int64s) -> None:
        if len(slots) == 0:
            return
        if self.hooks.wants("on_delete"):
            self.hooks.call("on_delete", self._view(slots))
        self._discard(slots)

    def _discard(self, slots: Int64s) -> None:
        self.sampler.remove(slots)
        self.remover.remove(slots)
        windows = np.sort(self._windows(slots))  # Sorted once, where each who counts them would.
        self.showing.remove(windows)
        self.largest.remove(self.items.priority[slots])
        self._chunks.release(windows)
        self._templates.release(self.items.template[slots])
        self._room.leave(slots)
        self.items.remove(slots)
        self.limiter.did_delete(len(slots))

    def _windows(self, slots: Int64s) -> Int64s:
        """Slots of the chunks that these items show, one entry for each item and chunk."""
        first: Int64s = self.items.chunk[slots]
        if self.items.longest == 1:
            return first
        return self._chunks.windows(first, self.items.chunks[slots].astype(np.int64))
