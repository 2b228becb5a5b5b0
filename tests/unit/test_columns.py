"""Schemas, signatures, templates and the row buffer: exact round trips, and a typed error for everything else."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import gymnasium
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from replayd.blobs import parse_template
from replayd.errors import PeerError
from replayd_client.columns import BLANKS, DTYPE_NAMES, MAX_CHUNK_ROWS, MAX_DIMENSIONS, MAX_ROW_BYTES, Column, Schema
from replayd_client.descriptions import MAX_DESCRIPTION_BYTES
from replayd_client.errors import DataError
from replayd_client.row_buffer import RowBuffer
from replayd_client.specs import TensorSpec, signature_of
from replayd_client.structure import MAX_COLUMNS
from replayd_client.templates import MAX_RUNS, OutputColumn, Template, rows_of, runs_of

NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)
FIXED = [name for name in DTYPE_NAMES if name not in BLANKS]
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


def schemas() -> st.SearchStrategy[Schema]:
    column = st.tuples(NAMES, st.sampled_from(DTYPE_NAMES), SHAPES)
    columns = st.lists(column, min_size=1, max_size=6, unique_by=lambda c: c[0])
    return columns.map(lambda found: Schema(tuple(Column((n,), d, s) for n, d, s in found)))


# --- columns and schemas


@given(schemas())
def test_a_schema_survives_its_blob(schema: Schema) -> None:
    blob = schema.encode()
    assert Schema.decode(blob) == schema
    assert Schema.decode(blob).encode() == blob
    assert Schema.decode(bytes(bytearray(blob))) is Schema.decode(blob)


def test_the_schema_blob_is_the_one_of_the_protocol() -> None:
    schema = Schema((Column(("obs", 0), "<u1", (84, 84)), Column(("reward",), "float64", ())))
    assert msgpack.unpackb(schema.encode()) == [[["obs", 0], "uint8", [84, 84]], [["reward"], "float64", []]]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_schema_and_a_template_or_a_data_error(blob: bytes) -> None:
    for decode in (Schema.decode, Template.decode):
        with contextlib.suppress(DataError):
            decode(blob)


MSGPACKED = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=20,
)
SCHEMA_LIKE = st.lists(
    st.tuples(
        st.lists(st.text(max_size=3) | st.integers(-1, 3), max_size=3) | MSGPACKED,
        st.sampled_from([*DTYPE_NAMES, "object", "float128", ">f4"]) | MSGPACKED,
        st.lists(st.integers(-1, 2**40), max_size=18) | MSGPACKED,
    ),
    max_size=4,
)
RUNS_LIKE = st.lists(st.integers(-3, 3) | st.integers(-(2**63), 2**64 - 1), max_size=9)
TEMPLATE_LIKE = st.lists(
    st.tuples(
        st.lists(st.text(max_size=3) | st.integers(-1, 3), max_size=3) | MSGPACKED,
        st.booleans() | MSGPACKED,
        st.lists(st.tuples(st.integers(-1, 600), RUNS_LIKE | MSGPACKED) | MSGPACKED, max_size=3) | MSGPACKED,
    ),
    max_size=4,
)


@given(MSGPACKED | SCHEMA_LIKE | TEMPLATE_LIKE)
def test_any_msgpack_value_is_a_schema_and_a_template_or_a_data_error(value: Any) -> None:
    blob = msgpack.packb(value)
    for decode in (Schema.decode, Template.decode):
        try:
            found: Any = decode(blob)
        except DataError:
            continue
        assert msgpack.unpackb(found.encode()) == msgpack.unpackb(blob)


@pytest.mark.parametrize(
    "value",
    [
        [],
        [[["a"], "float32", [2]]] * 2,
        [[["a"], "float32"]],
        [[["a"], "float32", [2], 1]],
        [[["a"], "float32", [-1]]],
        [[["a"], "float32", [True]]],
        [[["a"], "float32", [1.0]]],
        [[["a", True], "float32", []]],
        [[["a", None], "float32", []]],
        [["a", "float32", []]],
        [[["a"], "float128", []]],
        [[["a"], "<f4", []]],
        [[["a"], "float32", [1] * (MAX_DIMENSIONS + 1)]],
        [[["a"], "uint8", [MAX_ROW_BYTES + 1]]],
        [[["a"], "uint8", [0, MAX_ROW_BYTES + 1]]],
        [[["a"], "uint8", [2**16, 2**16]]],
        [[["a"], "float32", []], [["a", "b"], "float32", []]],
        [[[str(n)], "bool", []] for n in range(MAX_COLUMNS + 1)],
        [[["a" * 129], "bool", []]],
        {"a": 1},
    ],
)
def test_a_schema_that_breaks_one_rule_is_refused(value: Any) -> None:
    with pytest.raises(DataError):
        Schema.decode(msgpack.packb(value))


def test_a_schema_at_the_limits_is_taken() -> None:
    assert Schema.decode(msgpack.packb([[["a"], "uint8", [MAX_ROW_BYTES]]])).columns[0].row_bytes == MAX_ROW_BYTES
    assert Schema.decode(msgpack.packb([[["a"], "uint8", [1] * MAX_DIMENSIONS]]))
    assert (
        len(Schema.decode(msgpack.packb([[[str(n)], "bool", []] for n in range(MAX_COLUMNS)])).columns) == MAX_COLUMNS
    )


def test_a_description_that_is_too_large_is_refused_both_ways() -> None:
    schema = Schema(tuple(Column((f"{n:0100}", "x" * 100), "bool", ()) for n in range(MAX_COLUMNS)))
    with pytest.raises(DataError, match=str(MAX_DESCRIPTION_BYTES)):
        schema.encode()
    with pytest.raises(DataError, match=str(MAX_DESCRIPTION_BYTES)):
        Schema.decode(msgpack.packb([[c.path, c.dtype.name, c.shape] for c in schema.columns]))


def test_a_later_schema_extends_an_earlier_one() -> None:
    a, b, c = (Column((name,), "float32", ()) for name in "abc")
    assert Schema((a, b)).extends(Schema((a,)))
    assert Schema((a,)).extends(Schema((a,)))
    assert not Schema((a, b)).extends(Schema((b,)))
    assert not Schema((a,)).extends(Schema((a, c)))


@pytest.mark.parametrize(
    ("leaf", "dtype", "shape"),
    [
        (True, "bool", ()),
        (3, "int64", ()),
        (3.0, "float64", ()),
        (3j, "complex128", ()),
        (np.float32(1), "float32", ()),
        (np.bool_(True), "bool", ()),
        (np.zeros((2, 0), "float16"), "float16", (2, 0)),
        (np.zeros(3, ">f4"), "float32", (3,)),
        (np.zeros(3, ">i8"), "int64", (3,)),
        (np.zeros((), "complex64"), "complex64", ()),
        (memoryview(bytes(3)), "uint8", (3,)),
    ],
)
def test_a_leaf_gives_its_column(leaf: Any, dtype: str, shape: tuple[int, ...]) -> None:
    column = Schema.infer([("x",)], [leaf]).columns[0]
    assert (column.dtype.name, column.shape) == (dtype, shape)
    assert column.dtype.str[0] in "<|"


@pytest.mark.parametrize(
    ("leaf", "word"),
    [
        (None, "None"),
        (2**63, "int64"),
        ([1], "list"),
        ("\ud800", "UTF-8"),
        (np.array(["a", "\udfff"]), "UTF-8"),
        (np.array(["a", b"b"], object), "bytes, str"),
        (np.array([None]), "object"),
        (np.array("2020-01-01", "M8[D]"), "datetime64"),
        (np.zeros(2, [("a", "f4")]), "'a'"),
        (np.zeros(2, "V8"), "V8"),
        (np.longdouble(1), "128"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), "MaskedArray"),
        (object(), "object"),
    ],
)
def test_a_leaf_that_cannot_be_stored_is_named_with_its_dtype(leaf: Any, word: str) -> None:
    with pytest.raises(DataError) as caught:
        Schema.infer([("obs", "x")], [leaf])
    assert str(caught.value).startswith("obs/x: ")
    assert word in str(caught.value)


# --- signatures


def test_a_signature_is_read_from_anything_with_a_shape_and_a_dtype() -> None:
    nest = {
        "spec": TensorSpec((None, 3), np.float32, "name"),
        "array": np.zeros((2, 2), ">i4"),
        "space": gymnasium.spaces.Dict(
            {"box": gymnasium.spaces.Box(0, 1, (3,)), "parts": gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3)])}
        ),
        "tensor": SimpleNamespace(shape=[None, 1], dtype=SimpleNamespace(as_numpy_dtype=np.bool_)),
        "scalar": np.float64(1),
        "bytes": [np.array([b"a", b"b"], object), TensorSpec((), bytes), TensorSpec((3,), "S7")],
        "str": [np.array("text"), TensorSpec((None,), str), gymnasium.spaces.Text(5)],
        "string": SimpleNamespace(shape=(), dtype=SimpleNamespace(as_numpy_dtype=np.object_)),
    }
    assert signature_of(nest) == [
        (("array",), "int32", (2, 2)),
        (("bytes", 0), "bytes", (2,)),
        (("bytes", 1), "bytes", ()),
        (("bytes", 2), "bytes", (3,)),
        (("scalar",), "float64", ()),
        (("space", "box"), "float32", (3,)),
        (("space", "parts", 0), "int64", ()),
        (("spec",), "float32", (None, 3)),
        (("str", 0), "str", ()),
        (("str", 1), "str", (None,)),
        (("str", 2), "str", ()),
        (("string",), "bytes", ()),
        (("tensor",), "bool", (None, 1)),
    ]
    assert signature_of(TensorSpec((), "uint8")) == [((), "uint8", ())]


@pytest.mark.parametrize("leaf", [1, None, "x", TensorSpec((1,), None), TensorSpec((1,), "O"), TensorSpec((-1,), "f4")])
def test_a_signature_of_something_else_is_refused_with_its_path(leaf: Any) -> None:
    with pytest.raises(DataError, match="a/b"):
        signature_of({"a": {"b": leaf}})


# --- the row buffer


def buffer_of(*columns: tuple[str, tuple[int, ...]], capacity: int = 4) -> RowBuffer:
    schema = Schema(tuple(Column((f"c{n}",), dtype, shape) for n, (dtype, shape) in enumerate(columns)))
    return RowBuffer(schema, capacity)


@pytest.mark.parametrize("dtype", FIXED)
@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 0, 3), (2, 3)])
def test_rows_come_back_as_they_were_appended(dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 2, shape).astype(dtype) for _ in range(4)]
    buffer = buffer_of((dtype, shape))
    for row in rows:
        buffer.append([row])
    assert buffer.is_full
    [array] = buffer.arrays()
    assert array.dtype == dtype
    assert np.array_equal(array, np.stack(rows))
    assert buffer.present() == [None]


def test_a_caller_may_change_its_array_after_append() -> None:
    buffer = buffer_of(("float32", (2,)))
    leaf = np.ones(2, "float32")
    buffer.append([leaf])
    leaf[:] = 7
    buffer.append([leaf])
    leaf[:] = 9
    assert buffer.arrays()[0].tolist() == [[1, 1], [7, 7]]


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        ("bool", [True, np.bool_(False), np.array(True)], [1, 1.0, np.uint8(1), "x", None]),
        ("uint8", [0, 255, True, np.uint8(3)], [-1, 256, 1.0, np.int8(1), np.int64(1), 2**70]),
        ("int64", [-(2**63), 2**63 - 1], [2**63, -(2**63) - 1, 0.5, np.int32(1)]),
        ("float16", [1, 0.1, -65504.0, float("inf"), float("nan"), False], [65505.0, 70000, 1j, np.float32(1)]),
        ("float32", [2**100, 3.4e38, float("-inf")], [2**200, 1e39, np.float64(1), np.float64("inf")]),
        ("float64", [10**300, 1.5, True, np.float64(2)], [10**400, 1j, np.float32(1)]),
        ("complex64", [1, 1.5, 2 - 1j, complex("inf")], [1e39, complex(0, 1e39), np.complex128(1)]),
        ("complex128", [1, 1.5, 2 - 1j], [np.complex64(1), "x"]),
    ],
)
def test_a_python_number_goes_into_a_wider_kind_if_it_fits_and_arrays_are_strict(
    dtype: str, good: list[Any], bad: list[Any]
) -> None:
    buffer = buffer_of((dtype, ()), capacity=20)
    for leaf in good:
        buffer.append([leaf])
    with np.errstate(over="ignore"):
        expected = np.array(good).astype(dtype) if dtype != "int64" else np.array(good, "int64")
    assert np.array_equal(buffer.arrays()[0], expected, equal_nan=dtype.startswith(("float", "complex")))
    for leaf in bad:
        with pytest.raises(DataError, match=rf"column 'c0': expected {dtype}\[\], got"):
            buffer.append([leaf])
    assert buffer.length == len(good)


@pytest.mark.parametrize(
    "leaf",
    [np.zeros(3, "float64"), np.zeros(2, "float32"), np.zeros((3, 1), "float32"), np.float32(1), 1.0, [1.0, 2.0, 3.0]],
)
def test_an_array_of_another_dtype_or_shape_is_refused(leaf: Any) -> None:
    buffer = buffer_of(("float32", (3,)))
    with pytest.raises(DataError, match=r"column 'c0': expected float32\[3\], got"):
        buffer.append([leaf])


def test_byte_swapped_arrays_are_turned_round() -> None:
    buffer = buffer_of(("float32", (2,)), ("int16", ()))
    buffer.append([np.array([1, 2], ">f4"), np.array(258, ">i2")])
    assert [array.tolist() for array in buffer.arrays()] == [[[1.0, 2.0]], [258]]
    assert buffer.arrays()[0].dtype.str == "<f4"


def test_a_refused_step_changes_nothing() -> None:
    buffer = buffer_of(("float32", (2,)), ("int64", ()), ("bool", ()))
    buffer.append([np.ones(2, "float32"), 1, True])
    before = [array.tobytes() for array in buffer._arrays]
    for bad in ([np.zeros(2, "float32"), 2, 3], [np.zeros(2, "float32"), 2], [np.zeros(2, "float32"), None, True]):
        with pytest.raises(DataError):
            buffer.append(bad)
    with pytest.raises(DataError):
        buffer.append([np.zeros(2, "float32"), None, 7], partial=True)
    assert buffer.length == 1
    assert [array.tobytes() for array in buffer._arrays] == before
    assert buffer.present() == [None, None, None]


def test_a_partial_step_leaves_columns_missing_from_its_row_only() -> None:
    buffer = buffer_of(("int64", ()), ("float64", ()))
    buffer.append([1, 1.0])
    buffer.append([2, None], partial=True)
    buffer.append([3, 3.0], partial=True)
    first, second = buffer.present()
    assert first is None
    assert second is not None
    assert second.tolist() == [True, False, True]
    assert buffer.arrays()[1][second].tolist() == [1.0, 3.0]
    buffer.clear()
    assert buffer.length == 0
    buffer.append([1, 1.0])
    buffer.append([1, 1.0])
    assert buffer.present() == [None, None]


def test_the_last_row_can_be_amended_once() -> None:
    buffer = buffer_of(("int64", ()), ("float64", ()))
    buffer.append([1, None], partial=True)
    with pytest.raises(DataError, match="c0: the step already has a value"):
        buffer.amend([2, 2.0])
    buffer.amend([None, 2.0])
    assert [array.tolist() for array in buffer.arrays()] == [[1], [2.0]]
    assert buffer.present() == [None, None]
    with pytest.raises(DataError, match="c1"):
        buffer.amend([None, 3.0])


def test_a_buffer_that_grows_lacks_the_new_columns_in_its_old_rows() -> None:
    buffer = buffer_of(("int64", ()))
    buffer.append([1])
    grown = Schema((*buffer.schema.columns, Column(("new",), "float64", (2,))))
    buffer.grow(grown)
    buffer.amend([None, np.ones(2)])
    buffer.append([2, np.full(2, 2.0)])
    assert buffer.present() == [None, None]
    buffer.grow(Schema((*grown.columns, Column(("more",), "bool", ()))))
    buffer.append([3, np.full(2, 3.0), True])
    present = buffer.present()
    assert present[:2] == [None, None]
    assert present[2] is not None
    assert present[2].tolist() == [False, False, True]
    assert [len(array) for array in buffer.arrays()] == [3, 3, 3]


@pytest.mark.parametrize("capacity", [0, -1, MAX_CHUNK_ROWS + 1])
def test_a_buffer_of_no_or_too_many_rows_is_refused(capacity: int) -> None:
    with pytest.raises(DataError):
        buffer_of(("bool", ()), capacity=capacity)


# --- templates


def fewest_runs(rows: list[int]) -> int:
    """By dynamic programming over every way to cut the rows."""
    best = [0] + [len(rows)] * len(rows)
    for end in range(1, len(rows) + 1):
        for start in range(end):
            if len(set(np.diff(rows[start:end]).tolist())) <= 1:
                best[end] = min(best[end], best[start] + 1)
    return best[-1]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=14))
def test_any_rows_are_exactly_the_fewest_runs(rows: list[int]) -> None:
    runs = runs_of(np.array(rows))
    assert rows_of(runs, max(rows) + 1).tolist() == rows
    assert len(runs) == fewest_runs(rows)
    assert all(length >= 1 for _, length, _ in runs)


@pytest.mark.parametrize(
    ("rows", "runs"),
    [
        ([0, 1, 2, 3], [(0, 4, 1)]),
        ([5], [(5, 1, 1)]),
        ([3, 2, 1], [(3, 3, -1)]),
        ([4, 4, 4], [(4, 3, 0)]),
        ([0, 3, 6, 7, 8], [(0, 3, 3), (7, 2, 1)]),
        ([0, 0, 1, 2, 3], [(0, 2, 0), (1, 3, 1)]),
    ],
)
def test_runs_of_known_rows(rows: list[int], runs: list[tuple[int, int, int]]) -> None:
    assert runs_of(np.array(rows)) == runs


def test_no_runs_are_the_whole_window() -> None:
    assert rows_of((), 5).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(DataError):
        runs_of(np.array([], np.int64))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(-3, 3)), min_size=1, max_size=5))
def test_a_row_outside_the_window_is_refused(runs: list[tuple[int, int, int]]) -> None:
    rows = [start + step * stride for start, length, stride in runs for step in range(length)]
    if min(rows) < 0:
        with pytest.raises(DataError):
            rows_of(runs, 100)
    else:
        assert rows_of(runs, max(rows) + 1).tolist() == rows
        with pytest.raises(DataError):
            rows_of(runs, max(rows))


COLUMN_NUMBERS = st.integers(0, MAX_COLUMNS - 1)
RUNS_OF_ROWS = st.lists(st.integers(0, 30), min_size=1, max_size=8).map(lambda rows: tuple(runs_of(np.array(rows))))
PARTS = st.tuples(COLUMN_NUMBERS, st.just(())).map(lambda part: (part,)) | st.lists(
    st.tuples(COLUMN_NUMBERS, RUNS_OF_ROWS), min_size=1, max_size=4
).map(tuple)


@given(st.lists(st.tuples(NAMES, st.booleans(), PARTS), min_size=1, max_size=5, unique_by=lambda output: output[0]))
def test_a_template_survives_its_blob(outputs: list[tuple[str, bool, Any]]) -> None:
    template = Template(
        tuple(
            OutputColumn((name,), squeeze and sum(run[1] for _, runs in parts for run in runs) <= 1, parts)
            for name, squeeze, parts in outputs
        )
    )
    blob = template.encode()
    assert Template.decode(blob) == template
    assert not template.is_identity


def test_the_template_blob_is_the_one_of_the_protocol() -> None:
    joined = OutputColumn(("c",), False, ((0, ((1, 2, 1), (0, 1, 1))), (3, ((5, 3, -2),))))
    one = OutputColumn(("a", 0), True, ((2, ((4, 1, 1),)),))
    template = Template((one, OutputColumn(("b",), False, ((0, ()),)), joined))
    assert msgpack.unpackb(template.encode()) == [
        [["a", 0], True, [[2, [4, 1, 1]]]],
        [["b"], False, [[0, []]]],
        [["c"], False, [[0, [1, 2, 1, 0, 1, 1]], [3, [5, 3, -2]]]],
    ]
    assert Template.identity.encode() == b""
    assert Template.decode(b"") is Template.identity
    assert Template.identity.is_identity


@pytest.mark.parametrize(
    "value",
    [
        [],
        [[["a"], False]],
        [[["a"], False, []]],
        [[["a"], False, 0]],
        [[["a"], 1, [[0, []]]]],
        [[["a"], False, [0, []]]],
        [[["a"], False, [[0]]]],
        [[["a"], False, [[0, [], []]]]],
        [[["a"], False, [[0, 1]]]],
        [[["a"], False, [[-1, []]]]],
        [[["a"], False, [[MAX_COLUMNS, []]]]],
        [[["a"], False, [[True, []]]]],
        [[["a"], False, [[0, [0, 1]]]]],
        [[["a"], False, [[0, [0, 1, True]]]]],
        [[["a"], False, [[0, [0, 0, 1]]]]],
        [[["a"], False, [[0, [-1, 1, 1]]]]],
        [[["a"], False, [[0, [0, 2, -1]]]]],
        [[["a"], False, [[0, [0, 2**62, 0]]]]],
        [[["a"], False, [[0, [0, 2, 2**62]]]]],
        [[["a"], False, [[0, [0, 1, 2**62]]]]],
        [[["a"], False, [[0, [MAX_CHUNK_ROWS, 1, 1]]]]],
        [[["a"], False, [[0, [0, MAX_CHUNK_ROWS, 0]], [1, [0, 1, 1]]]]],
        [[["a"], False, [[0, [0, 1, 1] * MAX_RUNS], [1, [0, 1, 1]]]]],
        [[["a"], False, [[0, [0, 1, 1]], [1, []]]]],
        [[["a"], False, [[0, []], [0, []]]]],
        [[["a"], True, [[0, [0, 2, 1]]]]],
        [[["a"], True, [[0, [0, 1, 1]], [1, [0, 1, 1]]]]],
        [[["a"], False, [[0, []]]], [["a"], False, [[1, []]]]],
        [[["a"], False, [[0, []]]], [["a", "b"], False, [[1, []]]]],
    ],
)
def test_a_template_that_breaks_one_rule_is_refused(value: Any) -> None:
    blob = msgpack.packb(value)
    with pytest.raises(DataError):
        Template.decode(blob)
    with pytest.raises(PeerError):
        parse_template(blob)


def test_runs_hold_for_long_trajectories() -> None:
    rows: NDArray[np.int64] = np.concatenate([np.arange(100_000), np.arange(100_000)[::-3]])
    runs = runs_of(rows)
    assert len(runs) == 2
    assert np.array_equal(rows_of(runs, 100_000), rows)
