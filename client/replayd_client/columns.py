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

    def is_like(self, other: Column) -> bool:
        """Whether cells of both may stand in one array: equal dtype and shape, whatever the paths."""
        return self.dtype == other.dtype and self.shape == other.shape

    def __str__(self) -> str:
        return f"{path_text(self.path)}: {array_text(self.dtype, self.shape)}"


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
        return pack_description([[column.path, column.dtype.name, column.shape] for column in self.columns], "schema")

    @staticmethod
    def decode(blob: bytes) -> Schema:
        """The schema in a blob. Raises DataError for any bytes that are not one. Equal blobs give the same object."""
        return _decode_schema(blob)


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
        raise DataError(f"{path_text(path)}: {leaf_text(leaf)} cannot be stored")
    try:
        return np.asarray(leaf)
    except Exception as error:  # Whatever a foreign array's conversion raises, the leaf cannot be stored.
        raise DataError(f"{path_text(path)}: a {type(leaf).__name__} cannot be made an array: {error}") from error


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
