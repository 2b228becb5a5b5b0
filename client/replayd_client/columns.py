"""The shape of stored data: columns, schemas, signatures and trajectory templates, and the buffer a writer fills.

Owns the schema blob and the template blob of the protocol (its §4.1 and §4.4): whatever bytes come in, they decode or
raise DataError. Knows nothing of codecs, chunks on the wire or sockets.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal

import msgpack
import numpy as np
from numpy.typing import NDArray

from replayd_client.errors import DataError
from replayd_client.structure import MAX_COLUMNS, MAX_DEPTH, Path, check_paths, flatten, path_text

MAX_DIMENSIONS = 16
"""Most dimensions of one step: numpy's arrays have 64, and a batch adds two."""

MAX_ROW_BYTES = (1 << 31) - 1 - 32
"""Largest step of a column, a dimension of 0 counted as 1: the largest buffer a blosc2 chunk can describe."""

MAX_CHUNK_ROWS = 1 << 20
"""Most rows of a chunk and of a window: positions then stay far below 2^63 whatever a peer says."""

MAX_RUNS = 4096
"""Most runs of one output column of a template."""

MAX_DESCRIPTION_BYTES = 64 * 1024
"""Largest schema or template blob: servers keep a copy of each distinct one."""

DTYPE_NAMES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
"""Every dtype that can be stored. Stored bytes are little-endian."""

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(name) if sys.byteorder == "little" else np.dtype(name).newbyteorder("<") for name in DTYPE_NAMES
}


@dataclass(frozen=True, slots=True)
class Column:
    """One named array of each step: its path, its dtype and the shape of one step's value.

    `dtype` may be given as anything `numpy.dtype` takes and becomes little-endian. Raises DataError if the dtype is not
    one of DTYPE_NAMES or the shape has more than MAX_DIMENSIONS or is larger than MAX_ROW_BYTES.
    """

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    row_bytes: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        dtype = storable_dtype(self.dtype, self.path)
        shape = tuple(self.shape)
        if len(shape) > MAX_DIMENSIONS:
            raise DataError(
                f"{path_text(self.path)}: {len(shape)} dimensions are more than the limit of {MAX_DIMENSIONS}"
            )
        if not all(type(dimension) is int and dimension >= 0 for dimension in shape):
            raise DataError(f"{path_text(self.path)}: {shape} is not a shape")
        if extent_bytes(dtype, shape) > MAX_ROW_BYTES:
            raise DataError(f"{path_text(self.path)}: a step of shape {shape} is larger than {MAX_ROW_BYTES} bytes")
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "row_bytes", dtype.itemsize * math.prod(shape))

    def __str__(self) -> str:
        return f"{path_text(self.path)}: {_array_text(self.dtype, self.shape)}"


