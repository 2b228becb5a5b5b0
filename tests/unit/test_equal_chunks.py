"""Chunks of equal length: the payloads are the rows, in frames as the protocol has them, and memory is used again only
when nothing reads it any more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from replayd_client.array_messages import BLOB_RECORD
from replayd_client.codecs import ColumnCodec, encode_chunk
from replayd_client.columns import Column, Schema
from replayd_client.equal_chunks import BLOCK_BYTES, KEPT_BYTES, OWN_FRAME_BYTES, EqualChunksEncoder, _Blocks

Arrays = list[NDArray[Any]]


def schema_of(arrays: Arrays) -> Schema:
    return Schema(tuple(Column((f"c{i}",), array.dtype, array.shape[2:]) for i, array in enumerate(arrays)))


def noise(*shape: int, dtype: str = "float32", seed: int = 0) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape)


def joined(body: list[Any]) -> bytes:
    return b"".join(bytes(frame) for frame in body)


@given(
    count=st.integers(1, 9),
    steps=st.integers(1, 4),
    columns=st.lists(
        st.tuples(
            st.sampled_from(["float32", "uint8", "bool", "float16", "complex64", "int64"]),
            st.sampled_from([(), (0,), (1,), (3, 5), (300,)]),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_a_batch_is_what_its_chunks_are_one_by_one(count: int, steps: int, columns: list[Any]) -> None:
    arrays: Arrays = []
    for seed, (dtype, shape, compresses) in enumerate(columns):
        full = (count, steps, *shape)
        is_plain = compresses or dtype == "bool"
        arrays.append(np.zeros(full, dtype) if is_plain else noise(*full, dtype=dtype, seed=seed).copy())
    schema = schema_of(arrays)
    encoder = EqualChunksEncoder(schema, "auto")
    codecs = [ColumnCodec(column, "auto") for column in schema.columns]
    for _ in range(4):
        encoded = encoder.encode(arrays, may_lend=True)
        if encoded.is_lent:
            assert np.shares_memory(encoded.body[0], arrays[0]) or not arrays[0].nbytes
        records = np.frombuffer(encoded.records, BLOB_RECORD).reshape(count, len(arrays))
        payload_bytes = records["stored_bytes"].astype(int).sum(axis=1)
        assert sum(map(len, map(bytes, encoded.body))) == payload_bytes.sum()
        start, whole = 0, joined(encoded.body)
        for number in range(count):
            alone, payload = encode_chunk(schema, [array[number] for array in arrays], codecs, [None] * len(arrays))
            if (alone["codec"] == records[number]["codec"]).all():
                assert (alone == records[number]).all()
                assert whole[start : start + len(payload)] == payload
            start += int(payload_bytes[number])


@pytest.mark.parametrize("columns", [1, 2])
def test_large_payloads_have_frames_of_their_own_and_others_share_one(columns: int) -> None:
    for nbytes, frames in ((OWN_FRAME_BYTES - columns, 1), (OWN_FRAME_BYTES, 3)):
        arrays = [noise(3, 1, nbytes // columns, dtype="uint8", seed=i) for i in range(columns)]
        encoded = EqualChunksEncoder(schema_of(arrays), "raw").encode(arrays, may_lend=True)
        assert len(encoded.body) == frames
        assert joined(encoded.body) == np.concatenate(arrays, axis=2).tobytes()


def test_a_single_raw_column_is_not_copied() -> None:
    array = noise(3, 1, 5000)
    encoded = EqualChunksEncoder(schema_of([array]), "raw").encode([array], may_lend=True)
    assert encoded.is_lent
    assert np.shares_memory(encoded.body[0], array)


def place(body: list[Any]) -> int:
    return int(body[0].__array_interface__["data"][0])


def test_gathered_columns_use_memory_again_that_nothing_refers_to() -> None:
    arrays = [noise(8, 1, 1000), noise(8, 1, 10, seed=1)]
    encoder = EqualChunksEncoder(schema_of(arrays), "raw")
    first = encoder.encode(arrays, may_lend=True)
    assert not first.is_lent
    before, where = joined(first.body), place(first.body)
    second = encoder.encode([array[::-1].copy() for array in arrays], may_lend=True)
    assert place(second.body) == where + len(before), "pieces lie one behind the other"
    assert joined(first.body) == before
    part = first.body[0][2:5]
    del first, second
    assert place(encoder.encode(arrays, may_lend=True).body) != where, "a part of it is still referred to"
    del part
    assert place(encoder.encode(arrays, may_lend=True).body) == where


def test_a_block_that_is_referred_to_is_left_alone_when_others_are_full() -> None:
    arrays = [noise(1, 1, BLOCK_BYTES // 12), noise(1, 1, 10)]
    encoder = EqualChunksEncoder(schema_of(arrays), "raw")
    kept = encoder.encode(arrays, may_lend=True)
    before = joined(kept.body)
    others = [
        joined(encoder.encode([array[:, :, ::-1].copy() for array in arrays], may_lend=True).body) for _ in range(20)
    ]
    assert len(set(others)) == 1
    assert joined(kept.body) == before


@pytest.mark.parametrize("nbytes", [BLOCK_BYTES // 3, KEPT_BYTES // 2, 2 * KEPT_BYTES])
def test_what_is_kept_is_bounded_whatever_is_on_its_way(nbytes: int) -> None:
    blocks = _Blocks()
    on_their_way = [blocks.take(nbytes) for _ in range(20)]
    for number, piece in enumerate(on_their_way):
        piece[:1] = number
    assert [int(piece[0]) for piece in on_their_way] == list(range(20))
    assert sum(map(len, blocks._blocks)) <= max(KEPT_BYTES, nbytes)
    del piece, on_their_way
    assert len({blocks.take(nbytes).__array_interface__["data"][0] for _ in range(5)}) == 1


def test_data_that_becomes_compressible_is_found_out() -> None:
    arrays = [noise(1, 4, 500)]
    encoder = EqualChunksEncoder(schema_of(arrays), "auto")
    for _ in range(4):
        assert not np.frombuffer(encoder.encode(arrays, may_lend=True).records, BLOB_RECORD)["codec"].any()
    calm = [np.zeros_like(arrays[0])]
    codecs = [np.frombuffer(encoder.encode(calm, may_lend=True).records, BLOB_RECORD)["codec"][0] for _ in range(300)]
    assert codecs[-1] != 0
