"""The journal's format, version 2: what stands in a store's database `journal`. Knows bytes, and no disk.

An entry is something that changed the state after a checkpoint: a request that was accepted, in the frames in which it
came (protocol.md), or that time passed. Entries are numbered, and those that follow each other stand in one value.

- Key: the number of its first entry, u64 in native order. Where numbers are left out the journal ends: what comes
  behind belongs to a checkpoint that was not finished.
- Value: u32 CRC-32 of the rest; u8 version, u8 0, u16 0; u32 n, u32 number of frames; u32 sum of the state after the
  last entry (`state_sum`), 0 for none; u32 0; f64 seconds since 1970 at its end. Then, an entry each: `times` f64[n]
  (the server's clock, in seconds), `frames` u32[n], `peers` u8[n] (how many of these are the peer's: its routing id,
  and an empty one if it is a REQ; 0: it pushed), `kinds` u8[n]; then the size of each frame, u32; then the frames.
- Kinds: 0 time passed, and what was due was done; 1 a request; 2 a request that was taken together with the one
  before; 3 the peer has read replies with payload: a frame with their bytes u64 and their number u32.

The head of the index (`store_format`) names the first entry that its state has not seen, as `index.journal.next`, and
the samples that waited at that moment. All numbers are little-endian. Later versions read this one, and version 1,
which had no kind 3.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from replayd.messages import Peer
from replayd.service import Service
from replayd.store_format import Damaged

VERSION = 2
VALUE_BYTES = 1 << 20
"""Of frames in one value, more only if one message has more: LMDB looks for room that is in one piece."""

ENTRIES_AT_MOST = 1 << 32
"""In one value."""

TIME_PASSED, REQUEST, TOGETHER, READ = 0, 1, 2, 3
READING = struct.Struct("<QI")

_HEAD = struct.Struct("<IBxxxIIIxxxxd")
_ENTRY_BYTES = 8 + 4 + 1 + 1
_FRAME_BYTES = 4


@dataclass(slots=True)
class Entries:
    """Entries that follow each other, on their way to the disk: one entry in each list an entry."""

    epoch: int
    """Those of one epoch are worth nothing without the ones before."""
    first: int
    times: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    peers: list[int] = field(default_factory=list)
    frames: list[list[Any]] = field(default_factory=list)
    """The peer's and the message's."""
    nbytes: int = 0
    """Of the frames, and what the entries take beside them."""
    sum: int = 0
    wall_s: float = 0.0

    def __len__(self) -> int:
        return len(self.times)

    def add(self, now: float, kind: int, peer: Peer, message: Any) -> None:
        """One more. `peer` is a tuple of frames, or None."""
        assert peer is None or isinstance(peer, tuple)
        frames = [*(peer or ()), *message]
        self.times.append(now)
        self.kinds.append(kind)
        self.peers.append(len(peer or ()))
        self.frames.append(frames)
        self.nbytes += sum(map(len, frames)) + _ENTRY_BYTES + _FRAME_BYTES * len(frames)


@dataclass(slots=True)
class Entry:
    """One entry as it was read; the frames are copies."""

    now: float
    kind: int
    peer: Peer
    frames: list[bytes]


@dataclass(slots=True)
class Value:
    """What stands under one key."""

    entries: list[Entry]
    sum: int
    """0: none."""
    wall_s: float


def pack(entries: Entries) -> Iterator[tuple[int, bytes]]:
    """Numbers and values of these entries."""
    start, nbytes = 0, 0
    for n, frames in enumerate(entries.frames):
        mine = sum(map(len, frames))
        if n > start and nbytes + mine > VALUE_BYTES:
            yield entries.first + start, _packed(entries, start, n)
            start, nbytes = n, 0
        nbytes += mine
    yield entries.first + start, _packed(entries, start, len(entries))


def _packed(entries: Entries, start: int, stop: int) -> bytes:
    frames = [frame for each in entries.frames[start:stop] for frame in each]
    body = b"".join(
        [
            np.array(entries.times[start:stop], "<f8").tobytes(),
            np.array([len(each) for each in entries.frames[start:stop]], "<u4").tobytes(),
            bytes(entries.peers[start:stop]),
            bytes(entries.kinds[start:stop]),
            np.array(list(map(len, frames)), "<u4").tobytes(),
            *frames,
        ]
    )
    sum_ = entries.sum if stop == len(entries) else 0
    head = _HEAD.pack(0, VERSION, stop - start, len(frames), sum_, entries.wall_s)[4:]
    return b"".join((struct.pack("<I", zlib.crc32(body, zlib.crc32(head))), head, body))


def count_of(value: memoryview | bytes) -> int:
    """How many entries a value has. Raises Damaged, also if that many would have another size than it."""
    _, n, frames, _, _ = _head(value)
    at = _HEAD.size + _ENTRY_BYTES * n
    end = at + _FRAME_BYTES * frames
    if not n or end > len(value) or end + sum(struct.unpack_from(f"<{frames}I", value, at)) != len(value):
        raise Damaged("a part of the journal is not of the size that it says")
    return n


def most_of(value: memoryview | bytes) -> int:
    """How many entries a value may have had, whatever it says: as many as it has room for, if it was not cut off."""
    return ENTRIES_AT_MOST if len(value) <= _HEAD.size else max(1, (len(value) - _HEAD.size) // _ENTRY_BYTES)


def unpack(value: memoryview | bytes) -> Value:
    """Raises Damaged, also for a version that is not known here."""
    crc, n, frames, sum_, wall_s = _head(value)
    if zlib.crc32(value[4:]) != crc:
        raise Damaged("a part of the journal fails its CRC")
    at = _HEAD.size
    times = np.frombuffer(value, "<f8", n, at).tolist()
    counts = np.frombuffer(value, "<u4", n, at := at + 8 * n).tolist()
    peers = np.frombuffer(value, "u1", n, at := at + 4 * n).tolist()
    kinds = np.frombuffer(value, "u1", n, at := at + n).tolist()
    sizes = np.frombuffer(value, "<u4", frames, at := at + n)
    at += 4 * frames
    ends = (at + np.cumsum(sizes, dtype=np.int64)).tolist()
    cuts = [bytes(value[a:b]) for a, b in zip([at, *ends], ends, strict=False)]
    entries, first = [], 0
    for now, count, mine, kind in zip(times, counts, peers, kinds, strict=True):
        peer = tuple(cuts[first : first + mine]) if mine else None
        entries.append(Entry(now, kind, peer, cuts[first + mine : first + count]))
        first += count
    return Value(entries, sum_, wall_s)


def _head(value: memoryview | bytes) -> tuple[int, int, int, int, float]:
    if len(value) < _HEAD.size:
        raise Damaged(f"a part of the journal has {len(value)} bytes")
    crc, version, n, frames, sum_, wall_s = _HEAD.unpack_from(value)
    if version > VERSION:
        raise Damaged(f"the journal has version {version}; this program reads up to {VERSION}")
    return crc, n, frames, sum_, wall_s


def state_sum(service: Service) -> int:
    """What a state is known by when it is reached again: keys drawn, and each limiter's counters. Never 0."""
    numbers = [service._keys.take(0)]
    for table in service.tables.values():
        limiter = table.limiter
        numbers += [limiter.inserts, limiter.samples, limiter.deletes]
    return zlib.crc32(struct.pack(f"<{len(numbers)}q", *numbers)) or 1
