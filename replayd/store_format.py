"""The format of a store, version 2: what stands under which key of its LMDB environment. Knows bytes, and no disk.

Databases of the environment (`data.mdb` in the store's directory, beside `replayd-store.json`, which marks it as one):

- `head`: one entry, `head`: u32 CRC-32 of the rest, then JSON: `format` (2), `generation` (the number of the
  checkpoint), `saved_at` (seconds since 1970), `clean` (nothing happened after it), `index` (a tree of plain values in
  which `{"$": n}` stands for array n), `arrays` (of each: `path`, `dtype`, `shape`, and `pieces`, [generation, BLAKE2b
  hash of 16 bytes in hex] each).
- `index`: the arrays in pieces of about PIECE_BYTES. Key: `path#piece@generation`; a piece is written again, under a
  new generation, only when its content has changed. Value: u32 CRC-32 of the rest, u8 0 (raw) or 1 (a blosc2 chunk).
- `blocks`: the chunks, many to a block. Key: number of the block, u64 in native order, never reused. Value: u32
  CRC-32 of all but the payloads, u32 n, u64 number of records; `uids`, `streams`, `numbers`, `episodes` u64[n] each;
  `rows`, `schemas`, `widths`, `nbytes` u32[n] each; a CRC-32 u32 of each SEGMENT_BYTES of the payloads; the chunks'
  records u64 (protocol.md §4.2); the payloads, one behind the other. A chunk that stands in several blocks is the same
  in each.

- `journal`: what happened since: see `journal_format`.

A checkpoint first adds blocks and pieces that nothing refers to yet, then in one transaction replaces the head and
removes the pieces that it no longer names, then the blocks of which no chunk is in the index, and the journal up to it.
So whatever is cut short leaves the last head whole. All numbers are little-endian. Later versions read this one and
those before it: `format` tells which it is, and `store_formats` what was different then.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd.chunks import NO_UID
from replayd.handover import SavedChunks
from replayd.messages import Int64s
from replayd.slots import among
from replayd.state import State

FORMAT = 3
"""Raised with every change of what is saved, see `store_formats`."""
PIECE_BYTES = 1 << 18
"""Of an array in the index: small enough that a change here and there does not rewrite all."""

SEGMENT_BYTES = 4096
"""Of payloads under one CRC, whatever chunks they are of: disks lose sectors, and a CRC a chunk would be most of the
work where chunks are small."""

Buffer = bytes | memoryview


class Damaged(Exception):
    """Bytes of a store that are not what was written."""


# --- blocks -----------------------------------------------------------------------------------------------------------

_BLOCK = struct.Struct("<IIQ")
_WIDE = ("uids", "streams", "numbers", "episodes")
_NARROW = ("rows", "schemas", "widths", "nbytes")
_CHUNK_BYTES = 8 * len(_WIDE) + 4 * len(_NARROW)


def pack_block(chunks: SavedChunks) -> bytes:
    """Chunks as a block."""
    payloads = chunks.body[0] if len(chunks.body) == 1 else b"".join(chunks.body)
    crcs = _crcs(memoryview(payloads).cast("B"))
    tables = b"".join(
        [
            _BLOCK.pack(0, len(chunks), len(chunks.records))[4:],
            *(getattr(chunks, name).astype("<u8").tobytes() for name in _WIDE),
            *(getattr(chunks, name).astype("<u4").tobytes() for name in _NARROW),
            crcs.astype("<u4").tobytes(),
            chunks.records.astype("<u8").tobytes(),
        ]
    )
    return b"".join([struct.pack("<I", zlib.crc32(tables)), tables, payloads])


def unpack_block(value: memoryview, live: Int64s) -> tuple[SavedChunks, Int64s]:
    """The chunks of a block, and the names of those among `live` (rising) of which something fails its CRC.

    Chunks that failed, and those that are not among `live`, have the name NO_UID. Raises Damaged if nothing can be said
    of the block.
    """
    if len(value) < _BLOCK.size:
        raise Damaged(f"a block of {len(value)} bytes")
    crc, n, records = _BLOCK.unpack_from(value)
    at = _BLOCK.size
    if at + n * _CHUNK_BYTES > len(value):
        raise Damaged("a block ends within its tables")
    columns: dict[str, Int64s] = {}
    for names, dtype in ((_WIDE, "<u8"), (_NARROW, "<u4")):
        for name in names:
            column = np.frombuffer(value, dtype, n, at)
            columns[name] = column.astype(np.int64)
            at += column.nbytes
    ends = np.cumsum(columns["nbytes"])
    body_bytes = int(ends[-1]) if n else 0
    segments = -(-body_bytes // SEGMENT_BYTES)
    size = at + 4 * segments + 8 * records
    if len(value) != size + body_bytes or zlib.crc32(value[4:size]) != crc:
        raise Damaged("the tables of a block fail their CRC")
    body = value[size:]
    is_bad = _crcs(body) != np.frombuffer(value, "<u4", segments, at)
    bad_before = np.concatenate(([0], np.cumsum(is_bad)))
    starts = ends - columns["nbytes"]
    is_whole = bad_before[-(-ends // SEGMENT_BYTES)] == bad_before[starts // SEGMENT_BYTES]
    is_whole |= columns["nbytes"] == 0
    is_live = among(columns["uids"], live)
    bad = columns["uids"][is_live & ~is_whole]
    columns["uids"] = np.where(is_live & is_whole, columns["uids"], NO_UID)
    # Copies: the value lies in the map of the disk.
    kept = np.frombuffer(value, "<u8", records, at + 4 * segments).astype(np.uint64)
    return SavedChunks(**columns, records=kept, body=[body]), bad


def block_contents(value: memoryview) -> tuple[Int64s, Int64s]:
    """Names and payload sizes of the chunks of a block that can be unpacked."""
    _, n, _ = _BLOCK.unpack_from(value)
    uids = np.frombuffer(value, "<u8", n, _BLOCK.size).astype(np.int64)
    at = _BLOCK.size + n * (_CHUNK_BYTES - 4)
    return uids, np.frombuffer(value, "<u4", n, at).astype(np.int64)


def _crcs(body: memoryview) -> Int64s:
    starts = range(0, len(body), SEGMENT_BYTES)
    return np.fromiter(map(zlib.crc32, [body[at : at + SEGMENT_BYTES] for at in starts]), np.int64, len(starts))


# --- the index --------------------------------------------------------------------------------------------------------

_COMPRESS_FROM = 1024


def pack_piece(raw: Buffer, itemsize: int) -> bytes:
    """A piece of an array whose entries have this size, compressed where that pays."""
    kind, body = b"\0", raw
    if len(raw) >= _COMPRESS_FROM:
        zstd = blosc2().Codec.ZSTD
        chunk = blosc2().compress2(raw, codec=zstd, clevel=1, typesize=min(itemsize, 255), nthreads=1)
        if len(chunk) < len(raw):
            kind, body = b"\1", chunk
    packed = b"".join((kind, body))
    return struct.pack("<I", zlib.crc32(packed)) + packed


def unpack_piece(value: Buffer, nbytes: int, wanted: str) -> Buffer:
    """The raw piece, which has so many bytes and this hash. Raises Damaged."""
    if len(value) < 5 or zlib.crc32(value[4:]) != struct.unpack_from("<I", value)[0]:
        raise Damaged("a piece of the index fails its CRC")
    body: Buffer = value[5:]
    if value[4] == 1:
        # The CRC says that this is what was written, and that was a chunk of this very size.
        body = blosc2().decompress2(body, nthreads=1)
    if len(body) != nbytes or hash_of(body) != wanted:
        raise Damaged("a piece of the index is not the one that its head names")
    return body


def hash_of(raw: Buffer) -> str:
    """What tells a piece from every other."""
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


def piece_key(path: str, number: int, generation: int) -> bytes:
    """Where the piece of this number of an array is, as that checkpoint wrote it."""
    return f"{path}#{number}@{generation}".encode()


@dataclass(slots=True)
class ArrayEntry:
    """An array of the index, as the head describes it."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: list[tuple[int, str]]
    """Generation and hash of each."""

    @property
    def nbytes(self) -> int:
        """Of the whole array."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def piece_bytes(self) -> int:
        """Whole entries only."""
        return max(1, PIECE_BYTES // self.dtype.itemsize) * self.dtype.itemsize

    def spans(self) -> list[tuple[int, int]]:
        """Where each piece begins and ends."""
        step, end = self.piece_bytes, self.nbytes
        return [(start, min(start + step, end)) for start in range(0, end, step)]

    def piece_keys(self) -> list[bytes]:
        """Where in the store each piece is."""
        return [piece_key(self.path, number, generation) for number, (generation, _) in enumerate(self.pieces)]


@dataclass(slots=True)
class Head:
    """What an index is made of, and when."""

    generation: int
    saved_at: float
    clean: bool
    index: Any
    """The tree, with `{"$": n}` for array n."""
    arrays: list[ArrayEntry]
    format: int = FORMAT
    """Of what it was read from."""


def pack_head(head: Head) -> bytes:
    """A head as the store has it."""
    text = json.dumps(
        {
            "format": FORMAT,
            "generation": head.generation,
            "saved_at": head.saved_at,
            "clean": head.clean,
            "index": head.index,
            "arrays": [
                {
                    "path": array.path,
                    "dtype": np.lib.format.dtype_to_descr(array.dtype),
                    "shape": array.shape,
                    "pieces": array.pieces,
                }
                for array in head.arrays
            ],
        },
        separators=(",", ":"),
    ).encode()
    return struct.pack("<I", zlib.crc32(text)) + text


def unpack_head(value: Buffer) -> Head:
    """Raises Damaged, also for a format that is not known here."""
    if len(value) < 4 or zlib.crc32(value[4:]) != struct.unpack_from("<I", value)[0]:
        raise Damaged("the head of the index fails its CRC")
    fields = json.loads(bytes(value[4:]))
    if fields["format"] > FORMAT:
        raise Damaged(f"the store has format {fields['format']}; this program reads up to {FORMAT}")
    arrays = [
        ArrayEntry(
            entry["path"],
            _dtype(entry["dtype"]),
            tuple(entry["shape"]),
            [(generation, hash) for generation, hash in entry["pieces"]],
        )
        for entry in fields["arrays"]
    ]
    return Head(fields["generation"], fields["saved_at"], fields["clean"], fields["index"], arrays, fields["format"])


def take_apart(state: State) -> tuple[Any, dict[str, NDArray[Any]]]:
    """A settled state as a tree without arrays, and the arrays by path, in the order of their numbers in it."""
    arrays: dict[str, NDArray[Any]] = {}

    def outline(value: Any, path: str) -> Any:
        if isinstance(value, np.ndarray):
            arrays[path] = np.ascontiguousarray(value)
            return {"$": len(arrays) - 1}
        if isinstance(value, dict):
            return {name: outline(inner, f"{path}/{name}" if path else name) for name, inner in value.items()}
        if isinstance(value, list):
            return [outline(inner, f"{path}/{n}") for n, inner in enumerate(value)]
        return value

    return outline(state, ""), arrays


def put_together(tree: Any, arrays: Sequence[NDArray[Any]]) -> Any:
    """The state that was taken apart."""
    if isinstance(tree, dict):
        if tree.keys() == {"$"}:
            return arrays[tree["$"]]
        return {name: put_together(inner, arrays) for name, inner in tree.items()}
    return [put_together(inner, arrays) for inner in tree] if isinstance(tree, list) else tree


def _dtype(described: Any) -> np.dtype[Any]:
    """From JSON, which has lists for tuples."""
    if isinstance(described, list):
        described = [tuple(field) for field in described]
    return np.lib.format.descr_to_dtype(described)


@cache
def blosc2() -> Any:
    """The library. Called once before anything is served: the import takes half a second of everybody's time."""
    # It brings numexpr along, which tells the log how many threads it will not use.
    noisy = logging.getLogger("numexpr")
    level = noisy.level
    noisy.setLevel(logging.WARNING)
    import blosc2

    noisy.setLevel(level)
    blosc2.set_nthreads(1)
    # Its calls let other threads run only if they are told to.
    blosc2.set_releasegil(True)
    return blosc2