@dataclass(frozen=True, slots=True)
class Schema:
    """The ordered columns of a chunk: 1 to MAX_COLUMNS, with the paths of one nest. Raises DataError otherwise."""

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        if not self.columns:
            raise DataError("a schema needs at least one column")
        check_paths([column.path for column in self.columns])

    @classmethod
    def infer(cls, paths: Iterable[Path], leaves: Iterable[Any]) -> Schema:
        """The schema of a step: arrays and numpy scalars as they are, Python's bool, int, float and complex as bool,
        int64, float64 and complex128. Raises DataError that names the path of what cannot be stored, None included."""
        arrays = ((path, leaf_array(leaf, path)) for path, leaf in zip(paths, leaves, strict=True))
        return cls(tuple(Column(path, array.dtype, array.shape) for path, array in arrays))

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(column.path for column in self.columns)

    def extends(self, earlier: Schema) -> bool:
        """True when this schema begins with all columns of the earlier one, unchanged."""
        return self.columns[: len(earlier.columns)] == earlier.columns

    def encode(self) -> bytes:
        """The schema blob (§4.1). Equal schemas give equal bytes."""
        return _pack([[column.path, column.dtype.name, column.shape] for column in self.columns], "schema")

    @staticmethod
    def decode(blob: bytes) -> Schema:
        """The schema in a blob. Raises DataError for any bytes that are not one. Equal blobs give the same object."""
        return _decode_schema(blob)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a signature asks of one leaf: a shape (None for any size), a dtype, and a name for people."""

    shape: tuple[int | None, ...]
    dtype: Any
    name: str | None = None


def signature_of(nest: Any) -> list[tuple[Path, str, tuple[int | None, ...]]]:
    """Path, dtype name and shape of each leaf of a nest of things that have `shape` and `dtype`.

    Such are TensorSpec, numpy arrays, Gymnasium spaces (Dict and Tuple spaces too) and TensorFlow's specs. None in a
    shape is any size. Raises DataError that names the path of a leaf which has none, or whose dtype cannot be stored.
    """
    return [(path, *_spec_of(leaf, path)) for path, leaf in flatten(_open_spaces(nest, 0))]


class RowBuffer:
    """Rows of a schema's columns in preallocated arrays: what a writer fills step by step until it cuts a chunk.

    `append` copies each leaf, so the caller may change its arrays afterwards. Dtypes and shapes are strict; a Python
    number goes into a column of its kind or a wider one if its value fits. A refused step changes nothing.
    """

    __slots__ = ("_arrays", "_checks", "_is_sparse", "_present", "capacity", "length", "schema")

    def __init__(self, schema: Schema, capacity: int) -> None:
        if not 1 <= capacity <= MAX_CHUNK_ROWS:
            raise DataError(f"a chunk has 1 to {MAX_CHUNK_ROWS} rows, not {capacity}")
        self.schema = schema
        self.capacity = capacity
        self.length = 0
        self._arrays = [np.empty((capacity, *column.shape), column.dtype) for column in schema.columns]
        self._checks = [_leaf_check(column) for column in schema.columns]
        self._present = np.ones((len(schema.columns), capacity), np.bool_)
        self._is_sparse = False

    @property
    def is_full(self) -> bool:
        return self.length == self.capacity

    def append(self, leaves: Sequence[Any], *, partial: bool = False) -> None:
        """Adds a row: one leaf for each column, in schema order.

        With `partial` a leaf may be None: the column is then missing from this row. Raises DataError that names the
        path, what was expected and what came.
        """
        assert self.length < self.capacity, "a writer must cut its chunk when the buffer is full"
        values = self._checked(leaves, partial)
        row = self.length
        if partial:
            self._present[:, row] = False
            self._fill(row, values)
            self._is_sparse = self._is_sparse or not self._present[:, row].all()
        else:
            for array, value in zip(self._arrays, values):  # noqa: B905 - the lengths were compared, and this is hot
                array[row] = value
        self.length = row + 1

    def amend(self, leaves: Sequence[Any]) -> None:
        """Fills in columns that are missing from the last row; None leaves a column as it is.

        Raises DataError for a column that the row already has, and as `append` does.
        """
        assert self.length > 0, "there is no row to amend"
        values = self._checked(leaves, True)
        row = self.length - 1
        for column, value, present in zip(self.schema.columns, values, self._present[:, row], strict=True):
            if value is not None and present:
                raise DataError(f"{path_text(column.path)}: the step already has a value")
        self._fill(row, values)

    def grow(self, schema: Schema) -> None:
        """Goes over to a schema that extends this one. The new columns are missing from the rows that are here."""
        assert schema.extends(self.schema), "a later schema begins with the columns of the earlier one"
        added = schema.columns[len(self.schema.columns) :]
        self._arrays += [np.empty((self.capacity, *column.shape), column.dtype) for column in added]
        self._checks += [_leaf_check(column) for column in added]
        present = np.ones((len(added), self.capacity), np.bool_)
        present[:, : self.length] = False
        self._present = np.concatenate([self._present, present])
        self._is_sparse = self._is_sparse or (bool(added) and self.length > 0)
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

    def clear(self) -> None:
        """Takes all rows out; the memory is used again."""
        self.length = 0
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
        return values

    def _fill(self, row: int, values: Sequence[Any]) -> None:
        for number, value in enumerate(values):
            if value is not None:
                self._arrays[number][row] = value
                self._present[number, row] = True


Run = tuple[int, int, int]
"""start, length ≥ 1, stride: the rows start, start + stride, …, `length` of them."""


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """One column of a trajectory: the rows of `runs` of schema column `column`, shown as `path`.

    No runs are the whole window. With `squeeze` the single row is shown without the leading axis. Raises DataError if
    this can be no column of any window.
    """

    path: Path
    column: int
    squeeze: bool
    runs: tuple[Run, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.column < MAX_COLUMNS:
            raise DataError(f"{path_text(self.path)}: there is no column {self.column}")
        if len(self.runs) > MAX_RUNS:
            raise DataError(f"{path_text(self.path)}: {len(self.runs)} runs are more than the limit of {MAX_RUNS}")
        shown = 0
        for start, length, stride in self.runs:
            last = start + (length - 1) * stride
            if not (1 <= length <= MAX_CHUNK_ROWS and 0 <= start < MAX_CHUNK_ROWS and 0 <= last < MAX_CHUNK_ROWS):
                raise DataError(f"{path_text(self.path)}: ({start}, {length}, {stride}) is not a run of rows")
            if abs(stride) >= MAX_CHUNK_ROWS:
                raise DataError(f"{path_text(self.path)}: stride {stride} leaves every window")
            shown += length
        if shown > MAX_CHUNK_ROWS:
            raise DataError(f"{path_text(self.path)}: {shown} rows are more than the limit of {MAX_CHUNK_ROWS}")
        if self.squeeze and self.runs and shown != 1:
            raise DataError(f"{path_text(self.path)}: {shown} rows cannot be squeezed, only one")


@dataclass(frozen=True, slots=True)
class Template:
    """Which rows of which columns an item shows. `Template.identity`, without outputs, shows every column of the item's
    chunks over its whole window. Raises DataError if the outputs' paths are not those of one nest."""

    outputs: tuple[OutputColumn, ...]
    identity: ClassVar[Template]

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", tuple(self.outputs))
        check_paths([output.path for output in self.outputs])

    @property
    def is_identity(self) -> bool:
        return not self.outputs

    def encode(self) -> bytes:
        """The template blob (§4.4). Equal templates give equal bytes."""
        if self.is_identity:
            return b""
        flat = [[o.path, o.column, o.squeeze, [n for run in o.runs for n in run]] for o in self.outputs]
        return _pack(flat, "template")

    @staticmethod
    def decode(blob: bytes) -> Template:
        """The template in a blob. Raises DataError for any bytes that are not one. Equal blobs give the same object."""
        return _decode_template(blob)


