"""Column blobs: rows of a column to stored bytes and back, and the choice of a codec for each column.

Owns §4.2 of the protocol: codecs, flags, and the checks a compressed chunk must pass before anything is decompressed.
The C library has no defence of its own: a forged header of 32 bytes asks it for gigabytes, for memory nobody wrote,
or for writing past a buffer's end. blosc2 is imported when a column is first compressed or decompressed, never
before; calls use contexts of their own with one thread, so they are safe beside other users of the library, in
threads and after a fork.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from replayd_client.array_messages import BLOB_RECORD
from replayd_client.cells import LENGTH_BYTES, MAX_CELLS_BYTES, Cells, pack_cells, unpack_cells
from replayd_client.columns import Column, Schema
from replayd_client.errors import DataError
from replayd_client.structure import path_text

RAW, BLOSC1, BLOSC2 = 0, 1, 2
"""Codec numbers of a blob record."""

DELTA, SPARSE, OMITTED = 1, 2, 4
"""Flags of a blob record."""

MAX_BLOB_BYTES = (1 << 31) - 1 - 32
"""Most bytes of one column of one chunk, decoded: the largest buffer a blosc2 chunk can describe."""

MIN_COMPRESSED_BYTES = 128
"""Below it a column stays raw: a chunk's header is 32 bytes, and the call costs more than sending them."""

BLOCK_BYTES = 512 * 1024
"""Bytes that are compressed as one, where the rows are not shuffled: the library's own blocks are of one to nine frames
of a game, and what a frame has in common with those before it is lost at each of their ends. In one block 40 frames of
Pong, Breakout and Seaquest take 40 to 65 % less, and three quarters of the time to write. Shuffled rows gain nothing.
"""

WriterCodec = Literal["auto", "raw"]
"""How a writer stores its columns: each compressed where that pays, as `ColumnCodec` finds out; or never."""

VIEWED_BYTES = 4096
"""Raw rows from this size on are joined with the others of a chunk without a copy before."""

Blob = tuple[bytes | memoryview, int, int]
"""Stored bytes, codec and flags."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to store a column: codec, filter, and whether each row is first replaced by its difference from the one
    before."""

    codec: Literal["raw", "lz4", "zstd"]
    shuffle: Literal["none", "byte", "bit"] = "none"
    delta: bool = False


RAW_CHOICE = Choice("raw")


def encode_column(rows: NDArray[Any], choice: Choice) -> Blob:
    """The rows, [n, …] and C-contiguous, stored as `choice` says, or raw where that is no smaller.

    A raw blob is a view of the rows: it must be used before they change.
    """
    if choice.codec != "raw" and rows.nbytes:
        stored = _compress(_difference(rows) if choice.delta else rows, choice, rows.itemsize)
        if stored is not None and len(stored) < rows.nbytes:
            return stored, BLOSC2, DELTA if choice.delta else 0
    # A view of small rows takes longer to make than a copy.
    return (rows.tobytes() if rows.nbytes < VIEWED_BYTES else _bytes_of(rows).data), RAW, 0


def decode_column(buffer: bytes | memoryview, codec: int, flags: int, out: NDArray[Any]) -> None:
    """Decodes a blob without a bitmap into `out`, [rows, *shape] of a fixed size, which must be C-contiguous, writable
    and little-endian.

    Raises DataError for a codec or flag that is not known here, and for bytes that are not exactly these rows: a
    chunk's header is compared with the size of `out` first, and nothing is allocated. `out` then holds anything.
    """
    assert out.flags.c_contiguous, "decoded rows lie one behind the other"
    if flags & ~DELTA:
        raise DataError(f"blob flags {flags} have no meaning here")
    if codec == RAW:
        if len(buffer) != out.nbytes:
            raise DataError(f"a raw blob of {len(buffer)} bytes, not the {out.nbytes} of {len(out)} rows")
        if out.nbytes:
            _bytes_of(out)[:] = np.frombuffer(buffer, np.uint8)
    else:
        _decompress(buffer, codec, _bytes_of(out))
    if flags & DELTA and out.nbytes:
        _accumulate(out)
    check_bools(out)


def decode_cells(buffer: bytes | memoryview, codec: int, flags: int, dtype: np.dtype[Any], out: Cells) -> None:
    """As `decode_column` for a column of bytes or str. Its decoded size is told by the blob alone, and is compared with
    the limit before anything is allocated."""
    if flags:
        raise DataError(f"blob flags {flags} have no meaning for a column of {dtype.name}")
    size = decoded_bytes(buffer, codec)
    if not LENGTH_BYTES * out.size <= size <= MAX_CELLS_BYTES:
        raise DataError(
            f"a blob of {size} decoded bytes: {out.size} cells have {LENGTH_BYTES * out.size} at least, and the limit "
            f"is {MAX_CELLS_BYTES}"
        )
    if codec == RAW:
        data = np.frombuffer(buffer, np.uint8)
    else:
        data = np.empty(size, np.uint8)
        _decompress(buffer, codec, data)
    unpack_cells(data, dtype, out)


