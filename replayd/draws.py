"""Draws: the items a sampler chose, on their way out with the chunks they show.

Owns the layout of a sample reply: each distinct chunk once, a window's chunks side by side, only the columns that are
shown. Reads items and chunks; changes neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from replayd.chunks import ChunkStore
from replayd.columns import Template
from replayd.interned import Interned
from replayd.items import Items
from replayd.limits import REFERENCES, REPLY_BYTES
from replayd.messages import FLAG_OMITTED, Int64s, Payload, Shown, Uint64s


def assemble(
    items: Items, chunks: ChunkStore, templates: Interned[Template], slots: Int64s, times_sampled: Int64s
) -> Shown:
    """These items, as many from the first on as fit into one reply, with their chunks, each distinct chunk once.

    One item at least, if there is one, whatever its size.
    """
    # The rows of all items with one call, since each is one cache line at a random place; so with the chunks below.
    rows = items.rows(slots)
    counts = rows["chunks"].astype(np.int64)
    if int(counts.sum()) > REFERENCES.value:
        fit = max(1, int(np.searchsorted(np.cumsum(counts), REFERENCES.value, side="right")))
        return assemble(items, chunks, templates, slots[:fit], times_sampled[:fit])
    first = rows["chunk"]
    flat = chunks.windows(first, counts)
    distinct, where = chunks.ranked(flat)
    held = chunks.rows_of(distinct)
    if int(held["nbytes"].sum()) > REPLY_BYTES.value and len(slots) > 1:
        fit = _fitting(distinct, where, held["nbytes"], counts)
        if fit < len(slots):
            return assemble(items, chunks, templates, slots[:fit], times_sampled[:fit])
    if len(flat) != len(first):
        distinct, where, held = _side_by_side(distinct, where, held, counts)
    template_ids, template_of = _distinct(rows["template"])
    used = [templates[id] for id in template_ids]
    schema_ids, schema_of = _distinct(held["schema"])
    schemas = [chunks.schemas[id] for id in schema_ids]
    nbytes, records = held["nbytes"], chunks.records_of(held)
    payloads: Sequence[Payload] = chunks.payload.take(distinct).tolist()
    shown = _shown_columns(used)
    if shown is not None and any(len(schema.columns) > len(shown) for schema in schemas):
        widths = np.array([len(schema.columns) for schema in schemas])[schema_of]
        records, payloads, nbytes = _project(records, widths, payloads, shown)
    return Shown(
        keys=rows["key"],
        priorities=rows["priority"],
        times_sampled=times_sampled,
        chunk=where,
        chunks=counts,
        offset=rows["offset"],
        length=rows["length"],
        templates=[template.blob for template in used],
        template_of=template_of,
        rows=held["rows"],
        schemas=[schema.blob for schema in schemas],
        schema_of=schema_of,
        records=records,
        nbytes=nbytes,
        payloads=payloads,
    )


def _fitting(distinct: Int64s, where: Int64s, nbytes: NDArray[np.int32], counts: Int64s) -> int:
    """How many of the items, from the first on, fit into one reply; at least one."""
    # Only a chunk's first appearance costs bytes.
    _, first_seen = np.unique(where, return_index=True)
    cost = np.zeros(len(where), np.int64)
    cost[first_seen] = nbytes[where[first_seen]]
    after_item = np.cumsum(cost)[np.cumsum(counts) - 1]
    return max(1, int(np.searchsorted(after_item, REPLY_BYTES.value, side="right")))


def _side_by_side(
    distinct: Int64s, where: Int64s, held: NDArray[np.void], counts: Int64s
) -> tuple[Int64s, Int64s, NDArray[np.void]]:
    """Distinct chunks so ordered that each window is a run of them, and where each window's run begins."""
    order = np.lexsort((held["number"], held["stream"]))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return distinct[order], rank[where[np.cumsum(counts) - counts]], held[order]


def _distinct(ids: NDArray[np.int32]) -> tuple[list[int], Int64s]:
    if len(ids) == 0:
        return [], np.zeros(0, np.int64)
    if (ids == ids[0]).all():
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


def _project(
    records: Uint64s, widths: Int64s, payloads: Sequence[Payload], shown: frozenset[int]
) -> tuple[Uint64s, list[Payload], Int64s]:
    """Leave the other columns' bytes behind and mark their blobs OMITTED."""
    starts = np.cumsum(widths) - widths
    chunk_of = np.repeat(np.arange(len(widths)), widths)
    is_shown = np.isin(np.arange(len(records)) - starts[chunk_of], list(shown))
    sizes = (records & _SIZE).astype(np.int64)
    ends = np.cumsum(sizes)
    before = (ends - sizes)[starts]
    # Columns side by side are one span of bytes.
    begins, stops = is_shown.copy(), is_shown.copy()
    begins[1:] &= ~(is_shown[:-1] & (chunk_of[1:] == chunk_of[:-1]))
    stops[:-1] &= ~(is_shown[1:] & (chunk_of[1:] == chunk_of[:-1]))
    span_of = chunk_of[begins]
    low = (ends - sizes)[begins] - before[span_of]
    high = ends[stops] - before[span_of]
    views = [
        memoryview(payloads[chunk])[a:b]
        for chunk, a, b in zip(span_of.tolist(), low.tolist(), high.tolist(), strict=True)
    ]
    spans = np.bincount(span_of, minlength=len(widths))
    if not (spans == 1).all():
        cuts = np.cumsum(spans).tolist()
        views = [b"".join(views[a:b]) for a, b in pairwise([0, *cuts])]
    nbytes = np.add.reduceat(np.where(is_shown, sizes, 0), starts)
    return np.where(is_shown, records, _OMITTED), views, nbytes


_SIZE = np.uint64(0xFFFFFFFF)
_OMITTED = np.uint64(FLAG_OMITTED << 40)
"""A record (protocol.md §4.2) as one number: the stored size in the lower half, codec and flags above it."""
