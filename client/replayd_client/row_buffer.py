"""The buffer of rows that a writer fills step by step until it cuts a chunk.

Owns what a leaf must be to enter a column. Knows nothing of episodes, chunks' numbers or codecs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.cells import MAX_CELLS_BYTES, cell_size, cell_sizes
from replayd_client.columns import MAX_CHUNK_ROWS, Column, Schema, array_text, leaf_array, leaf_dtype, leaf_text
from replayd_client.errors import DataError
from replayd_client.structure import path_text

MAX_VIEWS = 1024
"""Rows of a buffer, at most, of which views are kept: some 100 bytes each."""

CHUNK_CELL_BYTES = 16 << 20
"""Bytes of values of bytes and str at which a chunk is full, whatever its length."""

MAX_STEP_CELL_BYTES = MAX_CELLS_BYTES - CHUNK_CELL_BYTES
"""Most bytes of such values in one step: they must fit beside what a chunk has already."""


class RowBuffer:
    """Rows of a schema's columns in preallocated arrays: what a writer fills step by step until it cuts a chunk.

    `append` copies each leaf, so the caller may change its arrays afterwards. Dtypes and shapes are strict; a Python
    number goes into a column of its kind or a wider one if its value fits. A refused step changes nothing.
    """

    __slots__ = (
        *("_array_plan", "_arrays", "_checks", "_int_plan", "_is_sparse", "_plan", "_present", "_types", "_variable"),
        *("capacity", "cell_bytes", "full_length", "length", "schema"),
    )

    def __init__(self, schema: Schema, capacity: int) -> None:
        if not 1 <= capacity <= MAX_CHUNK_ROWS:
            raise DataError(f"a chunk has 1 to {MAX_CHUNK_ROWS} rows, not {capacity}")
        self.schema = schema
        self.capacity = capacity
        self.length = 0
        self.full_length = capacity
        """Rows with which it is full: fewer than its capacity once its bytes and str are long."""
        self.cell_bytes = 0
        """Bytes that the values of bytes and str columns take here."""
        self._variable = [number for number, column in enumerate(schema.columns) if column.is_variable]
        self._arrays = [np.empty((capacity, *column.shape), column.array_dtype) for column in schema.columns]
        self._checks = [_leaf_check(column) for column in schema.columns]
        self._present = np.ones((len(schema.columns), capacity), np.bool_)
        self._is_sparse = False
        # Types of the last leaves that fitted; and for leaves of the same types, by number and with the place for them,
        # what is left to compare: dtype and shape of arrays, the range of an int, nothing of the others.
        self._types: list[type] = []
        self._array_plan: list[tuple[int, Any, np.dtype[Any], tuple[int, ...]]] = []
        self._int_plan: list[tuple[int, Any, int, int]] = []
        self._plan: list[tuple[int, Any]] = []

    @property
    def is_full(self) -> bool:
        return self.length >= self.full_length

    def append(self, leaves: Sequence[Any], *, partial: bool = False) -> None:
        """Adds a row: one leaf for each column, in schema order.

        With `partial` a leaf may be None: the column is then missing from this row. Raises DataError that names the
        path, what was expected and what came.
        """
        assert self.length < self.capacity, "a writer must cut its chunk when the buffer is full"
        if self.append_like_last(leaves):
            return
        values = self._checked(leaves, partial)
        row = self.length
        if self._variable:
            self._count_cells(values, row + 1)
        if partial:
            self._present[:, row] = False
            self._fill(row, values)
            self._is_sparse = self._is_sparse or not self._present[:, row].all()
        else:
            for array, value in zip(self._arrays, values, strict=True):
                array[row] = value
        self.length = row + 1

    def append_like_last(self, leaves: Sequence[Any]) -> bool:
        """Adds a row if the leaves are of the types of earlier ones that fitted, and fit like them: what `append` tries
        first. What was set before one is found that does not counts for nothing, since the row is not there yet.

        Half the time of checking all leaves and then setting them, array[row] = leaf: 2.1 µs for five columns, two of
        them small arrays, in place of 4.5. Most of that is the view of a row, made anew each time.
        """
        if [*map(type, leaves)] != self._types:
            return False
        row = self.length
        for number, views, dtype, shape in self._array_plan:
            leaf = leaves[number]
            if leaf.dtype is not dtype or leaf.shape != shape:
                return False
            views[row][...] = leaf
        for number, array, low, high in self._int_plan:
            leaf = leaves[number]
            if not low <= leaf <= high:
                return False
            array[row] = leaf
        for number, array in self._plan:
            array[row] = leaves[number]
        self.length = row + 1
        return True

    def amend(self, leaves: Sequence[Any]) -> None:
        """Fills in columns that are missing from the last row; None leaves a column as it is.

        Raises DataError for a column that the row already has, and as `append` does.
        """
        assert self.length > 0, "there is no row to amend"
        values = self._checked(leaves, True)
        self.check_absent(values)
        self._count_cells(values, self.length)
        self._fill(self.length - 1, values)

    def check_absent(self, leaves: Sequence[Any]) -> None:
        """Raises DataError for a leaf, not None, of a column that the last row already has."""
        for number, (value, present) in enumerate(zip(leaves, self._present[:, self.length - 1], strict=True)):
            if value is not None and present:
                path = self.schema.columns[number].path
                raise DataError(
                    f"{path_text(path)}: the step already has a value",
                    detail={"fault": "already_set", "column": number, "path": path},
                )

    def grow(self, schema: Schema) -> None:
        """Goes over to a schema that extends this one. The new columns are missing from the rows that are here."""
        assert schema.extends(self.schema), "a later schema begins with the columns of the earlier one"
        added = schema.columns[len(self.schema.columns) :]
        self._arrays += [np.empty((self.capacity, *column.shape), column.array_dtype) for column in added]
        self._variable = [number for number, column in enumerate(schema.columns) if column.is_variable]
        self._checks += [_leaf_check(column) for column in added]
        present = np.ones((len(added), self.capacity), np.bool_)
        present[:, : self.length] = False
        self._present = np.concatenate([self._present, present])
        self._is_sparse = self._is_sparse or (bool(added) and self.length > 0)
        self._types = []
        self.schema = schema

    def arrays(self) -> list[NDArray[Any]]:
        """The filled part of each column, [length, *shape]: views, valid until the next `clear`."""
        return [array[: self.length] for array in self._arrays]

    def present(self) -> list[NDArray[np.bool_] | None]:
        """Which rows have the column, bool[length] for each column: views; None where none is missing."""
        if not self._is_sparse:
            return [None] * len(self._arrays)
        rows = self._present[:, : self.length]
        return [None if has.all() else has for has in rows]

    @property
    def is_plain(self) -> bool:
        """Whether every row has all columns, and none of them is of bytes or str."""
        return not self._is_sparse and not self._variable

    def clear(self) -> None:
        """Takes all rows out; the memory is used again."""
        for number in self._variable:
            self._arrays[number][: self.length] = None
        self.length = self.cell_bytes = 0
        self.full_length = self.capacity
        if self._is_sparse:
            self._present[:] = True
            self._is_sparse = False

    def _checked(self, leaves: Sequence[Any], partial: bool) -> Sequence[Any]:
        """Values which can be assigned without failing. Nothing is written before all of them are known to be."""
        checks = self._checks
        if len(leaves) != len(checks):
            raise DataError(f"the schema has {len(checks)} columns, got {len(leaves)} leaves")
        values = leaves
        for number, (leaf, check) in enumerate(zip(leaves, checks)):  # noqa: B905 - compared above, and this is hot
            dtype, shape, plain_types, low, high = check
            kind = type(leaf)
            if kind is np.ndarray:
                if leaf.dtype is dtype and leaf.shape == shape:
                    continue
            elif kind in plain_types or (kind is int and low <= leaf <= high) or (leaf is None and partial):
                continue
            if values is leaves:
                values = list(leaves)
            values[number] = _assignable(leaf, self.schema.columns[number])  # type: ignore[index]
        if values is leaves and not partial:
            self._remember_types(leaves)
        return values

    def _count_cells(self, values: Sequence[Any], length: int) -> None:
        """Count a step's values of bytes and str, with which there are so many rows. Raises DataError if they are more
        than a chunk can take."""
        total = 0
        for number in self._variable:
            value, column = values[number], self.schema.columns[number]
            if type(value) is np.ndarray:
                total += column.row_bytes + int(cell_sizes(value, column.path).sum())
            elif value is not None:
                total += column.row_bytes + cell_size(value, column.path)
        check_step_cells(total)
        self.cell_bytes += total
        if self.cell_bytes >= CHUNK_CELL_BYTES:
            self.full_length = min(self.full_length, length)

    def _remember_types(self, leaves: Sequence[Any]) -> None:
        self._types = [*map(type, leaves)]
        self._array_plan, self._int_plan, self._plan = [], [], []
        columns = zip(self._types, self._arrays, self._checks, strict=True)
        for number, (kind, array, (dtype, shape, _, low, high)) in enumerate(columns):
            if kind is np.ndarray:
                self._array_plan.append((number, _row_views(array), dtype, shape))
            elif kind is int:
                self._int_plan.append((number, array, low, high))
            else:
                self._plan.append((number, array))

    def _fill(self, row: int, values: Sequence[Any]) -> None:
        for number, value in enumerate(values):
            if value is not None:
                self._arrays[number][row] = value
                self._present[number, row] = True


def _row_views(array: NDArray[Any]) -> Any:
    """Views of the rows by number: made once, or of an array with many rows when they are asked for."""
    return [array[row, ...] for row in range(len(array))] if len(array) <= MAX_VIEWS else _Rows(array)


@dataclass(frozen=True, slots=True)
class _Rows:
    array: NDArray[Any]

    def __getitem__(self, row: int) -> NDArray[Any]:
        return self.array[row, ...]


def check_step_cells(size: int) -> None:
    """Raises DataError if the bytes and str of one step are too large for a chunk."""
    if size > MAX_STEP_CELL_BYTES:
        raise DataError(f"the bytes and str of one step take {size} bytes, the limit is {MAX_STEP_CELL_BYTES}")


_LeafCheck = tuple[np.dtype[Any], tuple[int, ...], frozenset[type], int, int]


def _leaf_check(column: Column) -> _LeafCheck:
    """What tells at once that a leaf fits: dtype, shape, types of scalars that always fit, and the range of an int."""
    dtype = column.dtype
    # No array is of a dtype "S" or "U" without a length, so values of bytes and str are always looked into.
    if column.shape or column.is_variable:
        return dtype, column.shape, frozenset(), 0, -1
    types: set[type] = {bool, dtype.type}
    if dtype.name in ("float64", "complex128"):
        types.add(float)
    if dtype.name == "complex128":
        types.add(complex)
    low, high = (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) if dtype.kind in "iu" else (0, -1)
    return dtype, (), frozenset(types), low, high


def _assignable(leaf: Any, column: Column) -> Any:
    """The leaf as something the column's array takes as it is. Raises DataError."""
    if column.is_variable:
        if type(leaf) is type(column.blank) and not column.shape:
            return leaf
    elif isinstance(leaf, (str, bytes)):
        raise _misfit(column, "value", leaf_text(leaf))
    if isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic) and not column.shape:
        if not _number_fits(leaf, column.dtype):
            # Where the kind would do, it is the value that does not.
            fault = "value" if column.dtype.kind in ("iu" if isinstance(leaf, int) else "fc") else "dtype"
            raise _misfit(column, fault, f"the {type(leaf).__name__} {leaf}")
        return leaf
    if leaf is None or isinstance(leaf, (dict, list, tuple, set)):
        raise _misfit(column, "value", leaf_text(leaf))
    array = leaf_array(leaf, column.path)
    dtype = column.dtype if column.is_variable and not array.size else leaf_dtype(array)
    if dtype.name != column.dtype.name:
        raise _misfit(column, "dtype", array_text(dtype, array.shape), (dtype, array.shape))
    if array.shape != column.shape:
        raise _misfit(column, "shape", array_text(dtype, array.shape), (dtype, array.shape))
    # At most byte-swapped, which the assignment undoes; a single object it would take for a nest.
    return array[()] if column.is_variable else array


