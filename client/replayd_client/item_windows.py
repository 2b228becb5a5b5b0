"""The items of a reply as windows over its chunks: which rows each one shows, one item at a time or all at once.

Checked before anything in it is used: a server that lies gets a DataError, never a read outside its own bytes. What is
returned is always fresh, writable and C-contiguous. Knows nothing of sockets, requests or what is said of a draw.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.array_messages import ShownItems
from replayd_client.codecs import check_bools
from replayd_client.columns import MAX_CHUNK_ROWS, Column, Schema
from replayd_client.errors import DataError
from replayd_client.sampled_chunks import MAX_BATCH_BYTES, Ints, SampledChunks, indices, starts_of
from replayd_client.structure import Path, path_text
from replayd_client.templates import Run, Template, rows_of

PIECE_BYTES = 2048
"""Raw windows from this size on are copied one by one from the frames in which they came to where they stay."""
TAKEN_BYTES = 128 << 10
"""Taken at once from where an array lies in between: what stays in the cache of a core."""
MAX_SHOWN_ROWS = 1 << 22
"""Most rows the output columns of one template may list together, which bounds what a small template expands to."""


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """One output column of windows of one length."""

    path: Path
    number: int
    column: Column
    squeeze: bool
    first: int
    """First row of the window that is shown."""
    count: int
    rows: Ints | None
    """The rows in order; None when they are `count` consecutive ones from `first` on."""
    parts: tuple[tuple[ShownColumn, Ints], ...] = ()
    """Where columns are joined: what is shown of each of them, and the places that has among `rows`. `number` and
    `column` are those of the first row then."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.column.shape if self.squeeze else (self.count, *self.column.shape)


