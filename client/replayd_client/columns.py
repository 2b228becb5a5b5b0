"""The shape of stored data: columns and schemas.

Owns the schema blob of the protocol (its §4.1): whatever bytes come in, they decode or raise DataError. Knows nothing
of codecs, chunks on the wire or sockets.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from replayd_client.cells import LENGTH_BYTES, cell_dtype, cell_sizes, cells_of
from replayd_client.descriptions import pack_description, read_path, unpack_description
from replayd_client.errors import DataError
from replayd_client.structure import Path, check_paths, path_text

MAX_DIMENSIONS = 16
"""Most dimensions of one step: numpy's arrays have 64, and a batch adds two."""

MAX_ROW_BYTES = (1 << 31) - 1 - 32
"""Largest step of a column, a dimension of 0 counted as 1: the largest buffer a blosc2 chunk can describe."""

MAX_CHUNK_ROWS = 1 << 20
"""Most rows of a chunk and of a window: positions then stay far below 2^63 whatever a peer says."""

DTYPE_NAMES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bytes", "str"),
)
"""Every dtype that can be stored. Stored bytes are little-endian."""

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(name) if sys.byteorder == "little" else np.dtype(name).newbyteorder("<") for name in DTYPE_NAMES
}
"""By name. `bytes` and `str` stand for values of any length, in numpy's spelling "S" and "U" without one."""

BLANKS: Final[dict[str, Any]] = {"bytes": b"", "str": ""}
"""What stands where there is no value, by dtype; 0 for all others."""


@dataclass(frozen=True, slots=True)
class Column:
    """One named array of each step: its path, its dtype and the shape of one step's value.

    `dtype` may be given as anything `numpy.dtype` takes and becomes little-endian. Raises DataError if the dtype is not
    one of DTYPE_NAMES or the shape has more than MAX_DIMENSIONS or is larger than MAX_ROW_BYTES.
    """

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_variable: bool = field(init=False, compare=False, repr=False)
    """Whether the values are bytes or str, of any length."""
    array_dtype: np.dtype[Any] = field(init=False, compare=False, repr=False)
    """Of arrays of its rows: that of objects if it is variable."""
    row_bytes: int = field(init=False, compare=False, repr=False)
    """Bytes of a decoded step, or those that one takes at least."""
    blank: Any = field(init=False, compare=False, repr=False)
    """What stands in the place of a value that is not there: 0, b"" or ""."""

    def __post_init__(self) -> None:
        dtype = storable_dtype(self.dtype, self.path)
        shape = tuple(self.shape)
        if len(shape) > MAX_DIMENSIONS:
            raise DataError(
                f"{path_text(self.path)}: {len(shape)} dimensions are more than the limit of {MAX_DIMENSIONS}"
            )
        if not all(type(dimension) is int and dimension >= 0 for dimension in shape):
            raise DataError(f"{path_text(self.path)}: {shape} is not a shape")
        is_variable = dtype.kind in "SU"
        value_bytes = LENGTH_BYTES if is_variable else dtype.itemsize
        # A dimension of 0 counts as 1: numpy's own bound for what it can describe.
        if value_bytes * math.prod(dimension or 1 for dimension in shape) > MAX_ROW_BYTES:
            raise DataError(f"{path_text(self.path)}: a step of shape {shape} is larger than {MAX_ROW_BYTES} bytes")
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "is_variable", is_variable)
        object.__setattr__(self, "array_dtype", np.dtype(object) if is_variable else dtype)
        object.__setattr__(self, "row_bytes", value_bytes * math.prod(shape))
        object.__setattr__(self, "blank", BLANKS.get(dtype.name, 0))

    def array_bytes(self, rows: int) -> int:
        """Bytes of an array of so many rows, a dimension of 0 counted as 1; of objects only the references."""
        return self.array_dtype.itemsize * rows * math.prod(dimension or 1 for dimension in self.shape)

    def bytes_in(self, rows: NDArray[Any], present: NDArray[np.bool_] | None) -> int:
        """Bytes of the values of these rows, or of those of them that are present, as they were appended."""
        if self.is_variable:
            return int(cell_sizes(rows if present is None else rows[present], self.path).sum())
        return self.row_bytes * (len(rows) if present is None else int(np.count_nonzero(present)))

    def is_like(self, other: Column) -> bool:
        """Whether cells of both may stand in one array: equal dtype and shape, whatever the paths."""
        return self.dtype == other.dtype and self.shape == other.shape

    def __str__(self) -> str:
        return f"{path_text(self.path)}: {array_text(self.dtype, self.shape)}"


