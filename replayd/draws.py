"""Draws: the items a sampler chose, on their way out with the chunks they show.

Owns the layout of a sample reply: each distinct chunk once, a window's chunks side by side, only the columns that are
shown. Reads items and chunks; changes neither.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from replayd.chunks import ChunkStore
from replayd.columns import Template
from replayd.interned import Interned
from replayd.items import Items
from replayd.limits import REFERENCES, REPLY_BYTES
from replayd.messages import BLOB_RECORD, FLAG_OMITTED, Int64s, Payload, Shown
from replayd.slots import ranked


def sendable(items: Items, chunks: ChunkStore, slots: Int64s) -> int:
    """How many of these items, from the first on, fit into one reply; at least one, if there is one."""
    if len(slots) == 0:
        return 0
    counts = items.chunks[slots].astype(np.int64)
    fit = len(slots)
    if int(counts.sum()) > REFERENCES.value:
        fit = max(1, int(np.searchsorted(np.cumsum(counts), REFERENCES.value, side="right")))
        slots, counts = slots[:fit], counts[:fit]
    flat = chunks.windows(items.chunk[slots], counts)
    if int(chunks.nbytes[flat].sum()) <= REPLY_BYTES.value:
        return fit
    # Only a chunk's first appearance costs bytes.
    _, first_seen = np.unique(flat, return_index=True)
    cost = np.zeros(len(flat), np.int64)
    cost[first_seen] = chunks.nbytes[flat[first_seen]]
    after_item = np.cumsum(cost)[np.cumsum(counts) - 1]
    return max(1, int(np.searchsorted(after_item, REPLY_BYTES.value, side="right")))


def assemble(
    items: Items, chunks: ChunkStore, templates: Interned[Template], slots: Int64s, times_sampled: Int64s
) -> Shown:
    """These items with their chunks, each distinct chunk once."""
    counts = items.chunks[slots].astype(np.int64)
    first = items.chunk[slots]
    flat = chunks.windows(first, counts)
    distinct, chunk = _side_by_side(chunks, flat, first, counts)
    template_ids, template_of = _distinct(items.template[slots])
    used = [templates[id] for id in template_ids]
    schema_ids, schema_of = _distinct(chunks.schema[distinct])
    schemas = [chunks.schemas[id] for id in schema_ids]
    layouts: Sequence[bytes] = chunks.layout[distinct].tolist()
    payloads: Sequence[Payload] = chunks.payload[distinct].tolist()
    nbytes = chunks.nbytes[distinct]
    shown = _shown_columns(used)
    if shown is not None and any(len(schema.columns) > len(shown) for schema in schemas):
        layouts, payloads = _project(layouts, payloads, shown)
        nbytes = np.array([len(payload) for payload in payloads], np.int64)
    return Shown(
        keys=items.key[slots],
        priorities=items.priority[slots],
        times_sampled=times_sampled,
        chunk=chunk,
        chunks=counts,
        offset=items.offset[slots].astype(np.int64),
        length=items.length[slots].astype(np.int64),
        templates=[template.blob for template in used],
        template_of=template_of,
        rows=chunks.rows[distinct].astype(np.int64),
        schemas=[schema.blob for schema in schemas],
        schema_of=schema_of,
        layouts=layouts,
        nbytes=nbytes,
        payloads=payloads,
    )


def occurrence(slots: Int64s) -> Int64s:
    """For each entry how many equal ones stand before it."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    repeats = ordered[1:] == ordered[:-1]
    if not repeats.any():
        return np.zeros(len(slots), np.int64)
    begins = np.flatnonzero(np.concatenate(([True], ~repeats)))
    lengths = np.diff(np.concatenate((begins, [len(slots)])))
    places = np.empty(len(slots), np.int64)
    places[order] = np.arange(len(slots)) - np.repeat(begins, lengths)
    return places


def _side_by_side(chunks: ChunkStore, flat: Int64s, first: Int64s, counts: Int64s) -> tuple[Int64s, Int64s]:
    """Distinct slots so ordered that each window is a run of them, and where each window's run begins."""
    distinct, where = ranked(flat)
    if len(flat) == len(first):
        return distinct, where
    order = np.lexsort((chunks.number[distinct], chunks.stream[distinct]))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return distinct[order], rank[where[np.cumsum(counts) - counts]]


def _distinct(ids: np.ndarray[tuple[int], np.dtype[np.int32]]) -> tuple[list[int], Int64s]:
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
    layouts: Sequence[bytes], payloads: Sequence[Payload], shown: frozenset[int]
) -> tuple[list[bytes], list[Payload]]:
    """Leave the other columns' bytes behind and mark their blobs OMITTED."""
    plans: dict[bytes, tuple[bytes, list[slice]]] = {}
    thin_layouts: list[bytes] = []
    thin_payloads: list[Payload] = []
    for layout, payload in zip(layouts, payloads, strict=True):
        plan = plans.get(layout)
        if plan is None:
            plan = plans[layout] = _plan(layout, shown)
        thin_layout, spans = plan
        view = memoryview(payload)
        thin_layouts.append(thin_layout)
        thin_payloads.append(b"".join([view[span] for span in spans]))
    return thin_layouts, thin_payloads


def _plan(layout: bytes, shown: frozenset[int]) -> tuple[bytes, list[slice]]:
    """The layout with only the shown columns, and where their bytes lie; columns side by side are one span."""
    thin: list[bytes] = []
    spans: list[slice] = []
    start = 0
    # Plain integers: a layout has few records, and every compressed chunk has a layout of its own.
    for column, record in enumerate(_RECORD.iter_unpack(layout)):
        end = start + record[0]
        if column not in shown:
            record = (0, 0, FLAG_OMITTED, 0)
        elif spans and spans[-1].stop == start:
            spans[-1] = slice(spans[-1].start, end)
        else:
            spans.append(slice(start, end))
        thin.append(_RECORD.pack(*record))
        start = end
    return b"".join(thin), spans


_RECORD = struct.Struct("<IBBH")
assert _RECORD.size == BLOB_RECORD.itemsize