class ItemWindows:
    """m items as windows over their chunks: one at a time or all at once. Raises DataError if the arrays do not fit
    each other and the body; blobs are checked when they are decoded."""

    __slots__ = ("_chunk", "_chunks", "_templates", "_users", "length", "start", "store", "template_of")

    def __init__(self, items: ShownItems) -> None:
        self.store = store = SampledChunks(items.rows, items.schemas, items.schema_of, items.records, items.body)
        m, n = len(items), len(store.rows)
        per_item = (items.priorities, items.times_sampled, items.chunk, items.chunks, items.offset, items.length)
        if any(len(array) != m for array in per_item):
            raise DataError(f"{m} keys, but other arrays of the items have other lengths")
        self._templates = [bytes(blob) for blob in items.templates]
        for blob in self._templates:
            Template.decode(blob)
        self.template_of = indices(items.template_of, m, len(self._templates), "template")
        """Number of each item's template; equal ones may have several numbers."""
        self._chunk, self._chunks = items.chunk.astype(np.int64), items.chunks.astype(np.int64)
        self.length: Ints = items.length.astype(np.int64)
        """Rows of each window."""
        self.start: Ints = items.offset.astype(np.int64)
        """First row of each window, counted over all chunks."""
        self._users: list[int] | None = None
        if not m:
            return
        last = self._chunk + self._chunks - 1
        if ((self._chunks < 1) | (last >= n)).any():
            raise DataError("an item's window has no chunk or one that is not in the batch")
        if ((self.length < 1) | (self.length > MAX_CHUNK_ROWS)).any():
            raise DataError(f"an item's window has no row or more than {MAX_CHUNK_ROWS}")
        self.start += store.row_start[self._chunk]
        end = self.start + self.length
        begins_outside = self.start >= store.row_start[self._chunk + 1]
        if (begins_outside | (end <= store.row_start[last]) | (end > store.row_start[last + 1])).any():
            raise DataError("an item's window does not begin in its first chunk and end in its last")

    def __len__(self) -> int:
        return len(self.length)

    def __iter__(self) -> Iterator[tuple[tuple[Path, ...], list[NDArray[Any]]]]:
        return map(self.item, range(len(self)))

    @property
    def last_schema(self) -> Ints:
        """Number of the schema of each window's last chunk, which knows all its columns."""
        schemas: Ints = self.store.schema_of[self._chunk + self._chunks - 1]
        return schemas

    def item(self, index: int) -> tuple[tuple[Path, ...], list[NDArray[Any]]]:
        """The paths and the arrays of one item, [T, *shape] for each output column, or [*shape] where it is squeezed.

        A chunk that items share is decoded once.
        """
        shown = self.shown(index)
        check_size(shown, 1)
        return tuple(output.path for output in shown), [self._rows(index, output) for output in shown]

    def stack(self, out: Sequence[NDArray[Any]] | None = None) -> tuple[tuple[Path, ...], list[NDArray[Any]]]:
        """The paths and the arrays of all items, [B, T, *shape], or [B, *shape] where columns are squeezed.

        The arrays are those of `out` if they are given, one for each output column, C-contiguous. Raises DataError that
        says what differs if the items are not all of one template, length and kind of columns.
        """
        if not len(self.length):
            raise DataError("a batch without items cannot be stacked")
        if (self.length != self.length[0]).any():
            lengths = sorted(set(self.length.tolist()))
            some = ", ".join(map(str, lengths[:8])) + ", …" * (len(lengths) > 8)
            raise DataError(f"the items have windows of different lengths ({some}) and cannot be stacked")
        if len(self._templates) > 1:
            used = {self._templates[number] for number in set(self.template_of.tolist())}
            if len(used) > 1:
                raise DataError(f"the items have {len(used)} different templates and cannot be stacked")
        shown = self.shown(0)
        check_size(shown, len(self.length))
        if self._is_identity(0):
            self.check_same_columns(shown, self._chunk + self._chunks - 1, whole=True)
        selections: dict[tuple[int, int, int], RowSelection] = {}
        places = [None] * len(shown) if out is None else out
        arrays = [self._stacked(output, selections, place) for output, place in zip(shown, places, strict=True)]
        return tuple(output.path for output in shown), arrays

    def _is_identity(self, index: int) -> bool:
        return not self._templates[self.template_of[index]]

    def shown(self, index: int) -> tuple[ShownColumn, ...]:
        """The output columns of one item."""
        # A later schema extends the earlier ones, so the last chunk of a window knows all columns.
        last = int(self._chunk[index] + self._chunks[index]) - 1
        schema = self.store.schema_blobs[self.store.schema_of[last]]
        return _shown_columns(self._templates[self.template_of[index]], schema, int(self.length[index]))

    def check_same_columns(self, shown: Sequence[ShownColumn], chunks: Ints | int, *, whole: bool = False) -> None:
        """Raises DataError unless each of the chunks has these columns, and with `whole` no others."""
        if len(self.store.schemas) == 1:
            return
        for number in set(np.atleast_1d(self.store.schema_of[chunks]).tolist()):
            columns = self.store.schemas[number].columns
            if whole and len(columns) != len(shown):
                raise DataError(f"an item of all columns covers chunks of {len(columns)} and of {len(shown)} columns")
            for output in shown:
                if output.number >= len(columns):
                    raise _lacking(output)
                found = columns[output.number]
                if (found != output.column) if whole else not found.is_like(output.column):
                    raise DataError(f"{path_text(output.path)}: {found} is not {output.column}")

    def _stacked(
        self,
        output: ShownColumn,
        selections: dict[tuple[int, int, int], RowSelection],
        out: NDArray[Any] | None,
    ) -> NDArray[Any]:
        """One output column of all items, which show the same rows of their windows."""
        if output.parts:
            if out is None:
                out = np.empty((len(self), *output.shape), output.column.array_dtype)
            for part, places in output.parts:
                out[:, places] = self._stacked(part, selections, None)
            return out
        key = (output.first, output.count, id(output.rows))
        selection = selections.get(key)
        if selection is None:
            selection = selections[key] = RowSelection(self.store, self.start, output)
        if len(self.store.schemas) > 1:
            self.check_same_columns([output], selection.used)
        return selection.take(output, out).reshape(len(self), *output.shape)

    def _rows(self, index: int, output: ShownColumn) -> NDArray[Any]:
        """The rows of one output column of one item."""
        store, row_start = self.store, self.store.places.row_start
        out = np.empty((output.count, *output.column.shape), output.column.array_dtype)
        if output.parts:
            for part, places in output.parts:
                out[places] = self._rows(index, part)
            return out
        start = int(self.start[index])
        picked = None if output.rows is None else start + output.rows
        first = start + output.first if picked is None else int(picked.min())
        end = first + output.count if picked is None else int(picked.max()) + 1
        chunk = bisect_right(row_start, first, lo=int(self._chunk[index])) - 1
        while row_start[chunk] < end:
            low, high = row_start[chunk], row_start[chunk + 1]
            if picked is None:
                place: Any = slice(max(low, first) - first, min(high, end) - first)
                source: Any = slice(max(low, first) - low, min(high, end) - low)
            else:
                place = np.flatnonzero((picked >= low) & (picked < high))
                source = picked[place] - low
            if picked is None or len(place):
                self.check_same_columns([output], chunk)
                if picked is None and first <= low and high <= end and self._is_unshared(chunk):
                    present = store.read(chunk, output.number, output.column, out[place])
                else:
                    array, present = store.decoded(chunk, output.number, output.column)
                    out[place] = array[source]
                if present is not None and not present[source].all():
                    raise _lacking(output)
            chunk += 1
        return out.reshape(output.shape)

    def _is_unshared(self, chunk: int) -> bool:
        if self._users is None:
            changes = np.bincount(self._chunk, minlength=len(self.store.rows) + 1)
            changes -= np.bincount(self._chunk + self._chunks, minlength=len(changes))
            self._users = np.cumsum(changes).tolist()
        return self._users[chunk] == 1


