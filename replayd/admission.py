"""Admission: everything that must be true of an insert before any of it is accepted.

Works on whole batches and changes nothing, so that a refusal leaves nothing behind. Knows a stream and the chunk
store's numbers, not tables' contents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from replayd.chunks import NO_SLOT, ChunkStore
from replayd.columns import Schema, Signature
from replayd.errors import BadPriority, BadRequest, MissingChunk, SignatureMismatch
from replayd.limits import CHUNK_ROWS, PRIORITY_MAX, REFERENCES
from replayd.messages import ChunkBatch, Float64s, Int64s, ItemBatch, Uint64s
from replayd.signature import check_signature
from replayd.streams import Stream


def check_priorities(priorities: Float64s, keys: Uint64s | None = None) -> None:
    """Raise BadPriority unless all are finite, ≥ 0 and at most PRIORITY_MAX; names the keys, or the positions."""
    # Both bounds refuse NaN as well: it is the minimum of what it is among, and every comparison with it is false.
    if len(priorities) == 0 or (priorities.min() >= 0 and priorities.max() <= PRIORITY_MAX):
        return
    bad = np.flatnonzero(~((priorities >= 0) & (priorities <= PRIORITY_MAX)))[:64]
    named = {"indices": bad.tolist()} if keys is None else {"keys": keys[bad].tolist()}
    raise BadPriority(
        f"priorities must be finite, at least 0 and at most {PRIORITY_MAX:g}; got "
        + ", ".join(repr(float(p)) for p in priorities[bad[:8]]),
        **named,
    )


def check_chunks(stream: Stream | None, batch: ChunkBatch) -> None:
    """New chunks must continue the stream: numbers ahead of those it has, schemas that extend each other."""
    previous = None if stream is None else stream.schema
    if stream is not None and batch.first < stream.next_number:
        raise BadRequest(f"first_chunk {batch.first} is behind the stream's next chunk {stream.next_number}")
    # Schemas change at few places in a batch; only those are compared.
    changes = np.flatnonzero(np.diff(batch.schema_of, prepend=-1)).tolist() if len(batch.schemas) > 1 else [0]
    for position in changes:
        schema = batch.schemas[int(batch.schema_of[position])]
        if previous is not None and schema.blob != previous.blob and not schema.extends(previous):
            raise BadRequest("a schema does not extend the stream's earlier one: columns may be added, not changed")
        previous = schema


@dataclass(slots=True)
class _Reach:
    """What items of a message can refer to: the stream's chunks and the message's own, from number `base` on."""

    base: int
    rows: Int64s
    """0 where there is no chunk."""
    schema: Int64s
    """Index into `schemas`; meaningless where there is no chunk."""
    schemas: list[Schema]

    @classmethod
    def of(cls, stream: Stream | None, batch: ChunkBatch | None, store: ChunkStore) -> _Reach:
        if batch is not None and (stream is None or len(stream.slots) == 0):
            return cls(batch.first, batch.rows, batch.schema_of, list(batch.schemas))
        base, rows, schema = 0, np.zeros(0, np.int64), np.zeros(0, np.int64)
        schemas: list[Schema] = []
        if stream is not None:
            base = stream.base
            held = stream.slots != NO_SLOT
            rows = np.where(held, store.rows[stream.slots], 0).astype(np.int64)
            ids, where = np.unique(store.schema[stream.slots[held]], return_inverse=True)
            schema = np.zeros(len(rows), np.int64)
            schema[held] = where
            schemas = [store.schemas[id] for id in ids.tolist()]
        if batch is not None:
            skipped = np.zeros(batch.first - base - len(rows), np.int64)
            rows = np.concatenate((rows, skipped, batch.rows))
            schema = np.concatenate((schema, skipped, batch.schema_of + len(schemas)))
            schemas.extend(batch.schemas)
        return cls(base, rows, schema, schemas)

    @property
    def widths(self) -> Int64s:
        """Columns of each chunk."""
        return np.array([len(schema.columns) for schema in self.schemas], np.int64)[self.schema]


def check_items(
    items: ItemBatch,
    stream: Stream | None,
    batch: ChunkBatch | None,
    store: ChunkStore,
    signatures: Mapping[int, Signature],
) -> None:
    """Windows must lie in chunks the stream has, templates in windows, trajectories in signatures (by index in
    `items.tables`).
    """
    check_priorities(items.priority)
    reach = _Reach.of(stream, batch, store)
    first = items.chunk - reach.base
    last = first + items.chunks - 1
    if int(first.min()) < 0 or int(first.max()) >= len(reach.rows) or int(last.max()) >= len(reach.rows):
        raise _missing(items, (first < 0) | (first >= len(reach.rows)) | (last >= len(reach.rows)))
    total, shortest, width = reach.rows[first], reach.rows[first], reach.widths[first]
    if items.longest > 1:
        references = int(items.chunks.sum())
        REFERENCES.check(references)
        starts = np.cumsum(items.chunks) - items.chunks
        flat = np.arange(references) + np.repeat(first - starts, items.chunks)
        total = np.add.reduceat(reach.rows[flat], starts)
        shortest = np.minimum.reduceat(reach.rows[flat], starts)
        width = np.minimum.reduceat(reach.widths[flat], starts)
    if int(shortest.min()) == 0:
        raise _missing(items, shortest == 0)
    end = items.offset + items.length
    wrong = (items.offset >= reach.rows[first]) | (end > total) | (end <= total - reach.rows[last])
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise BadRequest(
            f"item {i}: window [{int(items.offset[i])}, {int(end[i])}) does not begin in the first and end "
            f"in the last of its {int(items.chunks[i])} chunks of {int(total[i])} rows",
            item=i,
        )
    if items.longest > 1:
        CHUNK_ROWS.check(int(items.length.max()))
    _check_templates(items, width)
    if signatures:
        _check_signatures(items, reach, first, signatures)


def _check_templates(items: ItemBatch, width: Int64s) -> None:
    if len(items.templates) == 1 and items.templates[0].is_identity:
        return
    spans = np.array([template.span for template in items.templates], np.int64)[items.template_of]
    widths = np.array([template.width for template in items.templates], np.int64)[items.template_of]
    squeezes = np.array([template.squeezes_window for template in items.templates])[items.template_of]
    wrong = (spans > items.length) | (widths > width) | (squeezes & (items.length != 1))
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise BadRequest(
            f"item {i}: its template needs {int(spans[i])} rows of {int(widths[i])} columns"
            f"{', one row to squeeze' if squeezes[i] else ''}; "
            f"the window has {int(items.length[i])} rows of {int(width[i])}",
            item=i,
        )


def _check_signatures(items: ItemBatch, reach: _Reach, first: Int64s, signatures: Mapping[int, Signature]) -> None:
    schema_of = reach.schema[first]
    for table, signature in signatures.items():
        mine = np.flatnonzero(items.table_of == table)
        pairs = np.stack((schema_of[mine], items.template_of[mine]), axis=1)
        for schema, template in np.unique(pairs, axis=0).tolist():
            these = mine[(pairs[:, 0] == schema) & (pairs[:, 1] == template)]
            try:
                check_signature(
                    items.tables[table],
                    signature,
                    reach.schemas[schema],
                    items.templates[template],
                    items.length[these],
                )
            except SignatureMismatch as error:
                error.detail["item"] = int(these[0])
                raise


def _missing(items: ItemBatch, where: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> MissingChunk:
    i = int(np.flatnonzero(where)[0])
    first, count = int(items.chunk[i]), int(items.chunks[i])
    return MissingChunk(
        f"item {i} spans chunks {first} to {first + count - 1}, which the stream does not hold all of",
        item=i,
        chunk=first,
    )
