"""Which chunks stand in which block of a store: what may be dropped, and what should be written anew.

Chunks leave in about the order in which they came, so most blocks empty by themselves. One that stays nearly empty, and
small ones, are written anew with the next checkpoint: the chunks are in memory anyway. Knows no disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from replayd.messages import Int64s
from replayd.slots import among

SPARSE = 0.5
"""A block is written anew when less than this share of its bytes is in use: a store takes at most about twice its
chunks."""
SMALL_BYTES = 1 << 17
"""So is a block smaller than this, if there are others: a checkpoint a minute would leave very many."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What may go, and what should be written anew."""

    dead: list[int]
    """Blocks without a chunk in use."""
    foreign: list[int]
    """Those of them of which it is known that they have others: of one that cannot be read nothing is."""
    renew: Int64s
    """Chunks in use that should be written anew."""


class BlockMap:
    """Names and sizes of the chunks in each block. Of a chunk in several blocks the last one counts."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[Int64s, Int64s]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, number: int, uids: Int64s, nbytes: Int64s) -> None:
        """A block is in the store, with these chunks."""
        self._blocks[number] = (uids, nbytes)

    def remove(self, numbers: Sequence[int]) -> None:
        """These blocks are not any more."""
        for number in numbers:
            del self._blocks[number]

    def newest(self) -> int:
        """The largest name of a chunk in any block; 0 if there is none."""
        return max((int(uids.max(initial=0)) for uids, _ in self._blocks.values()), default=0)

    def survey(self, live: Int64s) -> Survey:
        """`live`: the chunks in use, rising."""
        if not self._blocks:
            return Survey([], [], live[:0])
        numbers = sorted(self._blocks)
        uids = np.concatenate([self._blocks[number][0] for number in numbers])
        # A chunk's records and numbers take room too.
        nbytes = np.concatenate([self._blocks[number][1] for number in numbers]) + _OVERHEAD_BYTES
        block_of = np.repeat(np.arange(len(numbers)), [len(self._blocks[number][0]) for number in numbers])
        counts = _is_last(uids) & among(uids, live)
        # By differences of running sums: these let other threads run, as counting by block does not.
        ends = np.cumsum([len(self._blocks[number][0]) for number in numbers])
        total, used = _sums(nbytes, ends), _sums(np.where(counts, nbytes, 0), ends)
        dead = used == 0
        small = ~dead & (total < SMALL_BYTES)
        if np.count_nonzero(small) == 1:
            small[:] = False
        renew = ~dead & (small | (used < SPARSE * total))
        gone, foreign = ([numbers[n] for n in np.flatnonzero(which).tolist()] for which in (dead, dead & (total > 0)))
        return Survey(gone, foreign, uids[counts & renew[block_of]])


_OVERHEAD_BYTES = 64


def _sums(values: Int64s, ends: Int64s) -> Int64s:
    """Of the parts that end there."""
    return np.diff(np.concatenate(([0], np.cumsum(values)))[ends], prepend=0)


def _is_last(uids: Int64s) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether no equal one stands behind."""
    order = np.argsort(uids, kind="stable")
    ordered = uids[order]
    last = np.ones(len(uids), np.bool_)
    last[order[:-1]] = ordered[1:] != ordered[:-1]
    return last