def _lacking(output: ShownColumn) -> DataError:
    return DataError(f"{path_text(output.path)}: an item shows rows that lack the column")


class RowSelection:
    """The same rows of every window of a batch: which chunks they need, and how to take them from a column at once."""

    __slots__ = ("_chunk", "_count", "_is_contiguous", "_row", "_store", "_used")

    def __init__(self, store: SampledChunks, start: Ints, output: ShownColumn) -> None:
        self._store = store
        self._count = output.count
        first = start + output.first
        chunk = store.chunk_of(first)
        # Windows whose rows are consecutive and lie in one chunk are taken as one piece each.
        self._is_contiguous = output.rows is None and bool((first + output.count <= store.row_start[chunk + 1]).all())
        rows = first
        if not self._is_contiguous:
            consecutive = np.arange(output.first, output.first + output.count)
            rows = start[:, None] + (consecutive if output.rows is None else output.rows)
            chunk = store.chunk_of(rows)
        self._chunk: Ints = chunk
        self._row: Ints = rows - store.row_start[chunk]
        self._used: Ints | None = None

    @property
    def used(self) -> Ints:
        """The chunks that are needed, each once."""
        if self._used is None:
            is_used = np.zeros(len(self._store.rows), np.bool_)
            is_used[self._chunk] = True
            self._used = np.flatnonzero(is_used)
        return self._used

    def take(self, output: ShownColumn, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The selected rows of a column, [B, count, *shape] or a shape of as many values; into `out` if it is given,
        which is C-contiguous."""
        column, store = output.column, self._store
        is_plain = not column.is_variable and (store.is_plain or store.are_plain(self.used, output.number))
        size = column.row_bytes * (self._count if self._is_contiguous else 1)
        if is_plain and size and store.is_packed:
            return self._take_from_body(output.number, column, size, self._place(column, out))
        if is_plain and (size >= PIECE_BYTES or not size):
            return self._copy_pieces(output.number, column, size, self._place(column, out))
        if self._is_whole:
            return self._decode_whole(output, self._place(column, out))
        taken = self._take_decoded(output, column)
        if out is None:
            return taken
        out.reshape(-1)[:] = taken.reshape(-1)
        return out

    def _place(self, column: Column, out: NDArray[Any] | None) -> NDArray[Any]:
        """[B, count, *shape]: where to put the rows."""
        shape = (len(self._chunk), self._count, *column.shape)
        return np.empty(shape, column.array_dtype) if out is None else out.reshape(shape)

    @property
    def _is_whole(self) -> bool:
        """Whether every window is exactly one chunk."""
        return (
            self._is_contiguous and not self._row.any() and bool((self._store.rows[self._chunk] == self._count).all())
        )

    def _copy_pieces(self, number: int, column: Column, size: int, out: NDArray[Any]) -> NDArray[Any]:
        """Raw blobs in many buffers, of which each window, or each of its rows, is a piece."""
        if size:
            position = self._store.blob_start(self._chunk, number) + self._row * column.row_bytes
            self._store.copy_pieces(position.reshape(-1), size, out.reshape(-1).view(np.uint8))
        check_bools(out)
        return out

    def _decode_whole(self, output: ShownColumn, out: NDArray[Any]) -> NDArray[Any]:
        """Each needed chunk decoded once, to where its first window stays, and copied from there for the others."""
        first: dict[int, NDArray[Any]] = {}
        for window, chunk in zip(out, self._chunk.tolist(), strict=True):
            known = first.get(chunk)
            if known is not None:
                window[...] = known
                continue
            present = self._store.read(chunk, output.number, output.column, window)
            if present is not None and not present.all():
                raise _lacking(output)
            first[chunk] = window
        return out

    def _take_from_body(self, number: int, column: Column, size: int, out: NDArray[Any]) -> NDArray[Any]:
        """Raw blobs in one buffer: one take where they lie at multiples of their size, as those of one column do.

        Others are taken by a fancy index over a view in which every byte begins an element. That makes an array of its
        own, so it is done for a few at a time: what was written last is in the cache when it is copied on.
        """
        body = self._store.body()
        position = (self._store.blob_start(self._chunk, number) + self._row * column.row_bytes).reshape(-1)
        target = out.reshape(-1).view(np.uint8).reshape(-1, size)
        if len(body) % size == 0 and not (position % size).any():
            # numpy takes into `out` without an array in between in this mode only; no position is outside.
            np.take(body.reshape(-1, size), position // size, axis=0, out=target, mode="clip")
        else:
            piece = np.dtype((np.void, size))
            pieces, places = np.ndarray((len(body) - size + 1,), piece, body, strides=(1,)), target.view(piece)[:, 0]
            step = max(TAKEN_BYTES // size, 1)
            for low in range(0, len(places), step):
                places[low : low + step] = pieces[position[low : low + step]]
        check_bools(out)
        return out

    def _take_decoded(self, output: ShownColumn, column: Column) -> NDArray[Any]:
        """Each needed chunk decoded once, one behind the other; then one take, or none if that is the result
        already."""
        store = self._store
        sizes = store.rows[self.used]
        starts = starts_of(sizes)
        total = int(starts[-1])
        if column.array_bytes(total) > MAX_BATCH_BYTES:
            raise DataError(f"{path_text(column.path)}: the chunks decode to more than {MAX_BATCH_BYTES} bytes")
        decoded = np.empty((total, *column.shape), column.array_dtype)
        missing: NDArray[np.bool_] | None = None
        for chunk, low, high in zip(self.used.tolist(), starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            present = store.read(chunk, output.number, column, decoded[low:high])
            if present is not None:
                if missing is None:
                    missing = np.zeros(total, np.bool_)
                missing[low:high] = ~present
        place = np.zeros(len(store.rows), np.int64)
        place[self.used] = starts[:-1]
        index = place[self._chunk] + self._row
        if self._is_contiguous:
            index = index[:, None] + np.arange(self._count)
        if missing is not None and missing[index].any():
            raise _lacking(output)
        if index.size == total and (index.reshape(-1) == np.arange(total)).all():
            return decoded
        return decoded.take(index.reshape(-1), axis=0)


@lru_cache(maxsize=32)
def _shown_columns(template_blob: bytes, schema_blob: bytes, length: int) -> tuple[ShownColumn, ...]:
    """The output columns of a template over a window. Raises DataError for columns or rows that are not there."""
    template, schema = Template.decode(template_blob), Schema.decode(schema_blob)
    if template.is_identity:
        return tuple(
            ShownColumn(column.path, number, column, False, 0, length, None)
            for number, column in enumerate(schema.columns)
        )
    if sum(run[1] for output in template.outputs for _, runs in output.parts for run in runs) > MAX_SHOWN_ROWS:
        raise DataError(f"a template lists more than {MAX_SHOWN_ROWS} rows")
    rows_of_runs: dict[tuple[Run, ...], tuple[int, int, Ints | None]] = {}
    shown = []
    for output in template.outputs:
        parts = []
        for number, runs in output.parts:
            if number >= len(schema.columns):
                raise DataError(f"{path_text(output.path)}: there is no column {number} in the schema")
            if runs not in rows_of_runs:
                rows_of_runs[runs] = (0, length, None) if not runs else _as_shown(rows_of(runs, length))
            first, count, rows = rows_of_runs[runs]
            if output.squeeze and count != 1:
                raise DataError(f"{path_text(output.path)}: {count} rows cannot be squeezed, only one")
            column = schema.columns[number]
            parts.append(ShownColumn(output.path, number, column, output.squeeze, first, count, rows))
        shown.append(parts[0] if len(parts) == 1 else _joined(parts))
    return tuple(shown)


def _joined(parts: Sequence[ShownColumn]) -> ShownColumn:
    """These parts of one output column as one. Raises DataError unless their columns are of one dtype and shape."""
    first = parts[0]
    for part in parts:
        if not part.column.is_like(first.column):
            raise DataError(f"{path_text(first.path)}: {part.column} cannot be joined to {first.column}")
    rows = np.concatenate([np.arange(p.first, p.first + p.count) if p.rows is None else p.rows for p in parts])
    numbers = np.repeat([part.number for part in parts], [part.count for part in parts])
    columns = {part.number: part.column for part in parts}
    order = np.argsort(numbers, kind="stable")
    ends = np.flatnonzero(np.diff(numbers[order])) + 1
    by_column = [
        (ShownColumn(first.path, number, columns[number], False, *_as_shown(rows[places])), places)
        for number, places in zip(sorted(columns), np.split(order, ends), strict=True)
    ]
    return ShownColumn(first.path, first.number, first.column, False, int(rows[0]), len(rows), rows, tuple(by_column))


def _as_shown(rows: Ints) -> tuple[int, int, Ints | None]:
    """`first`, `count` and `rows` of ShownColumn for these rows."""
    return int(rows[0]), len(rows), None if (np.diff(rows) == 1).all() else rows


def check_size(shown: Sequence[ShownColumn], items: int) -> int:
    """Bytes that the arrays of so many items take. Raises DataError if they are more than MAX_BATCH_BYTES."""
    total = sum(output.column.array_bytes(items * output.count) for output in shown)
    if total > MAX_BATCH_BYTES:
        raise DataError(f"the arrays of {items} items take {total} bytes, more than the limit of {MAX_BATCH_BYTES}")
    return total
