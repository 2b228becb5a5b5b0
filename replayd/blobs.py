"""Schema and template blobs ⇄ values (protocol.md §4.1 and §4.4).

Any bytes either parse or raise a PeerError. Writers repeat the same few blobs in every message, so what was parsed is
remembered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeGuard

import msgpack
import numpy as np

from replayd.columns import CONTROL_CHARACTERS, Column, OutputColumn, Path, Schema, Template, path_text
from replayd.errors import BadMessage, told
from replayd.limits import (
    CHUNK_ROWS,
    COLUMNS,
    DESCRIPTION_BYTES,
    DIMENSIONS,
    NAME_BYTES,
    NESTING,
    PATH_DEPTH,
    RUNS,
    STEP_BYTES,
)
from replayd_client.errors import DataError
from replayd_client.structure import check_paths

DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "bytes",
    "str",
)
VARIABLE = ("bytes", "str")
"""Dtypes of values that have any length, each written down in 4 bytes."""
ITEM_BYTES = {name: 4 if name in VARIABLE else np.dtype(name).itemsize for name in DTYPES}

_REMEMBERED = 512


@lru_cache(_REMEMBERED)
def parse_schema(blob: bytes) -> Schema:
    columns = tuple(_column(entry) for entry in _unpack(blob, "schema"))
    if not columns:
        raise BadMessage("a schema needs at least one column")
    _check_nest([column.path for column in columns], "schema")
    return Schema(blob, columns)


@lru_cache(_REMEMBERED)
def parse_template(blob: bytes) -> Template:
    if not blob:
        return Template(blob)
    outputs = []
    span, width = 1, 0
    for entry in _unpack(blob, "template"):
        output, reach = _output(entry)
        outputs.append(output)
        span, width = max(span, reach), max(width, *(column + 1 for column in output.columns))
    if not outputs:
        raise BadMessage("a template needs at least one output column")
    _check_nest([output.path for output in outputs], "template")
    return Template(blob, tuple(outputs), span, width)


def step_bytes(column: Column) -> int:
    """Bytes of one decoded step of a column, or those that one takes at least."""
    return ITEM_BYTES[column.dtype] * math.prod(column.shape)


def check_name(name: Any, what: str) -> str:
    """The name itself. Raises BadMessage, which calls it `what`, for one that protocol.md §4 does not allow."""
    if not isinstance(name, str) or not name or CONTROL_CHARACTERS.search(name):
        raise BadMessage(
            f"{what} must be a string of 1 to {NAME_BYTES.value} bytes without control characters, got {told(name)}"
        )
    NAME_BYTES.check(len(name.encode()))
    return name


def check_nesting(value: Any) -> None:
    """Raise LimitExceeded for what is nested deeper than NESTING; without recursion, which has a limit of its own."""
    level, depth = [value], 0
    while level:
        depth += 1
        NESTING.check(depth)
        inner: list[Any] = []
        for each in level:
            children = each.values() if isinstance(each, dict) else each
            inner += [child for child in children if isinstance(child, dict | list)]
        level = inner


def _unpack(blob: bytes, what: str) -> list[Any]:
    DESCRIPTION_BYTES.check(len(blob))
    try:
        value = msgpack.unpackb(blob, raw=False, max_array_len=DESCRIPTION_BYTES.value, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise BadMessage(f"a {what} blob is not msgpack: {error}") from error
    if not isinstance(value, list):
        raise BadMessage(f"a {what} blob must be an array of columns")
    check_nesting(value)
    COLUMNS.check(len(value))
    return value


def _column(entry: Any) -> Column:
    if not isinstance(entry, list) or len(entry) != 3:
        raise BadMessage("a schema column must be [path, dtype, shape]")
    path, dtype, shape = entry
    where = _path(path)
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise BadMessage(f"column {path_text(where)}: dtype must be one of {', '.join(DTYPES)}, got {told(dtype)}")
    if not isinstance(shape, list) or not all(is_uint(size) for size in shape):
        raise BadMessage(f"column {path_text(where)}: shape must be an array of unsigned integers")
    DIMENSIONS.check(len(shape))
    column = Column(where, dtype, tuple(shape))
    # A zero among the dimensions hides absurd ones; numpy refuses those too.
    STEP_BYTES.check(ITEM_BYTES[dtype] * math.prod(max(size, 1) for size in shape))
    return column


def _output(entry: Any) -> tuple[OutputColumn, int]:
    """One output column, and how many rows of the window it reaches."""
    if not isinstance(entry, list) or len(entry) != 3:
        raise BadMessage("a template column must be [path, squeeze, parts]")
    path, squeeze, parts = entry
    where = _path(path)
    text = f"template column {path_text(where)}"
    if not isinstance(squeeze, bool) or not isinstance(parts, list) or not parts:
        raise BadMessage(f"{text}: squeeze must be a bool, parts an array of at least one [column, runs]")
    columns = []
    rows, reach, runs = 0, 1, 0
    for part in parts:
        if not isinstance(part, list) or len(part) != 2 or not is_uint(part[0]) or not isinstance(part[1], list):
            raise BadMessage(f"{text}: a part must be [column, runs], column a uint and runs an array")
        column, flat = part
        COLUMNS.check(column + 1)
        columns.append(column)
        if not flat and len(parts) > 1:
            raise BadMessage(f"{text}: a part without runs is the whole window, and then the only part")
        runs += len(flat) // 3
        RUNS.check(runs)
        if flat:
            shown, last = _rows(flat, text)
            rows, reach = rows + shown, max(reach, last)
            CHUNK_ROWS.check(rows)
    if squeeze and rows > 1:
        raise BadMessage(f"{text}: squeeze needs exactly one row, it shows {rows}")
    return OutputColumn(where, tuple(dict.fromkeys(columns)), squeeze, rows or None), reach


def _rows(runs: list[Any], text: str) -> tuple[int, int]:
    """How many rows these runs show, and how many of the window they reach."""
    if len(runs) % 3 or not all(isinstance(value, int) and not isinstance(value, bool) for value in runs):
        raise BadMessage(f"{text}: runs must be integers start, length, stride, …")
    rows, reach = 0, 1
    for start, length, stride in zip(runs[0::3], runs[1::3], runs[2::3], strict=True):
        last = start + (length - 1) * stride
        if length < 1 or min(start, last) < 0:
            raise BadMessage(f"{text}: run ({start}, {length}, {stride}) leaves the window or is empty")
        # A run of one row takes no stride, but a reader may compute with it.
        CHUNK_ROWS.check(max(length, start + 1, last + 1, abs(stride) + 1))
        rows, reach = rows + length, max(reach, start + 1, last + 1)
    return rows, reach


def _check_nest(paths: Sequence[Path], what: str) -> None:
    """Nobody could read what is no nest: the rule is the readers' own."""
    try:
        check_paths(paths)
    except DataError as error:
        raise BadMessage(f"a {what}'s paths: {error}") from error


def _path(path: Any) -> Path:
    if not isinstance(path, list):
        raise BadMessage("a path must be an array of strings and unsigned integers")
    PATH_DEPTH.check(len(path))
    return tuple(part if is_uint(part) else check_name(part, "a path component") for part in path)


def is_uint(value: Any) -> TypeGuard[int]:
    """An unsigned integer below 2^63; a bool is none."""
    return type(value) is int and 0 <= value < 1 << 63
