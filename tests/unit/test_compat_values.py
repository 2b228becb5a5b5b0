"""Values, dtypes, strings and priorities on their way in and out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayd.compat.reverb import _priorities
from replayd.compat.reverb._trajectories import columns_of, step_nest, wire_paths
from replayd.compat.reverb._values import (
    STRING,
    as_array,
    numpy_dtype,
    shape_text,
    tf_name,
)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1, "int64"),
        (1.0, "float64"),
        (True, "bool"),
        (1j, "complex128"),
        (np.float16(1), "float16"),
        (np.uint8([1, 2]), "uint8"),
        (np.zeros((2, 0), np.complex64), "complex64"),
        ("text", "object"),
        (b"bytes", "object"),
        (np.array(["a", "bc"]), "object"),
        (np.array([b"a", "bc"], object), "object"),
    ],
)
def test_a_value_becomes_an_array_as_numpy_makes_it_one(value: Any, dtype: str) -> None:
    assert as_array(value).dtype == dtype


@pytest.mark.parametrize(
    "value",
    [
        np.longdouble(1),
        np.datetime64("2020-01-01"),
        np.zeros(1, [("a", "i4")]),
        object(),
        np.array([1, "a"], object),
        2**70,
        {1, 2},
    ],
)
def test_what_cannot_be_stored_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError):
        as_array(value)


def test_text_is_stored_as_utf8_bytes() -> None:
    assert as_array("é").item() == b"\xc3\xa9"


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("float32", "float"),
        ("float64", "double"),
        ("float16", "half"),
        ("int64", "int64"),
        ("bool", "bool"),
        ("O", "string"),
    ],
)
def test_dtypes_have_tensorflows_names_in_texts(dtype: str, name: str) -> None:
    assert tf_name(np.dtype(dtype)) == name


@pytest.mark.parametrize("dtype", ["string", str, bytes, object, np.dtype("S3"), np.dtype("U1")])
def test_every_word_for_strings_is_the_string_dtype(dtype: Any) -> None:
    assert numpy_dtype(dtype) == STRING


def test_tensorflows_dtypes_are_understood_without_tensorflow() -> None:
    class DType:
        as_numpy_dtype = np.float32

    assert numpy_dtype(DType()) == np.float32


@pytest.mark.parametrize("dtype", ["no dtype", np.dtype("M8[s]"), np.dtype([("a", "i4")])])
def test_other_dtypes_are_a_value_error(dtype: Any) -> None:
    with pytest.raises(ValueError):
        numpy_dtype(dtype)


@pytest.mark.parametrize(("shape", "text"), [((1, 2), "[1,2]"), ((), "[]"), ((None, 3), "[?,3]"), (None, "<unknown>")])
def test_shapes_are_written_as_tensorflow_writes_them(shape: Any, text: str) -> None:
    assert shape_text(shape) == text


@given(st.lists(st.floats(-1e90, 1e90), min_size=2, max_size=20))
def test_stored_priorities_keep_the_order_and_come_back(priorities: list[float]) -> None:
    values = np.array([0.0 if abs(value) < 1e-90 else value for value in priorities])
    stored = _priorities.encode(values)
    assert ((stored >= 0) & (stored <= 1e90)).all()
    assert np.array_equal(np.argsort(stored, kind="stable"), np.argsort(values, kind="stable"))
    assert np.array_equal(_priorities.decode(stored), values)


def test_neighbouring_priorities_stay_different() -> None:
    values = np.array([1.0, np.nextafter(1.0, 2), -1.0, np.nextafter(-1.0, -2)])
    assert len(set(_priorities.encode(values).tolist())) == 4


@pytest.mark.parametrize("priority", [float("nan"), float("inf"), -float("inf"), 2.0**330])
def test_priorities_that_no_table_takes_are_refused(priority: float) -> None:
    with pytest.raises(ValueError):
        _priorities.check(np.array([priority]), prioritized=False)


def test_negative_priorities_are_refused_for_prioritized_tables_only() -> None:
    _priorities.check(np.array([-1.0]), prioritized=False)
    with pytest.raises(ValueError, match="negative"):
        _priorities.check(np.array([-1.0]), prioritized=True)


@pytest.mark.parametrize(
    ("nest", "paths"),
    [
        ({"a": 0, "b": {"c": 0}}, (("a",), ("b", "c"))),
        (0, ((),)),
        ([0, (0,)], ((0,), (1, 0))),
        ({10: 0, 9: 0}, ((0,), (1,))),
        ({"": 0}, ((0,),)),
        ({"~string": 0}, (("~string",),)),
    ],
)
def test_paths_travel_as_they_are_where_the_protocol_takes_them(nest: Any, paths: Any) -> None:
    assert wire_paths(nest) == paths


def test_text_of_other_programs_comes_as_bytes() -> None:
    columns = columns_of([np.array([1]), np.array(["é", ""], object), np.array([b"x"], object)])
    assert [column.tolist() for column in columns] == [[1], ["é".encode(), b""], [b"x"]]


def test_a_step_of_strings_and_numbers_becomes_a_nest_of_arrays() -> None:
    nest, arrays = step_nest({"a": "text", "b": 1})
    assert nest["a"].item() == b"text"
    assert [array.dtype for array in arrays] == [STRING, np.int64]