Template.identity = Template(())


def runs_of(rows: NDArray[np.int64]) -> list[Run]:
    """The fewest runs that are exactly these rows in this order; gaps, repeats and reversals are kept.

    A run is as long as it can be, which is the fewest since every part of a run is a run. The whole window of n rows is
    `[(0, n, 1)]`; an OutputColumn says the same for windows of any length with no runs at all.
    """
    rows = np.asarray(rows, np.int64)
    count = len(rows)
    if count == 0:
        raise DataError("an output column shows at least one row")
    if count == 1:
        return [(int(rows[0]), 1, 1)]
    steps = np.diff(rows)
    changes = np.flatnonzero(steps[1:] != steps[:-1]) + 1
    # Rows from the start of a group of equal steps to its end form a run; the step that leads out of it is used up.
    ends = np.append(changes, count - 1)
    runs: list[Run] = []
    row = group = 0
    while row < count - 1:
        while ends[group] <= row:
            group += 1
        last = int(ends[group])
        runs.append((int(rows[row]), last - row + 1, int(steps[row])))
        row = last + 1
    if row == count - 1:
        runs.append((int(rows[row]), 1, 1))
    return runs


def rows_of(runs: Sequence[Run], length: int) -> NDArray[np.int64]:
    """The window rows of these runs, in order; without runs, all rows of a window of `length`.

    Raises DataError for a row outside the window.
    """
    if not runs:
        return np.arange(length, dtype=np.int64)
    starts, lengths, strides = np.array(runs, np.int64).T
    before = np.cumsum(lengths) - lengths
    within = np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(before, lengths)
    rows: NDArray[np.int64] = np.repeat(starts, lengths) + within * np.repeat(strides, lengths)
    if int(rows.min()) < 0 or int(rows.max()) >= length:
        raise DataError(f"rows {int(rows.min())} to {int(rows.max())} are not all in a window of {length}")
    return rows


