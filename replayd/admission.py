"""Admission: everything that must be true of an insert before any of it is accepted.

Works on whole batches and changes nothing, so that a refusal leaves nothing behind. Knows a stream and the chunk
store's numbers, not tables' contents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from replayd.capacity import Capacity, with_overhead
from replayd.chunks import ChunkStore
from replayd.columns import Schema, Signature, path_text
from replayd.errors import BadPriority, BadRequest, MissingChunk, SignatureMismatch
from replayd.leases import Leases
from replayd.limits import CHUNK_ROWS, LEASED_BYTES, PRIORITY_MAX, REFERENCES
from replayd.messages import ChunkBatch, Float64s, InsertRun, Int64s, ItemBatch, Peer, Uint64s
from replayd.signature import check_signature
from replayd.slots import all_true, total
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
    held = 0 if stream is None else stream.leased_bytes
    LEASED_BYTES.check(held + total(batch.nbytes))
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


def check_leases(
    peer: Peer, stream: Stream | None, batch: ChunkBatch, keep_from: int, store: ChunkStore, leases: Leases, now: float
) -> None:
    """Raise LimitExceeded if the peer, or all of them, would hold too much by what the stream goes on keeping. A push
    that is refused so is lost, as any that is refused."""
    kept = 0 if keep_from >= batch.first + len(batch) else total(batch.nbytes[max(0, keep_from - batch.first) :])
    if kept == 0 or stream is None:
        leases.check(peer, kept, 0, now)
        return
    gone = stream.slots[: int(stream.numbers.searchsorted(keep_from))]
    brings = 0 if stream.peer == peer else stream.leased_bytes
    leases.check(peer, kept - total(store.nbytes[gone]), brings, now)


def check_capacity(
    items: ItemBatch,
    stream: Stream | None,
    batch: ChunkBatch | None,
    store: ChunkStore,
    capacities: Sequence[tuple[str, Capacity]],
) -> None:
    """Raise LimitExceeded for an item that its table can never hold, TableFull where a table rejects for want of room.

    The items are right otherwise; `capacities` are those of the tables they name.
    """
    slots = np.zeros(0, np.int64) if stream is None else stream.slots
    numbers = np.zeros(0, np.int64) if stream is None else stream.numbers
    nbytes = with_overhead(store.nbytes[slots], store.columns[slots])
    if batch is not None:
        numbers = np.concatenate((numbers, np.arange(batch.first, batch.first + len(batch))))
        nbytes = np.concatenate((nbytes, with_overhead(batch.nbytes, batch.columns)))
    before = np.concatenate(([0], np.cumsum(nbytes)))
    begins = np.searchsorted(numbers, items.chunk)
    ends = begins + items.chunks
    each = before[ends] - before[begins]
    is_unshown = np.ones(len(numbers), np.bool_)
    is_unshown[: len(slots)] = store.shown[slots] == 0
    for n, (name, capacity) in enumerate(capacities):
        mine = items.table_of == n
        if not mine.any():
            continue
        capacity.check_item(name, int(each[mine].max()))
        # A chunk is covered where more windows have begun than ended.
        edges = np.zeros(len(numbers) + 1, np.int64)
        np.add.at(edges, begins[mine], 1)
        np.add.at(edges, ends[mine], -1)
        is_covered = np.cumsum(edges[:-1]) > 0
        is_new = is_covered.copy()
        is_new[: len(slots)] &= capacity.shows_not(slots)
        own_bytes, server_bytes = int(nbytes[is_new].sum()), int(nbytes[is_covered & is_unshown].sum())
        capacity.check_room(name, int(np.count_nonzero(mine)), own_bytes, server_bytes)


@dataclass(slots=True)
class _Reach:
    """What items of a message can refer to: the stream's chunks and the message's own, in order of their numbers."""

    numbers: Int64s
    rows: Int64s
    schema: Int64s
    """Index into `schemas`."""
    schemas: list[Schema]

    @classmethod
    def of(cls, stream: Stream | None, batch: ChunkBatch | None, store: ChunkStore) -> _Reach:
        if batch is not None and (stream is None or len(stream.slots) == 0):
            numbers = np.arange(batch.first, batch.first + len(batch))
            return cls(numbers, batch.rows, batch.schema_of, list(batch.schemas))
        if stream is None:
            none = np.zeros(0, np.int64)
            return cls(none, none, none, [])
        rows = store.rows[stream.slots].astype(np.int64)
        ids, schema = np.unique(store.schema[stream.slots], return_inverse=True)
        schemas = [store.schemas[id] for id in ids.tolist()]
        if batch is None:
            return cls(stream.numbers, rows, schema, schemas)
        return cls(
            np.concatenate((stream.numbers, np.arange(batch.first, batch.first + len(batch)))),
            np.concatenate((rows, batch.rows)),
            np.concatenate((schema, batch.schema_of + len(schemas))),
            [*schemas, *batch.schemas],
        )

    def find(self, items: ItemBatch) -> Int64s:
        """Where each item's window begins; raises MissingChunk unless every chunk of every window is here."""
        if len(self.numbers) == 0:
            raise _missing(items, 0)
        end = len(self.numbers) - 1
        first = np.minimum(self.numbers.searchsorted(items.chunk), end)
        last = np.minimum(first + items.chunks - 1, end)
        # Numbers rise, so a window is complete if as many chunks lie between its ends as there are numbers.
        there = (self.numbers[first] == items.chunk) & (self.numbers[last] == items.chunk + items.chunks - 1)
        if not all_true(there):
            raise _missing(items, int(np.argmin(there)))
        return first

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
    """Windows must lie in chunks the stream has, templates in windows, trajectories in signatures.

    `signatures` are by index in `items.tables`.
    """
    reach = _Reach.of(stream, batch, store)
    _check_windows(items, reach, reach.find(items), signatures)


