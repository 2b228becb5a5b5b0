"""How many steps a chunk should have: learned from what chunks and items turn out to cost.

Short chunks compress badly and cost calls and records; long ones make a learner fetch steps that its item does not
show. Pure: it is told sizes and gives a length.
"""

from __future__ import annotations

from typing import Any, Final

from replayd_client.scalars import checked_integer

START_LENGTH: Final = 10
"""Steps of the first chunks: the incumbent's default of a constant length."""
MOST_LENGTH: Final = 256
"""Steps of a chunk at most: beyond that its cost is in its bytes, and items would wait long for it."""
CHUNK_COST_BYTES: Final = 1024
"""What a chunk costs its writer, server and reader in time, as the bytes which they could move in it: some 10 µs."""


def checked_chunk_length(chunk_length: Any, most: int) -> int | None:
    """The length that was asked for, 1 to `most` steps; None for "auto". Raises DataError for another one."""
    if isinstance(chunk_length, str) and chunk_length == "auto":
        return None
    return checked_integer("chunk_length, unless 'auto',", chunk_length, 1, most)


class ChunkLength:
    """A chunk length, 1 to MOST_LENGTH, that follows the cost per step.

    Hill climbing as Reverb's AutoTunedChunker does it, for all columns at once: cost = mean bytes a step of CHUNKS
    chunks + mean bytes a shown step of ITEMS items, where an item costs all its chunks. The length goes up by UP while
    that lowers the cost or the length grew and it did, else down by one; measurements whose lengths were not the one
    asked for, since chunks were cut early, are left out. Unlike there, a chunk costs CHUNK_COST_BYTES beyond its bytes,
    and lengths begin at START_LENGTH.
    """

    CHUNKS: Final = 5
    ITEMS: Final = 10
    UP: Final = 2
    TOLERANCE: Final = 0.25
    """Steps by which the mean length may differ from the one asked for."""

    __slots__ = ("_chunks", "_items", "_last", "length", "most")

    def __init__(self) -> None:
        self.most = MOST_LENGTH
        self.length = START_LENGTH
        self._chunks: list[tuple[float, float]] = []
        self._items: list[tuple[float, float]] = []
        self._last: tuple[float, float] | None = None
        """Cost and mean length when the length was last set."""

    @property
    def wants_items(self) -> bool:
        return len(self._items) < self.ITEMS

    def bound(self, most: int) -> None:
        """From now on no length is larger."""
        self.most = min(self.most, most)
        self.length = min(self.length, self.most)

    def saw_chunk(self, nbytes: int, steps: int) -> None:
        """A chunk of so many steps was finished."""
        if len(self._chunks) == self.CHUNKS:
            del self._chunks[0]
        self._chunks.append(((nbytes + CHUNK_COST_BYTES) / steps, steps))
        self._judge()

    def saw_item(self, nbytes: int, chunks: int, chunk_steps: int, steps: int) -> None:
        """An item shows `steps` steps out of `chunks` chunks, which have `nbytes` bytes and `chunk_steps` steps."""
        if self.wants_items:
            self._items.append(((nbytes + chunks * CHUNK_COST_BYTES) / steps, chunk_steps / chunks))
        self._judge()

    def _judge(self) -> None:
        if len(self._chunks) < self.CHUNKS or self.wants_items:
            return
        cost = sum(cost for cost, _ in self._chunks) / self.CHUNKS + sum(cost for cost, _ in self._items) / self.ITEMS
        mean = sum(length for _, length in (*self._chunks, *self._items)) / (self.CHUNKS + self.ITEMS)
        self._chunks.clear()
        self._items.clear()
        if abs(mean - self.length) > self.TOLERANCE:
            return
        before = self._last
        self._last = (cost, mean)
        if before is None or (cost < before[0]) == (mean > before[1]):
            self.length = min(self.length + self.UP, self.most)
        else:
            self.length = max(self.length - 1, 1)
