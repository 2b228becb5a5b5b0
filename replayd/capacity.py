"""Capacity in bytes: what the items of a table hold, the most that they may, and who makes room.

What counts is the payload that items show, CHUNK_BYTES a chunk and COLUMN_BYTES for each of its columns, each chunk
once for a table and once for the server, and ITEM_BYTES for each item. Payload that only a writer's lease or a parked
insert holds is counted by neither: it goes by itself, and evicting items would not free it. Owns the limits; knows no
peers and no limiter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from replayd.chunks import ChunkStore
from replayd.errors import LimitExceeded, TableFull
from replayd.items import Items
from replayd.limits import CHUNK_BYTES, COLUMN_BYTES, ITEM_BYTES
from replayd.messages import Int64s
from replayd.pending import PendingInsert, together
from replayd.rate_limiters import RateLimiter
from replayd.showing import Showing
from replayd.slots import occurrence

EVICT, BLOCK, REJECT = WHEN_FULL = ("evict", "block", "reject")
"""What a table does with an insert for which there is no room: its remover makes some, it waits, or it is refused."""

BY_TABLE, BY_SERVER = "max_bytes", "server_max_bytes"
"""Whose limit there is no room in."""


class Evictable(Protocol):
    """A table, as far as room is made in it."""

    name: str
    capacity: Capacity
    pending_inserts: deque[PendingInsert]
    paused: frozenset[str]
    limiter: RateLimiter

    @property
    def size(self) -> int:
        """Items in it."""

    def next_to_leave(self, n: int) -> Int64s:
        """Slots of up to n items in the order in which the remover takes them."""

    def evict(self, slots: Int64s) -> None:
        """Remove these items."""


class ServerCapacity:
    """The limit of all tables together, None for none."""

    def __init__(self, chunks: ChunkStore, max_bytes: int | None) -> None:
        if max_bytes is not None and max_bytes < 1:
            raise ValueError(f"the server's max_bytes must be at least 1, got {max_bytes}")
        self.max_bytes = max_bytes
        self.tables: list[Evictable] = []
        self._chunks = chunks
        self._stirred: dict[str, None] = {}

    @property
    def nbytes(self) -> int:
        """What the items of all tables hold, each chunk counted once."""
        chunks = self._chunks
        counted = chunks.shown_bytes + CHUNK_BYTES * chunks.shown_chunks + COLUMN_BYTES * chunks.shown_columns
        return counted + ITEM_BYTES * sum(table.size for table in self.tables)

    @property
    def transit_bytes(self) -> int:
        """Payload that no item shows: held for writers who may still refer to it, and by inserts that wait."""
        return self._chunks.bytes_in_use - self._chunks.shown_bytes

    def make_room(self) -> None:
        """Evict until all fits, or no table that evicts has items: always from the one that holds most."""
        if self.max_bytes is None:
            return
        while (excess := self.nbytes - self.max_bytes) > 0:
            givers = [table for table in self.tables if table.capacity.when_full == EVICT and table.size]
            if not givers:
                return
            # Of several that hold as much the first one gives.
            largest = max(givers, key=lambda table: table.capacity.nbytes)
            at = givers.index(largest)
            rivals = [table.capacity.nbytes + (n < at) for n, table in enumerate(givers) if n != at]
            _evict(largest, excess, of_server=True, stays_above=max(rivals, default=None))
            self._stirred[largest.name] = None

    def take_stirred(self) -> list[str]:
        """Names of the tables that may move since the last time: items were taken from them, or there is room now for
        an insert that waits there.
        """
        stirred, self._stirred = self._stirred, {}
        if self.max_bytes is not None:
            stirred.update((table.name, None) for table in self.tables if _has_room_for_next(table))
        return list(stirred)

    def validate(self, shown: Sequence[Int64s]) -> None:
        """`shown`: of each table the chunks that its items show, one entry for each item and chunk."""
        counts = np.zeros(len(self._chunks.shown), np.int64)
        for slots in shown:
            counts[np.unique(slots)] += 1
        assert np.array_equal(counts, self._chunks.shown), "tables that show a chunk are miscounted"
        live = np.flatnonzero(counts)
        assert len(live) == self._chunks.shown_chunks, "chunks that count as shown are miscounted"
        nbytes = int(self._chunks.nbytes[live].sum())
        assert nbytes == self._chunks.shown_bytes, f"{self._chunks.shown_bytes} bytes count as shown, {nbytes} are"
        columns = int(self._chunks.columns[live].sum())
        assert columns == self._chunks.shown_columns, "columns of the chunks that count as shown are miscounted"
        if self.max_bytes is not None and self.nbytes > self.max_bytes:
            fat = [t for t in self.tables if t.capacity.when_full == EVICT and t.size]
            assert not fat, f"{self.nbytes} bytes of at most {self.max_bytes}, and there are items to evict"


def _has_room_for_next(table: Evictable) -> bool:
    """Whether an insert waits that nothing holds back."""
    return (
        bool(table.pending_inserts)
        and "insert" not in table.paused
        and table.limiter.can_insert(1)
        and table.capacity.keeping_out(table.pending_inserts) is None
    )


@dataclass(frozen=True, slots=True)
class Mark:
    """What a table was some time ago."""

    size: int
    nbytes: int
    deletes: int


class Capacity:
    """What one table holds in bytes, `max_bytes` of which are the most it may (None: no limit), and its policy."""

    def __init__(
        self,
        items: Items,
        chunks: ChunkStore,
        showing: Showing,
        server: ServerCapacity,
        max_bytes: int | None,
        when_full: str,
    ) -> None:
        self.max_bytes = max_bytes
        self.when_full = when_full
        self.server = server
        self.mark: Mark | None = None
        """From which on growth tells how large items are; `filling` makes it."""
        self._items = items
        self._chunks = chunks
        self._showing = showing

    @property
    def nbytes(self) -> int:
        """What its items hold: their chunks with what they count, each once, and ITEM_BYTES for each item."""
        chunks = self._showing
        counted = chunks.nbytes + CHUNK_BYTES * chunks.size + COLUMN_BYTES * chunks.columns
        return counted + ITEM_BYTES * len(self._items)

    @property
    def largest_item_bytes(self) -> int | None:
        """The most that an item may hold by itself, None: anything."""
        return min((limit for limit in (self.max_bytes, self.server.max_bytes) if limit is not None), default=None)

    # --- entering -----------------------------------------------------------------------------------------------------

    def entering(self, group: list[PendingInsert], is_fifo: bool) -> tuple[list[PendingInsert], PendingInsert]:
        """Of these inserts those that may enter together, and they as one: all, or the first alone where items must
        leave for them. `is_fifo`: the oldest leave first.
        """
        whole = together(group)
        if len(group) > 1 and self.when_full == EVICT and not self.takes_together(whole, is_fifo):
            return group[:1], group[0]
        return group, whole

    def takes_together(self, whole: PendingInsert, is_fifo: bool) -> bool:
        """Whether all of several messages can enter at once, and leave what they would one after the other."""
        # Who leaves first for the first of them may be one of the others, or in another table; not so if it is the
        # oldest of the only table concerned.
        is_alike = is_fifo and (self.server.max_bytes is None or len(self.server.tables) == 1)
        if self.when_full == EVICT and is_alike:
            return True
        return all(self._fitting(whole.chunk, whole.chunks, of) == len(whole) for of in (False, True))

    def fitting(self, entering: PendingInsert, n: int) -> int:
        """How many of the next n items have room; all where the table evicts."""
        if self.when_full == EVICT:
            return n
        next = slice(entering.applied, entering.applied + n)
        first, counts = entering.chunk[next], entering.chunks[next]
        return min(self._fitting(first, counts, of_server) for of_server in (False, True))

    def keeping_out(self, parked: Sequence[PendingInsert]) -> str | None:
        """Whose limit keeps the first of these out, the rate limiter aside: BY_TABLE or BY_SERVER; None: neither."""
        if self.when_full == EVICT or not parked:
            return None
        next = slice(parked[0].applied, parked[0].applied + 1)
        first, counts = parked[0].chunk[next], parked[0].chunks[next]
        if self._fitting(first, counts, of_server=False) == 0:
            return BY_TABLE
        return BY_SERVER if self._fitting(first, counts, of_server=True) == 0 else None

    def _fitting(self, first: Int64s, counts: Int64s, of_server: bool) -> int:
        limit, held = (self.server.max_bytes, self.server.nbytes) if of_server else (self.max_bytes, self.nbytes)
        if limit is None or len(first) == 0:
            return len(first)
        chunks = self._chunks.windows(first, counts)
        is_new = (self._chunks.shown[chunks] if of_server else self._showing.holders(chunks)) == 0
        is_new &= occurrence(chunks) == 0
        spent = _running(np.where(is_new, self._counted(chunks), 0), counts)
        return int(np.searchsorted(spent, limit - held, side="right"))

    def check_item(self, name: str, nbytes: int) -> None:
        """Raise LimitExceeded if an item whose chunks count so much can never be in the table of this name."""
        largest = self.largest_item_bytes
        if largest is not None and nbytes + ITEM_BYTES > largest:
            raise LimitExceeded(
                f"an item whose chunks count {nbytes} bytes, and {ITEM_BYTES} for itself, is more than the {largest} "
                f"bytes that table {name!r} may hold (max_bytes)",
                limit="max_bytes",
                value=largest,
                got=nbytes + ITEM_BYTES,
                table=name,
            )

    def check_windows(self, name: str, first: Int64s, counts: Int64s) -> None:
        """The same two checks for items over chunks that are stored, given by their windows."""
        if self.largest_item_bytes is None:
            return
        chunks = self._chunks.windows(first, counts)
        each = np.add.reduceat(self._counted(chunks), np.cumsum(counts) - counts)
        self.check_item(name, int(each.max()))
        once = np.unique(chunks)
        nbytes = self._counted(once)
        own_bytes = int(nbytes[self.shows_not(once)].sum())
        self.check_room(name, len(first), own_bytes, int(nbytes[self._chunks.shown[once] == 0].sum()))

    def shows_not(self, chunks: Int64s) -> NDArray[np.bool_]:
        """Of these chunks those that no item here shows."""
        unshown: NDArray[np.bool_] = self._showing.holders(chunks) == 0
        return unshown

    def check_room(self, name: str, items: int, own_bytes: int, server_bytes: int) -> None:
        """Raise TableFull if the table rejects what has no room, and so many items have none whose chunks count so
        much: those that this table, or that no table, shows yet.
        """
        if self.when_full != REJECT:
            return
        for limit, held, new, whose in (
            (self.max_bytes, self.nbytes, own_bytes, BY_TABLE),
            (self.server.max_bytes, self.server.nbytes, server_bytes, BY_SERVER),
        ):
            needed = new + ITEM_BYTES * items
            if limit is not None and held + needed > limit:
                raise TableFull(
                    f"table {name!r} has no room for {needed} bytes: {held} of at most {limit} are in use "
                    f"({whose}), and it rejects what does not fit",
                    table=name,
                    limit=whose,
                    value=limit,
                    held=held,
                    needed=needed,
                )

    # --- leaving ------------------------------------------------------------------------------------------------------

    def make_room(self, table: Evictable) -> None:
        """Evict what the limits do not allow any more, where the policy is to evict: here, and then anywhere."""
        if self.when_full == EVICT and self.max_bytes is not None:
            while (excess := self.nbytes - self.max_bytes) > 0:
                _evict(table, excess, of_server=False, stays_above=None)
        self.server.make_room()

    def freed(self, slots: Int64s, of_server: bool) -> Int64s:
        """What would be free after the first, the first two, … of these items have left the table."""
        counts = self._items.chunks[slots].astype(np.int64)
        chunks = self._chunks.windows(self._items.chunk[slots], counts)
        # The last of the items here that show a chunk frees it; for the server only if no other table shows it.
        is_last = occurrence(chunks) + 1 == self._showing.holders(chunks)
        if of_server:
            is_last &= self._chunks.shown[chunks] == 1
        return _running(np.where(is_last, self._counted(chunks), 0), counts)

    def _counted(self, chunks: Int64s) -> Int64s:
        return with_overhead(self._chunks.nbytes[chunks], self._chunks.columns[chunks])


def with_overhead(nbytes: NDArray[np.integer[Any]], columns: NDArray[np.integer[Any]]) -> Int64s:
    """What chunks of so much payload in so many columns count, each by itself."""
    return nbytes.astype(np.int64) + CHUNK_BYTES + COLUMN_BYTES * columns.astype(np.int64)


def _evict(table: Evictable, excess: int, *, of_server: bool, stays_above: int | None) -> None:
    """Let the remover take as few items as free so many bytes, or leave the table with less than `stays_above`; at
    least one, and fewer where the next ones must be looked for. There are items.
    """
    held = table.capacity.nbytes
    victims = table.next_to_leave(min(table.size, max(1, -(-excess * table.size // held)) + _MORE))
    enough = int(np.searchsorted(table.capacity.freed(victims, of_server), excess)) + 1
    if stays_above is not None:
        left = held - table.capacity.freed(victims, of_server=False)
        enough = min(enough, int(np.count_nonzero(left >= stays_above)) + 1)
    table.evict(victims[:enough])


_MORE = 8
"""Items that are looked at beyond those which suffice on average: they differ in size."""


def _running(nbytes: Int64s, counts: Int64s) -> Int64s:
    """For each item what it and those before it cost: what its chunks count, `counts` of them, and ITEM_BYTES."""
    spent = np.cumsum(nbytes)
    ends = np.cumsum(counts)
    each: Int64s = spent[ends - 1] + ITEM_BYTES * np.arange(1, len(counts) + 1)
    return each
