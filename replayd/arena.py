"""The arena: small payloads side by side in one mapping, so that many are stored and fetched with one call.

Owns the bytes and which of them are free. A payload lies in a place of its size class; a freed place is used again by
the next payload of that class, while its memory is warm, and a slab of places that are all free can serve another class
or goes back to the system. Knows nothing of chunks.
"""

from __future__ import annotations

import mmap
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd.messages import Int64s, Uint8s
from replayd.slots import all_true

SLAB_BYTES = 1 << 21
"""What a size class takes at once: a huge page of Linux, which makes a fetch from a random place a third faster."""

RESERVED_BYTES = 1 << 38
"""Address space, not memory: pages are there once they are written to."""

LEAST_CLASS_BYTES = 16
"""Of the place for the smallest payloads, and what all classes are multiples of."""

RECLAIM_BYTES = 32 * SLAB_BYTES
"""Free bytes below which no slab is looked for that could be given back."""


class Arena:
    """Places are offsets in bytes."""

    def __init__(self) -> None:
        self._memory = _reserve()
        self._bytes: Uint8s = np.frombuffer(self._memory, np.uint8)
        self._shelves: dict[int, _Shelf] = {}
        self._used_slabs = 0
        self._spare_slabs: list[int] = []
        self.free_bytes = 0
        """Of places that wait for a payload of their class."""
        self._reclaim_at = RECLAIM_BYTES

    @property
    def held_bytes(self) -> int:
        """Of all slabs: payloads, free places, and what classes round up."""
        return (self._used_slabs - len(self._spare_slabs)) * SLAB_BYTES

    def put(self, source: memoryview, starts: Int64s, sizes: Int64s) -> Int64s:
        """Copy these pieces of `source`, each at most a slab; their places."""
        size = int(sizes[0])
        if len(sizes) == 1 or all_true(sizes == size):
            shelf = self._shelf(_class(size))
            places = self._take(shelf, len(sizes))
            if len(sizes) == 1:
                place, start = int(places[0]), int(starts[0])
                self._memory[place : place + size] = source[start : start + size]
            elif size:
                self._pieces(size)[places] = _pieces(source, size)[starts]
            return places
        places = np.empty(len(sizes), np.int64)
        classes = _classes(sizes)
        for width in np.unique(classes).tolist():
            mine = np.flatnonzero(classes == width)
            places[mine] = self._take(self._shelf(width), len(mine))
            # A place has room for its whole class, so as much is copied of each piece, whatever lies behind it; but for
            # those at the end of the source, where there is no more.
            whole = starts[mine] + width <= len(source)
            if whole.any():
                these = mine[whole]
                self._pieces(width)[places[these]] = _pieces(source, width)[starts[these]]
            for piece in mine[~whole].tolist():
                start, place, size = int(starts[piece]), int(places[piece]), int(sizes[piece])
                self._memory[place : place + size] = source[start : start + size]
        return places

    def fetch(self, places: Int64s, sizes: NDArray[np.integer[Any]]) -> memoryview | bytes:
        """Copies of these pieces, one behind the other; a piece may begin anywhere inside a place."""
        size = int(sizes[0])
        if size and len(sizes) == 1:
            place = int(places[0])
            return self._memory[place : place + size]
        if size and all_true(sizes == size):
            # `take` would copy the whole arena to make it contiguous first.
            return self._pieces(size)[places].view(np.uint8).data
        view = memoryview(self._memory)
        return b"".join([view[a:b] for a, b in zip(places.tolist(), (places + sizes).tolist(), strict=True)])

    def view(self, place: int, size: int) -> memoryview:
        """One piece, not copied: only until its place is freed."""
        return memoryview(self._memory)[place : place + size]

    def free(self, places: Int64s, sizes: NDArray[np.integer[Any]]) -> None:
        """These places, of payloads of these sizes, are not needed any more."""
        size = int(sizes[0])
        if len(sizes) == 1 or all_true(sizes == size):
            width = _class(size)
            self._shelves[width].give_back(places)
            self.free_bytes += width * len(sizes)
        else:
            classes = _classes(sizes)
            for width in np.unique(classes).tolist():
                self._shelves[width].give_back(places[classes == width])
            self.free_bytes += int(classes.sum())
        if self.free_bytes >= self._reclaim_at:
            self._reclaim()

    def validate(self, places: Int64s, sizes: Int64s) -> None:
        """These are all places in use."""
        classes = _classes(sizes) if len(sizes) else sizes
        free, slabs = 0, list(self._spare_slabs)
        for width, shelf in self._shelves.items():
            together = np.concatenate((places[classes == width], shelf.free[: shelf.free_count]))
            # A slab of the smallest class has 131072 places: to mark and count them takes a fifth of sorting them.
            is_there = np.zeros((self._used_slabs, SLAB_BYTES // LEAST_CLASS_BYTES), np.bool_)
            assert int(np.bitwise_or.reduce(together)) % LEAST_CLASS_BYTES == 0, f"no places of {width} bytes"
            together //= LEAST_CLASS_BYTES
            is_there.reshape(-1)[together] = True
            mine = np.flatnonzero(is_there.any(axis=1))
            whole = is_there[mine, : SLAB_BYTES // width * width // LEAST_CLASS_BYTES : width // LEAST_CLASS_BYTES]
            once_each = whole.size == np.count_nonzero(is_there) == len(together)
            assert once_each, f"places of {width} bytes are neither free nor in use, or both"
            assert whole.all(), f"places of {width} bytes are where none can be"
            slabs += mine.tolist()
            free += shelf.free_count * width
        assert free == self.free_bytes, f"{self.free_bytes} bytes are counted as free, {free} are"
        assert sorted(slabs) == list(range(self._used_slabs)), "a slab is lost or shared"

    def _take(self, shelf: _Shelf, n: int) -> Int64s:
        while shelf.free_count < n:
            self._carve(shelf)
        self.free_bytes -= n * shelf.width
        return shelf.take(n)

    def _carve(self, shelf: _Shelf) -> None:
        """Give a class one slab more."""
        if self._spare_slabs:
            slab = self._spare_slabs.pop()
        elif (self._used_slabs + 1) * SLAB_BYTES <= len(self._bytes):
            slab = self._used_slabs
            self._used_slabs += 1
        else:
            raise MemoryError(f"the arena's {len(self._bytes)} bytes of address space are used up")
        count = SLAB_BYTES // shelf.width
        shelf.give_back(slab * SLAB_BYTES + np.arange(count) * shelf.width)
        self.free_bytes += count * shelf.width

    def _reclaim(self) -> None:
        """Take the slabs from their classes in which every place is free; the system gets their memory back."""
        for shelf in self._shelves.values():
            free = shelf.free[: shelf.free_count]
            slab_of = free // SLAB_BYTES
            is_empty = np.bincount(slab_of, minlength=self._used_slabs) == SLAB_BYTES // shelf.width
            goes = is_empty[slab_of]
            if goes.any():
                self.free_bytes -= int(np.count_nonzero(goes)) * shelf.width
                shelf.keep(free[~goes])
                for slab in np.flatnonzero(is_empty).tolist():
                    self._spare_slabs.append(slab)
                    if hasattr(self._memory, "madvise"):
                        self._memory.madvise(mmap.MADV_DONTNEED, slab * SLAB_BYTES, SLAB_BYTES)
        # Looking costs as much as there is free: look again when it has doubled.
        self._reclaim_at = max(RECLAIM_BYTES, 2 * self.free_bytes)

    def _shelf(self, width: int) -> _Shelf:
        shelf = self._shelves.get(width)
        if shelf is None:
            shelf = self._shelves[width] = _Shelf(width)
        return shelf

    def _pieces(self, size: int) -> NDArray[np.void]:
        return np.ndarray((self._used_slabs * SLAB_BYTES - size + 1,), _void(size), self._memory, strides=(1,))


class _Shelf:
    """The free places of one size class, the most recently freed on top."""

    __slots__ = ("free", "free_count", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self.free = np.empty(2 * SLAB_BYTES // width, np.int64)
        self.free_count = 0

    def take(self, n: int) -> Int64s:
        self.free_count -= n
        return self.free[self.free_count : self.free_count + n][::-1].copy()

    def give_back(self, places: Int64s) -> None:
        end = self.free_count + len(places)
        if end > len(self.free):
            larger = np.empty(max(end, 2 * len(self.free)), np.int64)
            larger[: self.free_count] = self.free[: self.free_count]
            self.free = larger
        self.free[self.free_count : end] = places[::-1]
        self.free_count = end

    def keep(self, places: Int64s) -> None:
        self.free_count = len(places)
        self.free[: len(places)] = places


def _reserve() -> mmap.mmap:
    """A private mapping; where the system promises no more memory than it has, of a part of that."""
    noreserve = getattr(mmap, "MAP_NORESERVE", 0x4000)
    size = RESERVED_BYTES
    while True:
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | noreserve)
        except (OSError, ValueError):
            if size <= SLAB_BYTES:
                raise
            size //= 4
            continue
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory


def _classes(sizes: NDArray[np.integer[Any]]) -> Int64s:
    """Bytes of the place for a payload of each size: steps of an eighth of a power of two."""
    exponent = np.frexp(np.maximum(sizes, 1) - 0.5)[1]
    step = np.maximum(np.left_shift(1, np.maximum(exponent - 4, 0)), LEAST_CLASS_BYTES).astype(np.int64)
    classes: Int64s = np.maximum(-(-sizes.astype(np.int64) // step), 1) * step
    return classes


@lru_cache(4096)
def _class(size: int) -> int:
    """The same of one size: batches of one size, and those of one payload, need not compute it each time."""
    return int(_classes(np.array([size]))[0])


def _pieces(source: memoryview, size: int) -> NDArray[np.void]:
    """A view in which every byte begins a piece."""
    return np.ndarray((len(source) - size + 1,), _void(size), source, strides=(1,))


@lru_cache(4096)
def _void(size: int) -> np.dtype[np.void]:
    return np.dtype((np.void, size))
