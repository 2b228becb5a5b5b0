"""The chunks of a sample reply: where each column's blob lies in the body, and its decoding.

Checked before anything is used: a server that lies gets a DataError, never a read outside its own bytes. Knows nothing
of items and windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.cells import LENGTH_BYTES
from replayd_client.codecs import BLOSC2, DELTA, OMITTED, RAW, SPARSE, check_bools, decode_rows, decoded_bytes
from replayd_client.columns import MAX_CHUNK_ROWS, Column, Schema
from replayd_client.errors import DataError
from replayd_client.structure import path_text

Ints = NDArray[np.int64]
Buffer = bytes | bytearray | memoryview

MAX_BATCH_BYTES = 16 << 30
"""Most bytes the arrays of one batch may take: a compressed reply of a few megabytes could ask for any amount."""

OBJECT_BYTES = 64
"""What a value of bytes or str takes beside its bytes, about: the object and the references to it."""

PACKED_PAYLOAD_BYTES = 16 * 1024
"""Mean payload below which the frames of a body are joined, since one copy costs less than a call for each chunk."""


class SampledChunks:
    """The chunks of a batch: where the blob of each column lies in the body, and the decoding of it."""

    __slots__ = (
        *(
            "_body",
            "_cell_bytes",
            "_chunk_start",
            "_codec",
            "_counted",
            "_decoded",
            "_first_blob",
            "_flags",
            "_frame_end",
            "_frames",
        ),
        *("_places", "_size", "_start", "is_packed", "is_plain"),
        *("row_start", "rows", "schema_blobs", "schema_of", "schemas"),
    )

    def __init__(
        self,
        rows: NDArray[np.uint32],
        schemas: Sequence[bytes],
        schema_of: NDArray[np.uint16] | None,
        blobs: NDArray[np.void],
        body: Sequence[Buffer],
    ) -> None:
        self.rows = rows.astype(np.int64)
        n = len(self.rows)
        self.schema_blobs = [bytes(blob) for blob in schemas]
        self.schemas = [Schema.decode(blob) for blob in self.schema_blobs]
        self.schema_of = indices(schema_of, n, len(self.schemas), "schema")
        if ((self.rows < 1) | (self.rows > MAX_CHUNK_ROWS)).any():
            raise DataError(f"a chunk has no rows or more than {MAX_CHUNK_ROWS}")
        self.row_start = starts_of(self.rows)
        widths = np.array([len(schema.columns) for schema in self.schemas], np.int64)[self.schema_of]
        self._first_blob = starts_of(widths)
        if int(self._first_blob[-1]) != len(blobs):
            raise DataError(f"{len(blobs)} blob records, but the chunks have {int(self._first_blob[-1])} columns")
        self._size = blobs["stored_bytes"].astype(np.int64)
        self._codec = blobs["codec"]
        self._flags = blobs["flags"]
        self._check_records(blobs, widths)
        self._start = starts_of(self._size)
        self._chunk_start = self._start[self._first_blob]
        # A view costs as much as copying some kilobytes, so there is one for each frame.
        views = [memoryview(frame) for frame in body]
        self._frames = [view if view.format == "B" else view.cast("B") for view in views if view.nbytes]
        self._frame_end = np.cumsum([len(frame) for frame in self._frames], dtype=np.int64)
        self._check_body()
        total = int(self._start[-1])
        # Above 2 GiB, which no server sends, one piece of it might be more than numpy can take for an element.
        self.is_packed = total < 1 << 31 and (len(self._frames) <= 1 or total < PACKED_PAYLOAD_BYTES * n)
        self._body: NDArray[np.uint8] | None = None
        self._places: _Places | None = None
        self._counted: set[tuple[int, int]] = set()
        self._cell_bytes = 0
        self._decoded: dict[tuple[int, int], tuple[NDArray[Any], NDArray[np.bool_] | None]] = {}

    def _check_records(self, blobs: NDArray[np.void], widths: Ints) -> None:
        # The upper half of a record, codec and flags, is 0 for a raw blob without flags: as a rule, for all of them.
        self.is_plain = not (np.ascontiguousarray(blobs).view("<u8") >> np.uint64(32)).any()
        if not self.is_plain:
            if blobs["zero"].any() or (self._codec > BLOSC2).any() or (self._flags > DELTA | SPARSE | OMITTED).any():
                raise DataError("a blob record has an unknown codec or flag")
            if self._size[self._flags & OMITTED != 0].any():
                raise DataError("a blob that was omitted has bytes")
        if not self.schemas:
            return
        # Every raw blob without a bitmap must have exactly its rows, or room for the lengths of values of any length;
        # what is compressed is compared when it is decoded.
        columns = [column for schema in self.schemas for column in schema.columns]
        row_bytes = np.array([column.row_bytes for column in columns], np.int64)
        if len(self.schemas) == 1:
            decoded = (self.rows[:, None] * row_bytes).reshape(-1)
        else:
            schema_start = starts_of(np.array([len(schema.columns) for schema in self.schemas], np.int64))
            place = np.repeat(schema_start[self.schema_of] - self._first_blob[:-1], widths) + np.arange(len(blobs))
            decoded = row_bytes[place] * np.repeat(self.rows, widths)
        is_wrong = self._size != decoded
        if any(schema.is_variable for schema in self.schemas):
            is_variable = np.array([column.is_variable for column in columns])
            is_variable = np.tile(is_variable, len(self.rows)) if len(self.schemas) == 1 else is_variable[place]
            is_wrong &= ~is_variable | (self._size < decoded)
        if not self.is_plain:
            is_wrong &= (self._codec == RAW) & (self._flags & (SPARSE | OMITTED) == 0)
        if is_wrong.any():
            raise DataError("a raw blob has not the size of its rows")

    def _check_body(self) -> None:
        total = int(self._frame_end[-1]) if self._frames else 0
        if total != int(self._start[-1]):
            raise DataError(f"a body of {total} bytes, but its blobs have {int(self._start[-1])}")
        if len(self._frames) > 1:
            place = np.searchsorted(self._chunk_start, self._frame_end)
            if (self._chunk_start[place] != self._frame_end).any():
                raise DataError("a payload spans two frames of the body")

    def chunk_of(self, rows: Ints) -> Ints:
        """The chunk in which each of these rows lies, counted over all chunks."""
        if int(self.row_start[-1]) == len(self.rows):
            return rows  # Each chunk has one row, as those of single steps have.
        return np.searchsorted(self.row_start, rows, side="right") - 1

    def are_plain(self, chunks: Ints, number: int) -> bool:
        """True when column `number` of each of these chunks is there as it is: raw, whole, and in the order of time."""
        if self.is_plain:
            return True
        blobs = self._first_blob[chunks] + number
        return not self._codec[blobs].any() and not self._flags[blobs].any()

    def blob_start(self, chunk: Ints, column: int) -> Ints:
        """Where a column's blob begins in the joined body, for each of these chunks."""
        return self._start[self._first_blob[chunk] + column]

    def body(self) -> NDArray[np.uint8]:
        """All frames joined: a view if there is only one."""
        if self._body is None:
            self._body = np.frombuffer(self._frames[0] if len(self._frames) == 1 else b"".join(self._frames), np.uint8)
        return self._body

    def copy_pieces(self, starts: Ints, size: int, out: NDArray[np.uint8]) -> None:
        """Copies `size` bytes from each of these places of the joined body, one behind the other, into `out`.

        None of them may span two frames, as none does that lies in one chunk. 0.6 µs a piece besides its bytes. The
        interpreter's lock is held: to get it back from a busy thread after each piece would take milliseconds.
        """
        frame = np.searchsorted(self._frame_end, starts, side="right")
        place = starts - np.concatenate(([0], self._frame_end))[frame]
        frames, target, low = self._frames, out.data, 0
        for number, start in zip(frame.tolist(), place.tolist(), strict=True):
            piece = frames[number]
            target[low : low + size] = piece if len(piece) == size else piece[start : start + size]
            low += size

    def read(self, chunk: int, number: int, column: Column, out: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Decodes all rows of a chunk's column into `out`, [rows, *shape].

        Returns which rows the chunk has of it, None for all; the others hold anything.
        """
        buffer, codec, flags = self._blob(chunk, number, column)
        try:
            if column.is_variable:
                self._count_cells(chunk, number, column, buffer, codec, flags)
            return decode_rows(column, buffer, codec, flags, out)
        except DataError as error:
            raise DataError(f"{path_text(column.path)}: {error}") from error

    def decoded(self, chunk: int, number: int, column: Column) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """All rows of a chunk's column, decoded once and kept, and which of them there are; not to be written to."""
        found = self._decoded.get((chunk, number))
        if found is None:
            rows = int(self.rows[chunk])
            shape = (rows, *column.shape)
            if column.array_bytes(rows) > MAX_BATCH_BYTES:
                raise DataError(f"{path_text(column.path)}: a chunk decodes to more than {MAX_BATCH_BYTES} bytes")
            buffer, codec, flags = self._blob(chunk, number, column)
            if codec == RAW and not flags and not column.is_variable:
                found = np.ndarray(shape, column.dtype, buffer), None
                check_bools(found[0])
            else:
                array = np.empty(shape, column.array_dtype)
                found = array, self.read(chunk, number, column, array)
            self._decoded[chunk, number] = found
        return found

    def _count_cells(self, chunk: int, number: int, column: Column, buffer: memoryview, codec: int, flags: int) -> None:
        """Raises DataError if the values of bytes and str, each blob counted once, are more than a batch may take."""
        if (chunk, number) in self._counted:
            return
        rows = int(self.rows[chunk])
        if flags & SPARSE:
            buffer = buffer[-(-rows // 8) :]
        self._counted.add((chunk, number))
        self._cell_bytes += decoded_bytes(buffer, codec if len(buffer) else RAW)
        self._cell_bytes += OBJECT_BYTES * (column.row_bytes // LENGTH_BYTES) * rows
        if self._cell_bytes > MAX_BATCH_BYTES:
            raise DataError(f"the batch decodes to more than {MAX_BATCH_BYTES} bytes")

    def _blob(self, chunk: int, number: int, column: Column) -> tuple[memoryview, int, int]:
        """Stored bytes, codec and flags. Raises DataError if the server left them out."""
        places = self.places
        blob = places.first_blob[chunk] + number
        flags = places.flags[blob]
        if flags & OMITTED:
            raise DataError(f"{path_text(column.path)}: the column of a chunk that an item shows was not sent")
        size = places.size[blob]
        if not size:
            return memoryview(b""), places.codec[blob], flags
        frame = places.frame[chunk]
        start = places.start[blob] - places.frame_start[frame]
        return self._frames[frame][start : start + size], places.codec[blob], flags

    @property
    def places(self) -> _Places:
        if self._places is None:
            frame = np.searchsorted(self._frame_end, self._chunk_start[:-1], side="right")
            frame_start = [0, *self._frame_end.tolist()]
            arrays = (self.row_start, self._first_blob, frame, self._start, self._size, self._codec, self._flags)
            self._places = _Places(frame_start, *(array.tolist() for array in arrays))
        return self._places


@dataclass(frozen=True, slots=True)
class _Places:
    """What is asked of one chunk or blob at a time, as Python's integers: numpy's are slow one by one."""

    frame_start: list[int]
    row_start: list[int]
    first_blob: list[int]
    frame: list[int]
    """Of each chunk."""
    start: list[int]
    """Of each blob, in the joined body."""
    size: list[int]
    codec: list[int]
    flags: list[int]


def indices(numbers: NDArray[Any] | None, count: int, choices: int, what: str) -> Ints:
    if numbers is None:
        if count and not choices:
            raise DataError(f"there is no {what}")
        return np.zeros(count, np.int64)
    if len(numbers) != count:
        raise DataError(f"{len(numbers)} numbers of a {what} for {count}")
    if (numbers >= choices).any():
        raise DataError(f"{what} {int(numbers.max())} of {choices} is named")
    return numbers.astype(np.int64)


def starts_of(sizes: Ints) -> Ints:
    """Where each of these begins when they lie one behind the other, and where the last one ends: [n + 1]."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts
