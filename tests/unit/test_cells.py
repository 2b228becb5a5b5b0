"""Columns of bytes and str: every value comes back as it was, on every way, and no blob that lies is believed."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import blosc2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from replayd_client import cells, row_buffer, sampled_chunks
from replayd_client.array_messages import BLOB_RECORD
from replayd_client.cells import MAX_CELL_BYTES, MAX_CELLS_BYTES, pack_cells, unpack_cells
from replayd_client.codecs import BLOSC2, DELTA, RAW, SPARSE, ColumnCodec, decode_cells, decode_rows, encode_chunk
from replayd_client.columns import Column, Schema, leaf_array, leaf_dtype
from replayd_client.errors import DataError
from replayd_client.ragged import joined
from replayd_client.row_buffer import RowBuffer
from tests.unit.test_writer import Pen

BYTES = st.binary(max_size=12)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8) | st.text("ab", max_size=200)
SHAPES = st.lists(st.integers(0, 3), max_size=2).map(tuple)


def array_of(values: Any, shape: tuple[int, ...]) -> NDArray[np.object_]:
    array = np.empty(int(np.prod(shape)), object)
    array[:] = values
    return array.reshape(shape)


@st.composite
def columns_of_cells(draw: st.DrawFn) -> tuple[Column, NDArray[np.object_]]:
    dtype, values = draw(st.sampled_from([("bytes", BYTES), ("str", TEXT)]))
    shape = (draw(st.integers(1, 12)), *draw(SHAPES))
    size = int(np.prod(shape))
    return Column(("x",), dtype, shape[1:]), array_of(draw(st.lists(values, min_size=size, max_size=size)), shape)


def same(found: NDArray[np.object_], expected: NDArray[np.object_]) -> bool:
    return found.dtype == object and found.shape == expected.shape and found.tolist() == expected.tolist()


# --- blobs


@given(columns_of_cells(), st.sampled_from(["raw", "auto", "blosc2"]), st.data())
def test_cells_survive_every_way_to_store_them(
    made: tuple[Column, NDArray[np.object_]], codec: Any, data: st.DataObject
) -> None:
    column, rows = made
    n = len(rows)
    has = data.draw(st.none() | st.lists(st.booleans(), min_size=n, max_size=n).map(np.array))
    [record], payload = encode_chunk(Schema((column,)), [rows], [ColumnCodec(column, codec)], [has])
    out = np.empty(rows.shape, object)
    flags = int(record["flags"])
    present = decode_rows(column, memoryview(payload), int(record["codec"]), flags, out)
    assert (present is None) == (has is None)
    assert not flags & DELTA
    kept = slice(None) if present is None else present
    assert present is None or present.tolist() == has.tolist()
    assert same(out[kept], rows[kept])


def test_a_blob_is_the_one_of_the_protocol() -> None:
    packed = pack_cells(array_of(["é", "", "ab"], (3,)))
    assert packed.tobytes() == struct.pack("<3I", 2, 0, 2) + "éab".encode()
    assert pack_cells(array_of([], (0, 2))).tobytes() == b""


def test_text_that_repeats_is_compressed() -> None:
    column = Column(("x",), "str", ())
    rows = array_of([f"episode {n // 10}, step {n}: nothing happens" for n in range(200)], (200,))
    [record], payload = encode_chunk(Schema((column,)), [rows], [ColumnCodec(column)], [None])
    assert record["codec"] == BLOSC2
    assert len(payload) < len(pack_cells(rows)) / 3


def read(data: bytes, count: int, dtype: str = "str", codec: int = RAW, flags: int = 0) -> list[Any]:
    out = np.empty(count, object)
    decode_cells(data, codec, flags, np.dtype(dtype), out)
    found: list[Any] = out.tolist()
    return found


HUGE = 0xFFFFFFFF
LIES = {
    "nothing": (b"", 1),
    "half a length": (b"\1\0", 1),
    "too short": (struct.pack("<2I", 1, 1) + b"a", 2),
    "too long": (struct.pack("<2I", 1, 1) + b"abc", 2),
    "one value too few": (struct.pack("<I", 1) + b"a", 2),
    "a sum beyond 32 bits": (struct.pack("<2I", HUGE, 2) + b"a", 2),
    "lengths of sizes nobody has": (struct.pack("<4I", *[HUGE] * 4) + b"a", 4),
    "a length for a value of none": (struct.pack("<I", 0), 0),
    "no UTF-8": (struct.pack("<I", 1) + b"\xff", 1),
    "a surrogate": (struct.pack("<I", 3) + b"\xed\xa0\x80", 1),
    "half a character": (struct.pack("<2I", 1, 1) + "é".encode(), 2),
    "an overlong zero": (struct.pack("<I", 2) + b"\xc0\x80", 1),
}


@pytest.mark.parametrize(("data", "count"), LIES.values(), ids=LIES)
def test_a_blob_that_lies_is_refused(data: bytes, count: int) -> None:
    with pytest.raises(DataError):
        read(data, count)


@pytest.mark.parametrize("flags", [DELTA, SPARSE, 4, 8])
def test_flags_without_a_meaning_for_cells_are_refused(flags: int) -> None:
    with pytest.raises(DataError, match="flags"):
        read(struct.pack("<I", 1) + b"a", 1, flags=flags)


def test_a_cell_or_a_blob_beyond_the_limit_is_refused_by_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "MAX_CELL_BYTES", 3)
    with pytest.raises(DataError, match="a cell of 4 bytes"):
        read(struct.pack("<I", 4) + b"abcd", 1)
    with pytest.raises(DataError, match=str(MAX_CELLS_BYTES)):
        read(bytes(MAX_CELLS_BYTES + 4), 1, "bytes")


def bomb(nbytes: int) -> bytes:
    """A chunk of 32 bytes whose header says that it is `nbytes` zeros."""
    zeros = bytearray(blosc2.compress2(bytes(1024), codec=blosc2.Codec.ZSTD, filters=[blosc2.Filter.NOFILTER]))
    assert len(zeros) == 32
    zeros[4:8] = struct.pack("<I", nbytes)
    return bytes(zeros)


@pytest.mark.parametrize("nbytes", [(1 << 31) - 33, MAX_CELLS_BYTES + 1, HUGE])
def test_a_bomb_is_refused_before_anything_is_allocated(nbytes: int) -> None:
    chunk = bomb(nbytes)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="limit"):
            read(chunk, 4, "bytes", BLOSC2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("nbytes", [0, 15])
def test_a_chunk_without_room_for_its_lengths_is_refused(nbytes: int) -> None:
    with pytest.raises(DataError, match="at least"):
        read(bomb(nbytes), 4, "bytes", BLOSC2)


@given(st.binary(max_size=60), st.integers(0, 5), st.sampled_from(["bytes", "str"]), st.integers(0, 3))
def test_any_bytes_are_cells_or_a_data_error(data: bytes, count: int, dtype: str, codec: int) -> None:
    try:
        found = read(data, count, dtype, codec)
    except DataError:
        return
    assert {type(cell) for cell in found} <= {bytes if dtype == "bytes" else str}
    if codec == RAW:
        assert pack_cells(array_of(found, (count,))).tobytes() == data


@given(st.lists(TEXT, max_size=5), st.data())
def test_a_damaged_blob_is_cells_or_a_data_error(values: list[str], data: st.DataObject) -> None:
    packed = bytearray(pack_cells(array_of(values, (len(values),))).tobytes())
    for _ in range(data.draw(st.integers(1, 3)) if packed else 0):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    out = np.empty(len(values), object)
    try:
        unpack_cells(np.frombuffer(packed, np.uint8), np.dtype("U"), out)
    except DataError:
        return
    assert all(isinstance(cell, str) for cell in out)


# --- leaves


class Name(str):
    """As an enumeration of str is."""

    def __str__(self) -> str:
        return "another text"


@pytest.mark.parametrize(
    ("leaf", "expected"),
    [
        ("a", "a"),
        (b"a\0", b"a\0"),
        (np.str_("é"), "é"),
        (np.bytes_(b"a"), b"a"),
        (Name("a"), "a"),
        (np.array(["a", "bc"]), ["a", "bc"]),
        (np.array([b"a", b""]), [b"a", b""]),
        (np.array([["a"], ["\0"]], object), [["a"], ["\0"]]),
        (np.array([np.bytes_(b"x"), b"y"], object), [b"x", b"y"]),
        (np.array([Name("a"), "b"], object), ["a", "b"]),
        (np.array(["a", ""], np.dtypes.StringDType()), ["a", ""]),
        (np.array([["a", "b"], ["c", "d"]], order="F")[:, ::-1], [["b", "a"], ["d", "c"]]),
    ],
)
def test_a_leaf_of_any_kind_becomes_plain_cells(leaf: Any, expected: Any) -> None:
    array = leaf_array(leaf, ("x",))
    assert array.dtype == object
    assert array.tolist() == expected
    assert {type(cell) for cell in array.flat} == {str if leaf_dtype(array).name == "str" else bytes}
    column = Column(("x",), leaf_dtype(array), array.shape)
    buffer = RowBuffer(Schema((column,)), 2)
    buffer.append([leaf])
    buffer.append([array if array.ndim else array[()]])
    [rows] = buffer.arrays()
    assert rows.tolist() == [expected, expected]
    assert {type(cell) for cell in rows.reshape(-1)} <= {bytes, str}


@pytest.mark.parametrize(
    ("leaf", "dtype"),
    [(np.empty((2, 0), object), "bytes"), (np.empty((2, 0), "S3"), "bytes"), (np.empty((2, 0), "U3"), "str")],
)
def test_arrays_of_no_values_are_stored_too(leaf: Any, dtype: str) -> None:
    pen = Pen(4)
    for empty in (leaf, np.empty((2, 0), object)):
        pen.append(empty)
    assert pen.log.schema is not None
    assert pen.log.schema.columns[0].dtype.name == dtype
    pen.create(pen.history[:])
    pen.finish()
    assert pen.store.item(0).shape == (2, 2, 0)


@pytest.mark.parametrize(
    ("leaf", "got"),
    [
        (b"a", r"expected str\[\], got bytes\[\]"),
        (np.array(["a"]), r"expected str\[\], got str\[1\]"),
        (1, r"expected str\[\], got the int 1"),
        (True, r"expected str\[\], got the bool True"),
        (np.zeros(()), r"expected str\[\], got float64\[\]"),
        (["a"], r"expected str\[\], got a list"),
        ("\ud800", "x: a str that UTF-8 cannot hold"),
        (np.array("\udfff"), "x: a str that UTF-8 cannot hold"),
    ],
)
def test_what_is_no_str_is_refused_by_a_str_column(leaf: Any, got: str) -> None:
    buffer = RowBuffer(Schema((Column(("x",), "str", ()), Column(("y",), "int64", ()))), 4)
    buffer.append(["a", 1])
    with pytest.raises(DataError, match=got):
        buffer.append([leaf, 2])
    with pytest.raises(DataError, match=r"column 'y': expected int64\[\], got a str"):
        buffer.append(["b", "c"])
    assert buffer.length == 1
    assert buffer.cell_bytes == 5
    assert buffer.arrays()[0].tolist() == ["a"]


def test_a_value_that_is_too_long_is_refused_when_it_is_appended() -> None:
    buffer = RowBuffer(Schema((Column(("x",), "bytes", ()), Column(("y",), "str", (2,)))), 4)
    small = np.array(["a", "b"], object)
    with pytest.raises(DataError, match=f"x: a value of {MAX_CELL_BYTES + 1} bytes"):
        buffer.append([bytes(MAX_CELL_BYTES + 1), small])
    half = "é" * (MAX_CELL_BYTES // 2)
    with pytest.raises(DataError, match="one step take"):
        buffer.append([b"", np.array([half, half], object)])
    buffer.append([bytes(MAX_CELL_BYTES), small])
    assert buffer.is_full


# --- writers


STEPS = st.lists(
    st.one_of(
        st.fixed_dictionaries({"t": TEXT, "b": BYTES, "n": st.integers(0, 9)}),
        st.dictionaries(st.sampled_from("tbn"), st.none(), min_size=1, max_size=2),
        st.sampled_from(["cut", "ship", "open"]),
    ),
    max_size=20,
)


@given(st.integers(1, 4), STEPS)
def test_writers_store_and_show_cells_as_they_were_appended(chunk_length: int, actions: list[Any]) -> None:
    pen = Pen(8, chunk_length)
    steps: list[dict[str, Any]] = []
    expected: list[dict[str, Any]] = []
    for action in actions:
        if action == "cut":
            pen.log.cut()
        elif action == "ship":
            pen.ship()
        elif action == "open":
            # A chunk that is cut in the middle of a step takes the rest of it into the next one.
            pen.append({"t": f"step {len(steps)}"}, partial_step=True)
            pen.log.cut()
            pen.append({"b": b"later"})
            steps.append({"t": f"step {len(steps)}", "b": b"later"})
        elif "t" in action and action["t"] is not None:
            pen.append(action)
            steps.append(action)
        else:
            values = {"t": "é" * len(steps), "b": b"\0" * len(steps), "n": len(steps)}
            steps.append({name: values[name] for name in action})
            pen.append(steps[-1])
        kept = steps[-8:]
        trajectory, wanted = {}, {}
        for name in "tbn":
            rows = [row for row, step in enumerate(kept, len(steps) - len(kept)) if name in step]
            if rows:
                trajectory[name] = pen.history[name][rows]
                wanted[name] = [steps[row][name] for row in rows]
                assert trajectory[name].numpy().tolist() == wanted[name]
        if trajectory:
            pen.create(trajectory)
            expected.append(wanted)
    pen.finish()
    for place, wanted in enumerate(expected):
        item = pen.store.item(place)
        assert {name: array.tolist() for name, array in item.items()} == wanted
        assert all(array.dtype == object for name, array in item.items() if name != "n")


def test_a_chunk_ends_early_where_its_values_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_buffer, "CHUNK_CELL_BYTES", 100)
    pen = Pen(50, 50)
    for number in range(12):
        pen.append({"t": "x" * 30, "n": number})
    pen.create({"t": pen.history["t"][:], "n": pen.history["n"][:]})
    pen.finish()
    assert [rows for rows, *_ in pen.store.chunks.values()] == [3] * 4
    assert pen.store.item(0)["n"].tolist() == list(range(12))
    assert pen.store.item(0)["t"].tolist() == ["x" * 30] * 12


def test_a_report_counts_the_bytes_of_values() -> None:
    pen = Pen(4, 2)
    for text in ("é", None, "abc", ""):
        pen.append({"t": text, "n": 1})
    report = pen.log.report()
    assert (report.columns["t"].bytes_in, report.columns["n"].bytes_in) == (5, 32)
    assert report.columns["t"].bytes_stored == (1 + 4 + 2) + (8 + 3)


# --- batches


@given(st.lists(st.lists(st.tuples(TEXT, BYTES), min_size=1, max_size=4), min_size=1, max_size=6), st.integers(1, 5))
def test_items_of_any_lengths_are_listed_padded_and_stacked(items: list[list[tuple[str, bytes]]], split: int) -> None:
    pen = Pen(8, 3)
    for rows in items:
        for text, data in rows:
            pen.append({"t": text, "b": np.array([data, b"-"], object)})
        pen.create(
            {"t": pen.history["t"][-len(rows) :], "b": pen.history["b"][-len(rows) :], "n": pen.history["t"][-1]}
        )
    pen.finish()
    numbers = list(range(len(items)))
    parts = [pen.store.sampled(some) for some in (numbers[:split], numbers[split:]) if some]
    texts = [[text for text, _ in rows] for rows in items]
    pairs = [[[data, b"-"] for _, data in rows] for rows in items]
    _, listed, _ = joined(parts, "list")
    assert [array.tolist() for array in listed["t"]] == texts
    assert [array.tolist() for array in listed["b"]] == pairs
    _, padded, masks = joined(parts, "pad")
    longest = max(map(len, items))
    assert padded["t"].tolist() == [rows + [""] * (longest - len(rows)) for rows in texts]
    assert padded["b"].tolist() == [rows + [[b"", b""]] * (longest - len(rows)) for rows in pairs]
    assert masks["b"].tolist() == [[row < len(rows) for row in range(longest)] for rows in items]
    assert padded["n"].tolist() == [rows[-1] for rows in texts]
    if len({len(rows) for rows in items}) == 1:
        _, stacked, _ = joined(parts, "error")
        assert (stacked["t"].tolist(), stacked["b"].tolist()) == (texts, pairs)
        assert (parts[0].stack()["t"].tolist(), stacked["t"].dtype) == (texts[:split], np.dtype(object))


def test_a_batch_of_more_bytes_than_it_may_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pen = Pen(20, 2)
    for number in range(20):
        pen.append("x" * number)
    for _ in range(3):
        pen.create(pen.history[:])
    pen.finish()
    # What items share, and what is read again, counts once.
    monkeypatch.setattr(sampled_chunks, "MAX_BATCH_BYTES", 20 * (4 + 8 + 64) + sum(range(20)))
    assert pen.store.item(1).tolist() == ["x" * number for number in range(20)]
    monkeypatch.setattr(sampled_chunks, "MAX_BATCH_BYTES", 1000)
    with pytest.raises(DataError, match="the batch decodes to more than 1000 bytes"):
        pen.store.item(1)


def test_records_of_cells_have_room_for_their_lengths() -> None:
    column = Column(("x",), "str", (2,))
    for stored, is_right in ((8, True), (30, True), (7, False)):
        blobs = np.zeros(1, BLOB_RECORD)
        blobs["stored_bytes"] = stored
        schema = Schema((column,)).encode()
        arguments = (np.array([1], "u4"), [schema], None, blobs, [bytes(stored)])
        if is_right:
            sampled_chunks.SampledChunks(*arguments)
        else:
            with pytest.raises(DataError, match="size of its rows"):
                sampled_chunks.SampledChunks(*arguments)