@dataclass(slots=True)
class OwnWindows:
    """Which items of a run have their windows in the chunks of their own message, as nearly all do."""

    first: Int64s
    """Where each item's window begins among the run's chunks; of the others, anything."""
    is_own: NDArray[np.bool_]
    reach_back: frozenset[int]
    """Messages of which an item shows chunks from before."""

    @classmethod
    def of(cls, run: InsertRun) -> OwnWindows:
        """Look at the items of a run; reads nothing but the run."""
        items = run.items
        if items is None:
            return cls(np.zeros(0, np.int64), np.zeros(0, np.bool_), frozenset())
        message = np.arange(len(run)).repeat(run.item_ends - run.item_starts)
        base, end = run.chunk_starts[message], run.chunk_ends[message]
        first = items.chunk - run.firsts[message] + base
        is_own = (first >= base) & (first + items.chunks <= end)
        if all_true(is_own):
            return cls(first, is_own, frozenset())
        return cls(np.where(is_own, first, 0), is_own, frozenset(message[~is_own].tolist()))

    @classmethod
    def of_proven(cls, run: InsertRun) -> OwnWindows:
        """The same of a run that is like another, whose windows were all in their own messages."""
        assert run.likeness is not None, "a run that is like another has a likeness"
        return cls(run.likeness.first[: 0 if run.items is None else len(run.items)], np.zeros(0, np.bool_), frozenset())


def check_own_windows(
    items: ItemBatch, batch: ChunkBatch, own: OwnWindows, signatures: Mapping[int, Signature]
) -> None:
    """`check_items` for those items of a run that show the chunks of their own message."""
    first = own.first
    if own.reach_back:
        items, first = items.part(own.is_own), first[own.is_own]
    if len(items):
        _check_windows(items, _Reach(first, batch.rows, batch.schema_of, list(batch.schemas)), first, signatures)


def _check_windows(items: ItemBatch, reach: _Reach, first: Int64s, signatures: Mapping[int, Signature]) -> None:
    """`first`: where each item's window begins in what can be reached."""
    check_priorities(items.priority)
    total, last_rows, width = reach.rows[first], reach.rows[first], reach.widths[first]
    if items.longest > 1:
        references = int(items.chunks.sum())
        REFERENCES.check(references)
        starts = np.cumsum(items.chunks) - items.chunks
        flat = np.arange(references) + np.repeat(first - starts, items.chunks)
        total = np.add.reduceat(reach.rows[flat], starts)
        last_rows = reach.rows[first + items.chunks - 1]
        width = np.minimum.reduceat(reach.widths[flat], starts)
    end = items.offset + items.length
    wrong = (items.offset >= reach.rows[first]) | (end > total) | (end <= total - last_rows)
    if np.count_nonzero(wrong):
        i = int(np.flatnonzero(wrong)[0])
        raise BadRequest(
            f"item {i}: window [{int(items.offset[i])}, {int(end[i])}) does not begin in the first and end "
            f"in the last of its {int(items.chunks[i])} chunks of {int(total[i])} rows",
            item=i,
        )
    if items.longest > 1:
        CHUNK_ROWS.check(int(items.length.max()))
    _check_templates(items, width)
    _check_joined(items, reach, first)
    if signatures:
        _check_signatures(items, reach, first, signatures)


def _check_templates(items: ItemBatch, width: Int64s) -> None:
    if len(items.templates) == 1 and items.templates[0].is_identity:
        return
    spans = np.array([template.span for template in items.templates], np.int64)[items.template_of]
    widths = np.array([template.width for template in items.templates], np.int64)[items.template_of]
    squeezes = np.array([template.squeezes_window for template in items.templates])[items.template_of]
    wrong = (spans > items.length) | (widths > width) | (squeezes & (items.length != 1))
    if np.count_nonzero(wrong):
        i = int(np.flatnonzero(wrong)[0])
        raise BadRequest(
            f"item {i}: its template needs {int(spans[i])} rows of {int(widths[i])} columns"
            f"{', one row to squeeze' if squeezes[i] else ''}; "
            f"the window has {int(items.length[i])} rows of {int(width[i])}",
            item=i,
        )


def _check_joined(items: ItemBatch, reach: _Reach, first: Int64s) -> None:
    """What a template joins must be alike. A window's later chunks have the same columns as its first one."""
    for number, template in enumerate(items.templates):
        joined = template.joined
        if not joined:
            continue
        mine = np.flatnonzero(items.template_of == number)
        schema_of = reach.schema[first[mine]]
        for schema in np.unique(schema_of).tolist():
            columns = reach.schemas[schema].columns
            for output in joined:
                kinds = {(columns[c].dtype, columns[c].shape): columns[c] for c in output.columns}
                if len(kinds) > 1:
                    i = int(mine[np.argmax(schema_of == schema)])
                    found = ", ".join(f"{path_text(c.path)} {c.dtype}{list(c.shape)}" for c in kinds.values())
                    raise BadRequest(
                        f"item {i}: its template joins columns of several kinds in {path_text(output.path)}: {found}",
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


def _missing(items: ItemBatch, i: int) -> MissingChunk:
    first, count = int(items.chunk[i]), int(items.chunks[i])
    return MissingChunk(
        f"item {i} spans chunks {first} to {first + count - 1}, which the stream does not hold all of",
        item=i,
        chunk=first,
    )