def _misfit(
    column: Column, fault: str, got: str, kind: tuple[np.dtype[Any], tuple[int, ...]] | None = None
) -> DataError:
    """The error of a leaf that is not its column's; `detail` has the facts for programs."""
    detail: dict[str, Any] = {
        "fault": fault,
        "path": column.path,
        "expected_dtype": column.dtype.name,
        "expected_shape": column.shape,
    }
    if kind is not None:
        detail.update(got_dtype=kind[0].name, got_shape=kind[1])
    return DataError(
        f"column {path_text(column.path)!r}: expected {array_text(column.dtype, column.shape)}, got {got}",
        detail=detail,
    )


def _number_fits(number: complex, dtype: np.dtype[Any]) -> bool:
    """Whether a Python number goes into the dtype: its kind or a wider one, and in range (the rule of NEP 50)."""
    if isinstance(number, bool):
        return dtype.kind not in "SU"
    if isinstance(number, int):
        if dtype.kind in "iu":
            return bool(np.iinfo(dtype).min <= number <= np.iinfo(dtype).max)
        return dtype.kind in "fc" and abs(number) <= int(np.finfo(dtype).max)
    if isinstance(number, float):
        return dtype.kind in "fc" and (not math.isfinite(number) or abs(number) <= float(np.finfo(dtype).max))
    return dtype.kind == "c" and all(_number_fits(part, dtype) for part in (number.real, number.imag))
