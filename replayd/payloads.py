"""Payloads of stored chunks: small ones copied into the arena, large ones kept in the frames they came in.

Owns the bytes. A payload is found by its place, a number which the chunk store keeps; from 0 on it lies in the arena,
below 0 it is a frame. Never looks into a payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd.arena import Arena
from replayd.limits import SMALL_PAYLOAD_BYTES
from replayd.messages import Buffer, Int64s


class Payloads:
    """Small payloads are copied since a small frame keeps the 8 KiB alive into which it was received; a frame of its
    own is sent again without a copy."""

    def __init__(self) -> None:
        self._arena = Arena()
        self._frames: list[Buffer | None] = []
        self._free: list[int] = []

    def put(self, frames: Sequence[Buffer], stops: Sequence[int], sizes: Int64s) -> Int64s:
        """Store n payloads which lie in frames; `stops` says how many lie before the end of each. Their places."""
        if len(frames) == 1 and _largest(sizes) < SMALL_PAYLOAD_BYTES:
            return self._arena.put(memoryview(frames[0]), sizes.cumsum() - sizes, sizes)
        places = np.empty(len(sizes), np.int64)
        first = 0
        for frame, stop in zip(frames, stops, strict=True):
            if stop == first + 1 and len(frame) >= SMALL_PAYLOAD_BYTES:
                places[first] = self._keep(frame)
            else:
                self._put_packed(memoryview(frame), sizes[first:stop], places[first:stop])
            first = stop
        if first < len(sizes):
            # Behind the last frame are payloads without a byte.
            self._put_packed(memoryview(b""), sizes[first:], places[first:])
        return places

    def fetch(self, places: Int64s, sizes: NDArray[np.integer[Any]]) -> list[Buffer]:
        """These payloads as body frames (protocol.md §4.3): small ones packed, each large one in a frame of its own."""
        large = (places < 0).nonzero()[0]
        if len(large) == len(places):
            # 0.1 µs a payload; by way of its span it took 2.5.
            frames = [self._frames[index] for index in (~places).tolist()]
            assert None not in frames, "a payload was freed and is still in use"
            return frames
        body: list[Buffer] = []
        first = 0
        for stop in [*large.tolist(), len(places)]:
            if stop > first and len(packed := self._arena.fetch(places[first:stop], sizes[first:stop])):
                body.append(packed)
            if stop < len(places):
                body.append(self._frame(int(places[stop])))
            first = stop + 1
        return body

    def fetch_spans(
        self, places: Int64s, starts: Int64s, sizes: NDArray[np.integer[Any]], chunk_of: Int64s
    ) -> list[Buffer]:
        """Parts of payloads as body frames: of each chunk, named in rising order, the parts are one behind the other.

        `starts` are counted from the beginning of a payload, `places` from that of each span's.
        """
        if len(places) == 0:
            return []
        if _least(places) >= 0:
            packed = self._arena.fetch(places + starts, sizes)
            return [packed] if len(packed) else []
        spans = [
            self._span(place, start, size)
            for place, start, size in zip(places.tolist(), starts.tolist(), sizes.tolist(), strict=True)
        ]
        cuts = [0, *(np.flatnonzero(np.diff(chunk_of)) + 1).tolist(), len(spans)]
        body: list[Buffer] = []
        small: list[Buffer] = []
        for first, stop in pairwise(cuts):
            parts = spans[first:stop]
            if sum(map(len, parts)) < SMALL_PAYLOAD_BYTES:
                small += parts
                continue
            if small:
                body.append(b"".join(small))
                small = []
            body.append(parts[0] if len(parts) == 1 else b"".join(parts))
        if small:
            body.append(b"".join(small))
        return [frame for frame in body if len(frame)]

    def copies(self, places: Int64s, sizes: NDArray[np.integer[Any]]) -> list[Buffer]:
        """Each payload by itself, which stays what it is when its place is used again."""
        return [
            bytes(self._arena.view(place, size)) if place >= 0 else self._frame(place)
            for place, size in zip(places.tolist(), sizes.tolist(), strict=True)
        ]

    def load(self, body: Sequence[Buffer], starts: Int64s, sizes: Int64s) -> Int64s:
        """Store copies of these pieces of some buffers, one behind the other; their places."""
        view = memoryview(body[0] if len(body) == 1 else b"".join(body)).cast("B")
        places = np.empty(len(sizes), np.int64)
        small = sizes < SMALL_PAYLOAD_BYTES
        if small.any():
            places[small] = self._arena.put(view, starts[small], sizes[small])
        for i in np.flatnonzero(~small).tolist():
            places[i] = self._keep(bytes(view[int(starts[i]) : int(starts[i] + sizes[i])]))
        return places

    def free(self, places: Int64s, sizes: NDArray[np.integer[Any]]) -> None:
        """These payloads, each named once, are not needed any more."""
        kept = places < 0
        if np.count_nonzero(kept):
            for place in places[kept].tolist():
                self._frames[~place] = None
                self._free.append(~place)
            places, sizes = places[~kept], sizes[~kept]
        if len(places):
            self._arena.free(places, sizes)

    def validate(self, places: Int64s, sizes: Int64s) -> None:
        """These are all payloads there are."""
        kept = places[places < 0]
        assert len(np.unique(kept)) == len(kept), "two chunks have one frame"
        assert len(kept) + len(self._free) == len(self._frames), "a frame is kept for nobody"
        for place, size in zip(kept.tolist(), sizes[places < 0].tolist(), strict=True):
            assert len(self._frame(place)) == size, "a frame has not its chunk's size"
        assert all(self._frames[index] is None for index in self._free), "a freed frame is kept"
        small = places >= 0
        self._arena.validate(places[small], sizes[small])

    def _keep(self, frame: Buffer) -> int:
        if self._free:
            index = self._free.pop()
            self._frames[index] = frame
        else:
            index = len(self._frames)
            self._frames.append(frame)
        return ~index

    def _put_packed(self, frame: memoryview, sizes: Int64s, places: Int64s) -> None:
        starts = np.cumsum(sizes) - sizes
        small = sizes < SMALL_PAYLOAD_BYTES
        if small.any():
            places[small] = self._arena.put(frame, starts[small], sizes[small])
        for i in np.flatnonzero(~small).tolist():
            places[i] = self._keep(bytes(frame[int(starts[i]) : int(starts[i] + sizes[i])]))

    def _span(self, place: int, start: int, size: int) -> Buffer:
        if place >= 0:
            return self._arena.view(place + start, size)
        frame = self._frame(place)
        # A frame as it came is sent with less ado than a part of it.
        return frame if size == len(frame) else memoryview(frame)[start : start + size]

    def _frame(self, place: int) -> Buffer:
        frame = self._frames[~place]
        assert frame is not None, f"the payload at {place} was freed and is still in use"
        return frame


def _largest(values: NDArray[np.integer[Any]]) -> int:
    return int(values[values.argmax()])


def _least(values: NDArray[np.integer[Any]]) -> int:
    return int(values[values.argmin()])
