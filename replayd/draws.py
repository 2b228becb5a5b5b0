"""Draws: the items a sampler chose, on their way out with the chunks they show.

Owns the layout of a sample reply: each distinct chunk once, a window's chunks side by side, only the columns that are
shown. Reads items and chunks; changes neither but for the holds of draws that must wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd.chunks import ChunkStore
from replayd.columns import Template
from replayd.interned import Interned
from replayd.items import Items
from replayd.limits import REFERENCES, REPLY_BYTES
from replayd.messages import FLAG_OMITTED, Buffer, Float64s, Int64s, Shown, Uint64s
from replayd.slots import all_true, occurrence, total


class Pick:
    """Items that are to be shown, and the chunks they need: each looked up once, with one call for all.

    A row of an item or a chunk is one cache line at a random place, so fetching whole rows is what a draw costs.
    """

    __slots__ = ("_chunks", "_counts", "_distinct", "_flat", "_held", "_items", "_where", "rows", "slots")

    def __init__(self, items: Items, chunks: ChunkStore, slots: Int64s, rows: NDArray[np.void] | None = None) -> None:
        """`rows`: the items as they were when they stood at `slots`; None: as they stand there now."""
        self.slots = slots
        self._items = items
        self._chunks = chunks
        self.rows = items.rows(slots) if rows is None else rows
        self._flat: Int64s = self.rows["chunk"]
        self._counts: Int64s | None = None
        if items.longest > 1:
            self._counts = self.rows["chunks"].astype(np.int64)
            self._flat = chunks.windows(self._flat, self._counts)
        self._distinct, self._where = chunks.ranked(self._flat)
        self._held = chunks.rows_of(self._distinct)

    def __len__(self) -> int:
        return len(self.slots)

    def count_draws(self) -> None:
        """Count these as draws, in these rows alone: each knows how often its item had been drawn with it."""
        times = self.rows["times_sampled"]
        times += 1
        if len(self._distinct) < len(self._flat):
            # An item that stands twice shows a chunk that does: few do, and only those need sorting.
            where = self._where if self._counts is None else self._where[self._counts.cumsum() - self._counts]
            repeated = (np.bincount(where)[where] > 1).nonzero()[0]
            times[repeated] += occurrence(self.slots[repeated])

    def sendable(self) -> Pick:
        """Of these items, from the first on, as many as one reply takes: to the one with which it reaches a limit.

        Not to the one before, or else large items would be drawn less often than they should.
        """
        counts = self._counts
        if len(self) <= 1:
            return self
        if counts is not None and len(self._flat) - counts[-1] >= REFERENCES.value:
            return self.first(_reaching(counts, REFERENCES.value)).sendable()
        if self._nbytes <= REPLY_BYTES.value:
            return self
        # Only a chunk's first appearance costs bytes.
        _, first_seen = np.unique(self._where, return_index=True)
        cost = np.zeros(len(self._flat), np.int64)
        cost[first_seen] = self._held["nbytes"][self._where[first_seen]]
        spent = np.cumsum(cost)
        if counts is not None:
            spent = spent[np.cumsum(counts) - 1]
        return self.first(int(np.searchsorted(spent, REPLY_BYTES.value)) + 1)

    def first(self, n: int) -> Pick:
        """The first n of these items."""
        return self if n >= len(self) else Pick(self._items, self._chunks, self.slots[:n], self.rows[:n])

    @property
    def is_full(self) -> bool:
        """Whether a reply with these items takes no further one."""
        return self._nbytes >= REPLY_BYTES.value or len(self._flat) >= REFERENCES.value

    def and_then(self, later: Pick) -> Pick:
        """These items and then those; their slots may have gone to others meanwhile."""
        slots, rows = np.concatenate((self.slots, later.slots)), np.concatenate((self.rows, later.rows))
        return Pick(self._items, self._chunks, slots, rows)

    @property
    def windows(self) -> Int64s:
        """Slots of the chunks that these items show, one entry for each item and chunk."""
        return self._flat

    def hold(self, templates: Interned[Template]) -> None:
        """Hold what these items show, since they may leave."""
        self._chunks.hold(self._flat)
        templates.hold_again(self.rows["template"])

    def release(self, templates: Interned[Template]) -> None:
        """Undo `hold`."""
        self._chunks.release(self._flat)
        templates.release(self.rows["template"])

    def shown(self, templates: Interned[Template]) -> Shown:
        """The items with their chunks, each distinct chunk once."""
        chunks, rows = self._chunks, self.rows
        distinct, where, held = self._distinct, self._where, self._held
        if self._counts is not None and len(self._flat) > len(self):
            distinct, where, held = _side_by_side(distinct, where, held, self._counts)
        template_ids, template_of = _distinct(rows["template"], len(templates))
        used = [templates[id] for id in template_ids]
        schema_ids, schema_of = _distinct(held["schema"], len(chunks.schemas))
        schemas = [chunks.schemas[id] for id in schema_ids]
        records, nbytes = chunks.records_of(held), self._nbytes
        columns = _shown_columns(used)
        if columns is not None and any(len(schema.columns) > len(columns) for schema in schemas):
            widths = np.array([len(schema.columns) for schema in schemas])[schema_of]
            records, body, nbytes = self._projected(held, records, widths, columns)
        else:
            body = chunks.body_of(held)
        return Shown(
            keys=rows["key"],
            priorities=rows["priority"],
            times_sampled=rows["times_sampled"],
            chunk=where,
            chunks=self._counts,
            offset=rows["offset"],
            length=rows["length"],
            templates=[template.blob for template in used],
            template_of=template_of,
            rows=held["rows"],
            schemas=[schema.blob for schema in schemas],
            schema_of=schema_of,
            records=records,
            nbytes=nbytes,
            body=body,
        )

    def _projected(
        self, held: NDArray[np.void], records: Uint64s, widths: Int64s, columns: frozenset[int]
    ) -> tuple[Uint64s, list[Buffer], int]:
        """Records, body and its bytes without the other columns, whose blobs are marked OMITTED."""
        starts = np.cumsum(widths) - widths
        chunk_of = np.repeat(np.arange(len(widths)), widths)
        is_shown = np.isin(np.arange(len(records)) - starts[chunk_of], list(columns))
        sizes = (records & _SIZE).astype(np.int64)
        ends = np.cumsum(sizes)
        # Columns side by side are one span of bytes.
        same = is_shown[1:] & is_shown[:-1] & (chunk_of[1:] == chunk_of[:-1])
        begins, stops = is_shown.copy(), is_shown.copy()
        begins[1:] &= ~same
        stops[:-1] &= ~same
        span_of = chunk_of[begins]
        low = (ends - sizes)[begins]
        body = self._chunks.spans_of(held, span_of, low - (ends - sizes)[starts][span_of], ends[stops] - low)
        return np.where(is_shown, records, _OMITTED), body, int(sizes[is_shown].sum())

    @property
    def _nbytes(self) -> int:
        return total(self._held["nbytes"])


@dataclass(slots=True, eq=False)
class Draws:
    """Draws, one entry each, in order: the items as they were at their draws, with these counted."""

    pick: Pick
    probabilities: Float64s
    """The chance of each item at its draw."""
    table_sizes: Int64s
    """Items in the table at each draw, before any removal it causes."""

    def __len__(self) -> int:
        return len(self.probabilities)

    def first(self, n: int) -> Draws:
        """The first n of them."""
        return self if n >= len(self) else Draws(self.pick.first(n), self.probabilities[:n], self.table_sizes[:n])

    def and_then(self, later: Draws) -> Draws:
        """These and later ones."""
        probabilities = np.concatenate((self.probabilities, later.probabilities))
        sizes = np.concatenate((self.table_sizes, later.table_sizes))
        return Draws(self.pick.and_then(later.pick), probabilities, sizes)

    def sendable(self) -> Draws:
        """As many of them, from the first on, as one reply takes."""
        pick = self.pick.sendable()
        return (
            self if pick is self.pick else Draws(pick, self.probabilities[: len(pick)], self.table_sizes[: len(pick)])
        )


def within_references(items: Items, slots: Int64s) -> Int64s:
    """Of these slots, from the first on, those of which one reply may show the items, so that no more is looked up."""
    if items.longest * len(slots) <= REFERENCES.value:
        return slots
    return slots[: _reaching(items.chunks[slots], REFERENCES.value)]


def _reaching(sizes: NDArray[Any], limit: int) -> int:
    """How many of these from the first on, to the one with which they reach the limit; all if they do not."""
    return int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), limit)) + 1


def _side_by_side(
    distinct: Int64s, where: Int64s, held: NDArray[np.void], counts: Int64s
) -> tuple[Int64s, Int64s, NDArray[np.void]]:
    """Distinct chunks so ordered that each window is a run of them, and where each window's run begins."""
    order = np.lexsort((held["number"], held["stream"]))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return distinct[order], rank[where[np.cumsum(counts) - counts]], held[order]


def _distinct(ids: NDArray[np.int32], existing: int) -> tuple[list[int], Int64s]:
    """The distinct ids, of so many that there are, and which of them each entry is."""
    if len(ids) == 0:
        return [], np.zeros(0, np.int64)
    if existing == 1 or len(ids) == 1 or all_true(ids == ids[0]):
        return [int(ids[0])], np.zeros(len(ids), np.int64)
    distinct, where = np.unique(ids, return_inverse=True)
    return distinct.tolist(), where


def _shown_columns(templates: Sequence[Template]) -> frozenset[int] | None:
    """Columns any of the templates shows; None: all."""
    shown: frozenset[int] = frozenset()
    for template in templates:
        columns = template.used_columns()
        if columns is None:
            return None
        shown |= columns
    return shown


_SIZE = np.uint64(0xFFFFFFFF)
_OMITTED = np.uint64(FLAG_OMITTED << 40)
"""A record (protocol.md §4.2) as one number: the stored size in the lower half, codec and flags above it."""
