"""Payloads come back byte for byte, whatever was stored and freed before and between; freed memory is used again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayd.arena import RECLAIM_BYTES, SLAB_BYTES, Arena
from replayd.limits import SMALL_PAYLOAD_BYTES
from replayd.messages import Int64s
from replayd.payloads import Payloads

SIZES = st.one_of(
    st.integers(0, 40),
    st.integers(0, 3000),
    st.sampled_from([255, 256, 257, SMALL_PAYLOAD_BYTES - 1, SMALL_PAYLOAD_BYTES, SMALL_PAYLOAD_BYTES + 1]),
)


def store(payloads: Payloads, contents: Sequence[bytes], packed: bool = True) -> Int64s:
    sizes = np.array([len(content) for content in contents], np.int64)
    if packed:
        return payloads.put([b"".join(contents)], [len(contents)], sizes)
    frames = [(content, stop) for stop, content in enumerate(contents, 1) if content]
    # Payloads without a byte belong to the next frame.
    return payloads.put([frame for frame, _ in frames], [stop for _, stop in frames], sizes)


def sizes_of(contents: Sequence[bytes]) -> Int64s:
    return np.array([len(content) for content in contents], np.int64)


class Clerk:
    """Knows what is stored where."""

    def __init__(self) -> None:
        self.payloads = Payloads()
        self.stored: dict[int, bytes] = {}
        self.serial = 0

    def put(self, sizes: Sequence[int], packed: bool) -> None:
        contents = [self.content(size) for size in sizes]
        for place, content in zip(store(self.payloads, contents, packed).tolist(), contents, strict=True):
            assert place not in self.stored
            self.stored[place] = content

    def content(self, size: int) -> bytes:
        self.serial += 1
        return (self.serial.to_bytes(8, "little") * (size // 8 + 1))[:size]

    def free(self, places: Sequence[int]) -> None:
        sizes = sizes_of([self.stored.pop(place) for place in places])
        self.payloads.free(np.array(places, np.int64), sizes)

    def check(self, places: Sequence[int]) -> None:
        contents = [self.stored[place] for place in places]
        where, sizes = np.array(places, np.int64), sizes_of(contents)
        assert [*map(bytes, self.payloads.copies(where, sizes))] == contents
        frames = [*map(bytes, self.payloads.fetch(where, sizes))]
        assert b"".join(frames) == b"".join(contents)
        assert all(frames), "an empty frame"
        # A large payload has a frame of its own, and no two frames of small ones stand side by side.
        large = [content for content in contents if len(content) >= SMALL_PAYLOAD_BYTES]
        assert [frame for frame in frames if frame in large] == large
        assert not any(a not in large and b not in large for a, b in pairwise(frames))

    def validate(self) -> None:
        self.payloads.validate(np.array([*self.stored], np.int64), sizes_of([*self.stored.values()]))


@given(st.data())
def test_what_is_fetched_is_what_was_stored(data: st.DataObject) -> None:
    clerk = Clerk()
    for _ in range(data.draw(st.integers(1, 8))):
        if data.draw(st.booleans()):
            size = data.draw(SIZES)
            same = st.lists(st.just(size), min_size=1, max_size=20)
            clerk.put(data.draw(same | st.lists(SIZES, min_size=1, max_size=20)), data.draw(st.booleans()))
        elif clerk.stored:
            clerk.free(data.draw(st.lists(st.sampled_from(sorted(clerk.stored)), min_size=1, unique=True)))
        if clerk.stored:
            clerk.check(data.draw(st.lists(st.sampled_from(sorted(clerk.stored)), min_size=1, max_size=30)))
            clerk.check(sorted(clerk.stored))
        clerk.validate()


@given(st.lists(st.tuples(SIZES, st.data()), min_size=1, max_size=6))
def test_parts_of_payloads_are_fetched_chunk_by_chunk(chunks: list[tuple[int, st.DataObject]]) -> None:
    payloads = Payloads()
    contents = [
        bytes([65 + i]) * (size // 2) + bytes([97 + i]) * (size - size // 2) for i, (size, _) in enumerate(chunks)
    ]
    places = store(payloads, contents, packed=False)
    spans, wanted = [], b""
    for i, (content, (_, data)) in enumerate(zip(contents, chunks, strict=True)):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), min_size=2, max_size=4)))
        for low, high in pairwise(cuts):
            spans.append((int(places[i]), low, high - low, i))
            wanted += content[low:high]
    place, low, size, chunk_of = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    frames = payloads.fetch_spans(place, low, size, chunk_of)
    assert b"".join(map(bytes, frames)) == wanted


def test_a_frame_of_its_own_is_kept_and_sent_as_it_came() -> None:
    payloads = Payloads()
    frame = bytearray(SMALL_PAYLOAD_BYTES)
    places = payloads.put([frame], [1], np.array([len(frame)], np.int64))
    [sent] = payloads.fetch(places, np.array([len(frame)]))
    assert sent is frame


@pytest.mark.parametrize("size", [1, 400, 4000, SMALL_PAYLOAD_BYTES - 1])
def test_a_full_store_that_replaces_its_payloads_takes_no_more_memory(size: int) -> None:
    arena = Arena()
    n = 2 * SLAB_BYTES // size
    source = memoryview(bytes(size * n))
    starts, sizes = np.arange(n) * size, np.full(n, size, np.int64)
    places = arena.put(source, starts, sizes)
    held = arena.held_bytes
    # Places are multiples of 16 bytes, and in steps of an eighth of a power of two.
    assert held <= n * max(1.125 * size + 16, 16) + SLAB_BYTES
    for _ in range(3):
        arena.free(places, sizes)
        places = arena.put(source, starts, sizes)
        assert arena.held_bytes == held
    arena.validate(places, sizes)


def test_memory_of_payloads_that_are_gone_serves_those_of_other_sizes() -> None:
    arena = Arena()
    total = 4 * RECLAIM_BYTES
    most = 0
    for size in (100, 1000, 10_000, 37, 4096):
        n = total // size
        sizes = np.full(n, size, np.int64)
        places = arena.put(memoryview(bytes(size * n)), np.arange(n) * size, sizes)
        arena.validate(places, sizes)
        most = max(most, arena.held_bytes)
        arena.free(places, sizes)
    assert most < 2 * total, "each size has kept its memory"
    assert arena.held_bytes <= RECLAIM_BYTES + SLAB_BYTES * 5
