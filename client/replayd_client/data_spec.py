"""What a reader expects of data: the dtype and shape of each leaf of a nest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.columns import array_text
from replayd_client.errors import DataError
from replayd_client.specs import TensorSpec, signature_of, spec_dtype
from replayd_client.structure import Path, Structure, path_text

Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class DataSpec:
    """A structure, and dtype and shape of its leaves in the order of its paths; None in a shape is any size."""

    structure: Structure
    leaves: tuple[tuple[np.dtype[Any], Shape], ...]

    @classmethod
    def of(cls, dtypes: Any, shapes: Any) -> DataSpec:
        """Of two nests: what `numpy.dtype` takes, and tuples or lists (or TensorFlow's shapes) where those stand.

        Raises DataError that names the place if they differ in structure.
        """
        structure = Structure(dtypes)
        found = _shapes(dtypes, shapes, ())
        names = structure.leaves(dtypes)
        specs = [
            (spec_dtype(dtype, path), shape) for path, dtype, shape in zip(structure.paths, names, found, strict=True)
        ]
        return cls(structure, tuple(specs))

    @classmethod
    def of_signature(cls, signature: Any) -> DataSpec:
        """Of a nest of TensorSpec."""
        leaves = [(np.dtype(dtype), shape) for _, dtype, shape in signature_of(signature)]
        return cls(Structure(signature), tuple(leaves))

    @property
    def dtypes(self) -> Any:
        return self.structure.rebuild([dtype for dtype, _ in self.leaves])

    @property
    def shapes(self) -> Any:
        return self.structure.rebuild([shape for _, shape in self.leaves])

    def nest(self) -> Any:
        """A nest of TensorSpec."""
        names = map(path_text, self.structure.paths)
        return self.structure.rebuild(
            [TensorSpec(shape, dtype, name) for (dtype, shape), name in zip(self.leaves, names, strict=True)]
        )

    def of_a_step(self) -> DataSpec:
        """The same without the axis of time. Raises DataError for a leaf that has none."""
        for path, (_, shape) in zip(self.structure.paths, self.leaves, strict=True):
            if not shape:
                raise DataError(
                    f"column {path_text(path)!r} has no axis of time in the signature, so items have no steps"
                )
        return DataSpec(self.structure, tuple((dtype, shape[1:]) for dtype, shape in self.leaves))

    def check(self, paths: Sequence[Path], arrays: Sequence[NDArray[Any]]) -> None:
        """Raises DataError that says what differs unless these arrays, in order, fit."""
        found = [(_dtype_of(array), np.shape(array)) for array in arrays]
        self._check(paths, found, "the item has")

    def check_signature(self, signature: DataSpec, table: str) -> None:
        """Raises DataError unless data of this signature can fit."""
        self._check(signature.structure.paths, signature.leaves, f"the signature of table {table!r} has")

    def _check(self, paths: Sequence[Path], found: Sequence[tuple[np.dtype[Any] | None, Shape]], who: str) -> None:
        if len(found) != len(self.leaves):
            names = ", ".join(map(path_text, paths))
            raise DataError(f"dtypes and shapes are of {len(self.leaves)} columns, and {who} {len(found)}: {names}")
        for path, (dtype, shape), (found_dtype, found_shape) in zip(paths, self.leaves, found, strict=True):
            if found_dtype is None:
                found_dtype = dtype
            if dtype != found_dtype or not _can_fit(shape, found_shape):
                expected, got = _text(dtype, shape), _text(found_dtype, found_shape)
                raise DataError(
                    f"column {path_text(path)!r}: expected {expected}, and {who} {got}",
                    detail={"path": path_text(path), "expected": expected, "got": got},
                )


def _dtype_of(value: Any) -> np.dtype[Any] | None:
    """The dtype that a spec has for such values: bytes and str come as objects. None for an empty array of objects."""
    if isinstance(value, (bytes, str)):
        return np.dtype(type(value))
    dtype: np.dtype[Any] = value.dtype
    if dtype.kind != "O":
        return dtype
    return np.dtype(type(value.flat[0])) if value.size else None


def _can_fit(shape: Shape, other: Shape) -> bool:
    return len(shape) == len(other) and all(
        size is None or size == found or found is None for size, found in zip(shape, other, strict=True)
    )


def _text(dtype: np.dtype[Any], shape: Shape) -> str:
    return array_text(dtype, ["?" if size is None else size for size in shape])  # type: ignore[misc]


def _shapes(dtypes: Any, shapes: Any, path: Path) -> list[Shape]:
    """The shapes at the leaves of `dtypes`, in the order of its paths."""
    if isinstance(dtypes, dict):
        if not isinstance(shapes, dict) or shapes.keys() != dtypes.keys():
            raise _different(path)
        return [shape for key in sorted(dtypes) for shape in _shapes(dtypes[key], shapes[key], (*path, key))]
    if isinstance(dtypes, (list, tuple)):
        if not isinstance(shapes, (list, tuple)) or len(shapes) != len(dtypes):
            raise _different(path)
        pairs = enumerate(zip(dtypes, shapes, strict=True))
        return [shape for place, (dtype, some) in pairs for shape in _shapes(dtype, some, (*path, place))]
    sizes = shapes.as_list() if hasattr(shapes, "as_list") else shapes
    if not isinstance(sizes, (list, tuple)) or not all(size is None or _is_size(size) for size in sizes):
        raise _different(path)
    return [tuple(None if size is None else int(size) for size in sizes)]


def _is_size(size: Any) -> bool:
    return isinstance(size, (int, np.integer)) and not isinstance(size, bool) and int(size) >= 0


def _different(path: Path) -> DataError:
    return DataError(f"dtypes and shapes must have the same structure, and differ at {path_text(path)}")
