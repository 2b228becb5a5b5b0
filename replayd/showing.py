"""What a table shows: the bytes of its items' chunks, each counted once, and the episodes they come from.

Owns one table's count of references to each chunk. The chunk store's own counts say who keeps a chunk alive; these say
what a table would set free.
"""

from __future__ import annotations

import numpy as np

from replayd.chunks import ChunkStore
from replayd.messages import Int64s
from replayd.slots import count, distinct


class Showing:
    def __init__(self, chunks: ChunkStore) -> None:
        self.nbytes = 0
        self.ended_episodes = 0
        """Episodes of which the last item has gone."""
        self._chunks = chunks
        self._refs = np.zeros(len(chunks.refs), np.int32)
        self._episodes: dict[tuple[int, int], int] = {}
        """(stream, episode) → chunks of it that are shown."""

    @property
    def episodes(self) -> int:
        return len(self._episodes)

    def add(self, slots: Int64s) -> None:
        """Items show these chunks, one entry for each item and chunk."""
        if len(self._chunks.refs) > len(self._refs):
            larger = np.zeros(len(self._chunks.refs), np.int32)
            larger[: len(self._refs)] = self._refs
            self._refs = larger
        new = slots[self._refs[slots] == 0]
        count(self._refs, slots, 1)
        if len(new):
            self._enter(distinct(new))

    def remove(self, slots: Int64s) -> None:
        count(self._refs, slots, -1)
        gone = slots[self._refs[slots] == 0]
        if len(gone):
            self._leave(distinct(gone))

    def clear(self) -> None:
        self.ended_episodes = 0

    def validate(self, slots: Int64s) -> None:
        """`slots`: one entry for each item and chunk there is."""
        refs = np.bincount(slots, minlength=len(self._refs)) if len(slots) else np.zeros(len(self._refs), np.int64)
        assert np.array_equal(refs, self._refs), "a table's references are not its items'"
        distinct = np.unique(slots)
        assert self.nbytes == int(self._chunks.nbytes[distinct].sum()), "a table's bytes are not its chunks'"
        keys = zip(self._chunks.stream[distinct].tolist(), self._chunks.episode[distinct].tolist(), strict=True)
        counted: dict[tuple[int, int], int] = {}
        for key in keys:
            counted[key] = counted.get(key, 0) + 1
        assert counted == self._episodes, "a table's episodes are not its chunks'"

    def _enter(self, slots: Int64s) -> None:
        self.nbytes += int(self._chunks.nbytes[slots].sum())
        for key, chunks in self._by_episode(slots):
            self._episodes[key] = self._episodes.get(key, 0) + chunks

    def _leave(self, slots: Int64s) -> None:
        self.nbytes -= int(self._chunks.nbytes[slots].sum())
        for key, chunks in self._by_episode(slots):
            self._episodes[key] -= chunks
            if self._episodes[key] == 0:
                del self._episodes[key]
                self.ended_episodes += 1

    def _by_episode(self, slots: Int64s) -> list[tuple[tuple[int, int], int]]:
        """Chunks of each episode among these."""
        stream, episode = self._chunks.stream[slots], self._chunks.episode[slots]
        if (stream == stream[0]).all() and (episode == episode[0]).all():
            return [((int(stream[0]), int(episode[0])), len(slots))]
        keys, counts = np.unique(np.stack((stream, episode.astype(np.int64)), axis=1), axis=0, return_counts=True)
        return [((s, e), n) for (s, e), n in zip(keys.tolist(), counts.tolist(), strict=True)]
