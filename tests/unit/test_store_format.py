"""The bytes of a store: what is packed comes back, and what has changed is noticed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayd.handover import SavedChunks
from replayd.store_format import (
    SEGMENT_BYTES,
    ArrayEntry,
    Damaged,
    Head,
    block_contents,
    hash_of,
    pack_block,
    pack_head,
    pack_piece,
    put_together,
    take_apart,
    unpack_block,
    unpack_head,
    unpack_piece,
)


def chunks_of(payloads: list[bytes], widths: list[int], frames: int = 1, first_uid: int = 7) -> SavedChunks:
    n = len(payloads)
    cuts = np.linspace(0, n, frames + 1).astype(int).tolist()
    return SavedChunks(
        uids=first_uid + 7 * np.arange(n),
        streams=np.arange(n),
        numbers=np.arange(n) + (1 << 40),
        episodes=np.arange(n, dtype=np.int32),
        rows=np.arange(n, dtype=np.int32) + 1,
        schemas=np.zeros(n, np.int32),
        widths=np.array(widths, np.int64),
        records=np.arange(sum(widths), dtype=np.uint64) << np.uint64(33),
        nbytes=np.array([len(payload) for payload in payloads], np.int32),
        body=[b"".join(payloads[a:b]) for a, b in pairwise(cuts)],
    )


payloads = st.one_of(st.binary(max_size=40), st.integers(0, 10_000).map(bytes))
blocks = st.lists(st.tuples(payloads, st.integers(1, 3)), min_size=1, max_size=12)


@given(chunks=blocks, frames=st.integers(1, 4))
def test_a_block_comes_back(chunks: list[tuple[bytes, int]], frames: int) -> None:
    packed = chunks_of([payload for payload, _ in chunks], [width for _, width in chunks], frames)
    value = pack_block(packed)
    unpacked, bad = unpack_block(memoryview(value), packed.uids)
    assert len(bad) == 0
    for name in ("uids", "streams", "numbers", "episodes", "rows", "schemas", "widths", "records", "nbytes"):
        assert np.array_equal(getattr(unpacked, name), getattr(packed, name)), name
    assert b"".join(unpacked.body) == b"".join(packed.body)
    uids, nbytes = block_contents(memoryview(value))
    assert np.array_equal(uids, packed.uids)
    assert np.array_equal(nbytes, packed.nbytes)


@given(chunks=blocks, data=st.data())
def test_a_byte_that_changes_in_a_block_is_noticed_and_harms_its_segment_or_all(
    chunks: list[tuple[bytes, int]], data: st.DataObject
) -> None:
    packed = chunks_of([payload for payload, _ in chunks], [width for _, width in chunks])
    value = bytearray(pack_block(packed))
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] ^= data.draw(st.integers(1, 255))
    body = len(value) - int(packed.nbytes.sum())
    if at < body:
        with pytest.raises(Damaged):
            unpack_block(memoryview(bytes(value)), packed.uids)
        return
    unpacked, bad = unpack_block(memoryview(bytes(value)), packed.uids)
    # All that shares a segment with it is lost.
    segment = (at - body) // SEGMENT_BYTES
    ends = np.cumsum(packed.nbytes)
    starts = ends - packed.nbytes
    hit = (starts < (segment + 1) * SEGMENT_BYTES) & (ends > segment * SEGMENT_BYTES) & (packed.nbytes > 0)
    assert hit.any()
    assert np.array_equal(bad, packed.uids[hit])
    assert np.array_equal(unpacked.uids, np.where(hit, 0, packed.uids))


@given(chunks=blocks, data=st.data())
def test_a_block_that_is_cut_off_is_noticed(chunks: list[tuple[bytes, int]], data: st.DataObject) -> None:
    value = pack_block(chunks_of([payload for payload, _ in chunks], [width for _, width in chunks]))
    with pytest.raises(Damaged):
        unpack_block(memoryview(value[: data.draw(st.integers(0, len(value) - 1))]), np.arange(1000))


def test_chunks_that_nobody_wants_are_no_loss() -> None:
    packed = chunks_of([bytes(5000), bytes(5000), bytes(5000)], [1, 1, 1])
    value = bytearray(pack_block(packed))
    value[-1] ^= 1
    unpacked, bad = unpack_block(memoryview(bytes(value)), packed.uids[:1])
    assert (unpacked.uids.tolist(), bad.tolist()) == ([packed.uids[0], 0, 0], [])


@pytest.mark.parametrize("nbytes", [0, 1, 1000, 1024, 300_000])
@pytest.mark.parametrize("kind", ["zeros", "random"])
def test_a_piece_comes_back_and_a_changed_one_does_not(nbytes: int, kind: str) -> None:
    raw = bytes(nbytes) if kind == "zeros" else np.random.default_rng(1).bytes(nbytes)
    value = pack_piece(raw, 8)
    assert bytes(unpack_piece(value, nbytes, hash_of(raw))) == raw
    for at in {0, 4, len(value) // 2, len(value) - 1} - {-1}:
        changed = bytearray(value)
        changed[at] ^= 1
        with pytest.raises(Damaged):
            unpack_piece(bytes(changed), nbytes, hash_of(raw))
    with pytest.raises(Damaged):
        unpack_piece(value, nbytes, hash_of(raw + b"x"))


ROWS = np.dtype([("key", "u8"), ("priority", "f8"), ("unused", "V11")])


def test_a_state_comes_back_from_its_tree_and_its_arrays() -> None:
    state: dict[str, Any] = {
        "a": 1,
        "b": {"c": np.arange(5), "d": [None, True, "text", 1 << 100, {"e": np.zeros((2, 3))}]},
        "rows": np.zeros(3, ROWS),
        "none": np.zeros(0, np.float64),
    }
    tree, arrays = take_apart(state)
    assert list(arrays) == ["b/c", "b/d/4/e", "rows", "none"]
    entries = [
        ArrayEntry(path, array.dtype, array.shape, [(3, hash_of(array.tobytes()))]) for path, array in arrays.items()
    ]
    head = unpack_head(pack_head(Head(7, 1.5, True, tree, entries)))
    assert [(e.dtype, e.shape, e.pieces) for e in head.arrays] == [(e.dtype, e.shape, e.pieces) for e in entries]
    again = put_together(head.index, list(arrays.values()))
    assert again["b"]["d"][:4] == state["b"]["d"][:4]
    assert again["rows"] is arrays["rows"]
    assert again["b"]["d"][4]["e"] is arrays["b/d/4/e"]


def test_pieces_hold_whole_entries_and_cover_the_array() -> None:
    entry = ArrayEntry("a", ROWS, (100_000,), [])
    spans = entry.spans()
    assert all((end - start) % ROWS.itemsize == 0 for start, end in spans)
    assert [start for start, _ in spans[1:]] == [end for _, end in spans[:-1]]
    assert (spans[0][0], spans[-1][1]) == (0, entry.nbytes)
    assert ArrayEntry("a", ROWS, (0,), []).spans() == []
