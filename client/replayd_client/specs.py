"""Specs: what a table's signature asks of each leaf, taken from whatever libraries call a spec or a space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from replayd_client.columns import MAX_DIMENSIONS, leaf_array, leaf_dtype, leaf_text, storable_dtype
from replayd_client.errors import DataError
from replayd_client.structure import MAX_DEPTH, Path, flatten, path_text


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


def spec_dtype(dtype: Any, path: Path) -> np.dtype[Any]:
    """What numpy or TensorFlow calls a dtype, as the one that is stored. Raises DataError that names the path."""
    found = getattr(dtype, "as_numpy_dtype", dtype)
    # TensorFlow's strings are bytes, and it gives numpy's objects for them.
    return storable_dtype(bytes if found is np.object_ and found is not dtype else found, path)


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
    if shape is None and isinstance(dtype, np.dtype) and dtype.kind == "U":
        shape = ()  # Gymnasium's Text.
    if shape is None or dtype is None:
        raise DataError(f"{path_text(path)}: a signature needs a shape and a dtype, which {leaf_text(leaf)} has not")
    if isinstance(leaf, np.ndarray) and dtype.kind == "O":
        dtype = leaf_dtype(leaf_array(leaf, path))
    dtype = spec_dtype(dtype, path)
    try:
        dims = tuple(None if dimension is None else int(dimension) for dimension in shape)
    except (TypeError, ValueError):
        raise DataError(f"{path_text(path)}: {shape} is not a shape") from None
    if len(dims) > MAX_DIMENSIONS or any(dimension is not None and dimension < 0 for dimension in dims):
        raise DataError(f"{path_text(path)}: {shape} is not a shape")
    return dtype.name, dims
