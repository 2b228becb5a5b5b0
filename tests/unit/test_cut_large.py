"""Large payloads that came packed get buffers of their own; which bytes are whose stays as it was."""

from __future__ import annotations

import weakref
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from replayd.insert_reader import cut_large
from replayd.limits import SMALL_PAYLOAD_BYTES
from replayd.messages import ChunkBatch
from replayd.sockets import own_frame

SIZES = st.one_of(
    st.sampled_from([0, 1, SMALL_PAYLOAD_BYTES - 1, SMALL_PAYLOAD_BYTES, 3 * SMALL_PAYLOAD_BYTES]), st.integers(0, 300)
)


def batch(sizes: list[int], body: list[Any], stops: list[int]) -> ChunkBatch:
    nbytes = np.array(sizes, np.int64)
    nothing: Any = None
    return ChunkBatch(0, nbytes, nothing, nothing, nothing, nothing, nbytes, body, stops)


@given(packed=st.lists(st.lists(SIZES, min_size=1, max_size=8).filter(any), min_size=1, max_size=4))
def test_every_payload_is_found_and_large_ones_are_alone(packed: list[list[int]]) -> None:
    sizes = [size for frame in packed for size in frame]
    rng = np.random.default_rng(len(sizes))
    payloads = [rng.bytes(size) for size in sizes]
    stops = np.cumsum([len(frame) for frame in packed]).tolist()
    body = [b"".join(payloads[first:stop]) for first, stop in pairwise([0, *stops])]
    chunks = batch(sizes, body, stops)
    owned: list[int] = []

    def own(part: memoryview) -> bytes:
        owned.append(len(part))
        return bytes(part)

    cut_large(chunks, own)
    assert len(chunks.body) == len(chunks.stops)
    assert chunks.stops[-1] == len(sizes)
    for (first, stop), frame in zip(pairwise([0, *chunks.stops]), chunks.body, strict=True):
        assert bytes(frame) == b"".join(payloads[first:stop])
        assert stop == first + 1 or max(sizes[first:stop]) < SMALL_PAYLOAD_BYTES
    shared = [frame for frame in packed if len(frame) > 1]
    assert owned == [size for frame in shared for size in frame if size >= SMALL_PAYLOAD_BYTES]


def test_a_payload_of_its_own_does_not_keep_the_message_alive() -> None:
    message = np.arange(100_000, dtype=np.uint8)
    frame = own_frame(memoryview(message)[1000:41_000])
    assert bytes(frame) == message[1000:41_000].tobytes()
    reference = weakref.ref(message)
    del message
    assert reference() is None