def storable_dtype(dtype: Any, path: Path) -> np.dtype[Any]:
    """The little-endian dtype of DTYPES that holds the same values. Raises DataError that names path and dtype."""
    try:
        found = None if dtype is None else np.dtype(dtype)
    except (TypeError, ValueError):
        found = None
    if found is None or found.name not in DTYPES or found.subdtype is not None:
        raise DataError(f"{path_text(path)}: dtype {dtype} cannot be stored; possible are {', '.join(DTYPE_NAMES)}")
    return DTYPES[found.name]


def extent_bytes(dtype: np.dtype[Any], shape: Iterable[int]) -> int:
    """Bytes of an array, a dimension of 0 counted as 1: numpy's own bound for what it can describe."""
    return dtype.itemsize * math.prod(dimension or 1 for dimension in shape)


def leaf_array(leaf: Any, path: Path) -> NDArray[Any]:
    """A leaf as an array, Python's numbers as bool, int64, float64 or complex128. Raises DataError that names the path.

    The dtype is not checked.
    """
    if isinstance(leaf, (np.ndarray, np.generic)) and not hasattr(leaf, "mask"):  # A mask would be lost.
        return np.asarray(leaf)
    if isinstance(leaf, (bool, int, float, complex)):
        kind = next(kind for kind in (bool, int, float, complex) if isinstance(leaf, kind))
        try:
            return np.array(leaf, {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}[kind])
        except OverflowError:
            raise DataError(f"{path_text(path)}: {leaf} does not fit int64") from None
    if leaf is None or isinstance(leaf, (np.ndarray, dict, list, tuple, set, str, bytes)):
        raise DataError(f"{path_text(path)}: {_leaf_text(leaf)} cannot be stored")
    try:
        return np.asarray(leaf)
    except Exception as error:  # Whatever a foreign array's conversion raises, the leaf cannot be stored.
        raise DataError(f"{path_text(path)}: a {type(leaf).__name__} cannot be made an array: {error}") from error


_LeafCheck = tuple[np.dtype[Any], tuple[int, ...], frozenset[type], int, int]


def _leaf_check(column: Column) -> _LeafCheck:
    """What tells at once that a leaf fits: dtype, shape, types of scalars that always fit, and the range of an int."""
    dtype = column.dtype
    if column.shape:
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
    if isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic) and not column.shape:
        if not _number_fits(leaf, column.dtype):
            raise DataError(f"{_wanted(column)}, got the {type(leaf).__name__} {leaf}")
        return leaf
    if leaf is None or isinstance(leaf, (dict, list, tuple, set, str, bytes)):
        raise DataError(f"{_wanted(column)}, got {_leaf_text(leaf)}")
    array = leaf_array(leaf, column.path)
    if array.shape != column.shape or array.dtype.name != column.dtype.name:
        raise DataError(f"{_wanted(column)}, got {_array_text(array.dtype, array.shape)}")
    return array  # At most byte-swapped, which the assignment undoes.


def _number_fits(number: complex, dtype: np.dtype[Any]) -> bool:
    """Whether a Python number goes into the dtype: its kind or a wider one, and in range (the rule of NEP 50)."""
    if isinstance(number, bool):
        return True
    if isinstance(number, int):
        if dtype.kind in "iu":
            return bool(np.iinfo(dtype).min <= number <= np.iinfo(dtype).max)
        return dtype.kind in "fc" and abs(number) <= int(np.finfo(dtype).max)
    if isinstance(number, float):
        return dtype.kind in "fc" and (not math.isfinite(number) or abs(number) <= float(np.finfo(dtype).max))
    return dtype.kind == "c" and all(_number_fits(part, dtype) for part in (number.real, number.imag))