@dataclass(frozen=True, slots=True)
class Schema:
    """The ordered columns of a chunk: 1 to MAX_COLUMNS, with the paths of one nest. Raises DataError otherwise."""

    columns: tuple[Column, ...]
    is_variable: bool = field(init=False, compare=False, repr=False)
    """Whether it has columns of bytes or str."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        if not self.columns:
            raise DataError("a schema needs at least one column")
        check_paths([column.path for column in self.columns])
        object.__setattr__(self, "is_variable", any(column.is_variable for column in self.columns))

    @classmethod
    def infer(cls, paths: Iterable[Path], leaves: Iterable[Any]) -> Schema:
        """The schema of a step: arrays and numpy scalars as they are, Python's bool, int, float and complex as bool,
        int64, float64 and complex128. Raises DataError that names the path of what cannot be stored, None included."""
        arrays = ((path, leaf_array(leaf, path)) for path, leaf in zip(paths, leaves, strict=True))
        return cls(tuple(Column(path, leaf_dtype(array), array.shape) for path, array in arrays))

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(column.path for column in self.columns)

    def extends(self, earlier: Schema) -> bool:
        """True when this schema begins with all columns of the earlier one, unchanged."""
        return self.columns[: len(earlier.columns)] == earlier.columns

    def encode(self) -> bytes:
        """The schema blob (§4.1). Equal schemas give equal bytes."""
        return pack_description([[column.path, column.dtype.name, column.shape] for column in self.columns], "schema")

    @staticmethod
    def decode(blob: bytes) -> Schema:
        """The schema in a blob. Raises DataError for any bytes that are not one. Equal blobs give the same object."""
        return _decode_schema(blob)


def variable_bytes(columns: Sequence[Column], arrays: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """What the bytes and str among arrays [n, …] of these columns take in chunks, for each of the n, lengths included.

    Raises DataError for a value that is too long.
    """
    total = np.zeros(len(arrays[0]), np.int64)
    for column, array in zip(columns, arrays, strict=True):
        if column.is_variable:
            sizes = cell_sizes(array, column.path).reshape(len(array), -1)
            total += sizes.sum(axis=1) + LENGTH_BYTES * sizes.shape[1]
    return total


def storable_dtype(dtype: Any, path: Path) -> np.dtype[Any]:
    """The little-endian dtype of DTYPES that holds the same values; strings of whatever length are `bytes` or `str`.

    Raises DataError that names path and dtype.
    """
    try:
        found = None if dtype is None else np.dtype(dtype)
    except (TypeError, ValueError):
        found = None
    name = "" if found is None or found.subdtype is not None else _STRING_KINDS.get(found.kind, found.name)
    if name not in DTYPES:
        raise DataError(f"{path_text(path)}: dtype {dtype} cannot be stored; possible are {', '.join(DTYPE_NAMES)}")
    return DTYPES[name]


_STRING_KINDS = {"S": "bytes", "U": "str", "T": "str"}


def leaf_array(leaf: Any, path: Path) -> NDArray[Any]:
    """A leaf as an array: Python's numbers as bool, int64, float64 or complex128, and bytes, str and arrays of them as
    arrays of cells. Raises DataError that names the path.

    The dtype of numbers is not checked.
    """
    if type(leaf) is np.ndarray and leaf.dtype.kind not in _CELL_KINDS:
        return leaf
    if isinstance(leaf, (np.ndarray, np.generic)) and not hasattr(leaf, "mask"):  # A mask would be lost.
        array = np.asarray(leaf)
    elif isinstance(leaf, (bool, int, float, complex)):
        kind = next(kind for kind in (bool, int, float, complex) if isinstance(leaf, kind))
        try:
            return np.array(leaf, {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}[kind])
        except OverflowError:
            raise DataError(f"{path_text(path)}: {leaf} does not fit int64") from None
    elif isinstance(leaf, (bytes, str)):
        array = np.empty((), object)
        array[()] = leaf
    elif leaf is None or isinstance(leaf, (np.ndarray, dict, list, tuple, set)):
        raise DataError(f"{path_text(path)}: {leaf_text(leaf)} cannot be stored")
    else:
        try:
            array = np.asarray(leaf)
        except Exception as error:  # Whatever a foreign array's conversion raises, the leaf cannot be stored.
            raise DataError(f"{path_text(path)}: a {type(leaf).__name__} cannot be made an array: {error}") from error
    # What is empty keeps the one thing that it tells, its dtype.
    is_cells = array.dtype.kind in _CELL_KINDS and (array.size > 0 or array.dtype.kind == "O")
    return cells_of(array, path) if is_cells else array


_CELL_KINDS = frozenset("SUTO")
"""Of numpy's dtypes those of bytes, of str in two ways, and of objects."""


def leaf_dtype(array: NDArray[Any]) -> np.dtype[Any]:
    """The dtype of a column for what `leaf_array` gave."""
    return cell_dtype(array) if array.dtype.kind == "O" else array.dtype


def array_text(dtype: np.dtype[Any], shape: Sequence[int]) -> str:
    return f"{dtype.name}[{', '.join(map(str, shape))}]"


def leaf_text(leaf: Any) -> str:
    return "None" if leaf is None else f"a {type(leaf).__name__}"


@lru_cache(maxsize=256)
def _decode_schema(blob: bytes) -> Schema:
    columns = []
    for entry in unpack_description(blob, "schema"):
        match entry:
            case [list(path), str(dtype), list(shape)] if dtype in DTYPES:
                columns.append(Column(read_path(path), DTYPES[dtype], tuple(shape)))
            case _:
                raise DataError(f"{entry!r:.200} is not a column of a schema")
    return Schema(tuple(columns))
