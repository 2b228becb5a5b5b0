"""Memory for the arrays of large batches, used again when nobody refers to it any more.

Fresh memory is zeroed by the kernel first: to decode into it took twice as long as into memory that was used before. An
array counts as referred to while any view, buffer or tensor made of it lives, since all of them hold the block in which
it lies. Knows nothing of what is decoded.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

REMEMBERED_BLOCKS = 16
"""Blocks that may become free again, at most: for what is prefetched, decoded and used of some large columns. Of a user
who holds more the rest are freed as any array is."""
REUSED_BYTES = 1 << 20
"""Arrays from this size on. The heap itself uses the memory of smaller ones again."""
SPARE_BLOCKS = 2
"""Blocks kept that nobody refers to, at most: one for the next batch, and one for a batch with another large column."""
LARGEST_HEAP_BLOCK_BYTES = (32 << 20) - (64 << 10)
"""About the largest block that glibc ever takes from the heap."""


class BatchMemory:
    """Makes arrays, and remembers the blocks of the last ones. For any number of threads."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: deque[NDArray[np.uint8]] = deque(maxlen=REMEMBERED_BLOCKS)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array for its caller alone, C-contiguous and writable, which holds anything (None if of objects)."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < REUSED_BYTES or dtype.hasobject:
            return np.empty(shape, dtype)
        _let_heaps_keep_their_ends()
        block = self._free_block(nbytes)
        if block is None:
            block = np.empty(nbytes, np.uint8)
        # numpy makes the block itself the base of this and of all views of it.
        array = block[:nbytes].view(dtype).reshape(shape)
        self._blocks.append(block)
        return array

    def _free_block(self, nbytes: int) -> NDArray[np.uint8] | None:
        """A block that nobody refers to, of this size or a little more; it is not remembered then."""
        found: NDArray[np.uint8] | None = None
        spare = 0
        for _ in range(len(self._blocks)):
            try:
                block = self._blocks.popleft()
            except IndexError:
                break  # Another thread has them.
            # Two: this variable and the argument.
            if sys.getrefcount(block) > 2:
                self._blocks.append(block)
            elif found is None and nbytes <= len(block) <= 2 * nbytes:
                found = block
            elif spare < SPARE_BLOCKS:
                spare += 1
                self._blocks.append(block)
        return found


@cache
def _let_heaps_keep_their_ends() -> None:
    """Let glibc learn that large blocks come and go here, once for the process.

    A reply of a large batch lies in many blocks, which are freed together. At first glibc returns what is free at the
    end of a heap beyond 128 KiB, so of the memory for the next reply most is fresh; when it sees a large block freed,
    it allows the end twice that size. Of a payload of 400 kB that left 7 page faults of 58, and 220 µs of CPU time of
    327. What somebody told glibc stays in force, and elsewhere this does nothing.
    """
    np.empty(LARGEST_HEAP_BLOCK_BYTES, np.uint8)