def _wanted(column: Column) -> str:
    return f"{path_text(column.path)}: expected {_array_text(column.dtype, column.shape)}"


def _array_text(dtype: np.dtype[Any], shape: Sequence[int]) -> str:
    return f"{dtype.name}[{', '.join(map(str, shape))}]"


def _leaf_text(leaf: Any) -> str:
    return "None" if leaf is None else f"a {type(leaf).__name__}"


def _open_spaces(nest: Any, depth: int) -> Any:
    """The nest with Gymnasium's composite spaces replaced by the dicts and tuples they hold."""
    if depth <= MAX_DEPTH:
        nest = getattr(nest, "spaces", nest)
        if isinstance(nest, dict):
            return {key: _open_spaces(child, depth + 1) for key, child in nest.items()}
        if isinstance(nest, (list, tuple)):
            return [_open_spaces(child, depth + 1) for child in nest]
    return nest


def _spec_of(leaf: Any, path: Path) -> tuple[str, tuple[int | None, ...]]:
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None:
        raise DataError(f"{path_text(path)}: a signature needs a shape and a dtype, which {_leaf_text(leaf)} has not")
    dtype = storable_dtype(getattr(dtype, "as_numpy_dtype", dtype), path)
    try:
        dims = tuple(None if dimension is None else int(dimension) for dimension in shape)
    except (TypeError, ValueError):
        raise DataError(f"{path_text(path)}: {shape} is not a shape") from None
    if len(dims) > MAX_DIMENSIONS or any(dimension is not None and dimension < 0 for dimension in dims):
        raise DataError(f"{path_text(path)}: {shape} is not a shape")
    return dtype.name, dims


# Blobs.


@lru_cache(maxsize=256)
def _decode_schema(blob: bytes) -> Schema:
    columns = []
    for entry in _unpack(blob, "schema"):
        match entry:
            case [list(path), str(dtype), list(shape)] if dtype in DTYPES:
                columns.append(Column(_path(path), DTYPES[dtype], tuple(shape)))
            case _:
                raise DataError(f"{entry!r:.200} is not a column of a schema")
    return Schema(tuple(columns))


@lru_cache(maxsize=256)
def _decode_template(blob: bytes) -> Template:
    if not blob:
        return Template.identity
    outputs = []
    for entry in _unpack(blob, "template"):
        match entry:
            case [list(path), int(column), bool(squeeze), list(flat)] if not isinstance(column, bool):
                if len(flat) % 3 or not all(type(number) is int for number in flat):
                    raise DataError(f"{path_text(_path(path))}: the runs are not triples of integers")
                runs = tuple(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
                outputs.append(OutputColumn(_path(path), column, squeeze, runs))
            case _:
                raise DataError(f"{entry!r:.200} is not an output column of a template")
    return Template(tuple(outputs))


def _path(components: list[Any]) -> Path:
    if not all(isinstance(component, str) or type(component) is int for component in components):
        raise DataError(f"{components!r:.200} is not a path")
    return tuple(components)


def _pack(value: list[Any], what: Literal["schema", "template"]) -> bytes:
    blob: bytes = msgpack.packb(value)
    if len(blob) > MAX_DESCRIPTION_BYTES:
        raise DataError(f"a {what} of {len(blob)} bytes is larger than the limit of {MAX_DESCRIPTION_BYTES}")
    return blob


def _unpack(blob: bytes, what: Literal["schema", "template"]) -> list[Any]:
    if len(blob) > MAX_DESCRIPTION_BYTES:
        raise DataError(f"a {what} of {len(blob)} bytes is larger than the limit of {MAX_DESCRIPTION_BYTES}")
    try:
        value = msgpack.unpackb(blob, max_array_len=3 * MAX_RUNS, max_map_len=0, max_bin_len=0, max_ext_len=0)
    except (ValueError, msgpack.UnpackException) as error:
        raise DataError(f"a {what} that is not msgpack of arrays, strings and numbers: {error}") from None
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_COLUMNS:
        raise DataError(f"a {what} is an array of 1 to {MAX_COLUMNS} columns")
    return value
