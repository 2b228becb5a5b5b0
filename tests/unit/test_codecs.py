"""Column blobs: every dtype and shape comes back, the choice adapts, and no forged chunk reaches the library."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
import tracemalloc
from typing import Any

import blosc2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from replayd_client import codecs
from replayd_client.codecs import (
    BLOSC1,
    BLOSC2,
    DELTA,
    MIN_COMPRESSED_BYTES,
    OMITTED,
    RAW,
    RAW_CHOICE,
    SPARSE,
    Choice,
    ColumnCodec,
    decode_column,
    encode_chunk,
    encode_column,
    split_sparse,
)
from replayd_client.columns import BLANKS, DTYPE_NAMES, Column, Schema
from replayd_client.errors import DataError
from replayd_client.row_buffer import RowBuffer

CHOICES = [RAW_CHOICE] + [
    Choice(codec, shuffle, delta)
    for codec in ("lz4", "zstd")
    for shuffle in ("none", "byte", "bit")
    for delta in (False, True)
]
FIXED = [name for name in DTYPE_NAMES if name not in BLANKS]
SHAPES = [(), (1,), (7,), (0,), (0, 4), (3, 0, 2), (5, 3), (16, 16)]


def filled(dtype: str, shape: tuple[int, ...], content: str, seed: int = 0) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    if content == "zero":
        return np.zeros(shape, dtype)
    if content == "constant":
        return np.full(shape, 1, dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape).copy()


def same_bytes(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def decoded(blob: codecs.Blob, like: NDArray[Any]) -> NDArray[Any]:
    out = np.empty_like(like)
    decode_column(*blob, out)
    return out


@pytest.mark.parametrize("dtype", FIXED)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_dtype_and_shape_survives_every_way_to_store_it(dtype: str, shape: tuple[int, ...]) -> None:
    for length in (0, 1, 2, 7, 8, 31, 40, 79, 80):
        for content in ("zero", "constant", "random"):
            rows = filled(dtype, (length, *shape), content)
            for choice in CHOICES:
                stored, codec, flags = encode_column(rows, choice)
                assert len(stored) <= rows.nbytes
                assert same_bytes(decoded((bytes(stored), codec, flags), rows), rows)


@given(st.data())
def test_any_bytes_survive_a_difference_of_any_width(data: st.DataObject) -> None:
    length, row_bytes = data.draw(st.integers(1, 80)), data.draw(st.sampled_from([1, 2, 3, 8, 12, 3200, 3208, 4001]))
    rows = filled("uint8", (length, row_bytes), "random", data.draw(st.integers(0, 9)))
    rows[1:] &= 1
    stored, codec, flags = encode_column(rows, Choice("zstd", "none", delta=True))
    assert same_bytes(decoded((stored, codec, flags), rows), rows)


def test_a_difference_is_the_bytewise_xor_of_the_protocol() -> None:
    rows = np.repeat(np.array([[0x0102], [0x0103], [0x8103]], "<u2"), 100, axis=1)
    stored, codec, flags = encode_column(rows, Choice("zstd", "none", delta=True))
    assert (codec, flags) == (BLOSC2, DELTA)
    plain = np.frombuffer(blosc2.decompress2(bytes(stored)), "<u2").reshape(3, 100)
    assert plain[:, 0].tolist() == [0x0102, 0x0001, 0x8000]


def test_chunks_of_the_older_format_are_read() -> None:
    # Such a chunk has a 16-byte header. This is how one without compression looks.
    rows = np.arange(100, dtype="<i4")
    chunk = struct.pack("<4B3I", 2, 1, 0x02, 4, 400, 400, 416) + rows.tobytes()
    assert same_bytes(decoded((chunk, BLOSC1, 0), rows), rows)
    with pytest.raises(DataError, match="format"):
        decoded((chunk, BLOSC2, 0), rows)


# --- what must not be decompressed


def chunk_of(rows: NDArray[Any], **settings: Any) -> bytes:
    defaults = {"typesize": rows.itemsize, "nthreads": 1, "codec": blosc2.Codec.LZ4, "clevel": 1}
    return bytes(blosc2.compress2(rows, **{**defaults, **settings}))


ROWS = np.tile(np.arange(100, dtype="<i4"), 40).reshape(40, 100)
GOOD = chunk_of(ROWS)


def refused(chunk: bytes, codec: int = BLOSC2, out: NDArray[Any] | None = None) -> str:
    out = np.empty_like(ROWS) if out is None else out
    with pytest.raises(DataError) as caught:
        decode_column(chunk, codec, 0, out)
    return str(caught.value)


def with_byte(chunk: bytes, place: int, value: int) -> bytes:
    return chunk[:place] + bytes([value]) + chunk[place + 1 :]


def special_chunk(nbytes: int, special: int) -> bytes:
    """A chunk of 32 bytes that stands for `nbytes` zeros (1), NaNs (2) or whatever is in memory (4)."""
    head = struct.pack("<4B3I", 5, 1, 0x25, 1, nbytes, min(nbytes, 1 << 16), 32)
    return head + bytes(15) + bytes([special << 4])


def test_the_good_chunk_is_read() -> None:
    assert same_bytes(decoded((GOOD, BLOSC2, 0), ROWS), ROWS)
    zeros = special_chunk(ROWS.nbytes, 1)
    assert not decoded((zeros, BLOSC2, 0), ROWS).any()


def test_a_bomb_is_refused_before_anything_is_allocated() -> None:
    bomb = special_chunk(1 << 30, 1)
    out = np.empty_like(ROWS)
    refused(bomb)
    tracemalloc.start()
    try:
        refused(bomb, out=out)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_memory_that_nobody_wrote_is_refused() -> None:
    assert "uninitialised" in refused(special_chunk(ROWS.nbytes, 4))


@pytest.mark.parametrize("size", [0, 16, ROWS.nbytes - 4, ROWS.nbytes + 4, 2 * ROWS.nbytes])
def test_a_chunk_of_another_size_is_refused_and_nothing_is_written(size: int) -> None:
    out = np.full(size // 4, 7, "<i4")
    refused(GOOD, out=out)
    assert (out == 7).all()


@pytest.mark.parametrize(
    "chunk",
    [
        b"",
        GOOD[:15],
        GOOD[:31],
        GOOD[:-1],
        GOOD + b"\0",
        bytes(len(GOOD)),
        with_byte(GOOD, 0, 2),
        with_byte(GOOD, 0, 6),
        with_byte(GOOD, 2, GOOD[2] & ~5),
        with_byte(GOOD, 3, 0),
        GOOD[:8] + bytes(4) + GOOD[12:],
        GOOD[:8] + struct.pack("<I", ROWS.nbytes + 1) + GOOD[12:],
        with_byte(GOOD, 16, 3),
        with_byte(GOOD, 21, 35),
        with_byte(GOOD, 30, 1),
        with_byte(GOOD, 31, 0x01),
        with_byte(GOOD, 31, 0x08),
        with_byte(GOOD, 31, 0x80),
        with_byte(GOOD, 31, 0x70),
        with_byte(GOOD, 2, GOOD[2] & 0x1F),
        with_byte(GOOD, 2, GOOD[2] & 0x1F | 3 << 5),
        with_byte(GOOD, 2, GOOD[2] & 0x1F | 6 << 5),
        with_byte(GOOD, 2, GOOD[2] | 2),
        chunk_of(ROWS, codec=blosc2.Codec.BLOSCLZ),
        chunk_of(ROWS, codec=blosc2.Codec.ZLIB),
        chunk_of(ROWS, filters=[blosc2.Filter.DELTA]),
        chunk_of(ROWS, filters=[blosc2.Filter.BYTEDELTA]),
    ],
)
def test_a_chunk_outside_the_profile_is_refused(chunk: bytes) -> None:
    refused(chunk)


def test_an_old_header_cannot_smuggle_in_a_new_one() -> None:
    # The library takes the flags' word for the longer header whatever the version says.
    for special in (1, 4):
        refused(with_byte(special_chunk(ROWS.nbytes, special), 0, 2), codec=BLOSC1)


@given(st.binary(max_size=100), st.sampled_from([RAW, BLOSC1, BLOSC2, 3, 255]), st.integers(0, 255))
def test_any_bytes_decode_or_are_a_data_error(chunk: bytes, codec: int, flags: int) -> None:
    out = np.empty((5, 4), "uint8")
    try:
        decode_column(chunk, codec, flags, out)
    except DataError:
        return
    assert codec == RAW
    assert len(chunk) == 20


@given(st.data())
def test_a_damaged_chunk_decodes_or_is_a_data_error(data: st.DataObject) -> None:
    chunk = bytearray(data.draw(st.sampled_from([GOOD, chunk_of(ROWS, codec=blosc2.Codec.ZSTD)])))
    for _ in range(data.draw(st.integers(1, 4))):
        chunk[data.draw(st.integers(0, len(chunk) - 1))] = data.draw(st.integers(0, 255))
    guarded = np.full((42, 100), 7, "<i4")
    with contextlib.suppress(DataError):
        decode_column(bytes(chunk), BLOSC2, data.draw(st.sampled_from([0, DELTA])), guarded[1:-1])
    assert (guarded[0] == 7).all()
    assert (guarded[-1] == 7).all()


@pytest.mark.parametrize("flags", [SPARSE, OMITTED, 8, 128])
def test_flags_without_a_meaning_here_are_refused(flags: int) -> None:
    with pytest.raises(DataError, match="flags"):
        decode_column(ROWS.tobytes(), RAW, flags, np.empty_like(ROWS))


def test_a_bool_is_0_or_1() -> None:
    with pytest.raises(DataError, match="bool"):
        decode_column(b"\0\1\2", RAW, 0, np.empty(3, bool))
    with pytest.raises(DataError, match="bool"):
        decode_column(b"\1\2\0", RAW, DELTA, np.empty(3, bool))


def test_a_chunk_that_our_own_reader_would_refuse_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOSC_COMPRESSOR", "zlib")
    assert chunk_of(ROWS)[2] >> 5 == 3, "the library should have obeyed the variable"
    assert encode_column(ROWS, Choice("zstd"))[1:] == (RAW, 0)


# --- sparse columns and whole chunks


@given(st.lists(st.booleans(), min_size=1, max_size=70), st.sampled_from(["auto", "raw", "blosc2"]))
def test_rows_that_lack_a_column_are_told_by_a_bitmap(present: list[bool], codec: Any) -> None:
    has = np.array(present)
    column = Column(("x",), "int32", (9,))
    rows = filled("int32", (len(has), 9), "random") & 3
    [record], payload = encode_chunk(Schema((column,)), [rows], [ColumnCodec(column, codec)], [has])
    assert record["stored_bytes"] == len(payload)
    assert record["flags"] & SPARSE
    assert (len(payload) == 0) == (not has.any())
    found, rest = split_sparse(memoryview(payload), len(has))
    assert np.array_equal(found, has)
    if has.any():
        assert payload[: -(-len(has) // 8)] == np.packbits(has, bitorder="little").tobytes()
        some = np.empty((has.sum(), 9), "int32")
        decode_column(rest, int(record["codec"]), int(record["flags"]) & ~SPARSE, some)
        assert np.array_equal(some, rows[has])


@pytest.mark.parametrize("blob", [b"\0", b"\0\x08", b"\xff\xff"])
def test_a_bitmap_that_is_too_short_or_has_too_many_rows_is_refused(blob: bytes) -> None:
    with pytest.raises(DataError, match="sparse"):
        split_sparse(memoryview(blob), 11)


def test_a_chunk_is_its_columns_back_to_back() -> None:
    schema = Schema((Column(("a",), "int64", ()), Column(("b",), "uint8", (200,)), Column(("c",), "bool", (0,))))
    buffer = RowBuffer(schema, 10)
    for n in range(5):
        buffer.append([n, np.full(200, n, "uint8"), np.zeros(0, bool)])
    choosers = [ColumnCodec(column) for column in schema.columns]
    records, payload = encode_chunk(schema, buffer.arrays(), choosers, buffer.present())
    assert records["codec"].tolist() == [RAW, BLOSC2, RAW]
    assert records["stored_bytes"].sum() == len(payload)
    assert payload[:40] == np.arange(5, dtype="<i8").tobytes()
    assert not records["zero"].any()
    buffer.clear()
    buffer.append([9, np.full(200, 9, "uint8"), np.zeros(0, bool)])
    assert payload[:40] == np.arange(5, dtype="<i8").tobytes(), (
        "a payload must not change when its buffer is used again"
    )


def test_an_array_that_is_not_its_columns_is_refused() -> None:
    column = Column(("a",), "int64", (2,))
    for array in (np.zeros((3, 2), "int32"), np.zeros((3, 3), "int64"), np.zeros((3, 2), ">i8")):
        with pytest.raises(DataError, match="a: int64"):
            encode_chunk(Schema((column,)), [array], [ColumnCodec(column)], [None])


# --- the choice


def frames(count: int, seed: int) -> NDArray[np.uint8]:
    """A still background and a moving block."""
    screen = np.random.default_rng(0).integers(0, 255, (84, 84)).astype("uint8")
    out = np.repeat(screen[None], count, axis=0)
    for n, frame in enumerate(out):
        place = (n + seed) % 60
        frame[place : place + 9, place : place + 9] = 255
    return out


def test_frames_are_stored_with_what_they_have_in_common_once() -> None:
    chooser = ColumnCodec(Column(("x",), "uint8", (84, 84)))
    for seed in range(10):
        rows = frames(40, seed)
        stored, codec, flags = chooser.encode(rows)
        assert codec == BLOSC2
        assert len(stored) < 84 * 84 + 40 * 9 * 9
        assert same_bytes(decoded((stored, codec, flags), rows), rows)


def test_frames_of_which_all_changes_alike_are_stored_as_differences() -> None:
    """Getting brighter, for one: no frame has anything in common with the one before, but most differences are one."""
    chooser = ColumnCodec(Column(("x",), "uint8", (84, 84)))
    for seed in range(10):
        rows = frames(1, seed) + np.arange(40, dtype=np.uint8)[:, None, None]
        stored, codec, flags = chooser.encode(rows)
        assert (codec, flags) == (BLOSC2, DELTA)
        assert len(stored) < rows.nbytes / 2
        assert same_bytes(decoded((stored, codec, flags), rows), rows)


def test_a_column_larger_than_a_block_comes_back() -> None:
    rows = np.concatenate([frames(40, seed) for seed in range(5)])
    assert rows.nbytes > 2 * codecs.BLOCK_BYTES
    for delta in (False, True):
        blob = encode_column(rows, Choice("zstd", delta=delta))
        assert len(blob[0]) < 4 * 84 * 84 + 200 * 9 * 9
        assert same_bytes(decoded(blob, rows), rows)


def test_noise_is_stored_raw_and_no_longer_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    compress = codecs._compress
    monkeypatch.setattr(codecs, "_compress", lambda *args: calls.append(1) or compress(*args))
    chooser = ColumnCodec(Column(("x",), "uint8", (100,)))
    for seed in range(chooser.TRIAL_CHUNKS + chooser.RETRIAL_CHUNKS):
        assert chooser.encode(filled("uint8", (40, 100), "random", seed))[1] == RAW
        if seed == chooser.TRIAL_CHUNKS - 1:
            tried = len(calls)
    assert len(calls) == tried > 0


def test_floats_of_which_little_can_be_saved_are_stored_raw() -> None:
    values = np.random.default_rng(3).normal(size=(40, 1000)).astype("float32")
    compressed = min(
        len(encode_column(values, Choice("zstd", "byte"))[0]), len(encode_column(values, Choice("lz4"))[0])
    )
    assert compressed < 0.95 * values.nbytes, "something can be saved, if not much"
    chooser = ColumnCodec(Column(("x",), values.dtype, (1000,)))
    for _ in range(4):
        assert chooser.encode(values)[1] == RAW
    rounded = np.round(values, 0)
    for _ in range(ColumnCodec.RETRIAL_CHUNKS + 1):
        chooser.encode(rounded)
    assert chooser.encode(rounded)[1] == BLOSC2


def test_a_column_that_becomes_compressible_is_found_out() -> None:
    chooser = ColumnCodec(Column(("x",), "uint8", (100,)))
    noise, calm = filled("uint8", (40, 100), "random"), np.zeros((40, 100), "uint8")
    for _ in range(chooser.TRIAL_CHUNKS):
        chooser.encode(noise)
    stored = [chooser.encode(calm)[1] for _ in range(chooser.RETRIAL_CHUNKS + 3)]
    assert stored[0] == RAW
    assert stored[-1] == BLOSC2


def test_a_single_noisy_chunk_falls_back_to_raw() -> None:
    chooser = ColumnCodec(Column(("x",), "uint8", (100,)))
    for _ in range(5):
        assert chooser.encode(np.zeros((40, 100), "uint8"))[1] == BLOSC2
    assert chooser.encode(filled("uint8", (40, 100), "random"))[1] == RAW
    assert chooser.encode(np.zeros((40, 100), "uint8"))[1] == BLOSC2


def test_small_chunks_stay_raw_and_do_not_count_as_trials() -> None:
    chooser = ColumnCodec(Column(("x",), "uint8", ()), "blosc2")
    for _ in range(5):
        assert chooser.encode(np.zeros(MIN_COMPRESSED_BYTES - 1, "uint8"))[1] == RAW
    assert chooser.encode(np.zeros(MIN_COMPRESSED_BYTES, "uint8"))[1] == BLOSC2


def test_a_codec_that_is_told_is_obeyed() -> None:
    column = Column(("x",), "float32", (8,))
    slight = (filled("float32", (40, 8), "random").view("uint32") & 0x3FFFFFFF).view("float32")
    told, auto, raw = (ColumnCodec(column, codec) for codec in ("blosc2", "auto", "raw"))
    for _ in range(5):
        stored, codec, _ = told.encode(slight)
        assert codec == BLOSC2
        assert len(stored) < slight.nbytes
        assert auto.encode(slight)[1] == RAW
        assert raw.encode(np.zeros_like(slight))[1] == RAW


@pytest.mark.parametrize("dtype", FIXED)
@pytest.mark.parametrize("codec", ["auto", "blosc2", "raw"])
def test_a_chooser_never_loses_a_row(dtype: str, codec: Any) -> None:
    for shape in ((), (5,), (3, 0), (40, 3)):
        chooser = ColumnCodec(Column(("x",), dtype, shape), codec)
        for seed, content in enumerate(["random", "zero", "random", "constant", "random"]):
            rows = filled(dtype, (37, *shape), content, seed)
            assert same_bytes(decoded(chooser.encode(rows), rows), rows)
        strided = filled(dtype, (74, *shape), "random")[::2]
        assert same_bytes(decoded(chooser.encode(strided), strided.copy()), strided.copy())


def test_importing_the_client_does_not_import_the_library() -> None:
    code = (
        "import sys; import replayd_client.structure, replayd_client.columns, replayd_client.codecs, "
        "replayd_client.batches; assert 'blosc2' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env={"PYTHONPATH": ":".join(sys.path)})
