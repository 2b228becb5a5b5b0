"""What a table shows: the bytes of its items' chunks, each counted once, and the episodes they come from.

Owns one table's count of references to each chunk. The chunk store's own counts say who keeps a chunk alive; these say
what a table would set free.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replayd.chunks import ChunkStore
from replayd.messages import Int64s
from replayd.slots import count, distinct, grown, total
from replayd.staleness import Staleness


class Showing:
    """Of one table: `size` chunks it shows, `nbytes` of their payloads and their `columns`, those of each chunk counted
    once, and their `episodes`.
    """

    def __init__(self, chunks: ChunkStore) -> None:
        self.nbytes = 0
        self.size = 0
        self.columns = 0
        self.ended_episodes = 0
        """Episodes of which the last item has gone."""
        self._chunks = chunks
        self._refs = np.zeros(len(chunks.refs), np.int32)
        self.episodes = 0
        self.staleness = Staleness(chunks)
        """Of what is drawn, in policy versions."""
        self._episode_chunks = np.zeros(chunks.episodes.capacity, np.int32)
        """Chunks of each episode that are shown."""

    def add(self, slots: Int64s) -> None:
        """Items show these chunks, one entry for each item and chunk."""
        if len(self._chunks.refs) > len(self._refs):
            self._refs = grown(self._refs, len(self._chunks.refs))
        new = slots[self._refs[slots] == 0]
        count(self._refs, slots, 1)
        self.staleness.enter(slots)
        if len(new):
            self._enter(distinct(new))

    def remove(self, slots: Int64s) -> None:
        """Items that show these chunks go, one entry for each item and chunk, as `add` was told."""
        count(self._refs, slots, -1)
        gone = slots[self._refs[slots] == 0]
        if len(gone):
            self._leave(distinct(gone))

    def holders(self, slots: Int64s) -> NDArray[np.int32]:
        """How many entries of items here show each of these chunks."""
        if len(self._chunks.refs) > len(self._refs):
            self._refs = grown(self._refs, len(self._chunks.refs))
        holders: NDArray[np.int32] = self._refs[slots]
        return holders

    def clear(self) -> None:
        """Count ended episodes from 0 on; what is shown stays."""
        self.ended_episodes = 0
        self.staleness.clear()

    def validate(self, slots: Int64s) -> None:
        """`slots`: one entry for each item and chunk there is."""
        refs = np.bincount(slots, minlength=len(self._refs)) if len(slots) else np.zeros(len(self._refs), np.int64)
        assert np.array_equal(refs, self._refs), "a table's references are not its items'"
        shown = np.flatnonzero(refs)
        assert self.size == len(shown), "chunks that a table shows are miscounted"
        assert self.nbytes == int(self._chunks.nbytes[shown].sum()), "a table's bytes are not its chunks'"
        assert self.columns == int(self._chunks.columns[shown].sum()), "a table's columns are not its chunks'"
        counted = np.bincount(self._chunks.episode[shown], minlength=len(self._episode_chunks))
        assert np.array_equal(counted, self._episode_chunks), "a table's episodes are not its chunks'"
        assert self.episodes == np.count_nonzero(counted), "the number of episodes is wrong"

    def _enter(self, slots: Int64s) -> None:
        self.size += len(slots)
        self.columns += total(self._chunks.columns[slots])
        self.nbytes += total(self._chunks.nbytes[slots])
        self._chunks.show(slots)
        if self._chunks.episodes.capacity > len(self._episode_chunks):
            self._episode_chunks = grown(self._episode_chunks, self._chunks.episodes.capacity)
        episodes = self._chunks.episode[slots].astype(np.int64)
        self.episodes += len(distinct(episodes[self._episode_chunks[episodes] == 0]))
        count(self._episode_chunks, episodes, 1)

    def _leave(self, slots: Int64s) -> None:
        self.size -= len(slots)
        self.columns -= total(self._chunks.columns[slots])
        self.nbytes -= total(self._chunks.nbytes[slots])
        self._chunks.hide(slots)
        episodes = self._chunks.episode[slots].astype(np.int64)
        count(self._episode_chunks, episodes, -1)
        ended = len(distinct(episodes[self._episode_chunks[episodes] == 0]))
        self.episodes -= ended
        self.ended_episodes += ended
