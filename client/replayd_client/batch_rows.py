"""What users give to insert: a nest of arrays [B, T, …] and priorities, checked and brought into the order of a schema.

Pure.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.arguments import checked_table, value_text
from replayd_client.array_messages import AT_MAX, PRIORITY_MAX
from replayd_client.cells import MAX_CELLS_BYTES
from replayd_client.columns import MAX_CHUNK_ROWS, Column, Schema, leaf_array, leaf_dtype, variable_bytes
from replayd_client.errors import ArgumentTypeError, DataError, PriorityError
from replayd_client.structure import Path, flatten, path_text

ShownColumn = tuple[Path, str, tuple[int, ...]]
"""Path, dtype and shape of a column of a trajectory, as signatures have them."""


@dataclass(frozen=True, slots=True)
class Rows:
    """B trajectories of T steps: arrays [B, T, *shape] in schema order."""

    schema: Schema
    arrays: list[NDArray[Any]]
    count: int
    steps: int

    @property
    def shown(self) -> tuple[ShownColumn, ...]:
        """The columns of a trajectory."""
        return _shown(self.schema, self.steps)

    @property
    def variable_bytes(self) -> NDArray[np.int64]:
        """Bytes of the bytes and str of each trajectory, [B]."""
        return variable_bytes(self.schema.columns, self.arrays)


@lru_cache(256)
def _shown(schema: Schema, steps: int) -> tuple[ShownColumn, ...]:
    return tuple((c.path, c.dtype.name, (steps, *c.shape)) for c in schema.columns)


def rows_of_batch(data: Any) -> Rows:
    """A nest of arrays [B, T, *shape]. Raises DataError if leaves are no such arrays or differ in B or T."""
    pairs = flatten(data)
    arrays = [leaf_array(leaf, path) for path, leaf in pairs]
    for (path, _), array in zip(pairs, arrays, strict=True):
        if array.ndim < 2:
            raise DataError(f"{path_text(path)}: a batch needs axes [B, T, …], got {list(array.shape)}")
        if array.shape[:2] != arrays[0].shape[:2]:
            raise DataError(
                f"{path_text(path)}: [B, T] is {list(array.shape[:2])}, but {list(arrays[0].shape[:2])} at "
                f"{path_text(pairs[0][0])}"
            )
    if not arrays:
        raise DataError("a batch needs at least one array")
    count, steps = arrays[0].shape[:2]
    if not count or not 1 <= steps <= MAX_CHUNK_ROWS:
        raise DataError(f"a batch has at least one trajectory of 1 to {MAX_CHUNK_ROWS} steps, not [{count}, {steps}]")
    return _rows([path for path, _ in pairs], arrays, count, steps)


def rows_of_step(data: Any) -> Rows:
    """One step as a batch of one trajectory of one step."""
    pairs = flatten(data)
    if not pairs:
        raise DataError("a step needs at least one value")
    return _rows([path for path, _ in pairs], [leaf_array(leaf, path)[None, None] for path, leaf in pairs], 1, 1)


def _rows(paths: list[Path], arrays: list[NDArray[Any]], count: int, steps: int) -> Rows:
    kinds = [
        (path, leaf_dtype(array) if array.dtype.kind == "O" else array.dtype, array.shape[2:])
        for path, array in zip(paths, arrays, strict=True)
    ]
    schema = _schema(tuple(kinds))
    ordered = [np.ascontiguousarray(a, column.array_dtype) for a, column in zip(arrays, schema.columns, strict=True)]
    rows = Rows(schema, ordered, count, steps)
    if schema.is_variable:
        largest = int(rows.variable_bytes.max())
        if largest > MAX_CELLS_BYTES:
            raise DataError(f"the bytes and str of a trajectory take {largest} bytes, the limit is {MAX_CELLS_BYTES}")
    return rows


@lru_cache(256)
def _schema(columns: tuple[tuple[Path, np.dtype[Any], tuple[int, ...]], ...]) -> Schema:
    return Schema(tuple(Column(*column) for column in columns))


def priorities_of(priorities: Mapping[str, Any], count: int) -> dict[str, NDArray[np.float64]]:
    """Priorities [count] for each table, AT_MAX for "max". Raises DataError for other shapes and what are no numbers,
    PriorityError for bad values."""
    if not isinstance(priorities, Mapping):
        raise ArgumentTypeError(f"priorities must map tables to priorities, got {value_text(priorities)}")
    if not priorities:
        raise DataError("priorities must map at least one table to a priority")
    result = {}
    for table, value in priorities.items():
        checked_table(table)
        if isinstance(value, str) and value == "max":
            result[table] = np.full(count, AT_MAX)
            continue
        try:
            array = np.asarray(priority_numbers(table, value), np.float64)
            if array.shape not in ((), (count,)):
                raise ValueError
            values = np.ascontiguousarray(np.broadcast_to(array, (count,)))
        except OverflowError:
            raise PriorityError(f"table {table!r}: priorities must be at most {PRIORITY_MAX:g}") from None
        except ValueError as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"table {table!r}: priorities must be a number, an array [{count}] or 'max'") from None
        good = (values >= 0) & (values <= PRIORITY_MAX)
        if not good.all():
            bad = np.flatnonzero(~good)
            raise PriorityError(
                f"table {table!r}: priorities must be finite, at least 0 and at most {PRIORITY_MAX:g}, "
                f"got {float(values[bad[0]])!r} at position {int(bad[0])}",
                detail={"table": table, "indices": bad[:64].tolist()},
            )
        result[table] = values
    return result


def priority_numbers(table: str, values: Any) -> NDArray[Any]:
    """Numbers as an array of any shape. What numpy would make a number of, such as None or a text, is none."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError(f"table {table!r}: priorities must be numbers in one array, not of uneven lengths") from None
    if array.size and array.dtype.kind not in "biuf":
        flat = array.ravel().tolist()
        # Integers beyond 64 bits are numbers still.
        wrong = next((i for i, value in enumerate(flat) if not isinstance(value, numbers.Real)), None)
        if wrong is not None:
            raise ArgumentTypeError(
                f"table {table!r}: a priority must be a number, got {value_text(flat[wrong])} at position {wrong}"
            )
    return array