def decode_rows(
    column: Column, buffer: memoryview, codec: int, flags: int, out: NDArray[Any]
) -> NDArray[np.bool_] | None:
    """Decodes a column of a chunk, bitmap and all, into `out`, [rows, *shape].

    Returns which rows the chunk has of it, None for all; the others hold anything. Raises as `decode_column`.
    """
    if not flags & SPARSE:
        if column.is_variable:
            decode_cells(buffer, codec, flags, column.dtype, out)
        else:
            decode_column(buffer, codec, flags, out)
        return None
    present, buffer = split_sparse(buffer, len(out))
    some = np.empty((np.count_nonzero(present), *column.shape), column.array_dtype)
    decode_rows(column, buffer, codec if len(buffer) else RAW, flags & ~SPARSE, some)
    out[present] = some
    return present


def decoded_bytes(buffer: bytes | memoryview, codec: int) -> int:
    """What a blob without a bitmap says of its decoded size."""
    if codec == RAW:
        return len(buffer)
    return int(_HEADER.unpack_from(buffer)[4]) if len(buffer) >= _HEADER.size else 0


def split_sparse(buffer: memoryview, rows: int) -> tuple[NDArray[np.bool_], memoryview]:
    """Which of the chunk's rows a SPARSE blob has, bool[rows], and the codec's data behind the bitmap."""
    if len(buffer) == 0:
        return np.zeros(rows, np.bool_), buffer
    size = -(-rows // 8)
    if len(buffer) < size:
        raise DataError(f"a sparse blob of {len(buffer)} bytes has no room for the bitmap of {rows} rows")
    bits = np.unpackbits(np.frombuffer(buffer[:size], np.uint8), bitorder="little").view(np.bool_)
    if bits[rows:].any():
        raise DataError(f"the bitmap of a sparse blob has more than {rows} rows")
    return bits[:rows], buffer[size:]


def check_bools(array: NDArray[Any]) -> None:
    """Raises DataError if a bool array has a byte that is neither 0 nor 1: numpy counts on it."""
    if array.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise DataError("a bool column has values that are neither 0 nor 1")


def encode_chunk(
    schema: Schema,
    arrays: Sequence[NDArray[Any]],
    codecs: Sequence[ColumnCodec],
    present: Sequence[NDArray[np.bool_] | None],
) -> tuple[NDArray[np.void], bytes]:
    """A chunk of K rows as its blob records (BLOB_RECORD, one for each column) and its payload.

    `arrays` are [K, *shape] in schema order; `present` is bool[K] for a column that some rows lack, None otherwise.
    Raises DataError for an array that is not its column's, and above MAX_BLOB_BYTES.
    """
    rows = len(arrays[0])
    records: list[int] = []
    parts: list[bytes | memoryview] = []
    for column, array, codec, has in zip(schema.columns, arrays, codecs, present, strict=True):
        if array.dtype != column.array_dtype or len(array) != rows or array.shape[1:] != column.shape:
            raise DataError(f"{column} over {rows} rows cannot hold {array.dtype.name}{list(array.shape)}")
        limit = MAX_BLOB_BYTES
        if column.is_variable:
            # Packed without the rows that lack the column: a bitmap is all that is left to do for those.
            array, limit = pack_cells(array if has is None else array[has]), MAX_CELLS_BYTES
        if array.nbytes > limit:
            raise DataError(f"{path_text(column.path)}: {array.nbytes} bytes in a chunk, the limit is {limit}")
        if has is None and array.nbytes < MIN_COMPRESSED_BYTES:
            parts.append(array.tobytes())
            records.append(array.nbytes)
            continue
        flags = size = 0
        if has is not None:
            flags = SPARSE
            if not column.is_variable:
                array = array[has]
            if has.any():
                bitmap = np.packbits(has, bitorder="little").tobytes()
                parts.append(bitmap)
                size = len(bitmap)
        stored, number, more_flags = codec.encode(array)
        parts.append(stored)
        size += len(stored)
        records.append(size | number << 32 | (flags | more_flags) << 40)
    # Not by a view: numpy checks in Python whether one of a structured dtype is safe, for longer than all the rest.
    return np.frombuffer(np.array(records, "<u8"), BLOB_RECORD), b"".join(parts)


def check_writer_codec(codec: str) -> None:
    """Raises DataError for what is no WriterCodec."""
    if codec not in get_args(WriterCodec):
        raise DataError(f"codec must be one of {', '.join(map(repr, get_args(WriterCodec)))}, got {codec!r}")


class ColumnCodec:
    """Chooses how one column is stored, from what its chunks turn out to be.

    The first TRIAL_CHUNKS chunks are stored in every way that may suit the dtype. The ways stand in order of their
    cost, raw first, and each must save WORTHWHILE of the bytes of the best one before it and WORTHWHILE_BYTES a chunk;
    so what does not compress is not compressed. Every RETRIAL_CHUNKS chunks one chunk is put to the test again, since
    data changes as an agent learns.

    `codec` "raw" never compresses, "blosc2" does wherever a chunk becomes smaller at all.
    """

    TRIAL_CHUNKS: Final = 2
    RETRIAL_CHUNKS: Final = 256
    WORTHWHILE: Final = 0.2
    # A reader pays some ten microseconds for each compressed blob, in which it could copy a hundred raw ones like it.
    WORTHWHILE_BYTES: Final = 512

    __slots__ = ("_candidates", "_is_told", "_on_trial", "_tallies", "_trials", "_until_trial", "choice")

    def __init__(self, column: Column, codec: Literal["auto", "raw", "blosc2"] = "auto") -> None:
        self.choice = RAW_CHOICE
        self._candidates = () if codec == "raw" else _candidates(column)
        self._is_told = codec != "auto"
        self._trials = self.TRIAL_CHUNKS
        self._until_trial = 0
        self._on_trial = 0
        # Bytes of the chunks on trial: raw, then as each candidate stores them.
        self._tallies = [0] * (1 + len(self._candidates))

    def encode(self, rows: NDArray[Any]) -> Blob:
        """The rows, [n, …], as a blob: as `choice` says, or raw if that is smaller. See `encode_column` for its
        lifetime."""
        if not rows.flags.c_contiguous:
            rows = np.ascontiguousarray(rows)
        if rows.nbytes < MIN_COMPRESSED_BYTES or not self._candidates:
            return encode_column(rows, RAW_CHOICE)
        if self._trials:
            return self._try_all(rows)
        self._until_trial -= 1
        if not self._until_trial:
            self._trials = 1
        return encode_column(rows, self.choice)

    def passes_raw(self, nbytes: int) -> bool:
        """Whether `encode` would store the next chunk, of this size, raw without a look at it; it counts as encoded."""
        if nbytes < MIN_COMPRESSED_BYTES or not self._candidates:
            return True
        if self._trials or self.choice.codec != "raw":
            return False
        self._until_trial -= 1
        if not self._until_trial:
            self._trials = 1
        return True

    def _try_all(self, rows: NDArray[Any]) -> Blob:
        ways = (RAW_CHOICE, *self._candidates)
        blobs = [encode_column(rows, choice) for choice in ways]
        sizes = [len(stored) for stored, _, _ in blobs]
        self._tallies = [tally + size for tally, size in zip(self._tallies, sizes, strict=True)]
        self._on_trial += 1
        self._trials -= 1
        if not self._trials:
            self.choice = ways[self._best(self._tallies, self._on_trial)]
            self._tallies = [0] * len(ways)
            self._on_trial = 0
            self._until_trial = self.RETRIAL_CHUNKS
        return blobs[self._best(sizes, 1)]

    def _best(self, sizes: list[int], chunks: int) -> int:
        best = 0
        for way in range(1, len(sizes)):
            enough = 1 if self._is_told else max(sizes[best] * self.WORTHWHILE, self.WORTHWHILE_BYTES * chunks)
            if sizes[best] - sizes[way] >= enough:
                best = way
        return best


def _candidates(column: Column) -> tuple[Choice, ...]:
    """Ways that may suit a column, cheapest to decode first.

    Atari frames are smallest as they are, in one block, since zstd finds in earlier frames what stays: 0.5 to 1.5 %,
    where a difference in time takes a tenth more and twice the time to decode, and bitshuffle several times as much. On
    floats bitshuffle is better than nothing, and after a difference their upper bytes vanish.
    """
    if column.is_variable:
        return (Choice("zstd"),)
    is_array = bool(column.shape)
    kind = column.dtype.kind
    if kind in "fc":
        ways = [Choice("lz4", "bit"), Choice("zstd", "byte")]
        return (*ways, Choice("zstd", "byte", delta=True)) if is_array else tuple(ways)
    if kind == "b":
        ways = [Choice("zstd", "bit"), Choice("zstd")]
    else:
        ways = [Choice("zstd", "none" if column.dtype.itemsize == 1 else "byte")]
    return tuple(ways + [Choice("zstd", ways[-1].shuffle, delta=True)] * is_array)


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


def _difference(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Each row XOR the row before it, bytewise, [n, row bytes]."""
    matrix = _bytes_of(rows).reshape(len(rows), -1)
    out = np.empty_like(matrix)
    out[0] = matrix[0]
    np.bitwise_xor(matrix[1:], matrix[:-1], out=out[1:])
    return out


def _accumulate(rows: NDArray[Any]) -> None:
    """Undoes `_difference` in place: a running XOR down the rows."""
    flat = _bytes_of(rows)
    row_bytes = len(flat) // len(rows)
    width = next(width for width in (8, 4, 2, 1) if row_bytes % width == 0)
    matrix = flat.view(f"u{width}").reshape(len(rows), -1)
    # numpy accumulates down a column at a time, 3.5 ns a word; a call for each row costs 1.5 µs but runs along the row.
    if matrix.shape[1] <= 400:
        np.bitwise_xor.accumulate(matrix, axis=0, out=matrix)
    else:
        for before, row in pairwise(matrix):
            np.bitwise_xor(before, row, out=row)


@lru_cache(maxsize=1)
def _blosc2() -> Any:
    """The library; importing it takes up to half a second and 50 MiB, so not before it is needed."""
    import blosc2

    return blosc2


@lru_cache(maxsize=64)
def _compression_settings(choice: Choice, itemsize: int) -> dict[str, Any]:
    blosc2 = _blosc2()
    filters = {"none": blosc2.Filter.NOFILTER, "byte": blosc2.Filter.SHUFFLE, "bit": blosc2.Filter.BITSHUFFLE}
    return {
        "codec": blosc2.Codec.ZSTD if choice.codec == "zstd" else blosc2.Codec.LZ4,
        "clevel": 1,
        "typesize": min(itemsize, 255),
        "filters": [filters[choice.shuffle]],
        "nthreads": 1,
        "use_dict": False,
    }


def _decompress(buffer: bytes | memoryview, codec: int, out: NDArray[np.uint8]) -> None:
    if codec not in (BLOSC1, BLOSC2):
        raise DataError(f"codec {codec} is not known")
    fault = _chunk_fault(buffer, codec, out.nbytes)
    if fault:
        raise DataError(f"a compressed blob of {len(buffer)} bytes is refused: {fault}")
    try:
        _blosc2().decompress2(buffer, dst=out, nthreads=1)
    except Exception as error:  # The library raises whatever its C code's result suggests.
        raise DataError(f"a compressed blob of {len(buffer)} bytes does not decode: {error}") from error


def _compress(data: NDArray[Any], choice: Choice, itemsize: int) -> bytes | None:
    # 0: the library's choice.
    block = min(data.nbytes, BLOCK_BYTES) if choice.shuffle == "none" else 0
    stored: bytes = _blosc2().compress2(data, blocksize=block, **_compression_settings(choice, itemsize))
    # Environment variables override the settings. What our own reader would refuse is never sent.
    return None if _chunk_fault(stored, BLOSC2, data.nbytes) else stored


_HEADER = struct.Struct("<4B3I")
_FORMAT_OF_CODEC = {BLOSC1: 2, BLOSC2: 5}
_SHUFFLE_AND_BITSHUFFLE, _MEMCPYED = 5, 2
_LZ4, _ZSTD = 1, 4


def _chunk_fault(buffer: bytes | memoryview, codec: int, nbytes: int) -> str:
    """Why a chunk must not be decompressed, or "". The header is described in c-blosc2's README_CHUNK_FORMAT.

    Both flags of shuffling together mean the 32-byte header, whatever the version byte says: the library goes by them.
    """
    if len(buffer) < 16 or nbytes == 0:
        return "no chunk is so short" if nbytes else "there is nothing to compress"
    version, _, flags, typesize, plain, block, stored = _HEADER.unpack_from(buffer)
    if version != _FORMAT_OF_CODEC[codec]:
        return f"chunk format {version}"
    if plain != nbytes or stored != len(buffer):
        return f"its header tells of {plain} bytes in {stored}, not of {nbytes} in {len(buffer)}"
    if typesize == 0 or not 0 < block <= nbytes:
        return "impossible type or block size"
    special = 0
    header_bytes = 16
    is_extended = flags & _SHUFFLE_AND_BITSHUFFLE == _SHUFFLE_AND_BITSHUFFLE
    if is_extended != (codec == BLOSC2):
        return "a header of the other format"
    if is_extended:
        header_bytes = 32
        if len(buffer) < 32:
            return "no chunk is so short"
        if bytes(buffer[16:22]).strip(b"\0\1\2"):
            return "a filter other than shuffle and bitshuffle"
        more, special_flags = buffer[30], buffer[31]
        special = special_flags >> 4 & 7
        if more or special_flags & 0x8B or special > 3:
            return "a dictionary, lazy, variable-length, uninitialised or unknown kind of chunk"
    if flags & _MEMCPYED:
        if not special and stored != nbytes + header_bytes:
            return "an uncompressed chunk of another size"
    elif not special and flags >> 5 not in (_LZ4, _ZSTD):
        return f"compressor {flags >> 5}, neither lz4 nor zstd"
    return ""
