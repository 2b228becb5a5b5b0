"""Items of one table as a struct of arrays, and the index from keys to slots.

Owns the arrays. Keys enter in rising order (a table's inserts are applied in the order of their acceptance), so the
index is an append-only sorted log: a look-up is one binary search for a whole batch, and removed items are merely found
to be gone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replayd.messages import Float64s, Int64s, Uint64s
from replayd.slots import Slots, all_true, grown
from replayd.state import State

NOT_FOUND = -1
NO_KEY = 0


KEY_SHARD_SHIFT = 52
"""A key is 12 bits of shard id, then a counter."""

FIRST_KEY = 1
"""Where the counter begins if nothing else is said; 0 is no key."""

EPOCH_NS = 1_767_225_600 * 10**9
"""2026-01-01 in UTC."""

KEYS_A_SECOND_SHIFT = 22
FIRST_KEYS = 15 << 48
"""Counters at which a server may begin: those of the first 32 years since then, which leaves 2^48 for it to draw."""


def first_key_at(wall_ns: int) -> int:
    """Where the counter of a server begins that starts at `wall_ns` (UTC) and knows of none before it.

    The time, in units of 2^-22 s: no earlier server of that clock has come so far, unless it drew 4 million keys a
    second all its life.
    """
    since_epoch = max(wall_ns - EPOCH_NS, 0) << KEYS_A_SECOND_SHIFT
    return FIRST_KEY + since_epoch // 10**9 % FIRST_KEYS


class Keys:
    """Item keys, drawn once and never again; `first` is the counter of the first one."""

    def __init__(self, shard: int, first: int) -> None:
        self._next = (shard << KEY_SHARD_SHIFT) + first

    def take(self, n: int) -> int:
        """The first of n consecutive new keys."""
        first = self._next
        self._next += n
        return first

    def skip_to(self, key: int) -> None:
        """Draw none before this one any more."""
        self._next = max(self._next, key)

    def dump(self) -> State:
        """The next key, so that none is ever drawn again."""
        return {"next": self._next}

    def load(self, state: State) -> None:
        """Go on where the dumped ones were."""
        self._next = state["next"]


class Items:
    """Items by slot; `len` counts them.

    Arrays: `key` u64, `priority` f64, `times_sampled` i64, `chunk` i64 (slot of the window's first chunk),
    `inserted_at` f64 (seconds), `chunks`, `offset`, `length` and `template` i32.
    """

    def __init__(self) -> None:
        self._slots = Slots()
        capacity = self._slots.capacity
        self._rows = np.zeros(capacity, _ROW)
        self._name_columns()
        self._log_keys = np.zeros(capacity, np.uint64)
        self._log_slots = np.zeros(capacity, np.int64)
        self._logged = 0
        self._place = np.zeros(capacity, np.int64)
        self.longest = 1
        """Chunks that the window of an item spans at most; as a rule 1, and then much is simpler."""

    def _name_columns(self) -> None:
        rows = self._rows
        self.key: Uint64s = rows["key"]
        self.priority: Float64s = rows["priority"]
        self.times_sampled: Int64s = rows["times_sampled"]
        self.chunk: Int64s = rows["chunk"]
        self.inserted_at: Float64s = rows["inserted_at"]
        self.chunks: NDArray[np.int32] = rows["chunks"]
        self.offset: NDArray[np.int32] = rows["offset"]
        self.length: NDArray[np.int32] = rows["length"]
        self.template: NDArray[np.int32] = rows["template"]

    def __len__(self) -> int:
        return self._slots.used

    @property
    def capacity(self) -> int:
        """Slots there are, used or not; the arrays have as many entries."""
        return self._slots.capacity

    def add(
        self,
        keys: Uint64s,
        priority: Float64s,
        chunk: Int64s,
        chunks: Int64s,
        offset: Int64s,
        length: Int64s,
        template: Int64s,
        now: float,
    ) -> Int64s:
        """Store new items; `chunk` is the slot of each window's first chunk. Their slots."""
        self.longest = max(self.longest, int(chunks[chunks.argmax()]))
        slots = self._slots.take(len(keys))
        if self.capacity > len(self._rows):
            self._rows = grown(self._rows, self.capacity)
            self._name_columns()
        self.key[slots] = keys
        self.priority[slots] = priority
        self.times_sampled[slots] = 0
        self.chunk[slots] = chunk
        self.chunks[slots] = chunks
        self.offset[slots] = offset
        self.length[slots] = length
        self.template[slots] = template
        self.inserted_at[slots] = now
        self._log(keys, slots)
        return slots

    def rows(self, slots: Int64s) -> NDArray[np.void]:
        """All that is known of these items: fields `key`, `priority`, `chunk`, …"""
        return self._rows.take(slots)

    def remove(self, slots: Int64s) -> None:
        """Items go: distinct slots of which each has one. The slots may be used again at once."""
        self.key[slots] = NO_KEY
        self._slots.give_back(slots)

    def find(self, keys: Uint64s) -> Int64s:
        """Slot of each key, NOT_FOUND for those that are not here."""
        if self._logged == 0 or len(keys) == 0:
            return np.full(len(keys), NOT_FOUND, np.int64)
        log = self._log_keys[: self._logged]
        # Where a table takes every key of its server a key tells its place; else a search does, in thrice the time.
        at = (keys - log[0]).view(np.int64)
        slots: Int64s = self._log_slots[: self._logged].take(at, mode="clip")
        if all_true(self.key[slots] == keys) and np.count_nonzero(keys) == len(keys):
            return slots
        at = np.minimum(np.searchsorted(log, keys), self._logged - 1)
        slots = self._log_slots[at]
        # The log remembers removed items; a slot that has another key by now is another item.
        found = (log[at] == keys) & (self.key[slots] == keys) & (keys != NO_KEY)
        return np.where(found, slots, NOT_FOUND)

    def each_once(self, slots: Int64s, values: Float64s) -> tuple[Int64s, Float64s]:
        """Each slot once, with its last value and at the place of that."""
        # By writing each entry's place at its slot: of those with one slot the last one written stands.
        self._place = grown(self._place, self.capacity)
        entries = np.arange(len(slots))
        self._place[slots] = entries
        is_last = self._place[slots] == entries
        return (slots, values) if all_true(is_last) else (slots[is_last], values[is_last])

    def in_order(self) -> Int64s:
        """Slots of all items, oldest first."""
        slots = self._log_slots[: self._logged]
        living: Int64s = slots[self.key[slots] == self._log_keys[: self._logged]]
        return living

    def oldest(self, n: int) -> Int64s:
        """Slots of the first n items, oldest first."""
        return self._first_living(n, 1)

    def newest(self, n: int) -> Int64s:
        """Slots of the last n items, newest first."""
        return self._first_living(n, -1)

    def spread(self, n: int) -> Int64s:
        """Slots of at most n items, evenly spread over all in the order of their insertion."""
        step = max(1, -(-self._logged // n))
        slots = self._log_slots[: self._logged : step]
        living: Int64s = slots[self.key[slots] == self._log_keys[: self._logged : step]]
        return living

    def around(self, keys: Uint64s, reach: int) -> tuple[Int64s, Int64s]:
        """Slots [n, reach] of the items that entered before these and behind them, the nearest first.

        NOT_FOUND where there are no more.
        """
        at = np.searchsorted(self._log_keys[: self._logged], keys)[:, None]
        return self._living_beside(at, -1, reach), self._living_beside(at, 1, reach)

    def dump(self) -> State:
        """The rows up to the last slot ever used; the index follows from the keys."""
        return {
            "slots": self._slots.dump(),
            "rows": self._rows[: self._slots.high_water()],
            "longest": self.longest,
        }

    def load(self, state: State, later_s: float) -> None:
        """`later_s`: how much later it is by this clock than it was by the one of the dump."""
        self._slots.load(state["slots"])
        self._rows = np.zeros(self.capacity, _ROW)
        self._name_columns()
        saved = state["rows"]
        for name in saved.dtype.names:
            self._rows[name][: len(saved)] = saved[name]
        self.inserted_at += later_s
        self.longest = state["longest"]
        slots = self._slots.in_use()
        slots = slots[np.argsort(self.key[slots])]
        self._log_keys, self._log_slots = np.zeros(self.capacity, np.uint64), np.zeros(self.capacity, np.int64)
        self._log_keys[: len(slots)], self._log_slots[: len(slots)] = self.key[slots], slots
        self._logged = len(slots)

    def validate(self) -> None:
        """Assert that slots, keys and index agree."""
        slots = self.in_order()
        self._slots.validate(slots)
        keys = self.key[slots]
        assert (np.diff(keys.astype(np.int64)) > 0).all(), "keys are not in rising order"
        assert int(self.chunks[slots].max(initial=1)) <= self.longest, "a window is longer than the longest"
        assert np.array_equal(self.find(keys), slots), "the index does not find the items"
        # It is compacted when items enter, so it may have as many as there were at most since then.
        assert self._logged <= self.capacity + self.capacity // 4 + _SLACK, "the log is never compacted"

    def _living_beside(self, at: Int64s, step: int, reach: int) -> Int64s:
        # As many places more are looked at as there are dead entries among those looked at.
        width = reach
        while True:
            slots = self._living_at(at + step * np.arange(1, width + 1))
            living = slots != NOT_FOUND
            if width >= self._logged or (np.count_nonzero(living, axis=1) >= reach).all():
                break
            width = min(2 * width, self._logged)
        nearest_first = np.argsort(~living, axis=1, kind="stable")[:, :reach]
        return np.take_along_axis(slots, nearest_first, axis=1)

    def _living_at(self, places: Int64s) -> Int64s:
        inside = np.clip(places, 0, self._logged - 1)
        slots = self._log_slots[inside]
        living = (places == inside) & (self.key[slots] == self._log_keys[inside])
        return np.where(living, slots, NOT_FOUND)

    def _first_living(self, n: int, step: int) -> Int64s:
        # The log has dead entries; most of the time few, so look at a few more than asked for and widen if need be.
        looked = 2 * n + 64
        while True:
            start = 0 if step > 0 else max(self._logged - looked, 0)
            part = slice(start, min(start + looked, self._logged))
            slots = self._log_slots[part]
            living: Int64s = slots[self.key[slots] == self._log_keys[part]][::step]
            if len(living) >= n or looked >= self._logged:
                return living[:n]
            looked *= 4

    def _log(self, keys: Uint64s, slots: Int64s) -> None:
        most = len(self) + len(self) // 4 + _SLACK
        if self._logged + len(keys) > most:
            self._compact()
        end, capacity = self._logged + len(keys), len(self._log_keys)
        if most > capacity:
            # Before it is full, so that all memory that a table of this size will ever take is taken while it fills.
            while most > capacity:
                capacity *= 2
            self._log_keys, self._log_slots = grown(self._log_keys, capacity), grown(self._log_slots, capacity)
        assert self._logged == 0 or len(keys) == 0 or keys[0] > self._log_keys[self._logged - 1], "keys must rise"
        self._log_keys[self._logged : end] = keys
        self._log_slots[self._logged : end] = slots
        self._logged = end

    def _compact(self) -> None:
        # The items being logged right now are in `key` but not in the log, so they are not counted here.
        kept = 0
        for start in range(0, self._logged, _BLOCK):
            part = slice(start, min(start + _BLOCK, self._logged))
            keys, slots = self._log_keys[part], self._log_slots[part]
            living = (self.key[slots] == keys).nonzero()[0]
            end = kept + len(living)
            self._log_keys[kept:end], self._log_slots[kept:end] = keys[living], slots[living]
            kept = end
        self._logged = kept


_SLACK = 16384
"""Dead log entries that do not matter beside a quarter of the living: a compaction walks over the whole log, so it
should free many; yet it is memory, and the log of a full table should not grow any more."""

_BLOCK = 1 << 16
"""Log entries that are compacted at once: what that takes in between fits into the cache."""

_ROW = np.dtype(
    [
        ("key", "u8"),
        ("priority", "f8"),
        ("times_sampled", "i8"),
        ("chunk", "i8"),
        ("inserted_at", "f8"),
        ("chunks", "i4"),
        ("offset", "i4"),
        ("length", "i4"),
        ("template", "i4"),
    ]
)
"""One item in one cache line: a draw looks at items at random places, and would fetch nine lines for each."""
