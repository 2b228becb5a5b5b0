"""Handing chunks over to a checkpoint: a few at a time, while requests go on.

Owns which stored chunks no checkpoint has been given. A chunk that is freed before its turn is handed over at that
moment: it is in what the checkpoint must keep, and nobody else will keep its payload. Knows no disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from replayd.limits import CHUNK_BYTES
from replayd.messages import Buffer, Int64s, Uint64s
from replayd.slots import INITIAL_CAPACITY, grown


@dataclass(slots=True)
class SavedChunks:
    """n chunks as a checkpoint keeps them: what never changes of them, one entry a chunk."""

    uids: Int64s
    streams: Int64s
    """The small name of each one's stream."""
    numbers: Int64s
    episodes: Int64s
    rows: Int64s
    schemas: Int64s
    """The id of each one's schema; the index of a checkpoint that has the chunk knows which that is."""
    widths: Int64s
    """Columns of each one."""
    records: Uint64s
    """The blob records of the first one, of the second, …"""
    nbytes: Int64s
    """Of each one's payload."""
    body: Sequence[Buffer]
    """Buffers that hold the payloads, one behind the other."""

    def __len__(self) -> int:
        return len(self.uids)

    @property
    def held_bytes(self) -> int:
        """What they take in memory, about."""
        return int(self.nbytes.sum()) + CHUNK_BYTES * len(self)


class Handover:
    """Chunks by slot. `collect` makes what is handed over of those in these slots."""

    def __init__(self, collect: Callable[[Int64s], SavedChunks]) -> None:
        self._collect = collect
        self._unsaved = np.zeros(INITIAL_CAPACITY, np.bool_)
        self._wanted: NDArray[np.bool_] | None = None
        self._rescued: list[SavedChunks] = []
        self.rescued_bytes = 0
        """Of what was freed before its turn, since it was taken the last time."""

    @property
    def under_way(self) -> bool:
        """Whether a checkpoint has begun and not ended."""
        return self._wanted is not None

    def begin(self) -> NDArray[np.bool_]:
        """A checkpoint begins, which wants all chunks that are unsaved now: by slot, whether it wants it."""
        assert self._wanted is None, "one checkpoint at a time"
        self._wanted = self._unsaved.copy()
        return self._unsaved.copy()

    def still_wanted(self, slots: Int64s) -> Int64s:
        """Those of these that the checkpoint wants."""
        return slots[:0] if self._wanted is None else slots[self._wanted[slots]]

    def take(self, slots: Int64s) -> SavedChunks:
        """These, which the checkpoint wants; from now on they count as saved."""
        assert self._wanted is not None, "no checkpoint is under way"
        self._wanted[slots] = False
        self._unsaved[slots] = False
        return self._collect(slots)

    def take_rescued(self) -> list[SavedChunks]:
        """What was freed before its turn, since the last time."""
        rescued, self._rescued = self._rescued, []
        self.rescued_bytes = 0
        return rescued

    def end(self) -> None:
        """The checkpoint has all it wanted, or is given up."""
        self._wanted = None
        self._rescued = []
        self.rescued_bytes = 0

    def forget(self, slots: Int64s) -> None:
        """The chunks stored in these slots were handed over and did not get to the disk."""
        self._unsaved[slots] = True

    def added(self, slots: Int64s, capacity: int) -> None:
        """New chunks are stored here; all slots are below `capacity`."""
        if capacity > len(self._unsaved):
            self._unsaved = grown(self._unsaved, capacity)
            if self._wanted is not None:
                self._wanted = grown(self._wanted, capacity)
        self._unsaved[slots] = True

    def freeing(self, slots: Int64s) -> None:
        """These chunks are about to go."""
        wanted = self.still_wanted(slots)
        if len(wanted):
            self._rescued.append(self.take(wanted))
            self.rescued_bytes += self._rescued[-1].held_bytes
        self._unsaved[slots] = False

    def loaded(self, capacity: int) -> None:
        """All chunks that are stored now came from a checkpoint."""
        assert self._wanted is None, "nothing is loaded while a checkpoint is under way"
        self._unsaved = np.zeros(capacity, np.bool_)

    def validate(self, live: Int64s) -> None:
        """Assert that what is unsaved or wanted is stored; `live` are the slots of all stored chunks."""
        unsaved = np.flatnonzero(self._unsaved)
        assert np.isin(unsaved, live).all(), "a chunk that is not there counts as unsaved"
        if self._wanted is not None:
            assert self._unsaved[self._wanted].all(), "a checkpoint wants a chunk that is saved"
